"""Outboxes in SQLite and PostgreSQL, and relays that publish what waits in them."""

import json
import logging
import random
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from eventonce import ConfigError, Event, EventRejected, Once, Rule
from eventonce.clock import to_datetime
from eventonce.errors import SinkDown, StoreUnusable
from eventonce.outbox import Message, Outbox, PublishKind, PublishResult, Relay
from eventonce.outbox import decision as verdict
from eventonce.outbox import relay_loop as loop
from eventonce.outbox.feed import ReleasedRow
from eventonce.outbox.rows import make_row
from eventonce.outbox.table_feed import TableFeed
from eventonce.testing.clock import ManualClock
from eventonce.testing.proxy import FaultProxy
from tests.integration.outboxes import PATIENCE, Database, Receiver, event, postgres_database, running, sqlite_database
from tests.servers import Postgres
from tests.until import until


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        made = sqlite_database(tmp_path)
    else:
        made = postgres_database(request.getfixturevalue("postgres_server"))
    made.outbox.create()
    yield made
    made.outbox.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups rest for milliseconds only."""
    monkeypatch.setattr(verdict, "FIRST_REST", 4)
    monkeypatch.setattr(verdict, "LONGEST_REST", 20)
    monkeypatch.setattr(loop, "LONGEST_PAUSE", 20)


class Feeds:
    """Makes feeds, and closes them after the test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self.made: list[TableFeed] = []

    def __call__(self, lease: int, database: Database | None = None) -> TableFeed:
        opened = database or self._request.getfixturevalue("database")
        self.made.append(TableFeed(opened.outbox.table, lease=lease, keep=60_000))
        return self.made[-1]


@pytest.fixture
def feeds(request: pytest.FixtureRequest) -> Iterator[Feeds]:
    made = Feeds(request)
    yield made
    for feed in made.made:
        feed.close()


def relay(database: Database, receiver: Any, folder: Path, **settings: Any) -> Relay:
    return Relay(database.outbox, receiver, dead_letter=str(folder / "dead.jsonl"), **settings)


def letters(folder: Path) -> list[dict[str, Any]]:
    file = folder / "dead.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# --- adding ---


def test_what_is_committed_is_published_and_what_is_rolled_back_is_not(database: Database, tmp_path: Path) -> None:
    connection = database.connect()
    database.outbox.add(connection, event(1))
    connection.rollback()
    identity = database.outbox.add(connection, event(2), identity="order-2")
    connection.commit()
    connection.close()
    receiver = Receiver()
    assert relay(database, receiver, tmp_path).drain() == 0
    assert receiver.numbers() == [2]
    assert identity == "order-2"
    assert [each.identity for each in receiver.got] == ["order-2"]
    assert receiver.got[0].event.source == "com.example.shop"
    assert receiver.got[0].event.type == "Ordered"


def test_adding_commits_nothing(database: Database, tmp_path: Path) -> None:
    connection, receiver = database.connect(), Receiver()
    database.outbox.add(connection, event(1))
    if not database.url.startswith("sqlite:"):  # whose relay would wait for the writer
        assert relay(database, receiver, tmp_path).drain() == 0
    assert receiver.sent == []
    connection.commit()
    connection.close()
    assert relay(database, receiver, tmp_path).drain() == 0
    assert receiver.numbers() == [1]


def test_an_event_is_never_added_alone(database: Database) -> None:
    connection = database.connect()
    if database.url.startswith("sqlite:"):
        connection.isolation_level = None
    else:
        connection.autocommit = True
    with pytest.raises(ConfigError, match="no transaction is open"):
        database.outbox.add(connection, event(1))
    connection.execute("BEGIN")
    database.outbox.add(connection, event(2))
    connection.execute("COMMIT")
    connection.close()
    assert database.rows("SELECT identity FROM eventonce_outbox") == [("e2",)]


def test_an_identity_is_given_or_made_of_rules_or_the_event_or_is_new(database: Database) -> None:
    ruled = Outbox(database.url, rules=Rule(name="orders", key=["detail.n"]))
    connection = database.connect()
    identities = [
        database.outbox.add(connection, event(1), identity="mine"),
        database.outbox.add(connection, event(1)),
        ruled.add(connection, event(1)),
        ruled.add(connection, {**event(1), "id": "other"}),
        database.outbox.add(connection, {"n": 1}),
        database.outbox.add(connection, {"n": 1}),
    ]
    connection.commit()
    connection.close()
    assert identities[:2] == ["mine", "e1"]
    assert identities[2] == identities[3]
    assert len(set(identities)) == 5
    assert [
        identity for (identity,) in database.rows("SELECT identity FROM eventonce_outbox ORDER BY id")
    ] == identities


@pytest.mark.parametrize(
    ("source", "more", "reason"),
    [
        (b"{", {}, "JSON"),
        ([1], {}, "not an event"),
        ({"n": float("nan")}, {}, "which JSON has no form for"),
        ({"n": {1, object()}}, {}, "JSON"),
        (event(1), {"group": ""}, "group"),
        (event(1), {"group": "g" * 257}, "group"),
        (event(1), {"group": "a\x00b"}, "group"),
        (event(1), {"identity": 7}, "identity"),
        (event(1), {"identity": "\ud800"}, "identity"),
    ],
)
def test_bad_events_are_refused_before_anything_is_written(
    database: Database, source: object, more: dict[str, Any], reason: str
) -> None:
    connection = database.connect()
    with pytest.raises(EventRejected, match=reason):
        database.outbox.add(connection, source, **more)
    connection.commit()
    connection.close()
    assert database.rows("SELECT 1 FROM eventonce_outbox") == []


def test_events_come_out_as_they_went_in(database: Database, tmp_path: Path) -> None:
    documents: list[dict[str, Any]] = [
        {**event(1), "detail": {"n": 10**30, "float": 0.1, "text": "é😀\u0000\u2028", "none": None, "deep": [[{}]]}},
        {"specversion": "1.0", "id": "c", "source": "/shop", "type": "t", "subject": "s", "data": {"n": 2}},
        {"plain": True, "n": 3},
    ]
    built = [
        Event(data=[1, {"a": None}], id="list"),
        Event(data={"detail": 1}, source="s", type="t", attributes={"x": [1]}, time=to_datetime(1_767_225_600_123)),
        Event(data="text", form="cloudevents", id="c", source="/s", type="t", attributes={"specversion": "1.0"}),
        Event(data={"eventonce_event": {}}),
    ]
    connection, receiver = database.connect(), Receiver()
    for document in documents:
        database.outbox.add(connection, document, group="g")
    for each in built:
        database.outbox.add(connection, each, group="built")
    connection.commit()
    connection.close()
    assert relay(database, receiver, tmp_path).drain() == 0
    assert [json.loads(each.event.line()) for each in receiver.got if each.group == "g"] == documents
    assert [each.event for each in receiver.got if each.group == "built"] == built
    stored = make_row(documents[2], None, None, None).event
    assert json.loads(stored) == documents[2]


def test_an_unsupported_connection_is_refused_with_the_remedy(database: Database, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unsupported connection"):
        database.outbox.add(object(), event(1))
    other = sqlite3.connect(tmp_path / "other.db")
    if database.url.startswith("sqlite:"):
        with pytest.raises(StoreUnusable, match=r"has no outbox; create it with outbox\.create\(\)"):
            database.outbox.add(other, event(1))
    else:
        with pytest.raises(ConfigError, match="connection to sqlite, and the outbox is in postgresql"):
            database.outbox.add(other, event(1))
    other.close()
    with pytest.raises(ConfigError, match="use add"):
        database.outbox.transact([], event(1))


@pytest.mark.parametrize("url", ["mysql://h/d", "sqlite://", "sqlite:///:memory:", "postgresql", "sqlite:///x.db?a=1"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"outbox|option"):
        Outbox(url)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        Outbox("postgresql://me:s3cret/word@host/db")
    assert "s3cret" not in str(raised.value)


# --- SQLAlchemy, and ctx.tx ---


def engine(database: Database) -> Any:
    from sqlalchemy import create_engine

    return create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))


def test_sqlalchemy_connections_and_sessions(database: Database, tmp_path: Path) -> None:
    from sqlalchemy import text
    from sqlalchemy.orm import Session

    made, receiver = engine(database), Receiver()
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id TEXT)"))
        connection.execute(text("INSERT INTO orders VALUES ('1')"))
        database.outbox.add(connection, event(1), group="g")
    with Session(made) as session:
        session.execute(text("INSERT INTO orders VALUES ('2')"))
        database.outbox.add(session, event(2), group="g")
        session.commit()
        session.execute(text("INSERT INTO orders VALUES ('3')"))
        database.outbox.add(session, event(3))
        session.rollback()
    alone = made.connect().execution_options(isolation_level="AUTOCOMMIT")
    with alone, pytest.raises(ConfigError, match="no transaction is open"):
        database.outbox.add(alone, event(4))
    made.dispose()
    assert relay(database, receiver, tmp_path).drain() == 0
    assert receiver.numbers() == [1, 2]
    assert [order for (order,) in database.rows("SELECT id FROM orders ORDER BY id")] == ["1", "2"]


def test_sqlalchemy_without_the_table_is_refused_with_the_remedy(tmp_path: Path, postgres_server: Postgres) -> None:
    for database in (sqlite_database(tmp_path), postgres_database(postgres_server)):
        made = engine(database)
        with made.connect() as connection, pytest.raises(StoreUnusable, match=r"outbox\.create\(\)"):
            database.outbox.add(connection, event(1))
        made.dispose()


def test_an_asynchronous_session_is_refused_with_the_remedy(database: Database) -> None:
    class AsyncSession:
        """As SQLAlchemy's is called."""

    with pytest.raises(ConfigError, match="run_sync"):
        database.outbox.add(AsyncSession(), event(1))


def test_a_handler_publishes_in_the_transaction_that_records_its_event(database: Database, tmp_path: Path) -> None:
    shared = "?shared=true" if database.url.startswith("sqlite:") else ""
    receiver = Receiver()
    with Once(database.url + shared) as once:

        @once
        def handle(ride: Any, ctx: Any) -> None:
            database.outbox.add(ctx.tx, event(ride.data["n"]), identity=ctx.idempotency_key)
            if ride.data["n"] == 2:
                raise ValueError("in vain")

        outcomes = once.run([{"id": str(n), "n": n} for n in (1, 2, 1, 3)], handle)
    assert [outcome.kind.value for outcome in outcomes] == ["processed", "failed", "duplicate", "processed"]
    assert relay(database, receiver, tmp_path).drain() == 0
    assert sorted(receiver.numbers()) == [1, 3]


# --- the tables ---


def test_a_missing_outbox_is_reported(tmp_path: Path, postgres_server: Postgres) -> None:
    for database in (sqlite_database(tmp_path), postgres_database(postgres_server)):
        connection = database.connect()
        with pytest.raises(StoreUnusable, match=r"has no outbox; create it with outbox\.create\(\)"):
            database.outbox.add(connection, event(1))
        connection.close()
        made = relay(database, Receiver(), tmp_path)
        with pytest.raises(StoreUnusable, match="has no outbox"):
            made.drain()
        with pytest.raises(StoreUnusable, match="has no outbox"):
            made.run(threading.Event())
        database.outbox.close()


def test_many_make_the_tables_at_once(tmp_path: Path, postgres_server: Postgres) -> None:
    for database in (sqlite_database(tmp_path), postgres_database(postgres_server)):
        outboxes = [Outbox(database.url) for _ in range(8)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda each: each.create(), outboxes))
        for each in outboxes:
            each.close()
        assert database.rows("SELECT version FROM eventonce_outbox_schema") == [(1,)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_the_tables_are_made_and_relayed_read_committed(
    tmp_path: Path, postgres_server: Postgres, isolation: str
) -> None:
    database = postgres_database(postgres_server, isolation)
    outboxes = [Outbox(database.url) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda each: each.create(), outboxes))
    for each in outboxes:
        each.close()
    database.execute(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE 'isolated'; END IF; "
        "RETURN NULL; END $$",
        "CREATE TRIGGER look AFTER UPDATE OR DELETE ON eventonce_outbox EXECUTE FUNCTION look()",
    )
    database.add(1, 2)
    receiver = Receiver()
    assert relay(database, receiver, tmp_path).drain() == 0
    assert receiver.numbers() == [1, 2]
    database.outbox.close()


def test_the_schema_can_be_made_by_hand(tmp_path: Path, postgres_server: Postgres) -> None:
    for database in (sqlite_database(tmp_path), postgres_database(postgres_server)):
        connection = database.connect()
        for statement in database.outbox.schema().split(";\n"):
            if statement:
                connection.execute(statement)
        connection.commit()
        connection.close()
        database.outbox.table.check()
        database.outbox.create()
        database.add(1)
        assert relay(database, Receiver(), tmp_path).drain() == 0
        database.outbox.close()


def test_an_outbox_of_a_newer_version_is_left_alone(database: Database, tmp_path: Path) -> None:
    connection = database.connect()
    connection.execute("INSERT INTO eventonce_outbox_schema VALUES (99)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreUnusable, match="newer eventonce"):
        relay(database, Receiver(), tmp_path).drain()


# --- order ---


def test_a_group_keeps_its_order_however_long_it_is(database: Database, tmp_path: Path) -> None:
    connection = database.connect()
    for number in range(500):
        database.outbox.add(connection, event(number), group="long" if number % 2 else f"short {number % 14}")
    connection.commit()
    connection.close()
    receiver = Receiver()
    assert relay(database, receiver, tmp_path, batch=30).drain() == 0
    assert sorted(receiver.numbers()) == list(range(500))
    assert all(numbers == sorted(numbers) for numbers in receiver.by_group().values())


def test_a_relay_takes_nothing_of_a_group_that_another_has(database: Database, feeds: Feeds) -> None:
    first, second = feeds(60_000), feeds(60_000)
    database.add(1, 2, group="g")
    rows = first.take(10)
    database.add(3, group="g")
    database.add(4, group="h")
    assert [row.identity for row in rows] == ["e1", "e2"]
    assert [row.identity for row in second.take(10)] == ["e4"]
    first.settle(rows[:1], [ReleasedRow(rows[1], 0)])
    assert [row.identity for row in first.take(10)] == ["e2", "e3"]


def test_a_first_row_that_is_locked_holds_its_group(postgres_server: Postgres, feeds: Feeds) -> None:
    """SKIP LOCKED alone would go on with the row behind it."""
    database = postgres_database(postgres_server)
    database.outbox.create()
    database.add(1, 2, group="g")
    database.add(3, group="h")
    feed = feeds(60_000, database)
    with database.connect() as other:
        other.execute("SELECT FROM eventonce_outbox WHERE identity = 'e1' FOR UPDATE")
        assert [row.identity for row in feed.take(10)] == ["e3"]
    assert [row.identity for row in feed.take(10)] == ["e1", "e2"]
    database.outbox.close()


def test_a_relay_that_began_a_little_later_and_was_done_sooner_is_respected(database: Database, feeds: Feeds) -> None:
    database.add(1, group="g")
    rows = feeds(60_000).take(10)
    connection = database.connect()
    connection.execute("UPDATE eventonce_outbox SET since = since + 5000, until = until + 5000")
    connection.commit()
    connection.close()
    assert len(rows) == 1
    assert feeds(60_000).take(10) == []


def test_numbers_of_a_group_stand_in_the_order_of_the_commits(postgres_server: Postgres, tmp_path: Path) -> None:
    database = postgres_database(postgres_server)
    database.outbox.create()
    first, added = database.connect(), threading.Event()
    database.outbox.add(first, event(1), group="g")

    def later() -> None:
        with database.connect() as second:
            database.outbox.add(second, event(2), group="h")  # does not wait
            added.set()
            database.outbox.add(second, event(3), group="g")  # waits for the first to end

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(later)
        assert added.wait(PATIENCE)
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while database.rows(waits) != [(1,)]:
            assert not future.done(), "it did not wait"
            time.sleep(0.01)
        first.commit()
        future.result(PATIENCE)
    first.close()
    receiver = Receiver()
    assert relay(database, receiver, tmp_path).drain() == 0
    assert receiver.by_group() == {"g": [1, 3], "h": [2]}
    database.outbox.close()


@pytest.mark.usefixtures("quick")
def test_several_relays_keep_the_order_of_every_group(database: Database, tmp_path: Path) -> None:
    """Writers, relays and failures at the same time: each once, and each group in the order of its commits."""
    groups, each, dice = 12, 30, random.Random(2026)  # more groups than the two loops of one relay can hold
    likely_kinds = [PublishKind.FAILED] * 2 + [PublishKind.PUBLISHED] * 8
    receiver = Receiver(lambda each: PublishKind.PUBLISHED if each.identity in first else dice.choice(likely_kinds))
    at_work: set[int] = set()
    first: set[str | None] = set()  # what each relay sent first

    class Door:
        """A relay's own way to the receiver, where the first to come waits for a second."""

        def __init__(self, number: int) -> None:
            self.number = number

        def send(self, events: Sequence[Message]) -> Sequence[PublishResult]:
            if self.number not in at_work:
                first.update(each.identity for each in events)
                at_work.add(self.number)
            until(lambda: len(at_work) > 1)
            return receiver.send(events)

    def write(group: int) -> None:
        connection, chance = database.connect(), random.Random(group)
        for number in range(each):
            database.outbox.add(connection, {"n": number}, group=f"g{group}", identity=f"{group}-{number}")
            time.sleep(chance.choice([0, 0, 0.002]))
            connection.commit()
        connection.close()

    relays = [
        Relay(Outbox(database.url), Door(number), dead_letter=str(tmp_path / "dead"), batch=5, max_attempts=10_000)
        for number in range(3)
    ]
    with running(*relays), ThreadPoolExecutor(groups) as threads:
        list(threads.map(write, range(groups)))
        receiver.wait(groups * each)
    assert receiver.by_group() == {f"g{group}": list(range(each)) for group in range(groups)}
    assert sum(made.counts["published"] > 0 for made in relays) >= 2, "one relay did it all, which shows nothing"
    assert database.rows("SELECT 1 FROM eventonce_outbox") == []


# --- what fails ---


@pytest.mark.usefixtures("quick")
def test_poison_holds_up_no_other_group_and_becomes_a_dead_letter(database: Database, tmp_path: Path) -> None:
    database.add(1, 2, 3, group="bad")
    database.add(*range(10, 40), group="good")
    receiver = Receiver(lambda each: PublishKind.FAILED if each.identity == "e1" else PublishKind.PUBLISHED)
    made = relay(database, receiver, tmp_path, batch=4, max_attempts=3)
    with running(made):
        receiver.wait(30 + 2)
    assert receiver.by_group() == {"good": list(range(10, 40)), "bad": [2, 3]}
    (letter,) = letters(tmp_path)
    assert (letter["identity"], letter["group"], letter["attempts"]) == ("e1", "bad", 3)
    assert letter["outcome"] == "failed"
    assert "could not be published 3 times" in letter["reason"]
    assert json.loads(letter["body"])["detail"] == {"n": 1, "_eventonce": {"id": "e1", "attempt": 3}}
    assert [each.attempts for each in receiver.sent if each.identity == "e1"] == [0, 1, 2]


def test_what_is_refused_is_kept_and_its_group_goes_on(database: Database, tmp_path: Path) -> None:
    database.add(1, 2, 3, group="g")
    receiver = Receiver(lambda each: PublishKind.REFUSED if each.identity == "e2" else PublishKind.PUBLISHED)
    made = relay(database, receiver, tmp_path)
    assert made.drain() == 0
    assert receiver.numbers() == [1, 3]
    assert [(letter["identity"], letter["outcome"]) for letter in letters(tmp_path)] == [("e2", "rejected")]
    assert made.counts == {"published": 2, "refused": 1}


@pytest.mark.usefixtures("quick")
def test_an_outage_counts_against_no_event(database: Database, tmp_path: Path) -> None:
    database.add(*range(20), group="g")
    database.add(*range(20, 30))
    calls = iter(range(1_000_000))
    receiver = Receiver(lambda _: PublishKind.FAILED if next(calls) < 60 else PublishKind.PUBLISHED)
    with running(relay(database, receiver, tmp_path, max_attempts=2)):
        receiver.wait(30)
    assert receiver.by_group()["g"] == list(range(20))
    assert sorted(receiver.numbers()) == list(range(30))
    assert letters(tmp_path) == []


@pytest.mark.usefixtures("quick")
def test_throttling_of_some_does_not_count_against_them(database: Database, tmp_path: Path) -> None:
    class Throttled(Receiver):
        def send(self, events: Any) -> list[PublishResult]:
            slow = SinkDown("events://bus did not take it (ThrottlingException)")
            results = super().send(events)
            return [
                PublishResult(kind=each.kind, identity=each.identity, error=slow)
                if each.kind is PublishKind.FAILED
                else each
                for each in results
            ]

    tries = iter(range(1_000_000))
    receiver = Throttled(
        lambda each: PublishKind.FAILED if each.identity == "e0" and next(tries) < 8 else PublishKind.PUBLISHED
    )
    database.add(*range(100))
    with running(relay(database, receiver, tmp_path, max_attempts=2, batch=10)):
        receiver.wait(100)
    assert letters(tmp_path) == []


def test_drain_ends_where_nothing_gets_through(database: Database, tmp_path: Path) -> None:
    database.add(1, 2, group="g")
    database.add(3)
    receiver = Receiver(lambda _: PublishKind.FAILED)
    assert relay(database, receiver, tmp_path).drain() == 3
    assert len(receiver.sent) == 2


def test_drain_does_not_try_everything_where_nothing_gets_through(database: Database, tmp_path: Path) -> None:
    database.add(*range(200))
    receiver = Receiver(lambda _: PublishKind.FAILED)
    assert relay(database, receiver, tmp_path, batch=10, threads=1).drain() == 200
    assert len(receiver.sent) == 10 + 9  # a batch, and then one at a time


def test_a_row_that_somebody_changed_is_kept_as_a_dead_letter(database: Database, tmp_path: Path) -> None:
    database.add(1, 2, group="g")
    connection = database.connect()
    sql = "UPDATE eventonce_outbox SET event = %s WHERE identity = 'e1'"
    connection.execute(sql.replace("%s", "?") if database.url.startswith("sqlite:") else sql, (b'{"data": ',))
    connection.commit()
    connection.close()
    receiver = Receiver()
    assert relay(database, receiver, tmp_path).drain() == 0
    assert receiver.numbers() == [2]
    assert [letter["body"] for letter in letters(tmp_path)] == ['{"data": ']


def test_dead_letters_that_cannot_be_written_leave_the_event_where_it_is(database: Database, tmp_path: Path) -> None:
    class Full:
        name = "a full disk"

        def write(self, dead: Any, now: int) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    database.add(1)
    made = Relay(database.outbox, Receiver(lambda _: PublishKind.REFUSED), dead_letter=Full(), lease="1s")
    with pytest.raises(OSError, match="No space"):
        made.drain()
    assert database.rows("SELECT identity FROM eventonce_outbox") == [("e1",)]


@pytest.mark.parametrize("settings", [{"batch": 0}, {"max_attempts": 0}, {"lease": "0s"}, {"poll": "0s"}, {"keep": 60}])
def test_wrong_settings_are_refused(database: Database, tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="relay"):
        relay(database, Receiver(), tmp_path, **settings)


# --- leases and clocks ---


def test_what_was_taken_over_is_not_removed_by_its_former_owner(
    database: Database, feeds: Feeds, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = feeds(1), feeds(60_000)
    database.add(1)
    rows = first.take(10)
    while not (again := second.take(10)):
        time.sleep(0.005)
    with caplog.at_level(logging.WARNING):
        first.settle(rows, [])
    assert "another relay took over" in caplog.text
    assert database.rows("SELECT identity FROM eventonce_outbox") == [("e1",)]
    second.settle(again, [])
    assert database.rows("SELECT identity FROM eventonce_outbox") == []


def test_a_slow_receiver_does_not_lose_the_lease(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_BEATS", 600)  # held on to every tenth of a second, as if the lease were 300 ms
    started, go_on = threading.Event(), threading.Event()

    class Slow(Receiver):
        def send(self, events: Any) -> list[PublishResult]:
            started.set()
            assert go_on.wait(PATIENCE)
            return super().send(events)

    database.add(1, group="g")
    slow, other = Slow(), Receiver()
    made = relay(database, slow, tmp_path, lease="60s")
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(made.drain)
        assert started.wait(PATIENCE)
        (before,) = database.rows("SELECT until FROM eventonce_outbox")
        while database.rows("SELECT until FROM eventonce_outbox")[0][0] < before[0] + 600:  # held on to twice
            assert relay(database, other, tmp_path).drain() == 1
        go_on.set()
        future.result(PATIENCE)
    assert (slow.numbers(), other.numbers()) == ([1], [])


def test_a_relay_does_not_wait_forever_in_a_file_that_was_replaced(tmp_path: Path) -> None:
    receiver = Receiver()
    database = sqlite_database(tmp_path)
    database.outbox.create()
    made = relay(database, receiver, tmp_path)
    database.add(1)
    assert made.drain() == 0
    for each in tmp_path.glob(f"{Path(database.outbox.table.name).name}*"):
        each.unlink()
    again = sqlite_database(tmp_path)
    again.outbox.create()
    again.add(2)
    with pytest.raises(StoreUnusable, match="was moved or deleted while it is open"):
        made.drain()
    assert relay(again, receiver, tmp_path).drain() == 0
    assert receiver.numbers() == [1, 2]
    database.outbox.close()
    again.outbox.close()


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000])
def test_a_clock_that_jumps_blocks_nothing_and_loses_nothing(tmp_path: Path, feeds: Feeds, jump: int) -> None:
    clock, receiver = ManualClock(), Receiver(lambda _: PublishKind.FAILED)
    database = sqlite_database(tmp_path)
    database.outbox = Outbox(database.url, clock=clock)
    database.outbox.create()
    database.add(1, group="failed")
    made = relay(database, receiver, tmp_path, clock=clock)
    assert made.drain() == 1  # rests now
    abandoned = feeds(60_000, database)
    database.add(2, group="abandoned")
    assert len(abandoned.take(10)) == 1
    clock._utc += jump
    database.add(3, group="new")
    receiver.kind_of = lambda _: PublishKind.PUBLISHED
    assert made.drain() == 0
    assert sorted(receiver.numbers()) == [1, 2, 3]
    assert database.outbox.table.backlog() == (0, 0)
    database.outbox.close()


def test_on_postgresql_the_clock_of_the_server_decides(postgres_server: Postgres, feeds: Feeds) -> None:
    database = postgres_database(postgres_server)
    wrong = Database(database.url, database.connect)
    wrong.outbox = Outbox(database.url, clock=ManualClock(utc=0))
    wrong.outbox.create()
    wrong.add(1, group="g")
    rows = feeds(60_000, wrong).take(10)
    assert 0 <= rows[0].waited < 60_000
    assert feeds(60_000, database).take(10) == []
    assert database.outbox.table.backlog().pending == 1
    wrong.outbox.close()
    database.outbox.close()


# --- retention ---


def test_nothing_is_kept_of_what_was_published_unless_wanted(database: Database, tmp_path: Path) -> None:
    database.add(1, 2)
    assert relay(database, Receiver(), tmp_path).drain() == 0
    assert database.rows("SELECT 1 FROM eventonce_outbox_published") == []
    database.add(3, group="g")
    assert relay(database, Receiver(), tmp_path, keep="1h").drain() == 0
    ((identity, grp, waited),) = database.rows(
        "SELECT identity, grp, published - added FROM eventonce_outbox_published"
    )
    assert (identity, grp) == ("e3", "=g")
    assert waited >= 0
    assert database.rows("SELECT 1 FROM eventonce_outbox") == []


def test_copies_are_removed_in_bounded_steps_when_they_expire(database: Database, feeds: Feeds) -> None:
    connection = database.connect()
    for number in range(2500):
        connection.execute(
            "INSERT INTO eventonce_outbox_published (id, added, published, grp, identity, event) "
            f"VALUES ({number}, 1, {number + 1}, '-x', 'x', '{{}}')"
        )
    connection.commit()
    connection.close()
    feed, counted = feeds(60_000), []
    while feed.sweep():
        counted += database.rows("SELECT count(*), min(id) FROM eventonce_outbox_published")
    assert counted == [(1500, 1000), (500, 2000)]
    assert database.rows("SELECT 1 FROM eventonce_outbox_published") == []


def test_a_running_relay_removes_old_copies(database: Database, tmp_path: Path) -> None:
    database.add(*range(5))
    receiver = Receiver()
    with running(relay(database, receiver, tmp_path, keep="1ms", poll="50ms")):
        receiver.wait(5)
        deadline = time.monotonic() + PATIENCE
        while database.rows("SELECT 1 FROM eventonce_outbox_published"):
            assert time.monotonic() < deadline
            time.sleep(0.05)


# --- being told that there is more ---


def test_a_relay_hears_of_what_is_added(database: Database, tmp_path: Path) -> None:
    receiver = Receiver()
    with running(relay(database, receiver, tmp_path, poll="1h")):
        for number in range(5):
            database.add(number)
            receiver.wait(number + 1)
    assert receiver.numbers() == list(range(5))


def test_a_relay_hears_again_after_its_connection_was_lost(postgres_server: Postgres, tmp_path: Path) -> None:
    database = postgres_database(postgres_server)
    database.outbox.create()
    receiver, listening = Receiver(), "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    with running(relay(database, receiver, tmp_path, poll="1h")):
        database.add(1)
        receiver.wait(1)
        for number in (2, 3):
            here = f"{listening} AND datname = current_database()"
            while not (rows := database.rows(here)):
                time.sleep(0.01)
            database.rows(f"SELECT pg_terminate_backend({rows[0][0]})")
            database.add(number)
            receiver.wait(number)
    assert receiver.numbers() == [1, 2, 3]
    database.outbox.close()


def test_without_notify_a_relay_finds_it_by_itself(postgres_server: Postgres, tmp_path: Path) -> None:
    database = postgres_database(postgres_server)
    database.outbox = Outbox(f"{database.url}?notify=false")
    database.outbox.create()
    receiver = Receiver()
    with running(relay(database, receiver, tmp_path, poll="50ms")):
        database.add(1)
        receiver.wait(1)
        database.add(2)
        receiver.wait(2)
    database.outbox.close()


def test_a_database_that_is_away_is_waited_for(postgres_server: Postgres, tmp_path: Path) -> None:
    database = postgres_database(postgres_server)
    database.outbox.create()
    receiver = Receiver()
    with FaultProxy(postgres_server.port) as proxy:
        through = Outbox(database.url.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
        made = Relay(through, receiver, dead_letter=str(tmp_path / "dead"), lease="2s", poll="100ms")
        with running(made):
            database.add(1)
            receiver.wait(1)
            until(lambda: not database.rows("SELECT 1 FROM eventonce_outbox"))
            proxy.refusing = True
            proxy.cut_all()
            database.add(2)
            time.sleep(0.5)
            assert receiver.numbers() == [1]
            proxy.refusing = False
            until(lambda: 2 in receiver.numbers())
        through.close()
    assert set(receiver.numbers()) == {1, 2}
    database.outbox.close()


def test_a_lost_response_loses_no_event(postgres_server: Postgres, tmp_path: Path) -> None:
    """Any call may lose its response. The event may be published again, under the same identity."""
    database = postgres_database(postgres_server)
    database.outbox.create()
    receiver, dice = Receiver(), random.Random(7)
    with FaultProxy(postgres_server.port) as proxy:
        through = Outbox(database.url.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
        made = Relay(through, receiver, dead_letter=str(tmp_path / "dead"), lease="1s", poll="100ms", batch=3)
        with running(made):
            for number in range(60):
                if dice.random() < 0.3:
                    proxy.cut_answers(1)
                database.add(number, group=f"g{number % 4}")
            deadline = time.monotonic() + PATIENCE
            while {each.identity for each in receiver.got} != {f"e{number}" for number in range(60)}:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        through.close()
    assert proxy.cut > 0
    for numbers in receiver.by_group().values():
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    database.outbox.close()


# --- numbers ---


def test_lag_and_backlog_are_reported(database: Database, tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    from eventonce.observe.prometheus import PrometheusHook

    registry = CollectorRegistry()
    database.add(1, 2, group="g")
    database.add(3)
    time.sleep(0.01)
    receiver = Receiver(lambda each: PublishKind.FAILED if each.identity == "e1" else PublishKind.PUBLISHED)
    made = relay(database, receiver, tmp_path, hooks=[PrometheusHook(registry=registry)])
    assert made.drain() == 2
    assert registry.get_sample_value("eventonce_outbox_pending") == 2
    first = registry.get_sample_value("eventonce_outbox_lag_seconds")
    assert first is not None
    assert first > 0
    time.sleep(0.01)
    assert made.drain() == 2
    later = registry.get_sample_value("eventonce_outbox_lag_seconds")
    assert later is not None
    assert later > first
    assert registry.get_sample_value("eventonce_outbox_events_total", {"outcome": "published"}) == 1
    assert registry.get_sample_value("eventonce_outbox_events_total", {"outcome": "failed"}) == 1
    assert registry.get_sample_value("eventonce_outbox_delay_seconds_count") == 1


def test_outgoing_carries_group_and_identity(database: Database, tmp_path: Path) -> None:
    database.add(1, group="g")
    database.add(2)
    receiver = Receiver()
    relay(database, receiver, tmp_path).drain()
    assert {(each.identity, each.group) for each in receiver.got} == {("e1", "g"), ("e2", None)}
    assert all(isinstance(each, Message) for each in receiver.got)


def test_roles_without_permissions_are_reported(postgres_server: Postgres, tmp_path: Path) -> None:
    database = postgres_database(postgres_server)
    database.outbox.create()
    role = database.url.rpartition("/")[2]
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        connection.execute(f"GRANT SELECT ON eventonce_outbox_schema TO {role}".encode())
    outbox = Outbox(database.url.replace("postgres@", f"{role}@"))
    with pytest.raises(StoreUnusable, match="grant the role"):
        Relay(outbox, Receiver(), dead_letter=str(tmp_path / "dead")).run(threading.Event())
    outbox.close()
    database.outbox.close()
