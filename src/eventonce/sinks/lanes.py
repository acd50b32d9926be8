"""Lanes: parcels in the order in which they may be sent, none before another of its group is settled."""

from collections.abc import Iterable, Sequence

from eventonce.errors import SinkDown, SinkError
from eventonce.groups import GroupQueue, Stops
from eventonce.sinks.parcel import Limits, Parcel


class Lanes:
    """What waits to be sent. Groups do not wait for each other, and parcels without one wait for nobody."""

    def __init__(self, parcels: Iterable[Parcel]) -> None:
        self._queue = GroupQueue(_unanswered(parcels), lambda parcel: parcel.entry.group)
        self._later: list[Parcel] = []

    def __bool__(self) -> bool:
        return bool(self._queue.free or self._later)

    def take(self, limits: Limits) -> list[Parcel]:
        """What goes into the next call. It never has two of a group: the second could get through without the first."""
        call: list[Parcel] = []
        size = 0
        free = self._queue.free
        while free and len(call) < limits.entries:
            size += free[0].entry.size
            if call and size > limits.together:
                break
            call.append(free.popleft())
        return call

    def settle(self, parcel: Parcel) -> None:
        """After a call: what is not answered waits for the next round; else the next of its group may go."""
        if parcel.answer is None:
            self._later.append(parcel)
        else:
            _hold_back(self._queue.ended(parcel, well=not isinstance(parcel.answer, SinkError)))

    def turn(self) -> list[Parcel]:
        """Begin another round with what did not get through in this one, before all else."""
        again, self._later = self._later, []
        self._queue.free.extendleft(reversed(again))
        return again

    def rest(self) -> list[Parcel]:
        """All that was not sent."""
        return [*self._later, *self._queue.waiting()]


def _unanswered(parcels: Iterable[Parcel]) -> list[Parcel]:
    """Return the parcels that may be sent. Some could not be written, and hold back those behind them."""
    stops = Stops()
    unanswered: list[Parcel] = []
    for position, parcel in enumerate(parcels):
        if parcel.answer is None and stops.hold_back(parcel.group, position):
            _hold_back([parcel])
        elif parcel.answer is None:
            unanswered.append(parcel)
        elif isinstance(parcel.answer, SinkError):
            stops.stop(parcel.group, position)
    return unanswered


def _hold_back(parcels: Sequence[Parcel]) -> None:
    for parcel in parcels:
        parcel.answer = SinkDown("was held back, because an event of its group before it could not be sent")
