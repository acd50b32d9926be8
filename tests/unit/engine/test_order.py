"""The order of a batch by itself: decisions in, turns out."""

from collections.abc import Sequence
from typing import Any

import pytest

from eventonce import Event, EventRejected, OutcomeKind, Rule
from eventonce.claims.protocol import Busy, Done, Record
from eventonce.engine import endings
from eventonce.engine.jobs import Deferred, Effect, Ended, Failure, Job, RefusedEvent, Runnable, Turn
from eventonce.engine.order import Order, RunLimits
from eventonce.event.groups import GroupQueue, Stops, chains
from eventonce.event.keys import Key
from eventonce.rules import CompiledRule
from eventonce.testing import ManualClock

RULE = CompiledRule("consumer", Rule(name="r"))
DONE = Done(Record(b"", 0, False, 0, None, 1000, 2000, 1, None, None, None, 2000))


class Bench:
    """An order, and the jobs in it by name: `a` of group `g` is written "a/g", and its version "a/g/2"."""

    def __init__(self, *names: str, busy_wait: int = 0, **fields: Any) -> None:
        self.clock = ManualClock()
        self.stops = Stops()
        self.jobs = [self._job(position, name, fields) for position, name in enumerate(names)]
        limits = RunLimits(max_attempts=5, lease=60_000, busy_wait=busy_wait)
        self.order = Order(self.jobs, limits, self.stops, self.clock)

    def turn(self) -> list[int]:
        """Return the positions of what goes next."""
        turn = self.order.next_turn()
        return [] if turn is None else [job.position for job in turn.jobs]

    def next(self) -> Turn:
        turn = self.order.next_turn()
        assert turn is not None
        return turn

    def run(self, *positions: int) -> list[list[int]]:
        """Admit these as claimed, and let them return. Return which ran, by chain."""
        return self.admit(*(self.runnable(position) for position in positions))

    def admit(self, *decisions: Any) -> list[list[int]]:
        runs = self.order.admit(decisions)
        self.order.end([endings.processed(Effect(runnable, None)) for chain in runs for runnable in chain])
        return [[runnable.job.position for runnable in chain] for chain in runs]

    def runnable(self, position: int) -> Runnable:
        return Runnable(self.jobs[position], 1, DONE)

    def fail(self, position: int, error: Exception | None = None) -> None:
        failure = Failure(self.runnable(position), error or ValueError("no"))
        self.order.admit([failure.runnable])
        self.order.end([endings.failed(failure, 5)])

    def busy(self, position: int) -> Ended:
        return endings.busy(self.jobs[position], Busy(5000))

    def kinds(self) -> Sequence[str]:
        return [ended.outcome.kind.value for ended in self.order.ended()]

    def _job(self, position: int, name: str, fields: dict[str, Any]) -> Job:
        key, group, version, *_ = [*name.split("/"), "", ""]
        keys = tuple(Key(part.encode()) for part in key.split("+"))
        number = int(version) if version else None
        return Job(position, Event(data=None), RULE, keys[0], keys, number, group=group or None, **fields)


def test_what_waits_for_nothing_goes_in_one_turn() -> None:
    bench = Bench("a", "b/g", "c/g")
    assert bench.turn() == [0, 1, 2]
    assert bench.run(0, 1, 2) == [[0], [1, 2]]
    assert bench.turn() == []
    assert bench.kinds() == ["processed"] * 3


def test_a_copy_ends_as_its_first_does() -> None:
    bench = Bench("a", "b", "a", "b")
    assert bench.turn() == [0, 1]
    bench.fail(0)
    bench.run(1)
    assert bench.turn() == []
    assert bench.kinds() == ["failed", "processed", "failed", "duplicate"]


def test_another_version_of_a_key_waits_for_the_first() -> None:
    bench = Bench("a//1", "a//2", "a//1")
    assert bench.turn() == [0]
    bench.run(0)
    assert bench.turn() == [1]
    bench.run(1)
    assert bench.turn() == []
    assert bench.kinds() == ["processed", "processed", "duplicate"]


def test_a_copy_with_two_keys_is_done_if_either_is() -> None:
    bench = Bench("a", "b", "a+b")
    assert bench.turn() == [0, 1]
    bench.fail(0)
    assert bench.turn() == [1]
    bench.run(1)
    assert bench.turn() == []
    assert bench.kinds() == ["failed", "processed", "duplicate"]


def test_nothing_runs_behind_a_failure_in_its_group() -> None:
    bench = Bench("a/g", "b/g", "c/h")
    assert bench.turn() == [0, 1, 2]
    bench.fail(0)
    bench.run(2)
    assert bench.turn() == []
    assert bench.kinds() == ["failed", "busy", "processed"]


def test_a_copy_of_what_never_ran_runs_itself() -> None:
    bench = Bench("a/g", "b/g", "b/h")
    assert bench.turn() == [0, 1]
    bench.fail(0)
    assert bench.turn() == [2]
    bench.run(2)
    assert bench.turn() == []
    assert bench.kinds() == ["failed", "busy", "processed"]


def test_a_suspect_goes_alone_and_its_group_waits() -> None:
    bench = Bench("a/g", "b/g", "c")
    assert bench.turn() == [0, 1, 2]
    assert bench.admit(Deferred(bench.jobs[0], alone=True), bench.runnable(1), bench.runnable(2)) == [[2]]
    turn = bench.next()
    assert [job.position for job in turn.jobs] == [0]
    assert turn.alone
    bench.run(0)
    assert bench.turn() == [1]


def test_of_a_group_the_first_died_in_company_and_the_second_is_busy_so_the_third_waits() -> None:
    bench = Bench("a/g", "b/g", "c/g", busy_wait=15)
    assert bench.turn() == [0, 1, 2]
    assert bench.admit(Deferred(bench.jobs[0], alone=True), bench.busy(1), bench.runnable(2)) == []
    assert bench.turn() == [0]
    bench.run(0)
    turn = bench.next()
    assert ([job.position for job in turn.jobs], turn.pause) == ([1, 2], 10)
    assert bench.admit(bench.busy(1), bench.runnable(2)) == []
    bench.clock.sleep(15)
    assert bench.turn() == []
    assert bench.kinds() == ["processed", "busy", "busy"]


def test_a_busy_one_is_claimed_again_after_growing_pauses_up_to_the_deadline() -> None:
    bench = Bench("a", busy_wait=50)
    pauses = []
    while turn := bench.order.next_turn():
        pauses.append(turn.pause)
        bench.clock.sleep(turn.pause)
        bench.admit(bench.busy(0))
    assert pauses == [0, 10, 20, 20]
    assert bench.kinds() == ["busy"]


def test_what_is_free_goes_before_a_pause() -> None:
    bench = Bench("a", "b//1", "b//2", busy_wait=50)
    assert bench.turn() == [0, 1]
    bench.admit(bench.busy(0), bench.runnable(1))
    turn = bench.next()
    assert ([job.position for job in turn.jobs], turn.pause) == ([2], 0)


def test_a_copy_that_may_have_to_be_passed_on_once_more_holds_up_its_group() -> None:
    assert Bench("a/g", "a/g", "b/g").turn() == [0, 2]
    bench = Bench("a/g", "a/g", "b/g", message_id="m")
    assert bench.turn() == [0]
    bench.run(0)
    assert bench.turn() == [2]


def test_a_dead_letter_does_not_stop_other_events_of_its_message() -> None:
    bench = Bench("a/g", "b/g", message="message 1")
    bench.turn()
    bench.fail(0, EventRejected("no"))
    assert bench.turn() == [1]
    bench = Bench("a/g", "b/g", message="message 1")
    bench.turn()
    bench.fail(0)  # this one is retried
    assert bench.turn() == []


def test_a_refused_event_stops_its_group() -> None:
    bench = Bench("a/g", "b/g")
    refused = RefusedEvent(0, None, endings.refused(EventRejected("no"), None, None), "g")
    bench.order = Order([refused, bench.jobs[1]], RunLimits(5, 60_000, 0), Stops(), bench.clock)
    assert bench.turn() == []
    assert bench.kinds() == ["rejected", "busy"]


def test_a_group_that_has_stopped_stays_so_in_the_batches_that_follow() -> None:
    bench = Bench("a/g", "b/g")
    bench.turn()
    bench.fail(0)
    later = Job(500, Event(data=None), RULE, Key(b"c"), (Key(b"c"),), group="g")
    order = Order([later], RunLimits(5, 60_000, 0), bench.stops, bench.clock)
    assert order.next_turn() is None
    assert [ended.outcome.kind for ended in order.ended()] == [OutcomeKind.BUSY]


@pytest.mark.parametrize(
    ("stop", "query", "held_back"),
    [
        (("g", 3), ("g", 4), True),
        (("g", 3), ("g", 3), False),
        (("g", 3), ("g", 2), False),
        (("g", 3), ("h", 4), False),
        ((None, 3), (None, 4), False),
        (("g", 3, "message 1"), ("g", 4, "message 1"), False),
        (("g", 3, "message 1"), ("g", 4, "message 2"), True),
        (("g", 3, "message 1"), ("g", 4), True),
    ],
)
def test_stops(stop: tuple[Any, ...], query: tuple[Any, ...], held_back: bool) -> None:
    stops = Stops()
    stops.stop(*stop)
    assert stops.hold_back(*query) is held_back


def test_chains_are_the_groups() -> None:
    assert chains(["a1", "-1", "b1", "a2", "-2"], _group) == [["a1", "a2"], ["-1"], ["b1"], ["-2"]]


def test_of_a_group_one_is_free_at_a_time() -> None:
    queue = GroupQueue(["a1", "a2", "a3", "-1", "-2"], _group)
    assert list(queue.free) == ["a1", "-1", "-2"]
    queue.free.clear()
    assert queue.ended("a1", well=True) == ()
    assert list(queue.free) == ["a2"]
    assert queue.waiting() == ["a2", "a3"]
    assert list(queue.ended("a2", well=False)) == ["a3"]
    assert queue.ended("-1", well=False) == ()


def _group(name: str) -> str | None:
    return None if name[0] == "-" else name[0]
