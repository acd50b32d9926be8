"""Rounds against a carrier that does whatever it likes: every parcel is answered, and no group is overtaken."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce.errors import EventRejected, SinkDown, SinkError
from eventonce.event import Event
from eventonce.publish.outgoing import Outgoing
from eventonce.publish.parcels import Publishing, StampedParcel
from eventonce.sinks.batching import Rounds, Spoilt
from eventonce.sinks.parcel import Entry, Limits, Parcel, Refusal, Taken
from eventonce.sinks.tries import Hopeless
from eventonce.testing.clock import ManualClock

TRIES = 4
ANSWERS = ["taken", "taken", "taken", "again", "throttled", "rejected"]
CALLS = ["answered"] * 6 + ["down", "lost", "spoilt", "hopeless"]


class Wild:
    """Answers by chance."""

    where, tries = "wild://", 1
    limits = Limits(3, 100, 100)

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self.sent: list[tuple[int, int]] = []  # number and attempt of each entry, in order
        self.taken: set[int] = set()

    def ready(self) -> None:
        if self._draw(st.integers(0, 9)) == 9:
            raise SinkDown("not ready")

    def entry(self, parcel: Parcel) -> Entry:
        written = parcel.written()
        if written.data["number"] % 11 == 10:
            raise EventRejected("cannot be written")
        stamp = written.data.get("_eventonce", {"attempt": parcel.attempts + 1})
        return Entry({"number": written.data["number"], "attempt": stamp["attempt"]}, 1, parcel.group)

    def put(self, entries: Sequence[Entry]) -> list[Taken | Refusal]:
        assert 0 < len(entries) <= self.limits.entries
        assert len({entry.group for entry in entries if entry.group}) == sum(1 for entry in entries if entry.group)
        self.sent += [(entry.body["number"], entry.body["attempt"]) for entry in entries]
        call = self._draw(st.sampled_from(CALLS))
        if call == "lost":
            self.taken |= {entry.body["number"] for entry in entries}
        if call in ("down", "lost"):
            raise SinkDown("did not answer")
        if call == "hopeless":
            raise Hopeless("denied")
        if call == "spoilt":
            raise Spoilt(Refusal("again", ""))
        return [self._answer(entry) for entry in entries]

    def _answer(self, entry: Entry) -> Taken | Refusal:
        answer = self._draw(st.sampled_from(ANSWERS))
        if answer != "taken":
            return Refusal(answer, "")
        self.taken.add(entry.body["number"])
        return Taken("id")

    def judge(self, refusal: Refusal) -> EventRejected | SinkError:
        kinds: dict[str, EventRejected | SinkError] = {"again": SinkError(), "throttled": SinkDown()}
        return kinds.get(refusal.code, EventRejected())

    def rejected(self, refusal: Refusal) -> EventRejected:
        return EventRejected()

    def close(self) -> None:
        """There is nothing open."""


@pytest.mark.parametrize("patient", [True, False])
@given(data=st.data(), groups=st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=25))
def test_whatever_a_carrier_does(patient: bool, data: Any, groups: list[str | None]) -> None:
    carrier = Wild(data.draw)
    parcels: list[Parcel] = []
    for number, group in enumerate(groups):
        event = Event(data={"number": number}, source="s", type="t")
        stamped = StampedParcel(Outgoing(event, group=group), event, f"e-{number}")
        parcels.append(stamped if patient else Parcel(event, "k", group))
    rounds = Publishing(carrier, ManualClock(), TRIES, None) if patient else Rounds(carrier, ManualClock(), TRIES)
    rounds.run(parcels)

    assert all(parcel.answer is not None for parcel in parcels)
    for number, parcel in enumerate(parcels):
        attempts = [attempt for sent, attempt in carrier.sent if sent == number]
        assert attempts == list(range(1, parcel.attempts + 1))
        assert parcel.attempts <= TRIES + 1  # one more where its call had to be taken apart
        if isinstance(parcel.answer, Taken):
            assert number in carrier.taken
        elif parcel.attempts == 0:
            assert number not in carrier.taken
    for group in ("a", "b", "c"):
        _check_order(group, parcels, [number for number, _ in carrier.sent])


def _check_order(group: str, parcels: list[Parcel], sent: list[int]) -> None:
    """Once one of a group is sent, none before it is sent any more; and none behind one that failed is."""
    mine = [number for number in sent if parcels[number].group == group]
    assert mine == sorted(mine)
    failed = [n for n, parcel in enumerate(parcels) if parcel.group == group and isinstance(parcel.answer, SinkError)]
    assert not failed or max(mine, default=-1) <= failed[0]
