"""What is to become of a batch, by what its receiver said of each event."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eventonce.backoff import backoff
from eventonce.claims.outcome import Outcome
from eventonce.claims.outcome import OutcomeKind as Ending
from eventonce.errors import EventOnceError, EventRejected, SinkDown, TooManyAttempts, describe
from eventonce.event import Delivery
from eventonce.event.stamp import stamped
from eventonce.outbox.feed import Back
from eventonce.outbox.message import PublishKind, PublishResult
from eventonce.outbox.rows import PendingRow

FIRST_REST, LONGEST_REST = 500, 300_000  # of a group, after a failure
Answered = Sequence[tuple[PendingRow, PublishResult]]


class RefusedRow(NamedTuple):
    """A row that will never be published."""

    row: PendingRow
    attempts: int
    why: EventOnceError


class RelayDecision:
    """Sorts a batch: what leaves the outbox, what goes back, and what is kept as a dead letter.

    Attempts count only with `blame`: while nothing gets through, it is the receiver that fails, whatever it is sent. A
    receiver that does not answer, or throttles, is never an event's own fault.
    """

    def __init__(self, answered: Answered, broken: Iterable[RefusedRow], most: int, *, blame: bool) -> None:
        self.dead = list(broken)
        self.done = [dead.row for dead in self.dead]
        self.back: list[Back] = []
        self.sent = bool(answered)
        self.counts: Counter[str] = Counter({"refused": len(self.done)} if self.done else {})
        self._most = most
        stuck: set[str] = set()
        for row, answer in answered:
            if row.grp in stuck:  # behind one that failed, and unsent
                self.back.append(Back(row, 0))
                continue
            self.counts[self._end(row, answer, blame=blame and not isinstance(answer.error, SinkDown))] += 1
            if answer.kind is PublishKind.FAILED:
                stuck.add(row.grp)

    def _end(self, row: PendingRow, answer: PublishResult, *, blame: bool) -> str:
        failures = row.failures + blame
        if answer.kind is PublishKind.FAILED and failures < self._most:
            self.back.append(Back(row, backoff(failures or 1, FIRST_REST, LONGEST_REST), blame))
            return "failed"
        self.done.append(row)
        if answer.kind is PublishKind.FAILED:
            why = f"could not be published {failures} times; the last time: {_said(answer)}"
            self.dead.append(RefusedRow(row, failures, TooManyAttempts(why)))
            return "refused"
        if answer.kind is PublishKind.REFUSED:
            self.dead.append(RefusedRow(row, failures + 1, EventRejected(_said(answer))))
        return answer.kind.value


def letter(dead: RefusedRow, outbox: str) -> tuple[Delivery, Outcome]:
    """A dead letter, with its identity in the body, so that it comes back under the same one."""
    row, attempts, why = dead
    where = {"source": "outbox", "outbox": outbox, "identity": row.identity, "group": row.group}
    try:
        body = stamped(row.opened(), row.identity, max(attempts, 1)).line()
    except EventRejected:
        body = row.event
    kind = Ending.REJECTED if isinstance(why, EventRejected) else Ending.FAILED
    return Delivery(body, where), Outcome(kind=kind, error=why, attempt=attempts, final=True)


def _said(answer: PublishResult) -> str:
    return describe(answer.error) if answer.error is not None else answer.code or "for a reason that is not known"
