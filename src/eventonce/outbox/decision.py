"""What becomes of the rows of a batch, by the publish result of each."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eventonce.backoff import backoff
from eventonce.claims.outcome import Outcome
from eventonce.claims.outcome import OutcomeKind as Ending
from eventonce.errors import EventOnceError, EventRejected, SinkDown, TooManyAttempts, describe
from eventonce.event import Delivery
from eventonce.event.stamp import add_stamp
from eventonce.outbox.feed import ReleasedRow
from eventonce.outbox.message import PublishKind, PublishResult
from eventonce.outbox.rows import PendingRow
from eventonce.text import counted

FIRST_REST, LONGEST_REST = 500, 300_000  # milliseconds that a group rests after a failure
PublishedRows = Sequence[tuple[PendingRow, PublishResult]]


class RefusedRow(NamedTuple):
    """A row that will never be published."""

    row: PendingRow
    attempts: int
    error: EventOnceError


class RelayDecision:
    """Sorts a batch into rows that leave the outbox, rows that stay, and dead letters.

    Attempts count only with `blame`. While nothing gets through, the receiver fails, whatever it is sent. If it does
    not answer, or throttles, no event is to blame.
    """

    def __init__(
        self, published: PublishedRows, unreadable: Iterable[RefusedRow], max_attempts: int, *, blame: bool
    ) -> None:
        self.dead = list(unreadable)
        self.done = [refused.row for refused in self.dead]
        self.released: list[ReleasedRow] = []
        self.sent = bool(published)
        self.counts: Counter[str] = Counter({"refused": len(self.done)} if self.done else {})
        self._max_attempts = max_attempts
        failed_groups: set[str] = set()
        for row, result in published:
            if row.grp in failed_groups:  # unsent, as an earlier one of its group failed
                self.released.append(ReleasedRow(row, 0))
                continue
            self.counts[self._decide(row, result, blame=blame and not isinstance(result.error, SinkDown))] += 1
            if result.kind is PublishKind.FAILED:
                failed_groups.add(row.grp)

    def _decide(self, row: PendingRow, result: PublishResult, *, blame: bool) -> str:
        failures = row.failures + blame
        if result.kind is PublishKind.FAILED and failures < self._max_attempts:
            self.released.append(ReleasedRow(row, backoff(failures or 1, FIRST_REST, LONGEST_REST), blame))
            return "failed"
        self.done.append(row)
        if result.kind is PublishKind.FAILED:
            reason = f"could not be published {counted(failures, 'time')}; the last time: {_reason(result)}"
            self.dead.append(RefusedRow(row, failures, TooManyAttempts(reason)))
            return "refused"
        if result.kind is PublishKind.REFUSED:
            self.dead.append(RefusedRow(row, failures + 1, EventRejected(_reason(result))))
        return result.kind.value


def dead_event(refused: RefusedRow, outbox: str) -> tuple[Delivery, Outcome]:
    """Return the event for its dead letter. Its body has the stamp, so a redrive sends it under its identity."""
    row, attempts, error = refused
    origin = {"source": "outbox", "outbox": outbox, "identity": row.identity, "group": row.group}
    try:
        body = add_stamp(row.decode(), row.identity, max(attempts, 1)).line()
    except EventRejected:
        body = row.event
    kind = Ending.REJECTED if isinstance(error, EventRejected) else Ending.FAILED
    return Delivery(body, origin), Outcome(kind=kind, error=error, attempt=attempts, final=True)


def _reason(result: PublishResult) -> str:
    return describe(result.error) if result.error is not None else result.code or "unknown reason"
