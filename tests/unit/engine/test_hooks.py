"""Hooks: the details they get, and that they disturb nothing."""

import asyncio
import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from eventonce import ConfigError, Event, EventRejected, OutcomeKind
from eventonce.event import Delivery
from eventonce.ports import AttemptDetails, Hook, OutcomeDetails, StoreCallDetails
from tests.unit.conftest import Bench, Faulty


class Notes(Hook):
    """Records everything that is reported to it."""

    def __init__(self) -> None:
        self.runs: list[tuple[list[str], str | None]] = []
        self.calls: list[tuple[str, int, bool]] = []
        self.seen: list[OutcomeDetails] = []

    @contextmanager
    def around_run(self, attempts: Sequence[AttemptDetails]) -> Iterator[None]:
        ids = [attempt.event.id for attempt in attempts]
        try:
            yield
        except BaseException as error:
            self.runs.append((ids, type(error).__name__))
            raise
        self.runs.append((ids, None))

    def after_store_call(self, call: StoreCallDetails) -> None:
        self.calls.append((call.verb, call.keys, call.error is None))

    def after_settle(self, seen: Sequence[OutcomeDetails]) -> None:
        self.seen += seen

    def kinds(self) -> list[str]:
        return [each.outcome.kind.value for each in self.seen]


class Broken(Hook):
    """Raises wherever it can."""

    def __init__(self, *, at_exit: bool = False) -> None:
        self._at_exit = at_exit

    @contextmanager
    def around_run(self, attempts: Sequence[AttemptDetails]) -> Iterator[None]:
        if not self._at_exit:
            raise RuntimeError("at the beginning")
        try:
            yield
        finally:
            raise RuntimeError("at the end")

    def after_store_call(self, call: StoreCallDetails) -> None:
        raise RuntimeError("of a call")

    def after_settle(self, seen: Sequence[OutcomeDetails]) -> None:
        raise RuntimeError("of a batch")


class Sent:
    """A sink that refuses chosen events."""

    def __init__(self, *refused: str) -> None:
        self._refused = refused

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]:
        return [ValueError("no") if event.id in self._refused else None for event in events]

    def close(self) -> None:
        """Nothing to close."""


def fail(event: Event) -> None:
    raise ValueError(event.id)


def test_a_hook_sees_runs_calls_and_ends(bench: Bench) -> None:
    notes = Notes()
    once = bench.once(hooks=[notes])

    once.run([{"id": "a"}, {"id": "a"}, b"[]"], lambda event: None)

    assert notes.runs == [(["a"], None)]
    assert notes.calls == [("claim", 1, True), ("commit", 1, True)]
    assert notes.kinds() == ["processed", "duplicate", "rejected"]
    assert [each.event is None for each in notes.seen] == [False, False, True]


def test_a_hook_sees_how_a_handler_failed(bench: Bench) -> None:
    notes = Notes()

    bench.once(hooks=[notes]).run([{"id": "a"}], fail)

    assert notes.runs == [(["a"], "ValueError")]
    assert notes.calls == [("claim", 1, True), ("release", 1, True)]
    assert notes.kinds() == ["failed"]


def test_an_error_keeps_its_traceback(bench: Bench) -> None:
    (outcome,) = bench.once(hooks=[Notes()]).run([{"id": "a"}], fail)

    assert "in fail" in "".join(traceback.format_exception(outcome.error))


def test_async_handlers_are_seen_to_their_end(bench: Bench) -> None:
    notes, ended = Notes(), []

    async def handle(event: Event) -> None:
        await asyncio.sleep(0)
        ended.append(len(notes.runs))

    asyncio.run(bench.once(hooks=[notes]).arun([{"id": "a"}], handle))

    assert ended == [0]
    assert notes.runs == [(["a"], None)]


def test_a_sink_is_one_run_of_several(bench: Bench) -> None:
    notes = Notes()

    bench.once(hooks=[notes]).run([{"id": "a"}, {"id": "b"}], Sent("b"))

    assert notes.runs == [(["a", "b"], None)]
    assert notes.kinds() == ["processed", "failed"]


def test_the_origin_of_a_delivery_is_reported(bench: Bench) -> None:
    notes = Notes()

    bench.once(hooks=[notes]).run(
        [Delivery(body=b'{"id": "a"}', origin={"source": "x", "line": 7})], lambda event: None
    )

    assert notes.seen[0].origin == {"source": "x", "line": 7}


def test_store_errors_are_reported(bench: Bench) -> None:
    notes = Notes()

    bench.once(Faulty("claim"), hooks=[notes]).run([{"id": "a"}], lambda event: None)

    assert notes.calls == [("claim", 1, False), ("release", 1, True)]
    assert notes.kinds() == ["unknown"]


def test_the_commit_of_a_transaction_is_a_call_too(bench: Bench) -> None:
    notes = Notes()

    bench.once(bench.url, hooks=[notes]).run([{"id": "a"}], lambda event, ctx: ctx.tx)

    assert notes.calls == [("claim", 1, True), ("commit", 1, True)]


def test_looking_and_forgetting_are_calls_too(bench: Bench) -> None:
    notes = Notes()
    once = bench.once(hooks=[notes])
    key = once.key({"id": "a"})

    once.peek([key])
    once.forget([key])

    assert notes.calls == [("peek", 1, True), ("forget", 1, True)]


@pytest.mark.parametrize("broken", [Broken(), Broken(at_exit=True)], ids=["at once", "at the end"])
@pytest.mark.parametrize("handler", [lambda event: 7, fail], ids=["returns", "raises"])
def test_a_broken_hook_disturbs_nothing(
    bench: Bench, broken: Hook, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes()
    with caplog.at_level(logging.WARNING, "eventonce"):
        (outcome,) = bench.once(hooks=[broken, notes]).run([{"id": "a"}], handler)

    (expected,) = bench.once().run([{"id": "a"}], handler)
    assert (outcome.kind, outcome.result, type(outcome.error)) == (
        expected.kind,
        expected.result,
        type(expected.error),
    )
    assert notes.kinds() == [expected.kind]
    assert len(notes.runs) == 1
    assert [record.message[:13] for record in caplog.records] == ["a hook failed"]


@pytest.mark.parametrize("wrong", [print, Notes, "prometheus"])
def test_only_hooks_are_accepted(bench: Bench, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="is not a Hook"):
        bench.once(hooks=[wrong])


def test_a_preview_changes_nothing(bench: Bench) -> None:
    once = bench.once(remember="note")
    event = {"source": "s", "detail-type": "t", "detail": {"n": 1}, "id": "a"}

    assert once.preview(event).kind is OutcomeKind.PROCESSED
    assert once.peek([once.key(event)]) == [None]
    once.run([event], lambda event: None)

    again = once.preview({**event, "id": "b"})
    assert again.kind is OutcomeKind.DUPLICATE
    assert again.first is not None
    assert (again.first.id, again.first.differs) == ("a", False)


def test_a_preview_of_what_fails(bench: Bench) -> None:
    once = bench.once(max_attempts=2)
    once.run([{"id": "a"}], fail)
    assert (once.preview({"id": "a"}).kind, once.preview({"id": "a"}).attempt) == (OutcomeKind.PROCESSED, 2)
    once.run([{"id": "a"}], fail)

    ended = once.preview({"id": "a"})

    assert (ended.kind, ended.final, str(ended.error)) == (
        OutcomeKind.FAILED,
        True,
        "failed 2 times; the last one ended with ValueError: a",
    )
    assert isinstance(once.preview(b"[]").error, EventRejected)


def test_a_preview_while_it_runs_and_when_it_is_old(bench: Bench) -> None:
    once = bench.once(key=["id"], version="n")
    seen = []

    once.run([{"id": "a", "n": 5}], lambda event: seen.append(once.preview(event).kind))
    seen += [once.preview({"id": "a", "n": n}).kind for n in (4, 5, 6)]

    assert seen == [OutcomeKind.BUSY, OutcomeKind.STALE, OutcomeKind.DUPLICATE, OutcomeKind.PROCESSED]
