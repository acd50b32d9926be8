"""Logs: what is said, how often, and what never is."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from eventonce import EventRejected
from eventonce.event import Delivery
from eventonce.observe.log import LogHook, setup
from eventonce.testing import ManualClock
from tests.unit.conftest import Bench, Faulty

SECRET = "card 4111"


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("eventonce")
    before = (root.handlers[:], root.level, own.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def boom(event: object) -> None:
    raise ValueError("no\nroom \x1b[31m" + "x" * 900)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if record.name == "eventonce.events"]


def test_failures_are_warnings_with_all_that_helps_and_no_payload(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    once = bench.once(hooks=[LogHook()])
    body = json.dumps({"id": "a", "secret": SECRET}).encode()

    (outcome,) = once.run([Delivery(body=body, origin={"source": "in.jsonl", "line": 7})], boom)

    (record,) = [each for each in caplog.records if each.name == "eventonce.events"]
    assert outcome.key is not None
    assert record.levelname == "WARNING"
    assert record.message.startswith(
        f"in.jsonl:7: failed (rule id, key {outcome.key.hex()}, id a, attempt 1): ValueError: no room [31mx"
    )
    assert record.message.isprintable()
    assert len(record.message) < 700
    assert SECRET not in caplog.text


def test_a_rejection_is_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(event: object) -> None:
        raise EventRejected("no such customer")

    bench.once(hooks=[LogHook()]).run([{"id": "a"}, b"{"], refuse)

    assert logged(caplog) == ["WARNING", "WARNING"]
    assert "no such customer" in caplog.text


def test_duplicates_are_logged_at_info_and_sampled(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventonce")
    clock = ManualClock()
    once = bench.once(hooks=[LogHook(clock)])

    once.run([{"id": "a"}] * 301, lambda event: None)
    assert logged(caplog) == ["INFO"] * 13  # ten, and three in three hundred
    assert "duplicate (rule id, key" in caplog.text

    clock.sleep(60_000)
    once.run([{"id": "a"}], lambda event: None)
    assert logged(caplog) == ["INFO"] * 14


def test_a_duplicate_with_other_content_is_logged_as_such(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventonce")
    once = bench.once(key="id", remember="note", hooks=[LogHook()])

    once.run([{"id": "a", "n": 1}, {"id": "a", "n": 2}], lambda event: None)

    assert "its content differs" in caplog.text


def test_an_outage_is_logged_once_at_its_start_and_end(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Faulty("claim", "release"), ManualClock()
    once = bench.once(store, hooks=[LogHook(clock)])

    once.run([{"id": "a"}] * 5, lambda event: None)
    once.run([{"id": "b"}] * 5, lambda event: None)
    store.before = []
    once.run([{"id": "c"}], lambda event: None)
    clock.sleep(6000)
    once.run([{"id": "d"}], lambda event: None)

    messages = [record.message for record in caplog.records if record.name == "eventonce.events"]
    assert messages == ["the store did not answer to claim: no answer to claim", "the store answers again"]


def test_what_ran_without_being_recorded_is_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    once = bench.once(Faulty("claim"), on_store_error="process", hooks=[LogHook()])

    once.run([{"id": "a"}], lambda event: None)

    assert logged(caplog) == ["WARNING", "WARNING"]  # the outage, and the run


def test_json_lines(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    setup("info", json=True)
    once = bench.once(hooks=[LogHook()])
    once.run([{"id": "a", "secret": SECRET}], boom)
    try:
        raise RuntimeError("x")
    except RuntimeError:
        logging.getLogger("eventonce").exception("wrong")
    logging.getLogger("botocore").info("a request with its headers")

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    fields: dict[str, Any] = lines[0]
    assert (fields["level"], fields["logger"], fields["outcome"], fields["rule"], fields["attempt"]) == (
        "warning",
        "eventonce.events",
        "failed",
        "id",
        1,
    )
    assert fields["error"].startswith("ValueError: no room")
    assert SECRET not in json.dumps(lines)
    assert "RuntimeError: x" in lines[1]["traceback"]
    assert len(lines) == 2


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    setup()
    logging.getLogger("eventonce").warning("look %s", "here")
    logging.getLogger("eventonce").info("not this")

    line = capsys.readouterr().err
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING eventonce: look here\n", line), line


def test_other_packages_are_named_in_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    setup()
    logging.getLogger("botocore.auth").warning("look")

    assert capsys.readouterr().err.endswith("Z WARNING botocore: look\n")


def test_what_an_event_says_forges_no_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    setup()
    try:
        boom({})
    except ValueError:
        logging.getLogger("eventonce").exception("a\r\nb \x1b]0;x\x07 \u202e \x9b")

    first, *trace = capsys.readouterr().err.splitlines()
    assert first.endswith("ERROR eventonce: a\\r\\nb \\x1b]0;x\\x07 \\u202e \\x9b")
    assert all(line.startswith("    ") and line.isprintable() for line in trace)
    assert any(line.startswith("    ValueError: no") for line in trace)


def test_lines_of_json_hold_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    message = "a\nb \x1b[31m \u202e \x9b \udc80 \U000e0001 é"
    setup(json=True)
    logging.getLogger("eventonce").warning(message)

    line = capsys.readouterr().err
    assert line.removesuffix("\n").isprintable()
    assert json.loads(line)["message"] == message
