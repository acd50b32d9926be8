"""Rounds: how parcels are sent in as few calls as may be, and again what may get through another time."""

from collections.abc import Sequence
from typing import Protocol

from eventonce.clock import Clock
from eventonce.errors import EventRejected, SinkDown, SinkError
from eventonce.sinks.lanes import Lanes
from eventonce.sinks.parcel import Entry, Limits, Parcel, Refusal, Taken
from eventonce.sinks.tries import Hopeless, pause


class Spoilt(Exception):
    """A call was refused as a whole, and one of its entries may be to blame."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Carrier(Protocol):
    """A service whose calls take several entries and answer for each."""

    where: str  # how errors name it
    tries: int  # how often a call that fails as a whole is made before it counts as failed

    @property
    def limits(self) -> Limits: ...
    def ready(self) -> None: ...  # finds out once what calls need; raises SinkError
    def entry(self, parcel: Parcel) -> Entry: ...  # raises EventRejected
    def put(self, entries: Sequence[Entry]) -> Sequence[Taken | Refusal]: ...  # raises SinkError or Spoilt
    def judge(self, refusal: Refusal) -> EventRejected | SinkError: ...  # what an entry's refusal means
    def rejected(self, refusal: Refusal) -> EventRejected: ...  # the same, where it is to mean this entry only
    def close(self) -> None: ...


class Rounds:
    """Sends parcels until each has its answer.

    A round sends each of them once, those behind another of their group after it; then comes a pause, and a round of
    what may get through another time. What is refused for the whole call ends the round.
    """

    patient = False  # whether trouble of a whole call is waited out here; else it is everyone's answer

    def __init__(self, carrier: Carrier, clock: Clock, tries: int) -> None:
        self._carrier = carrier
        self._clock = clock
        self._tries = tries
        self._answered = 0

    def run(self, parcels: Sequence[Parcel]) -> None:
        """Give each parcel its answer."""
        for parcel in parcels:
            self._write(parcel)
        self._refused([parcel for parcel in parcels if parcel.answer is not None])
        lanes = Lanes(parcels)
        trouble, stalls = None, 0
        while lanes:
            answered = self._answered
            trouble = self._round(lanes)
            stalls = 0 if self._answered > answered else stalls + 1
            if trouble is not None and not self._waits_out(trouble, stalls, lanes):
                break
            if lanes:
                self._clock.sleep(pause(max(stalls, 1)))
        for parcel in lanes.rest():
            parcel.answer = parcel.answer or parcel.trouble or trouble

    # --- what a publisher does in its own way ---

    def _refused(self, parcels: Sequence[Parcel]) -> None:
        """These will never be taken."""

    def _judged(self, refusal: Refusal) -> EventRejected | SinkError:
        return self._carrier.judge(refusal)

    # --- one round ---

    def _waits_out(self, trouble: SinkError, stalls: int, lanes: Lanes) -> bool:
        worn_out = stalls >= self._tries or any(parcel.attempts >= self._tries for parcel in lanes.rest())
        return self.patient and not isinstance(trouble, Hopeless) and not worn_out

    def _round(self, lanes: Lanes) -> SinkError | None:
        """Send what can be sent now; gives what stopped that."""
        for parcel in lanes.turn():
            self._write(parcel)
        try:
            self._carrier.ready()
            while call := lanes.take(self._carrier.limits):
                self._call(call, lanes)
        except SinkError as error:
            return error
        return None

    def _call(self, call: list[Parcel], lanes: Lanes) -> None:
        try:
            if open_ := [parcel for parcel in call if parcel.answer is None]:
                self._send(open_)
        finally:
            self._refused([parcel for parcel in call if isinstance(parcel.answer, EventRejected)])
            for parcel in call:
                self._answered += parcel.answer is not None
                lanes.settle(parcel)

    def _send(self, parcels: list[Parcel]) -> None:
        """Make a call and note what was said of each; raises where that stops all further sending."""
        for parcel in parcels:
            parcel.attempts += 1
        try:
            said = self._carrier.put([parcel.entry for parcel in parcels])
        except Spoilt as spoilt:
            if len(parcels) > 1:
                self._apart(parcels)
                return
            said = [spoilt.refusal]
        except SinkError as error:
            for parcel in parcels:
                parcel.trouble = error
            raise
        self._note_all(parcels, said)

    def _apart(self, parcels: list[Parcel]) -> None:
        """Send each alone: one of them is to blame, and that must not be all the others' fate."""
        denied: dict[Parcel, Hopeless] = {}
        for parcel in parcels:
            self._write(parcel)
            if parcel.answer is not None:
                continue
            try:
                self._send([parcel])
            except Hopeless as error:
                denied[parcel] = error
        if denied and not any(isinstance(parcel.answer, Taken) for parcel in parcels):
            raise next(iter(denied.values()))
        for parcel, why in denied.items():
            parcel.answer = EventRejected(f"was refused where others were taken: {why}")
            parcel.answer.code = why.code

    def _note_all(self, parcels: list[Parcel], said: Sequence[Taken | Refusal]) -> None:
        for parcel, each in zip(parcels, said, strict=True):
            self._note(parcel, each)
        for parcel in parcels:
            if isinstance(parcel.answer, Hopeless):
                raise parcel.answer
        down = [parcel.trouble for parcel in parcels if isinstance(parcel.trouble, SinkDown)]
        if self.patient and len(down) == len(parcels):  # as good as a refusal of the whole call
            for parcel in parcels:
                parcel.answer = None
            raise down[0]

    def _note(self, parcel: Parcel, said: Taken | Refusal) -> None:
        if isinstance(said, Taken):
            parcel.answer, parcel.trouble = said, None
            return
        parcel.trouble = self._judged(said)
        if isinstance(parcel.trouble, EventRejected | Hopeless) or parcel.attempts >= self._tries:
            parcel.answer = parcel.trouble

    def _write(self, parcel: Parcel) -> None:
        """Make it ready for its next attempt."""
        if parcel.answer is not None:
            return
        try:
            parcel.entry = self._carrier.entry(parcel)
        except EventRejected as error:
            parcel.answer = error
