"""A shard that is being read: the records that are not done yet, and how far it is done."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from eventonce.errors import describe
from eventonce.event import Delivery
from eventonce.sources.stream import IteratorExpired, Stream, Trimmed
from eventonce.text import one_line

SHARD_END = "SHARD_END"  # the position after the last record
_MAX_REST = 30_000  # milliseconds; a shard has no receive count, so an early retry is cheap
_log = logging.getLogger("eventonce")


class Handle(NamedTuple):
    """The handle by which a delivery is settled."""

    reader: "ShardReader"
    number: int  # in the order of the shard
    sequence: str


class ShardReader:
    """Delivers the records of one shard in order, a batch at a time. The next batch waits until one is settled."""

    def __init__(self, stream: Stream, shard: str, done: str | None, start: int | None) -> None:
        self.shard = shard
        self.done = done  # the sequence number up to which all is done
        self.next_read = 0  # the earliest time of the next read
        self.leaving = False  # whether it goes to another worker
        self.fetching = False
        self._stream = stream
        self._start = start
        self._read = done  # the sequence number up to which all is read
        self._iterator: str | None = None
        self._closed = False
        self._number = 0
        self._rest_until = 0  # no delivery before; after that, the shard that rested longest comes first
        self._waiting: deque[Delivery] = deque()
        self._unsettled: dict[int, Delivery] = {}  # by number, of the present batch
        self._settled: dict[int, tuple[Delivery, int | None]] = {}  # by number, with the delay of a retry

    @property
    def busy(self) -> bool:
        return self.fetching or bool(self._unsettled)

    @property
    def due(self) -> int:
        """The time from which it may have a delivery."""
        return self._rest_until if self._waiting else max(self._rest_until, self.next_read)

    @property
    def wants(self) -> bool:
        """True if no record waits, and there may be more to read."""
        return not self._waiting and not self._closed

    @property
    def ended(self) -> bool:
        """True if the last record of the shard is done."""
        return self._closed and not self._waiting and not self.busy

    @property
    def position(self) -> str | None:
        return SHARD_END if self.ended else self.done

    def fetch(self) -> bool:
        """Read the next page. Return whether there may be more at once."""
        try:
            if self._iterator is None:
                self._iterator = self._stream.iterator(self.shard, self._read, self._start)
            page = self._stream.read(self.shard, self._iterator)
        except IteratorExpired:
            self._iterator = None
            return True
        except Trimmed as error:
            _log.error(
                "%s: the stream dropped records before they were read; skipping them: %s",
                self.shard,
                one_line(describe(error)),
            )
            self._iterator = self._read = self._start = None
            return True
        for sequence, name, body, sent in page.records:
            self._number += 1
            origin = {"source": self._stream.name, "arn": self._stream.arn, "message": name}
            origin |= {"sent": sent.isoformat()} if sent else {}
            handle = Handle(self, self._number, sequence)
            self._waiting.append(Delivery(body, origin, group=self.shard, handle=handle))
            self._read = sequence
        self._iterator, self._closed = page.iterator, page.iterator is None
        return bool(page.records) or page.behind

    def take(self, limit: int) -> Sequence[Delivery]:
        """Return the next batch."""
        batch = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        self._unsettled = {delivery.handle.number: delivery for delivery in batch}
        return batch

    def settle(self, number: int, delay: int | None, now: int) -> None:
        """Settle a delivery: as done, or for a retry after the delay. The last one of a batch frees the shard."""
        delivery = self._unsettled.pop(number, None)
        if delivery is None:  # another event of the same message was settled before
            return
        self._settled[number] = (delivery, delay)
        if not self._unsettled:
            self._end_batch(now)

    def _end_batch(self, now: int) -> None:
        retries: list[Delivery] = []  # the first one and all after it
        self._rest_until = now
        for _, (delivery, delay) in sorted(self._settled.items()):
            if delay is not None:
                if not retries:  # the later ones only waited for it
                    delivery.receive_count += 1
                    self._rest_until = now + min(delay, _MAX_REST)
                retries.append(delivery)
            elif not retries:
                self.done = delivery.handle.sequence
        self._settled.clear()
        self._waiting.extendleft(reversed(retries))
