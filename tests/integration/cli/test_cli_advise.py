"""`eventonce advise`, as a real process."""

import gzip
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from eventonce.lint import Lint
from eventonce.rules import load_rules

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    """Return a function that runs the command line in a folder of its own."""

    def run(*args: str, stdin: bytes = b"") -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "eventonce", *args],
            check=False,
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            timeout=120,
        )
        return Finished(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def order(number: int, own: str = "") -> dict[str, Any]:
    return {
        "id": own or f"e-{number}",
        "source": "shop",
        "detail-type": "Order Placed",
        "time": f"2026-03-02T{8 + number // 60:02}:{number % 60:02}:{30 if own else 0:02}Z",
        "detail": {"orderId": f"o-{number}", "placedAt": f"2026-03-02T{8 + number // 60:02}:{number % 60:02}:00.125Z"},
    }


ORDERS = [order(number) for number in range(150)]
AGAIN = [order(number, f"again-{number}") for number in range(0, 150, 6)]
REPLAYED = json.dumps({**order(1), "replay-name": "r"}).encode()
LINES = "".join(json.dumps(each) + "\n" for each in ORDERS + AGAIN).encode()


def test_a_proposal_that_loads_and_finds_the_copies(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "traffic.jsonl").write_bytes(LINES)

    done = cli("advise", "traffic.jsonl")

    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "proposal.toml").write_text(done.stdout)
    (rule,) = load_rules(tmp_path / "proposal.toml")
    assert (list(rule.key), rule.window) == (["detail.orderId"], "1d")
    assert "# How sure: high." in done.stdout

    run = cli("run", "proposal.toml", "--json", stdin=LINES)
    counts = json.loads(run.stderr)
    assert (counts["processed"], counts["duplicate"]) == (len(ORDERS), len(AGAIN))


def test_orders_sent_again_minutes_later(cli: Command, tmp_path: Path) -> None:
    def sent(number: int, seconds: int, own: str) -> dict[str, Any]:
        at = (datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=60 * number + seconds)).isoformat()
        order = {"orderId": f"o-{number}", "cents": number * 7919 % 5000, "sentAt": at, "traceId": own}
        return {"id": own, "source": "shop", "detail-type": "Order Placed", "time": at, "detail": order}

    first = [sent(number, 0, f"e-{number}") for number in range(600)]
    again = [sent(number, 1 + number * 37 % 600, f"again-{number}") for number in range(0, 600, 6)]
    lines = "".join(json.dumps(each) + "\n" for each in sorted(first + again, key=lambda each: each["time"])).encode()

    done = cli("advise", stdin=lines)

    (tmp_path / "proposal.toml").write_text(done.stdout)
    (rule,) = load_rules(tmp_path / "proposal.toml")
    assert list(rule.key) == ["detail.orderId"]
    assert "# How sure: medium." in done.stdout
    counts = json.loads(cli("run", "proposal.toml", "--json", stdin=lines).stderr)
    assert (counts["processed"], counts["duplicate"]) == (600, 100)


def test_the_proposal_passes_the_check(cli: Command, tmp_path: Path) -> None:
    done = cli("advise", stdin=LINES)
    (tmp_path / "proposal.toml").write_text(done.stdout)

    assert Lint(str(tmp_path / "proposal.toml")).findings == []


def test_json(cli: Command) -> None:
    done = cli("advise", "--json", "-", stdin=LINES)

    document = json.loads(done.stdout)
    assert document["events"] == len(ORDERS + AGAIN)
    (kind,) = document["kinds"]
    assert (kind["source"], kind["type"], kind["confidence"]) == ("shop", "Order Placed", "high")
    assert kind["rule"]["key"] == ["detail.orderId"]
    assert kind["check"] == {"dropped": len(AGAIN), "wrong": 0, "missed": 0, "rejected": 0}


def test_any_shape_of_traffic_gives_the_same_proposal(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.jsonl").write_bytes(LINES[: LINES.index(b"\n", 9000) + 1])
    (tmp_path / "folder" / "b.jsonl.gz").write_bytes(gzip.compress(LINES[LINES.index(b"\n", 9000) + 1 :]))
    expected = cli("advise", stdin=LINES).stdout

    assert cli("advise", stdin=LINES.replace(b"\n", b"")).stdout == expected
    assert cli("advise", stdin=gzip.compress(LINES)).stdout == expected
    assert cli("advise", "folder").stdout == expected


def test_what_came_through_a_queue_may_come_back_after_two_weeks(cli: Command) -> None:
    records = [
        {"messageId": f"m-{number}", "receiptHandle": "r", "body": json.dumps(each), "eventSource": "aws:sqs"}
        for number, each in enumerate(ORDERS + AGAIN)
    ]

    done = cli("advise", stdin=json.dumps({"Records": records}).encode())

    (rule,) = tomllib.loads(done.stdout)["rule"]
    assert (rule["key"], rule["window"]) == (["detail.orderId"], "14d")
    assert "keeps a message for up to 14d" in done.stdout.replace("\n#  ", "")


def test_a_horizon_of_ones_own(cli: Command) -> None:
    assert tomllib.loads(cli("advise", "--horizon", "21d", stdin=LINES).stdout)["rule"][0]["window"] == "21d"


def test_what_cannot_be_read_is_reported_and_the_rest_is_used(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "traffic.jsonl").write_bytes(LINES + b"no JSON\n" * 7)

    done = cli("advise", "traffic.jsonl", "missing.jsonl")

    assert done.returncode == 0
    assert done.stderr.count("traffic.jsonl:") == 5
    assert "more of these are not shown" in done.stderr
    assert "missing.jsonl: cannot be read" in done.stderr
    assert "# 7 events could not be read" in done.stdout


@pytest.mark.parametrize("stdin", [b"", b"\n\n", b"not JSON\n", b"[1, 2]\n", REPLAYED])
def test_nothing_to_learn_from(cli: Command, stdin: bytes) -> None:
    done = cli("advise", stdin=stdin)

    assert (done.returncode, done.stdout) == (1, "")
    assert "eventonce: there is no event to learn from" in done.stderr


def test_only_a_missing_file(cli: Command) -> None:
    done = cli("advise", "missing.jsonl")

    assert (done.returncode, done.stdout) == (2, "")
    assert "missing.jsonl: cannot be read" in done.stderr


def test_an_unknown_option(cli: Command) -> None:
    assert cli("advise", "--what").returncode == 2


def test_a_horizon_that_is_not_a_duration(cli: Command) -> None:
    done = cli("advise", "--horizon", "soon", stdin=LINES)

    assert (done.returncode, done.stdout) == (2, "")
    assert "--horizon: 'soon' is not a duration" in done.stderr


def test_help_has_an_example(cli: Command) -> None:
    done = cli("advise", "--help")

    assert done.returncode == 0
    assert "eventonce advise traffic.jsonl > pipeline.toml" in done.stdout
