"""SnapStart: functions that start from one snapshot share nothing that must be unique. A fork restores it here."""

import json
import subprocess
import sys
from pathlib import Path

from tests.servers import Redis

APP = """
seen = {}


def charge(event, ctx) -> None:
    seen["token"] = ctx.token
    seen["key"] = ctx.idempotency_key
"""
RESTORE = """
import json, os, random, sys, threading
from pathlib import Path
from eventonce import backoff
from eventonce.lambda_function import handler
import app


def sockets():
    files = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    links = [os.readlink(file) for file in files if os.path.islink(file)]
    return sorted(link for link in links if link.startswith("socket:"))


snapshot = {"sockets": sockets(), "threads": threading.active_count()}
state = random.getstate()
for name in ("first", "second"):
    if os.fork() == 0:
        random.setstate(state)  # Python seeds it anew after a fork, and not after a snapshot
        handler({"id": name, "source": "s", "detail-type": "t", "detail": {}}, None)
        jitter = [backoff.jitter(1_000_000) for _ in range(4)]
        Path(name).write_text(json.dumps({**app.seen, "jitter": jitter, "sockets": sockets()}))
        os._exit(0)
    os.wait()
print(json.dumps(snapshot))
"""


def test_two_functions_of_one_snapshot_share_nothing_that_must_be_unique(redis_server: Redis, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "restore.py").write_text(RESTORE)
    (tmp_path / "pipeline.toml").write_text(f'store = "{redis_server.url()}"\nsink = "python:app:charge"\n')
    done = subprocess.run(
        [sys.executable, "restore.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"sockets": [], "threads": 1}
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("first", "second"))
    assert first["token"] != second["token"]
    assert first["key"] != second["key"]
    assert first["jitter"] != second["jitter"]
    assert first["sockets"]
    assert not set(first["sockets"]) & set(second["sockets"])
