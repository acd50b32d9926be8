"""A relay's ways to an outbox in DynamoDB: by its stream, in Lambda or in a worker, and by all that is in it."""

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
from eventonce.outbox.feed import Back, Backlog, OutboxFeed
from eventonce.outbox.rows import PendingRow
from eventonce.ports import Source

LEFT_BEHIND = 300_000  # milliseconds after which an item is read from the table, whatever the stream tells
LOOK_EVERY = 60_000
_MOST_LEFT = 10_000  # items that are looked at
_NO_KEYS = "outbox: a record of the stream has no keys of an outbox; connect the stream of the outbox's own table"


class NewItem(NamedTuple):
    """That an item was added."""

    key: Key
    sequence: str


class KeyFeed:
    """Items by their keys, in this order, each once. Behind one that fails its group waits."""

    def __init__(self, table: DynamoDBTable, news: Sequence[NewItem]) -> None:
        self.name = table.name
        self._table = table
        self._news = news
        self._at = 0
        self._stuck: set[str] = set()
        self._failed: set[Key] = set()

    def take(self, most: int) -> list[PendingRow]:
        while self._at < len(self._news):
            keys = [news.key for news in self._news[self._at : self._at + most]]
            self._at += len(keys)
            items = self._table.read(keys)
            behind = [key for key in items if key.grp in self._stuck]
            self._failed.update(behind)
            if found := [items[key] for key in dict.fromkeys(keys) if key in items and key not in self._failed]:
                return found
        return []

    def settle(self, done: Sequence[PendingRow], back: Sequence[Back]) -> None:
        self._failed |= {each.row.number for each in back}  # first: should the table not answer, these come again
        self._stuck |= {each.row.grp for each in back}
        settle(self._table, done, back)

    @property
    def checkpoint(self) -> str | None:
        """The first that is not out; None where all are."""
        for at, news in enumerate(self._news):
            if at >= self._at or news.key in self._failed:
                return news.sequence
        return None

    def hold(self) -> None:
        """A Lambda function has its shard to itself."""

    def wait(self, duration: int, stop: threading.Event) -> None:
        """There will be no more."""

    def tidy(self) -> bool:
        return False

    def backlog(self) -> Backlog:
        return self._table.backlog()

    def close(self) -> None:
        """Nothing is open."""


class StreamFeed:
    """Records of a stream, which workers share shard by shard.

    A shard goes on behind an event that fails. Its group is late then: it rests, and is read from the table by and by.
    So that nobody overtakes it, a group is always sent from the first of it that is in the table; and since a
    relay may die with late groups in mind, each looks into the table now and then for what was left behind.
    """

    def __init__(self, table: DynamoDBTable, source: Source) -> None:
        self.name = table.name
        self._table = table
        self._source = source
        self._idle = False
        self._late: dict[str, int] = {}  # groups, and the moment from which they may be tried again
        self._look_at = 0  # for what was left behind
        self._taken: dict[Key, list[Delivery]] = {}

    def take(self, most: int) -> list[PendingRow]:
        self._look_behind()
        news = self._news(most)
        now = self._table.clock.steady()
        due = [grp for grp, at in self._late.items() if at <= now][:most]
        try:
            found = self._rows(news, due)
        except BaseException:  # or their shard would wait for these for ever
            self._settle(dict.fromkeys(self._taken, 0))
            raise
        self._idle = not found
        return found

    def _news(self, most: int) -> list[Key]:
        """What is next in the stream; it waits for a while by itself."""
        keys: list[Key] = []
        self._taken = {}
        for delivery in self._source.receive(most):
            news = read_record(msgspec.json.decode(delivery.body))
            if news is None or news.key.grp in self._late:  # which are read from the table
                self._source.ack([delivery])
                continue
            self._taken.setdefault(news.key, []).append(delivery)
            keys.append(news.key)
        return list(dict.fromkeys(keys))

    def _rows(self, news: Sequence[Key], due: Sequence[str]) -> list[PendingRow]:
        groups = self._table.groups([*dict.fromkeys(key.grp for key in news if key.grp.startswith("=")), *due])
        alone = self._table.read([key for key in news if not key.grp.startswith("=")])
        items = alone | {row.number: row for rows in groups.values() for row in rows}
        for grp in due:
            if not groups[grp]:
                del self._late[grp]
        self._settle({}, [key for key in self._taken if key not in items])  # published before
        first = [row for grp in dict.fromkeys(key.grp for key in news) for row in _before(groups.get(grp, []), news)]
        late = [row for grp in due for row in groups[grp]]
        return [*first, *late, *(items[key] for key in news if key in items)]

    def _look_behind(self) -> None:
        clock = self._table.clock
        if clock.steady() < self._look_at:
            return
        self._look_at = clock.steady() + LOOK_EVERY
        for key in islice(self._table.scan(), _MOST_LEFT):
            if key.added < clock.utc() - LEFT_BEHIND:
                self._late.setdefault(key.grp, 0)

    def settle(self, done: Sequence[PendingRow], back: Sequence[Back]) -> None:
        now = self._table.clock.steady()
        again = dict.fromkeys(self._taken, 0)  # unless the table answers, all of it comes again
        try:
            self._late |= {row.grp: now for row in done if row.grp in self._late}
            for each in back:
                self._late[each.row.grp] = max(self._late.get(each.row.grp, 0), now + each.rest)
            settle(self._table, done, back)
            again = {}
        finally:
            self._settle(again)

    def _settle(self, again: Mapping[Key, int], only: Sequence[Key] | None = None) -> None:
        for key in list(self._taken) if only is None else only:
            for delivery in self._taken.pop(key):
                self._source.retry(delivery, again[key]) if key in again else self._source.ack([delivery])

    def hold(self) -> None:
        """The source holds its shards by itself."""

    def wait(self, duration: int, stop: threading.Event) -> None:
        if not self._idle:  # else the source has waited already
            stop.wait(duration / 1000)

    def tidy(self) -> bool:
        return False

    def backlog(self) -> Backlog:
        return self._table.backlog()

    def close(self) -> None:
        self._source.close()


def _before(rows: Sequence[PendingRow], news: Sequence[Key]) -> list[PendingRow]:
    """What was added to a group before any of the news of it, so that these are not the first of it."""
    first = min((key.place for key in news if rows and key.grp == rows[0].grp), default="")
    return [row for row in rows if row.number.place < first]


class Streamed:
    """The feeds of an outbox in DynamoDB."""

    def __init__(self, table: DynamoDBTable, lease: int) -> None:
        self._table = table
        self._lease = lease

    def leftovers(self) -> OutboxFeed:
        """All that is in the table, each group in the order of adding."""
        found = sorted(self._table.scan(), key=lambda key: key.place)
        return KeyFeed(self._table, [NewItem(key, "") for key in found])

    def stream(self, store: str, clock: Clock) -> OutboxFeed:
        """What comes by the stream."""
        from eventonce.sources import open_source
        from eventonce.stores import open_store

        options = {"lease": f"{self._lease}ms", "wait": "200ms", **self._table.place.options}
        options.pop("timeout", None)
        url = f"dynamodbstreams://{self._table.place.name}?{urlencode(options)}"
        source = open_source(url, clock, store=lambda: open_store(store, clock), consumer=f"outbox:{self._table.name}")
        return StreamFeed(self._table, source)

    def handler(self, publish: Callable[[OutboxFeed], None]) -> Callable[[Any, Any], dict[str, Any]]:
        """A handler for Lambda: publishes what its records tell of, and names the first that is not out.

        Lambda takes that for how far it is, and brings all from there on again.
        """

        def handle(event: Any, context: Any = None) -> dict[str, Any]:
            records = event.get("Records") if isinstance(event, Mapping) else None
            if not isinstance(records, list):
                raise EventRejected("outbox: the function was not invoked by a stream of DynamoDB; connect it to one")
            news = [found for record in records if (found := read_record(record)) is not None]
            feed = KeyFeed(self._table, news)
            publish(feed)
            first = feed.checkpoint
            return {"batchItemFailures": [] if first is None else [{"itemIdentifier": first}]}

        return handle


def settle(table: DynamoDBTable, done: Sequence[PendingRow], back: Sequence[Back]) -> None:
    """Remove what is out, and count what failed."""
    if done:
        table.remove(done)
    for each in back:
        if each.blame:
            table.count_failure(each.row)


def read_record(record: Any) -> NewItem | None:
    """What a record tells of; None where it is not that something was added."""
    try:
        if record["eventName"] != "INSERT":
            return None
        keys = record["dynamodb"]["Keys"]
        return NewItem(Key(keys["grp"]["S"], keys["place"]["S"]), record["dynamodb"]["SequenceNumber"])
    except (KeyError, TypeError):
        raise EventRejected(_NO_KEYS) from None
