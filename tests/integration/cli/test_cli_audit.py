"""`eventonce audit`, as a real process."""

import gzip
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]
PIPELINE = """
window = "1h"
[[rule]]
name = "orders"
match = { source = ["shop"] }
key = ["detail.order"]
"""


@pytest.fixture
def audit(tmp_path: Path) -> Command:
    """Return a function that runs `eventonce audit` in its own folder."""

    def run(*args: str, stdin: bytes = b"") -> Finished:
        command = [sys.executable, "-m", "eventonce", "audit", *args]
        done = subprocess.run(command, check=False, cwd=tmp_path, input=stdin, capture_output=True, timeout=120)
        return Finished(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def event(number: int, minute: int = 0, **fields: Any) -> dict[str, Any]:
    time = f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"
    detail = {"order": number, "sum": 5}
    return {"id": f"{number}", "source": "shop", "detail-type": "Order", "time": time, "detail": detail, **fields}


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in events)


TRAFFIC = lines(
    event(1), event(1, 10), event(1, 90, id="new"), event(2), event(2, 20, detail={"order": 2, "sum": 6}), event(3)
)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    (tmp_path / "traffic.jsonl").write_bytes(TRAFFIC)
    return tmp_path


def test_the_table(audit: Command, recorded: Path) -> None:
    done = audit("pipeline.toml", "traffic.jsonl")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("6 events in 6 documents of 1 file: 4 run, 2 dropped, 0 rejected.\n")
    assert "detail.sum differs in 1 of 1 compared" in done.stdout
    assert "such as traffic.jsonl:5, taken for traffic.jsonl:4" in done.stdout
    assert "the configured 1h misses 1" in done.stdout
    assert not (recorded / "eventonce.db").exists()


def test_json_is_one_document(audit: Command, recorded: Path) -> None:
    done = audit("pipeline.toml", "--json", "traffic.jsonl")

    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 1)
    (group,) = report["groups"]
    assert (group["counts"]["duplicates"], group["counts"]["late"], group["counts"]["suspicious"]) == (2, 1, 1)
    assert [each["window"] for each in group["between"]["windows"]] == ["2h", "2h", "2h"]
    assert group["rules"] == [{"rule": "orders", "window": "1h", "events": 6}]


def test_without_a_pipeline_the_key_is_the_id_unless_key_is_given(audit: Command, recorded: Path) -> None:
    by_id, by_content = (
        json.loads(audit("--json", *options, "traffic.jsonl").stdout)["totals"]
        for options in ([], ["--key", "content"])
    )

    assert (by_id["duplicates"], by_id["only_content"], by_id["suspicious"]) == (2, 1, 1)
    assert (by_content["duplicates"], by_content["only_id"], by_content["suspicious"]) == (2, 1, 0)


def test_html_is_written_beside_the_table(audit: Command, recorded: Path) -> None:
    done = audit("pipeline.toml", "traffic.jsonl", "--html", "audit.html")

    page = (recorded / "audit.html").read_text()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("6 events")
    assert page.startswith("<!doctype html>")
    assert page.count("role=img") == 2
    assert "Rules: <code>pipeline.toml</code>. Made at 20" in page


@pytest.mark.parametrize("args", [[], ["-"]])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_stdin(audit: Command, args: list[str], pack: Callable[[bytes], bytes]) -> None:
    done = audit("--json", *args, stdin=pack(TRAFFIC))

    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert (report["totals"]["events"], report["totals"]["duplicates"]) == (6, 2)
    assert "a pipe cannot be read twice" in report["notes"][0]


def test_a_folder_and_a_file_and_stdin_together(audit: Command, tmp_path: Path) -> None:
    (tmp_path / "archive" / "01").mkdir(parents=True)
    (tmp_path / "archive" / "01" / "part-0").write_bytes(lines(event(1), event(2)).replace(b"\n", b""))
    (tmp_path / "archive" / "02.gz").write_bytes(gzip.compress(lines(event(1, 1))))
    (tmp_path / "more.jsonl").write_bytes(lines(event(2, 2)))

    report = json.loads(audit("--json", "archive", "more.jsonl", "-", stdin=lines(event(9))).stdout)

    assert report["inputs"] == {"files": 4, "documents": 5, "unreadable": []}
    assert (report["totals"]["events"], report["totals"]["duplicates"]) == (5, 2)


def test_empty_input(audit: Command) -> None:
    done = audit("-")

    assert (done.returncode, done.stdout, done.stderr) == (0, "No events in 1 file.\n", "")


def test_an_unreadable_file_is_named_and_exits_1(audit: Command, recorded: Path) -> None:
    done = audit("nowhere.jsonl", "traffic.jsonl")

    assert done.returncode == 1
    assert "not read: nowhere.jsonl: cannot be read: No such file or directory" in done.stdout
    assert done.stdout.startswith("6 events")


def test_rejected_lines_exit_1(audit: Command) -> None:
    done = audit("--json", stdin=TRAFFIC + b"{broken\n" + TRAFFIC)

    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["totals"]["events"], report["totals"]["rejected"]) == (13, 1)
    assert report["no_events"][0]["place"] == "stdin:7"


def test_hostile_words_do_not_reach_the_terminal(audit: Command) -> None:
    done = audit(stdin=lines(event(1, source="\x1b[31mred\x07")))

    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred\\x07" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["missing.toml", "traffic.jsonl"], "missing.toml: cannot be read"),
        (["--key", "size", "traffic.jsonl"], "'size' is not one of"),
        (["pipeline.toml", "--key", "id", "traffic.jsonl"], "leave --key out"),
        (["--html", "no/such/page.html", "traffic.jsonl"], "cannot write to no/such"),
        (["--html", "traffic.jsonl", "traffic.jsonl"], "is the traffic itself"),
        (["--html", ".", "traffic.jsonl"], "is a directory"),
        (["nowhere.jsonl", "nor/here"], "nowhere.jsonl, nor/here: no such file or folder"),
    ],
)
def test_wrong_options_exit_2(audit: Command, recorded: Path, args: list[str], message: str) -> None:
    done = audit(*args)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert (recorded / "traffic.jsonl").read_bytes() == TRAFFIC


def test_a_closed_stdin_is_an_error(tmp_path: Path) -> None:
    command = f'exec "{sys.executable}" -m eventonce audit - <&-'
    done = subprocess.run(["/bin/sh", "-c", command], check=False, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 2
    assert "pass events on stdin" in done.stderr


def test_help_has_an_example(audit: Command) -> None:
    done = audit("--help")

    assert done.returncode == 0
    assert "eventonce audit pipeline.toml traffic.jsonl" in done.stdout


def test_a_bar_on_a_terminal_and_none_elsewhere(audit: Command, recorded: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "eventonce", "audit", "traffic.jsonl"]
    done = subprocess.run(command, check=False, cwd=recorded, stdout=subprocess.PIPE, stderr=theirs, timeout=120)
    os.close(theirs)
    drawn = os.read(ours, 100_000).decode()
    os.close(ours)

    assert done.returncode == 0
    assert "100%" in drawn
    assert audit("traffic.jsonl").stderr == ""
