"""A relay's ways to an outbox in DynamoDB: by its stream, in Lambda or in a worker, and by all that is in it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode

import msgspec

from eventonce.clock import Clock
from eventonce.errors import EventRejected
from eventonce.event import Delivery
from eventonce.publish.dynamodb import DynamoDBTable, Key
from eventonce.publish.feed import Back, Backlog, Feed
from eventonce.publish.row import Pending

_NO_KEYS = "outbox: a record of the stream has no keys of an outbox; connect the stream of the outbox's own table"


class News(NamedTuple):
    """That an item was added."""

    key: Key
    sequence: str


class Source(Protocol):
    """The stream, as a way in."""

    def receive(self, limit: int) -> Sequence[Delivery]: ...
    def ack(self, deliveries: Sequence[Delivery]) -> None: ...
    def retry(self, delivery: Delivery, delay: int) -> None: ...
    def close(self) -> None: ...


class KeyFeed:
    """Items by their keys, in this order, each once. Behind one that fails its group waits."""

    def __init__(self, table: DynamoDBTable, news: Sequence[News]) -> None:
        self.name = table.name
        self._table = table
        self._news = news
        self._at = 0
        self._stuck: set[str] = set()
        self._failed: set[Key] = set()

    def take(self, most: int) -> list[Pending]:
        while self._at < len(self._news):
            keys = [news.key for news in self._news[self._at : self._at + most]]
            self._at += len(keys)
            items = self._table.read(keys)
            behind = [key for key in items if key.grp in self._stuck]
            self._failed.update(behind)
            if found := [items[key] for key in dict.fromkeys(keys) if key in items and key not in self._failed]:
                return found
        return []

    def settle(self, done: Sequence[Pending], back: Sequence[Back]) -> None:
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
    """Records of a stream, which workers share shard by shard."""

    def __init__(self, table: DynamoDBTable, source: Source) -> None:
        self.name = table.name
        self._table = table
        self._source = source
        self._idle = False
        self._taken: dict[Key, list[Delivery]] = {}

    def take(self, most: int) -> list[Pending]:
        deliveries = self._source.receive(most)  # waits for a while by itself
        self._taken, keys = {}, []
        for delivery in deliveries:
            news = read_record(msgspec.json.decode(delivery.body))
            if news is not None:
                self._taken.setdefault(news.key, []).append(delivery)
                keys.append(news.key)
            else:
                self._source.ack([delivery])
        items = self._read(keys)
        for key in self._taken.keys() - items.keys():  # published before
            self._source.ack(self._taken.pop(key))
        found = [items[key] for key in dict.fromkeys(keys) if key in items]
        self._idle = not found
        return found

    def _read(self, keys: Sequence[Key]) -> dict[Key, Pending]:
        try:
            return self._table.read(keys) if keys else {}
        except BaseException:  # or its shard would wait for these for ever
            for deliveries in self._taken.values():
                for delivery in deliveries:
                    self._source.retry(delivery, 0)
            raise

    def settle(self, done: Sequence[Pending], back: Sequence[Back]) -> None:
        rest = max((each.rest for each in back), default=0)
        rests = {each.row.number: each.rest or rest for each in back}
        try:
            settle(self._table, done, back)
        except BaseException:
            rests = dict.fromkeys(self._taken, rest)
            raise
        finally:
            for key, deliveries in self._taken.items():
                for delivery in deliveries:
                    self._source.ack([delivery]) if key not in rests else self._source.retry(delivery, rests[key])
            self._taken = {}

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


class Streamed:
    """The feeds of an outbox in DynamoDB."""

    def __init__(self, table: DynamoDBTable, lease: int) -> None:
        self._table = table
        self._lease = lease

    def leftovers(self) -> Feed:
        """All that is in the table, each group in the order of adding."""
        found = sorted(self._table.scan())
        return KeyFeed(self._table, [News(key, "") for _, key in found])

    def stream(self, store: str, clock: Clock) -> Feed:
        """What comes by the stream."""
        from eventonce.sources import open_source
        from eventonce.stores import open_store

        options = {"lease": f"{self._lease}ms", "wait": "200ms", **self._table.place.options}
        options.pop("timeout", None)
        url = f"dynamodbstreams://{self._table.place.name}?{urlencode(options)}"
        source = open_source(url, clock, store=lambda: open_store(store, clock), consumer=f"outbox:{self._table.name}")
        return StreamFeed(self._table, source)

    def handler(self, go_on: Callable[[Feed], bool]) -> Callable[[Any, Any], dict[str, Any]]:
        """A handler for Lambda: publishes what its records tell of, and names the first that is not out.

        Lambda takes that for how far it is, and brings all from there on again.
        """

        def handle(event: Any, context: Any = None) -> dict[str, Any]:
            records = event.get("Records") if isinstance(event, Mapping) else None
            if not isinstance(records, list):
                raise EventRejected("outbox: the function was not invoked by a stream of DynamoDB; connect it to one")
            news = [found for record in records if (found := read_record(record)) is not None]
            feed = KeyFeed(self._table, news)
            while go_on(feed):
                pass
            first = feed.checkpoint
            return {"batchItemFailures": [] if first is None else [{"itemIdentifier": first}]}

        return handle


def settle(table: DynamoDBTable, done: Sequence[Pending], back: Sequence[Back]) -> None:
    """Remove what is out, and count what failed."""
    if done:
        table.remove(done)
    for each in back:
        if each.blame:
            table.count_failure(each.row)


def read_record(record: Any) -> News | None:
    """What a record tells of; None where it is not that something was added."""
    try:
        if record["eventName"] != "INSERT":
            return None
        keys = record["dynamodb"]["Keys"]
        return News(Key(keys["grp"]["S"], keys["identity"]["S"]), record["dynamodb"]["SequenceNumber"])
    except (KeyError, TypeError):
        raise EventRejected(_NO_KEYS) from None
