"""`eventonce explain`, as a real process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventonce.claims.protocol import ClaimRequest
from eventonce.engine import Once
from eventonce.event.keys import Key
from eventonce.stores import open_store

PIPELINE = """
store = "sqlite:///store.db"
consumer = "billing"
max_attempts = 2

[[rule]]
name = "orders"
match = { source = ["shop"] }
key = ["detail.order"]
remember = "note"

[[rule]]
name = "rides"
match = { source = ["rides"] }
key = ["detail.ride"]
version = "detail.n"

[[rule]]
name = "counts"
match = { source = ["counts"] }
key = ["detail.ride"]
version = "detail.n"
version_ahead = 10

[[rule]]
name = "fresh"
match = { source = ["fresh"] }
max_age = "1h"
"""
Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    open_store(f"sqlite:///{tmp_path / 'store.db'}").close()
    return tmp_path


@pytest.fixture
def explain(folder: Path) -> Callable[..., Finished]:
    def run(*args: str, stdin: object = None) -> Finished:
        return subprocess.run(
            [sys.executable, "-m", "eventonce", "explain", "pipeline.toml", *args],
            check=False,
            cwd=folder,
            input=json.dumps(stdin) if stdin is not None else "",
            capture_output=True,
            text=True,
            env=os.environ,
            timeout=120,
        )

    return run


def event(source: str, name: str = "a", **detail: Any) -> dict[str, Any]:
    return {"id": name, "source": source, "detail-type": "t", "time": "2026-01-01T00:00:00Z", "detail": detail}


def process(folder: Path, stdin: object, handler: Callable[..., Any] = lambda event: None) -> None:
    url = f"sqlite:///{folder / 'store.db'}"
    with Once(url, consumer="billing", rules=folder / "pipeline.toml", max_attempts=2) as once:
        once.run([stdin], handler)


def fail(event: object) -> None:
    raise ValueError("no money")


def printed(done: Finished) -> dict[str, Any]:
    assert done.stderr == ""
    explanation: dict[str, Any] = json.loads(done.stdout)
    return explanation


def test_why_it_was_dropped(folder: Path, explain: Callable[..., Finished]) -> None:
    process(folder, event("shop", order=7, n=1))

    done = explain(stdin=event("shop", "b", order=7, n=2))

    assert (done.returncode, done.stderr) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[1:-1])
    assert rows["rule"] == 'orders: the first that matches, number 1 of 4; its match is {"source": ["shop"]}'
    assert rows["part"] == "detail.order = 7"
    assert rows["remembered"].startswith("done, attempts 1, done at 20")
    assert rows["first"].startswith("copy  id a, time 2026-01-01T00:00:00+00:00, fingerprint ")
    assert rows["now"].startswith("duplicate: it was done at 20")
    assert rows["now"].endswith("the window has not expired, but the content of this copy differs")
    assert rows["forget"] == f"eventonce forget -p pipeline.toml {rows['key']}: the next copy runs again"
    assert rows["redrive"].startswith(
        f"eventonce redrive -p pipeline.toml --with-key {rows['key']}: a dead letter of it would be dropped"
    )


def test_json_has_the_same_fields(folder: Path, explain: Callable[..., Finished]) -> None:
    process(folder, event("shop", order=7))

    explanation = printed(explain("--json", stdin=event("shop", "b", order=7)))

    assert (explanation["rule"], explanation["parts"], explanation["now"], explanation["differs"]) == (
        "orders",
        {"detail.order": 7},
        "duplicate",
        False,
    )
    assert explanation["remembered"]["note"]["id"] == "a"


def test_what_is_new(explain: Callable[..., Finished]) -> None:
    explanation = printed(explain("--json", stdin=event("elsewhere")))

    assert (explanation["rule"], explanation["now"], explanation["because"]) == ("id", "processed", "it has no record")
    assert explanation["why"] == "no rule matches, so its own id is the key"
    assert explanation["forget"] == "it has no record, so there is nothing to forget"


def test_versions(folder: Path, explain: Callable[..., Finished]) -> None:
    process(folder, event("rides", ride=1, n=5))

    old = printed(explain("--json", stdin=event("rides", ride=1, n=4)))
    new = printed(explain("--json", stdin=event("rides", ride=1, n=6)))

    assert (old["now"], old["because"]) == ("stale", "version 5 was processed before version 4")
    assert (new["now"], new["because"]) == ("processed", "its version is higher than 5, which was done")


def test_a_version_that_is_too_far_ahead(folder: Path, explain: Callable[..., Finished]) -> None:
    process(folder, event("counts", ride=1, n=5))

    time = printed(explain("--json", stdin=event("rides", ride=1, n=2**63 - 1)))
    count = printed(explain("--json", stdin=event("counts", ride=1, n=16)))

    assert (time["now"], count["now"]) == ("rejected", "rejected")
    assert "detail.n is 9223372036854775807, which no clock gives before 2262-04-11" in time["because"]
    assert "detail.n is 16, and the last one done is 5" in count["because"]
    assert "would be rejected as well" in time["redrive"]
    assert printed(explain("--json", stdin=event("counts", ride=1, n=15)))["now"] == "processed"


def test_what_failed(folder: Path, explain: Callable[..., Finished]) -> None:
    process(folder, event("shop", order=7), fail)
    once_failed = printed(explain("--json", stdin=event("shop", order=7)))
    process(folder, event("shop", order=7), fail)
    given_up = printed(explain("--json", stdin=event("shop", order=7)))

    assert (once_failed["now"], once_failed["because"]) == (
        "processed",
        "it is not done yet, and this would be attempt 2",
    )
    assert (given_up["now"], given_up["because"]) == (
        "failed",
        "failed 2 times; the last one ended with ValueError: no money",
    )
    assert given_up["remembered"]["last_error"] == "ValueError: no money"
    assert "starts with attempt 1" in given_up["forget"]
    assert "gets one more attempt" in given_up["redrive"]


def test_what_runs_now(folder: Path, explain: Callable[..., Finished]) -> None:
    explanation = []

    process(
        folder,
        event("shop", order=7),
        lambda stdin: explanation.append(explain("--json", stdin=event("shop", order=7))),
    )

    busy = printed(explanation[0])
    assert (busy["now"], busy["remembered"]["state"]) == ("busy", "running")
    assert "takes the claim" in busy["forget"]


def test_what_is_too_old_and_what_has_no_key(explain: Callable[..., Finished]) -> None:
    old = explain("--json", stdin=event("fresh"))
    bad = explain("--json", stdin=event("shop"))
    unread = explain("--json", "--events", "-", stdin="text")

    assert (old.returncode, printed(old)["now"]) == (0, "expired")
    assert "over the max_age of rule 'fresh'" in printed(old)["because"]
    assert (bad.returncode, printed(bad)["now"]) == (1, "rejected")
    assert printed(bad)["because"] == "has no detail.order, which is in the key of rule 'orders'"
    assert (unread.returncode, printed(unread)["now"]) == (1, "rejected")


def test_a_key_alone(folder: Path, explain: Callable[..., Finished]) -> None:
    store = open_store(f"sqlite:///{folder / 'store.db'}")
    store.claim([ClaimRequest(Key(b"k" * 16), 1000)], b"t" * 8, 0)  # whose worker is gone
    store.close()

    gone = printed(explain((b"k" * 16).hex(), "--json"))
    new = printed(explain((b"n" * 16).hex(), "--json"))

    assert (gone["remembered"]["state"], gone["now"]) == ("abandoned", "processed")
    assert (new["remembered"]["state"], new["now"]) == ("unknown", "processed")


def test_its_advice_names_the_same_store_without_its_password(folder: Path, explain: Callable[..., Finished]) -> None:
    name = (b"k" * 16).hex()
    (folder / "my store.db").write_bytes((folder / "store.db").read_bytes())
    explanation = printed(explain(name, "--json", "--store", "sqlite:///my store.db"))
    assert (
        f"eventonce redrive -p pipeline.toml --store 'sqlite:///my store.db' --with-key {name}: "
        in explanation["redrive"]
    )
    (folder / "a@b.db").write_bytes((folder / "store.db").read_bytes())
    explanation = printed(explain(name, "--json", "--store", "sqlite:///a@b.db"))
    assert f"eventonce redrive -p pipeline.toml --with-key {name}: " in explanation["redrive"]


def test_what_an_event_says_does_not_reach_the_terminal_raw(explain: Callable[..., Finished]) -> None:
    done = explain(stdin={**event("shop", order="\x1b[2J"), "id": "\x1b]0;x\x07\n  now  processed: fine"})

    assert "\x1b" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line.strip().startswith("now")] == [
        "  now         processed: it has no record"
    ]


def test_a_rule_that_replaces_another_has_two_keys(folder: Path, explain: Callable[..., Finished]) -> None:
    process(folder, event("shop", order=7))
    old = 'key = ["detail.order"]'
    new = f'key = ["detail.order", "id"]\nreplaces = {{ name = "orders", {old} }}'
    (folder / "pipeline.toml").write_text(PIPELINE.replace(old, new))

    before = explain(stdin=event("shop", order=7)).stdout.splitlines()
    row = dict(line.split(maxsplit=1) for line in before[1:-1])
    fields = printed(explain("--json", stdin=event("shop", order=7)))
    assert row["key"] == fields["key"]
    assert row["old"] == f"key     {fields['old_key']} of the rule that this one replaces"
    assert row["remembered"].startswith("done, under the old key, attempts 1")
    assert row["forget"] == f"eventonce forget -c pipeline.toml {fields['old_key']}: the next copy runs again"

    # Another copy runs and is recorded under both, so both are to be forgotten.
    command = [sys.executable, "-m", "eventonce", "forget", "-c", "pipeline.toml", fields["old_key"]]
    subprocess.run(command, check=True, cwd=folder, capture_output=True, timeout=120)
    process(folder, event("shop", order=7))
    assert (
        f" {fields['key']} {fields['old_key']}: " in printed(explain("--json", stdin=event("shop", order=7)))["forget"]
    )


def test_an_event_is_forgotten_under_both_keys(folder: Path, explain: Callable[..., Finished]) -> None:
    process(folder, event("shop", order=7))
    (folder / "pipeline.toml").write_text(PIPELINE.replace('name = "orders"', 'name = "new"\nreplaces = "orders"'))
    assert printed(explain("--json", stdin=event("shop", order=7)))["now"] == "duplicate"

    done = subprocess.run(
        [sys.executable, "-m", "eventonce", "forget", "-c", "pipeline.toml"],
        check=True,
        cwd=folder,
        input=json.dumps(event("shop", order=7)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert [json.loads(line)["forgotten"] for line in done.stdout.splitlines()] == [False, True]
    assert printed(explain("--json", stdin=event("shop", order=7)))["now"] == "processed"


def test_it_makes_no_store(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eventonce", "explain", "--store", "sqlite:///none.db", "00" * 16],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
