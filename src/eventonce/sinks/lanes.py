"""Lanes: parcels in the order in which they may be sent, none before another of its group is settled."""

from collections import deque
from collections.abc import Iterable

from eventonce.errors import SinkDown, SinkError
from eventonce.sinks.parcel import Limits, Parcel


class Lanes:
    """What waits to be sent. Groups do not wait for each other, and parcels without one wait for nobody."""

    def __init__(self, parcels: Iterable[Parcel]) -> None:
        self._ready: deque[Parcel] = deque()
        self._behind: dict[str | None, deque[Parcel]] = {}  # by group, behind the one of it that may go
        self._later: list[Parcel] = []
        stuck: set[str | None] = set()  # groups
        for parcel in parcels:
            if parcel.answer is None and parcel.group in stuck:
                parcel.answer = _held_back()
            if parcel.answer is None:
                self._add(parcel)
            elif parcel.group is not None and isinstance(parcel.answer, SinkError):
                stuck.add(parcel.group)

    def _add(self, parcel: Parcel) -> None:
        group = parcel.entry.group
        if group in self._behind:
            self._behind[group].append(parcel)
            return
        self._ready.append(parcel)
        if group is not None:
            self._behind[group] = deque()

    def __bool__(self) -> bool:
        return bool(self._ready or self._later)

    def take(self, limits: Limits) -> list[Parcel]:
        """What goes into the next call. It never has two of a group: the second could get through without the first."""
        call: list[Parcel] = []
        size = 0
        while self._ready and len(call) < limits.entries:
            size += self._ready[0].entry.size
            if call and size > limits.together:
                break
            call.append(self._ready.popleft())
        return call

    def settle(self, parcel: Parcel) -> None:
        """After a call: what is not answered waits for the next round; else the next of its group may go."""
        group = parcel.entry.group
        behind = self._behind.get(group)
        if parcel.answer is None:
            self._later.append(parcel)
        elif behind and isinstance(parcel.answer, SinkError):
            for other in self._behind.pop(group):
                other.answer = _held_back()
        elif behind:
            self._ready.append(behind.popleft())

    def turn(self) -> list[Parcel]:
        """Begin another round with what did not get through in this one, before all else."""
        again, self._later = self._later, []
        self._ready.extendleft(reversed(again))
        return again

    def rest(self) -> list[Parcel]:
        """All that was not sent."""
        return [*self._later, *self._ready, *(parcel for lane in self._behind.values() for parcel in lane)]


def _held_back() -> SinkDown:
    return SinkDown("was held back, because an event of its group before it could not be sent")
