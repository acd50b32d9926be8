"""The feeds of an outbox in DynamoDB: from its stream, in Lambda or in a worker, and from the whole table."""

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from eventonce.clock import Clock
from eventonce.errors import EventRejected
from eventonce.event import Delivery
from eventonce.outbox.dynamodb import DynamoDBTable, Key
from eventonce.outbox.feed import Backlog, OutboxFeed, ReleasedRow
from eventonce.outbox.rows import PendingRow
from eventonce.ports import Source

LEFT_BEHIND = 300_000  # milliseconds after which an item is read from the table, whatever the stream has
LOOK_EVERY = 60_000
_MAX_SCANNED = 10_000  # items
_NO_KEYS = "outbox: a record of the stream has no keys of an outbox; connect the stream of the outbox's own table"


class NewItem(NamedTuple):
    """The record of an item that was added."""

    key: Key
    sequence: str


class KeyFeed:
    """Feeds items by their keys, in this order, each once. After one that fails, the rest of its group waits."""

    def __init__(self, table: DynamoDBTable, new_items: Sequence[NewItem]) -> None:
        self.name = table.name
        self._table = table
        self._new_items = new_items
        self._next = 0
        self._failed_groups: set[str] = set()
        self._failed: set[Key] = set()

    def take(self, limit: int) -> list[PendingRow]:
        while self._next < len(self._new_items):
            keys = [item.key for item in self._new_items[self._next : self._next + limit]]
            self._next += len(keys)
            items = self._table.read(keys)
            self._failed.update(key for key in items if key.grp in self._failed_groups)
            if rows := [items[key] for key in dict.fromkeys(keys) if key in items and key not in self._failed]:
                return rows
        return []

    def settle(self, done: Sequence[PendingRow], released: Sequence[ReleasedRow]) -> None:
        # First: if the table does not answer, these are redelivered.
        self._failed |= {release.row.number for release in released}
        self._failed_groups |= {release.row.grp for release in released}
        settle(self._table, done, released)

    @property
    def checkpoint(self) -> str | None:
        """The sequence number of the first item that is not published, or None if all are."""
        for index, item in enumerate(self._new_items):
            if index >= self._next or item.key in self._failed:
                return item.sequence
        return None

    def extend(self) -> None:
        """Do nothing: a Lambda function has its shard to itself."""

    def wait(self, duration: int, stop: threading.Event) -> None:
        """Do nothing: there will be no more items."""

    def sweep(self) -> bool:
        return False

    def backlog(self) -> Backlog:
        return self._table.backlog()

    def close(self) -> None:
        """Do nothing: nothing is open."""


class StreamFeed:
    """Feeds the new items of a stream, which workers share shard by shard.

    A shard continues after an event that fails. The group of the event is late then: it rests, and is read from the
    table later. A group is always sent from its first item in the table, so no event overtakes another. A relay may die
    while it has late groups, so each relay scans the table at intervals for items that were left behind.
    """

    def __init__(self, table: DynamoDBTable, source: Source) -> None:
        self.name = table.name
        self._table = table
        self._source = source
        self._idle = False
        self._late: dict[str, int] = {}  # groups, with the time from which they may be retried
        self._scan_at = 0  # for items that were left behind
        self._deliveries: dict[Key, list[Delivery]] = {}

    def take(self, limit: int) -> list[PendingRow]:
        self._find_left_behind()
        new_keys = self._receive(limit)
        now = self._table.clock.steady()
        due = [grp for grp, retry_at in self._late.items() if retry_at <= now][:limit]
        try:
            rows = self._rows(new_keys, due)
        except BaseException:  # else the shard would wait for these forever
            self._settle(dict.fromkeys(self._deliveries, 0))
            raise
        self._idle = not rows
        return rows

    def _receive(self, limit: int) -> list[Key]:
        """Return the keys of the next records of the stream. The source waits for a while if there are none."""
        keys: list[Key] = []
        self._deliveries = {}
        for delivery in self._source.receive(limit):
            item = read_record(msgspec.json.decode(delivery.body))
            if item is None or item.key.grp in self._late:  # late groups are read from the table
                self._source.ack([delivery])
                continue
            self._deliveries.setdefault(item.key, []).append(delivery)
            keys.append(item.key)
        return list(dict.fromkeys(keys))

    def _rows(self, new_keys: Sequence[Key], due: Sequence[str]) -> list[PendingRow]:
        groups = self._table.groups([*dict.fromkeys(key.grp for key in new_keys if key.grp.startswith("=")), *due])
        ungrouped = self._table.read([key for key in new_keys if not key.grp.startswith("=")])
        items = ungrouped | {row.number: row for rows in groups.values() for row in rows}
        for grp in due:
            if not groups[grp]:
                del self._late[grp]
        self._settle({}, [key for key in self._deliveries if key not in items])  # published earlier
        new_groups = dict.fromkeys(key.grp for key in new_keys)
        earlier = [row for grp in new_groups for row in _added_before(groups.get(grp, []), new_keys)]
        late = [row for grp in due for row in groups[grp]]
        return [*earlier, *late, *(items[key] for key in new_keys if key in items)]

    def _find_left_behind(self) -> None:
        clock = self._table.clock
        if clock.steady() < self._scan_at:
            return
        self._scan_at = clock.steady() + LOOK_EVERY
        for key in islice(self._table.scan(), _MAX_SCANNED):
            if key.added < clock.utc() - LEFT_BEHIND:
                self._late.setdefault(key.grp, 0)

    def settle(self, done: Sequence[PendingRow], released: Sequence[ReleasedRow]) -> None:
        now = self._table.clock.steady()
        retries = dict.fromkeys(self._deliveries, 0)  # all of them, unless the table answers
        try:
            self._late |= {row.grp: now for row in done if row.grp in self._late}
            for release in released:
                self._late[release.row.grp] = max(self._late.get(release.row.grp, 0), now + release.delay)
            settle(self._table, done, released)
            retries = {}
        finally:
            self._settle(retries)

    def _settle(self, retries: Mapping[Key, int], only: Sequence[Key] | None = None) -> None:
        for key in list(self._deliveries) if only is None else only:
            for delivery in self._deliveries.pop(key):
                self._source.retry(delivery, retries[key]) if key in retries else self._source.ack([delivery])

    def extend(self) -> None:
        """Do nothing: the source extends the leases of its shards."""

    def wait(self, duration: int, stop: threading.Event) -> None:
        if not self._idle:  # else the source has waited already
            stop.wait(duration / 1000)

    def sweep(self) -> bool:
        return False

    def backlog(self) -> Backlog:
        return self._table.backlog()

    def close(self) -> None:
        self._source.close()


def _added_before(rows: Sequence[PendingRow], new_keys: Sequence[Key]) -> list[PendingRow]:
    """Return the rows of a group that were added before its first new key."""
    first = min((key.place for key in new_keys if rows and key.grp == rows[0].grp), default="")
    return [row for row in rows if row.number.place < first]


class StreamFeeds:
    """Opens the feeds of an outbox in DynamoDB."""

    def __init__(self, table: DynamoDBTable, lease: int) -> None:
        self._table = table
        self._lease = lease

    def leftovers(self) -> OutboxFeed:
        """Return a feed of all items of the table, each group in the order in which they were added."""
        keys = sorted(self._table.scan(), key=lambda key: key.place)
        return KeyFeed(self._table, [NewItem(key, "") for key in keys])

    def stream(self, store: str, clock: Clock) -> OutboxFeed:
        """Return a feed of the stream, whose shards relays share through the store."""
        from eventonce.sources import open_source
        from eventonce.stores import open_store

        options = {"lease": f"{self._lease}ms", "wait": "200ms", **self._table.address.options}
        options.pop("timeout", None)
        url = f"dynamodbstreams://{self._table.address.name}?{urlencode(options)}"
        source = open_source(url, clock, store=lambda: open_store(store, clock), consumer=f"outbox:{self._table.name}")
        return StreamFeed(self._table, source)

    def handler(self, publish: Callable[[OutboxFeed], None]) -> Callable[[Any, Any], dict[str, Any]]:
        """Return a handler for Lambda. It publishes the items of its records, and names the first that failed.

        Lambda redelivers all records from that one on.
        """

        def handle(event: Any, context: Any = None) -> dict[str, Any]:
            records = event.get("Records") if isinstance(event, Mapping) else None
            if not isinstance(records, list):
                raise EventRejected("outbox: the function was not invoked by a stream of DynamoDB; connect it to one")
            new_items = [item for record in records if (item := read_record(record)) is not None]
            feed = KeyFeed(self._table, new_items)
            publish(feed)
            first = feed.checkpoint
            return {"batchItemFailures": [] if first is None else [{"itemIdentifier": first}]}

        return handle


def settle(table: DynamoDBTable, done: Sequence[PendingRow], released: Sequence[ReleasedRow]) -> None:
    """Delete the items that are done, and count the failures of the others."""
    if done:
        table.remove(done)
    for release in released:
        if release.blame:
            table.count_failure(release.row)


def read_record(record: Any) -> NewItem | None:
    """Return the item that a record reports as added, or None if it reports another change."""
    try:
        if record["eventName"] != "INSERT":
            return None
        keys = record["dynamodb"]["Keys"]
        return NewItem(Key(keys["grp"]["S"], keys["place"]["S"]), record["dynamodb"]["SequenceNumber"])
    except (KeyError, TypeError):
        raise EventRejected(_NO_KEYS) from None
