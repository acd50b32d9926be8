"""Batches against a carrier that does anything: every job has a result, and no event overtakes its group."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce.errors import EventRejected, SinkDown, SinkError, SinkUnusable
from eventonce.event import Event
from eventonce.outbox.message import Message
from eventonce.outbox.publish_jobs import PublishJob, PublishSender
from eventonce.ports import BatchEntry, BatchRefused, CallLimits, EntryAccepted, EntryRefusal, Sendable
from eventonce.sinks.batching import BatchSender, SendJob
from eventonce.testing.clock import ManualClock

MAX_ATTEMPTS = 4
ANSWERS = ["taken", "taken", "taken", "again", "throttled", "rejected"]
CALLS = ["answered"] * 6 + ["down", "lost", "refused", "unusable"]


class Wild:
    """Answers by chance."""

    label = "wild://"
    limits = CallLimits(3, 100, 100)

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self.sent: list[tuple[int, int]] = []  # number and attempt of each entry, in order
        self.accepted: set[int] = set()

    def ready(self) -> None:
        if self._draw(st.integers(0, 9)) == 9:
            raise SinkDown("not ready")

    def entry(self, item: Sendable) -> BatchEntry:
        assert isinstance(item, SendJob)
        event = item.next_event()
        if event.data["number"] % 11 == 10:
            raise EventRejected("cannot be written")
        stamp = event.data.get("_eventonce", {"attempt": item.attempts + 1})
        return BatchEntry({"number": event.data["number"], "attempt": stamp["attempt"]}, 1, item.group)

    def put(self, entries: Sequence[BatchEntry]) -> list[EntryAccepted | EntryRefusal]:
        assert 0 < len(entries) <= self.limits.entries
        assert len({entry.group for entry in entries if entry.group}) == sum(1 for entry in entries if entry.group)
        self.sent += [(entry.body["number"], entry.body["attempt"]) for entry in entries]
        call = self._draw(st.sampled_from(CALLS))
        if call == "lost":
            self.accepted |= {entry.body["number"] for entry in entries}
        if call in ("down", "lost"):
            raise SinkDown("did not answer")
        if call == "unusable":
            raise SinkUnusable("denied")
        if call == "refused":
            raise BatchRefused(EntryRefusal("again", ""))
        return [self._answer(entry) for entry in entries]

    def _answer(self, entry: BatchEntry) -> EntryAccepted | EntryRefusal:
        answer = self._draw(st.sampled_from(ANSWERS))
        if answer != "taken":
            return EntryRefusal(answer, "")
        self.accepted.add(entry.body["number"])
        return EntryAccepted("id")

    def judge(self, refusal: EntryRefusal) -> EventRejected | SinkError:
        kinds: dict[str, EventRejected | SinkError] = {"again": SinkError(), "throttled": SinkDown()}
        return kinds.get(refusal.code, EventRejected())

    def rejected(self, refusal: EntryRefusal) -> EventRejected:
        return EventRejected()

    def close(self) -> None:
        """There is nothing open."""


@pytest.mark.parametrize("patient", [True, False])
@given(data=st.data(), groups=st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=25))
def test_each_job_has_a_result_and_each_group_keeps_its_order(
    patient: bool, data: Any, groups: list[str | None]
) -> None:
    carrier = Wild(data.draw)
    jobs: list[SendJob] = []
    for number, group in enumerate(groups):
        event = Event(data={"number": number}, source="s", type="t")
        stamped = PublishJob(Message(event, group=group), event, f"e-{number}")
        jobs.append(stamped if patient else SendJob(event, "k", group))
    sender = (
        PublishSender(carrier, ManualClock(), MAX_ATTEMPTS, None)
        if patient
        else BatchSender(carrier, ManualClock(), MAX_ATTEMPTS)
    )
    sender.run(jobs)

    assert all(job.result is not None for job in jobs)
    for number, job in enumerate(jobs):
        attempts = [attempt for sent, attempt in carrier.sent if sent == number]
        assert attempts == list(range(1, job.attempts + 1))
        assert job.attempts <= MAX_ATTEMPTS + 1  # one more where its call had to be taken apart
        if isinstance(job.result, EntryAccepted):
            assert number in carrier.accepted
        elif job.attempts == 0:
            assert number not in carrier.accepted
    for group in ("a", "b", "c"):
        _check_order(group, jobs, [number for number, _ in carrier.sent])


def _check_order(group: str, jobs: list[SendJob], sent: list[int]) -> None:
    """Check that a group was sent in order, and that none was sent after one that failed."""
    mine = [number for number in sent if jobs[number].group == group]
    assert mine == sorted(mine)
    failed = [n for n, job in enumerate(jobs) if job.group == group and isinstance(job.result, SinkError)]
    assert not failed or max(mine, default=-1) <= failed[0]
