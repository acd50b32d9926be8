"""A shard in hand: what was read of it and is not done yet, and how far it is done."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from eventonce.event import Delivery
from eventonce.sources.stream import IteratorOver, Stream, Trimmed

SHARD_END = "SHARD_END"  # the position behind the last record
_LONGEST_REST = 30_000  # a shard counts no offers, so looking again soon is cheap
_log = logging.getLogger("eventonce")


class Handle(NamedTuple):
    """What a delivery is settled by."""

    reader: "ShardReader"
    number: int  # in the order of the shard
    sequence: str


class ShardReader:
    """Gives the records of one shard in order, and none while others of it are in hand."""

    def __init__(self, stream: Stream, shard: str, done: str | None, start: int | None) -> None:
        self.shard = shard
        self.done = done  # all up to this sequence number is
        self.next_read = 0  # not before this moment
        self.leaving = False  # it is to be given to another worker
        self.fetching = False
        self._stream = stream
        self._start = start
        self._read = done  # up to this sequence number
        self._iterator: str | None = None
        self._closed = False
        self._number = 0
        self._rest = 0  # until this moment nothing is offered; when it has passed, who rested longest comes first
        self._waiting: deque[Delivery] = deque()
        self._out: dict[int, Delivery] = {}
        self._settled: dict[int, tuple[Delivery, int | None]] = {}  # of what is out: None is done, else when again

    @property
    def busy(self) -> bool:
        return self.fetching or bool(self._out)

    @property
    def due(self) -> int:
        """The moment from which it may have something."""
        return self._rest if self._waiting else max(self._rest, self.next_read)

    @property
    def wants(self) -> bool:
        """Whether it has nothing at hand, and there may be more to read."""
        return not self._waiting and not self._closed

    @property
    def ended(self) -> bool:
        """Whether the last of its records is done."""
        return self._closed and not self._waiting and not self.busy

    @property
    def position(self) -> str | None:
        return SHARD_END if self.ended else self.done

    def fetch(self) -> bool:
        """Read on; whether it is worth looking again at once."""
        try:
            if self._iterator is None:
                self._iterator = self._stream.iterator(self.shard, self._read, self._start)
            page = self._stream.read(self.shard, self._iterator)
        except IteratorOver:
            self._iterator = None
            return True
        except Trimmed as error:
            _log.error("%s: records were dropped before they were read, going on behind them: %s", self.shard, error)
            self._iterator = self._read = self._start = None
            return True
        for sequence, name, body, sent in page.records:
            self._number += 1
            where = {"source": self._stream.name, "arn": self._stream.arn, "message": name}
            where |= {"sent": sent.isoformat()} if sent else {}
            handle = Handle(self, self._number, sequence)
            self._waiting.append(Delivery(body, where, group=self.shard, handle=handle))
            self._read = sequence
        self._iterator, self._closed = page.iterator, page.iterator is None
        return bool(page.records) or page.behind

    def take(self, limit: int) -> Sequence[Delivery]:
        """The next ones; they are in hand until each is settled."""
        found = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        self._out = {delivery.handle.number: delivery for delivery in found}
        return found

    def settle(self, number: int, delay: int | None, now: int) -> None:
        """This one is done, or is to be offered again after the delay. The last one of a batch frees the shard."""
        delivery = self._out.pop(number, None)
        if delivery is None:  # a part of a message whose other part was settled just now
            return
        self._settled[number] = (delivery, delay)
        if not self._out:
            self._settle(now)

    def _settle(self, now: int) -> None:
        again: list[Delivery] = []
        self._rest = now
        for _, (delivery, delay) in sorted(self._settled.items()):
            if delay is not None:
                if not again:  # those behind it were not offered, they waited
                    delivery.receive_count += 1
                    self._rest = now + min(delay, _LONGEST_REST)
                again.append(delivery)
            elif not again:
                self.done = delivery.handle.sequence
        self._settled.clear()
        self._waiting.extendleft(reversed(again))
