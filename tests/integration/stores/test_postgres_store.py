"""The PostgreSQL store on its server: schema, roles, faults, transactions, forks."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from eventonce import (
    ConfigError,
    Event,
    EventOnceError,
    EventRejected,
    LeaseLost,
    Once,
    Outcome,
    OutcomeKind,
    StoreError,
    open_store,
)
from eventonce.claims.protocol import Busy, Claim, ClaimRequest, Commit, Done, Record, Release, Won
from eventonce.clock import SystemClock
from eventonce.errors import StoreBusy, StoreUnusable
from eventonce.event.keys import Key
from eventonce.ports import Checkable, Transactional
from eventonce.stores.postgres import schema
from eventonce.stores.postgres.batch import byte_strings, longs
from eventonce.stores.postgres.store import _COMMIT_LARGE, PostgresStore
from eventonce.testing import ManualClock
from eventonce.testing.contract import LONG, OVER, SHORT, claim, finish, key, keys, release
from eventonce.testing.proxy import FaultProxy, free_port
from tests.conftest import running
from tests.interrupts import in_the_engine, interrupt_before_the_commit
from tests.servers import Postgres
from tests.until import until

MINE = Claim(key(1), b"token--1")
SECRET = "hunter2-%40secret"
_numbers = itertools.count()


class Place:
    """A schema for one test on the server."""

    user = "postgres"

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.name = f"place{next(_numbers)}"
        self.sql(f"CREATE SCHEMA {self.name}")

    def url(self, *, port: int | None = None, user: str = "", more: str = "timeout=60s") -> str:
        url = self.server.url(port).replace("postgres@", f"{user or self.user}@")
        return f"{url}?options=-csearch_path%3D{self.name}&{more}"

    def store(self, **url: Any) -> PostgresStore:
        store = open_store(self.url(**url))
        assert isinstance(store, PostgresStore)
        return store

    def sql(self, query: str, *values: object) -> list[Any]:
        with psycopg.connect(self.server.url(), autocommit=True, options=f"-csearch_path={self.name}") as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def place(postgres_server: Postgres) -> Place:
    return Place(postgres_server)


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    store = place.store()
    yield store
    store.close()


@pytest.fixture
def proxy(postgres_server: Postgres) -> Iterator[FaultProxy]:
    with FaultProxy(postgres_server.port) as proxy:
        yield proxy


def run_together(*calls: Callable[[], object]) -> list[BaseException]:
    """Call each function in a thread of its own. Return the errors that they raised."""
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


# --- opening ---


def test_nothing_is_connected_before_it_is_needed() -> None:
    store = open_store(f"postgresql://nobody@127.0.0.1:{free_port()}/nowhere")
    assert isinstance(store, Transactional)
    assert isinstance(store, Checkable)
    store.close()


def test_an_application_starts_and_runs_while_the_server_is_down() -> None:
    ran: list[Event] = []
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nowhere"
    with Once(url, lease="0.2s", on_store_error="process") as once:
        (outcome,) = once.run([{"id": "1"}], ran.append)
    assert (outcome.kind, len(ran)) == (OutcomeKind.PROCESSED, 1)
    assert isinstance(outcome.error, StoreError)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://h/db?timeout=soon", "'soon' is not a duration"),
        ("postgresql://h/db?timeout=0s", "no server time to answer"),
        ("postgresql://h/db?prepare=maybe", "neither true nor false"),
        (f"postgresql://u:{SECRET}%zz@h/db", "the URL cannot be parsed"),
        (f"postgresql://u:{SECRET}@h:{SECRET}/db", "the URL cannot be parsed"),
        (f"postgresql://u@h/db?passwd={SECRET}", "the URL cannot be parsed"),
        ("postgresql://u:hunter2/secret@h:1/db", "the URL cannot be parsed"),
        ("postgresql://u:22/hunter2@h:1/db", "the URL cannot be parsed"),
        ("postgresql://u:a@hunter2@h:1/db", "the URL cannot be parsed"),
    ],
)
def test_a_wrong_url_is_refused_without_its_secrets(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(url).peek(keys(1))
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_driver_without_its_library_names_the_extra() -> None:
    start = "from eventonce import open_store; open_store('postgresql://localhost')"
    done = subprocess.run(
        [sys.executable, "-c", start],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PSYCOPG_IMPL": "none"},
    )
    assert "MissingDriver" in done.stderr
    assert "pip install 'eventonce[postgres]'" in done.stderr


@pytest.mark.parametrize(
    "url", ["postgresql://u:{}@127.0.0.1:{}/d", "postgresql://127.0.0.1:{1}/d?user=u&password={0}"]
)
@pytest.mark.parametrize("password", [SECRET, "hun?ter2", "hun#ter2"])
def test_a_password_never_reaches_an_error(url: str, password: str) -> None:
    store: Any = open_store(url.format(password, free_port()))
    store._lease = 10
    with pytest.raises(StoreError) as caught:
        store.peek(keys(1))
    assert "127.0.0.1" in str(caught.value)
    assert "hun" not in f"{caught.value!r} {caught.value.__cause__!r}"


# --- the schema ---


def test_the_schema_is_migrated_step_by_step(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    known, first = schema.migrations(), place.store()
    claim(first, 1)
    first.close()
    more = [*known, "ALTER TABLE eventonce_claims ADD COLUMN extra text; CREATE TABLE eventonce_more (x int)"]
    monkeypatch.setattr(schema, "migrations", lambda: more)
    reopened = place.store()
    assert finish(reopened, 1)
    reopened.close()
    assert place.sql("SELECT version FROM eventonce_schema ORDER BY version") == [(1,), (2,)]
    assert place.sql("SELECT count(*) FROM eventonce_more") == [(0,)]


def test_a_migration_that_fails_changes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.store().peek(keys(1))
    broken = [*schema.migrations(), "CREATE TABLE eventonce_more (x int); CREATE nonsense"]
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(StoreUnusable):
        place.store().peek(keys(1))
    assert place.sql("SELECT max(version) FROM eventonce_schema") == [(1,)]
    assert place.sql("SELECT to_regclass('eventonce_more')") == [(None,)]


def test_tables_of_a_newer_eventonce_are_refused(place: Place) -> None:
    place.store().peek(keys(1))
    place.sql("INSERT INTO eventonce_schema VALUES (99)")
    with pytest.raises(StoreUnusable, match=r"newer eventonce \(schema 99\); upgrade"):
        place.store().peek(keys(1))


ISOLATIONS = pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])


@pytest.fixture
def strict(place: Place, isolation: str) -> Place:
    """Create a schema whose user has this isolation by default."""
    place.user = f"{place.name}_strict"
    place.sql(f"CREATE ROLE {place.user} LOGIN SUPERUSER")
    place.sql(f"ALTER ROLE {place.user} SET default_transaction_isolation = '{isolation}'")
    return place


@ISOLATIONS
def test_many_threads_may_create_the_tables_at_once(strict: Place) -> None:
    place = strict
    stores = [place.store(more="timeout=60s") for _ in range(16)]
    assert run_together(*(lambda store=store: claim(store, 1) for store in stores)) == []
    for store in stores:
        store.close()
    assert place.sql("SELECT version FROM eventonce_schema") == [(1,)]


@ISOLATIONS
@pytest.mark.parametrize("large", [False, True])
def test_what_eventonce_does_itself_is_read_committed(strict: Place, *, large: bool) -> None:
    store = strict.store()
    store.check()
    store._large = large
    strict.sql(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE 'isolated'; END IF; "
        "RETURN NULL; END $$"
    )
    strict.sql("CREATE TRIGGER look AFTER INSERT OR UPDATE OR DELETE ON eventonce_claims EXECUTE FUNCTION look()")
    assert claim(store, 1) == Won(1)
    assert store.extend([MINE], LONG) == [True]
    assert release(store, 1, error="E")
    assert claim(store, 1) == Won(2, "E")
    assert finish(store, 1)
    assert isinstance(claim(store, 1, b"token--2", refresh=True), Done)
    assert store.peek([key(1)])[0] is not None
    store.sweep(1000)
    assert store.forget([key(1)]) == [True]
    store.close()


@ISOLATIONS
def test_what_a_handler_does_has_the_isolation_of_the_database(strict: Place, isolation: str) -> None:
    def look(event: Event, ctx: Any) -> Any:
        return ctx.tx.execute("SHOW transaction_isolation").fetchone()[0]

    (outcome,) = transact(strict, strict.store(), look)
    assert (outcome.kind, outcome.result) == (OutcomeKind.PROCESSED, isolation)


def test_without_create_the_tables_must_exist(place: Place) -> None:
    store = open_store(place.url(), create=False)
    with pytest.raises(StoreUnusable, match="has no eventonce tables"):
        store.peek(keys(1))
    assert place.sql("SELECT to_regclass('eventonce_claims')") == [(None,)]
    claim(place.store(), 1)
    assert store.peek(keys(1)) == [None]  # without opening it again
    store.close()


def test_dropped_tables_are_not_created_again_silently(place: Place, store: PostgresStore) -> None:
    claim(store, 1)
    place.sql("DROP TABLE eventonce_claims")
    with Once(store) as once:
        (outcome,) = once.run([{"id": "1"}], lambda event: None)
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert isinstance(outcome.error, StoreUnusable)
    assert "restore it, or drop eventonce_schema too and start again with no records" in str(outcome.error)
    assert place.sql("SELECT to_regclass('eventonce_claims')") == [(None,)]
    reopened = place.store()
    for call in (reopened.check, lambda: claim(reopened, 1)):
        with pytest.raises(StoreUnusable, match="the table eventonce_claims is gone; restore it"):
            call()
    place.sql("DROP TABLE eventonce_schema")
    assert claim(reopened, 1) == Won(1)  # as the message advises
    reopened.close()


def test_a_foreign_table_with_our_name_is_refused(place: Place, store: PostgresStore) -> None:
    claim(store, 1)
    place.sql("ALTER TABLE eventonce_claims DROP COLUMN took")
    with pytest.raises(StoreUnusable, match="not as eventonce left them"):
        claim(store, 2)


def test_only_the_primary_key_is_an_index(place: Place, store: PostgresStore) -> None:
    claim(store, 1)
    assert place.sql("SELECT count(*) FROM pg_indexes WHERE schemaname = %s", place.name) == [(2,)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("options=-csearch_path%3Dnowhere", "create the schema that is first in the search_path"),
        ("options=-cnonsense%3D1", "correct options= in the URL"),
        ("sslmode=require", "enable TLS on the server, or correct sslmode="),
    ],
)
def test_a_url_that_the_server_refuses_is_not_retried(postgres_server: Postgres, more: str, message: str) -> None:
    store = open_store(f"{postgres_server.url()}?{more}")
    with pytest.raises(StoreUnusable, match=message):
        claim(store, 1)
    store.close()


# --- roles and settings ---


@pytest.fixture
def role(place: Place) -> Iterator[str]:
    name = f"role_{place.name}"
    place.sql(f"CREATE ROLE {name} LOGIN")
    yield name
    place.sql(f"DROP OWNED BY {name}")
    place.sql(f"DROP ROLE {name}")


def test_the_least_grants_are_enough(place: Place, role: str, store: PostgresStore) -> None:
    claim(store, 9)
    place.sql(f"GRANT USAGE ON SCHEMA {place.name} TO {role}")
    place.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON eventonce_claims TO {role}")
    place.sql(f"GRANT SELECT ON eventonce_schema TO {role}")
    least = place.store(user=role)
    assert claim(least, 1) == Won(1)
    assert least.extend([MINE], LONG) == [True]
    assert finish(least, 1)
    assert isinstance(claim(least, 1, b"token--2", refresh=True), Done)
    assert claim(least, 2) == Won(1)
    assert release(least, 2)
    assert least.forget([key(1)]) == [True]
    least.sweep(100)
    assert least.check() == store.check()
    claim(least, 1)
    assert least.begin(MINE).commit(Commit(*MINE, LONG))
    least.close()


def test_a_role_without_rights_gets_the_rights_to_grant(place: Place, role: str, store: PostgresStore) -> None:
    claim(store, 9)
    place.sql(f"GRANT USAGE ON SCHEMA {place.name} TO {role}")
    place.sql(f"GRANT SELECT ON eventonce_schema TO {role}")
    with pytest.raises(StoreUnusable, match=r"permission denied.*grant the role SELECT, INSERT"):
        claim(place.store(user=role), 1)


def test_a_role_that_may_not_create_tables_is_refused(place: Place, role: str) -> None:
    place.sql(f"GRANT USAGE ON SCHEMA {place.name} TO {role}")
    with pytest.raises(StoreUnusable, match="CREATE on the schema if the tables do not exist"):
        claim(place.store(user=role), 1)


@pytest.fixture(scope="module")
def guarded_server(servers: Path) -> Iterator[Postgres]:
    """A server that requires a password from everyone but its owner."""
    rules = servers / "pg_hba.conf"
    rules.write_text("host all postgres 127.0.0.1/32 trust\nhost postgres all 127.0.0.1/32 scram-sha-256\n")
    rules.chmod(0o644)
    yield from running(lambda: Postgres(servers, f"hba_file={rules}", "fsync=off", "synchronous_commit=off"))


@pytest.mark.parametrize(
    ("who", "database", "message"),
    [
        ("guest:wrong-hunter2", "postgres", "check the user and the password"),
        ("nobody:wrong-hunter2", "postgres", "check the user and the password"),
        ("guest", "postgres", "check the user and the password"),
        ("guest:right", "other", "pg_hba.conf"),
        ("postgres", "nowhere", "create the database, or check its name"),
    ],
)
def test_a_refused_login_is_reported_with_its_reason(
    guarded_server: Postgres, who: str, database: str, message: str
) -> None:
    with psycopg.connect(guarded_server.url(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
    store = open_store(f"postgresql://{who}@127.0.0.1:{guarded_server.port}/{database}")
    with pytest.raises(StoreUnusable, match=message) as caught:
        store.peek(keys(1))
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_server_that_may_forget_is_warned_of(guarded_server: Postgres) -> None:
    store = open_store(guarded_server.url())
    assert isinstance(store, Checkable)
    warnings = store.check()
    assert ["fsync is off" in warnings[0], "synchronous_commit is off" in warnings[1]] == [True, True]
    assert len(warnings) == 2
    store.close()


@pytest.fixture
def syncing_server(servers: Path) -> Iterator[Postgres]:
    yield from running(lambda: Postgres(servers))


def test_a_server_that_loses_nothing_is_not_warned_of(syncing_server: Postgres) -> None:
    store = open_store(syncing_server.url())
    assert isinstance(store, Checkable)
    assert store.check() == []
    store.close()


@pytest.fixture
def waiting(servers: Path) -> Iterator[tuple[Place, PostgresStore, PostgresStore]]:
    """A server whose synchronous standby is down, with a store that does not wait for it and one that does."""
    for server in running(lambda: Postgres(servers, "synchronous_standby_names=away", "synchronous_commit=local")):
        place = Place(server)
        strict = open_store(place.url(more="timeout=1s").replace("?options=", "?options=-csynchronous_commit%3Don%20"))
        assert isinstance(strict, PostgresStore)
        lax = place.store()
        yield place, lax, strict
        lax.close()
        strict.close()


def test_a_change_that_the_synchronous_standby_lacks_does_not_count(
    waiting: tuple[Place, PostgresStore, PostgresStore],
) -> None:
    """A commit that waits for a standby succeeds when it is cancelled. Then everyone sees it, but it may be lost."""
    _, lax, strict = waiting
    for number in (1, 2):
        assert claim(lax, number, lease=2000) == Won(1)
    strict._lease = 2000
    for call in (
        lambda: finish(strict, 1),
        lambda: claim(strict, 1, b"token--2", lease=2000),  # a copy, although its key is done here
        lambda: release(strict, 2, error="E"),
        lambda: claim(strict, 3, lease=2000),
    ):
        with pytest.raises(StoreError, match="did not answer within 1 s"):
            call()
    assert isinstance(claim(lax, 1, b"token--2"), Done)
    assert finish(lax, 1)


def test_a_transaction_that_the_synchronous_standby_lacks_does_not_count(
    waiting: tuple[Place, PostgresStore, PostgresStore],
) -> None:
    place, lax, strict = waiting
    place.sql("CREATE TABLE effects (number integer)")
    assert claim(lax, 1, lease=2000) == Won(1)
    strict._lease = 2000
    transaction = strict.begin(MINE)
    transaction.handle.execute("INSERT INTO effects VALUES (1)")
    with pytest.raises(StoreError, match="did not answer within 1 s"):
        transaction.commit(Commit(*MINE, LONG))
    with pytest.raises(StoreError, match="did not answer within 1 s"):
        claim(strict, 1, b"token--2", lease=2000)
    assert effects(place) == [1]
    assert isinstance(claim(lax, 1, b"token--2"), Done)


def test_a_read_only_server_may_be_one_that_fails_over(place: Place, role: str, store: PostgresStore) -> None:
    claim(store, 9)
    place.sql(f"GRANT ALL ON SCHEMA {place.name} TO {role}")
    place.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {place.name} TO {role}")
    place.sql(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    reader = place.store(user=role)
    with pytest.raises(StoreUnusable, match=r"is read-only; .*target_session_attrs=read-write"):
        reader.check()
    with pytest.raises(StoreUnusable, match="is read-only"):
        Place(place.server).store(user=role).check()  # also if it has no tables yet
    with Once(reader, lease="0.2s", clock=ManualClock()) as once:  # for the retries of the store only
        (outcome,) = once.run([{"id": "1"}], lambda event: None)
        assert outcome.kind is OutcomeKind.UNKNOWN
        assert isinstance(outcome.error, StoreError)
        assert outcome.error.retryable
        assert "takes no writes now" in str(outcome.error)
        place.sql(f"ALTER ROLE {role} RESET default_transaction_read_only")
        (outcome,) = once.run([{"id": "1"}], lambda event: None)
        assert outcome.kind is OutcomeKind.PROCESSED
    reader.close()


def test_a_full_disk_is_reported_and_loses_nothing(place: Place, store: PostgresStore) -> None:
    claim(store, 1)
    place.sql(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"
    )
    place.sql("CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON eventonce_claims EXECUTE FUNCTION fail()")
    for call in (lambda: claim(store, 2), lambda: finish(store, 1)):
        with pytest.raises(StoreUnusable, match="free some space"):
            call()
    place.sql("DROP TRIGGER fail ON eventonce_claims")
    assert finish(store, 1)


# --- a server that is locked or down ---


def test_a_statement_that_waits_too_long_is_cancelled_and_not_done_later(place: Place) -> None:
    store = place.store(more="timeout=1s")
    claim(store, 1)
    store._lease = 10
    with psycopg.connect(place.server.url(), options=f"-csearch_path={place.name}") as holder:
        holder.execute("LOCK TABLE eventonce_claims IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match="did not answer within 1 s"):
            claim(store, 2, lease=10)
        holder.rollback()
    assert store.peek([key(2)]) == [None]
    assert finish(store, 1)
    store.close()


def test_a_short_outage_of_the_server_is_waited_for(place: Place, store: PostgresStore) -> None:
    claim(store, 1)
    place.sql("CHECKPOINT")  # else the recovery may take longer than a lease
    place.server.kill()
    restart = threading.Timer(0.5, place.server.start)
    restart.start()
    try:
        assert finish(store, 1)
    finally:
        restart.join()


def test_all_idle_connections_are_replaced_after_one_retry(store: PostgresStore, place: Place) -> None:
    assert run_together(*(lambda number=number: claim(store, number) for number in range(8))) == []
    for number in range(8):
        transaction = store.begin(Claim(key(number), b"token--1"))
        transaction.rollback()
    place.server.restart()
    assert store.extend([MINE], LONG) == [True]
    place.server.restart()
    store.begin(MINE).rollback()


# --- batches that meet ---


@pytest.mark.parametrize("large", [False, True])
def test_overlapping_batches_in_any_order_never_deadlock(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    if large:
        fill(store)
        monkeypatch.setattr("eventonce.stores.postgres.store._RACES_FOR", 0)  # no race is expected
    other = place.store(more="timeout=60s")
    before = _deadlocks(place)

    def work(number: int) -> None:
        chance, token, mine = random.Random(number), b"worker%02d" % number, (store, other)[number % 2]
        for _ in range(12):
            wants = [
                ClaimRequest(each, LONG, chance.choice([None, 1, 2]), True, True)
                for each in chance.sample(keys(300), 150)
            ]
            lease = chance.choice([1, 1, 5, LONG])
            answers = zip(wants, mine.claim(wants, token, lease), strict=True)
            won = [want.key for want, answer in answers if isinstance(answer, Won)]
            chance.shuffle(won)
            mine.extend([Claim(each, token) for each in won], chance.choice([1, 5, LONG]))
            third = len(won) // 3
            mine.commit([Commit(each, token, chance.choice([1, LONG])) for each in won[:third]])
            mine.release([Release(each, token, LONG, chance.choice([None, "no"])) for each in won[third:]])
            mine.sweep(1000)
            mine.forget(chance.sample(keys(300), 10))

    assert run_together(*(lambda number=number: work(number) for number in range(16))) == []
    other.close()
    assert _deadlocks(place) == before
    assert store._large or not large


def _deadlocks(place: Place) -> int:
    time.sleep(1.1)  # the server updates its statistics with a delay
    ((deadlocks,),) = place.sql("SELECT sum(deadlocks) FROM pg_stat_database")
    return int(deadlocks)


@pytest.mark.parametrize("seen_before", [False, True])
def test_the_loser_of_a_race_for_new_keys_sees_the_winner(
    place: Place, store: PostgresStore, *, seen_before: bool
) -> None:
    store.peek(keys(1))
    store._races_until = 2**60 if seen_before else 0
    wants, answers = [ClaimRequest(each, LONG) for each in reversed(keys(5))], []
    lease_end = SystemClock().utc() + LONG
    with psycopg.connect(place.server.url(), options=f"-csearch_path={place.name}") as winner:
        winner.execute(
            "INSERT INTO eventonce_claims (key, token, lease, flags, tries, expires) VALUES (%s, %s, %s, 0, 1, %s)",
            (key(2), b"token--2", lease_end, lease_end),
        )
        loser = threading.Thread(target=lambda: answers.extend(store.claim(wants, b"token--1", LONG)))
        loser.start()
        waits_for_a_lock(place)
        winner.commit()
    loser.join()
    assert [type(answer) for answer in answers] == [Won, Won, Busy, Won, Won]
    assert store._races_until > 0
    assert store.claim(wants, b"token--1", LONG)[0] == Won(1)  # still its own, and still the first attempt
    assert place.sql("SELECT count(*) FROM eventonce_claims") == [(5,)]


def waits_for_a_lock(place: Place) -> None:
    """Wait until a session waits for the transaction of another one."""
    while place.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]:
        time.sleep(0.01)


@pytest.mark.parametrize("large", [False, True])
def test_two_equal_commits_at_the_same_time_are_both_done(place: Place, store: PostgresStore, *, large: bool) -> None:
    store.claim([ClaimRequest(each, LONG) for each in keys(5)], b"token--1", LONG)
    store._large, done = large, []
    finishes = [Commit(each, b"token--1", LONG) for each in keys(5)]
    with psycopg.connect(place.server.url(), options=f"-csearch_path={place.name}") as first:
        first.execute(
            "UPDATE eventonce_claims SET lease = 0, tries = 0, done_at = 1, until = expires WHERE key = %s", (key(2),)
        )
        reopened = threading.Thread(target=lambda: done.extend(store.commit(finishes)))
        reopened.start()
        waits_for_a_lock(place)
        first.commit()
    reopened.join()
    assert done == [True] * 5
    assert [record is not None and record.lease for record in store.peek(keys(5))] == [0] * 5


@pytest.mark.parametrize("large", [False, True])
def test_a_commit_that_meets_a_successor_is_fenced(place: Place, store: PostgresStore, *, large: bool) -> None:
    store.claim([ClaimRequest(each, LONG) for each in keys(5)], b"token--1", LONG)
    store._large, done = large, []
    finishes = [Commit(each, b"token--1", LONG) for each in keys(5)]
    with psycopg.connect(place.server.url(), options=f"-csearch_path={place.name}") as successor:
        successor.execute("UPDATE eventonce_claims SET token = %s WHERE key = %s", (b"token--2", key(2)))
        late = threading.Thread(target=lambda: done.extend(store.commit(finishes)))
        late.start()
        waits_for_a_lock(place)
        successor.commit()
    late.join()
    assert done == [True, True, False, True, True]
    assert finish(store, 2, b"token--2")


@pytest.mark.parametrize("large", [False, True])
def test_a_commit_is_a_success_although_its_window_has_expired(store: PostgresStore, *, large: bool) -> None:
    store.claim([ClaimRequest(each, LONG) for each in keys(2)], b"token--1", LONG)
    store._large = large
    finishes = [
        Commit(each, b"token--1", 0) for each in keys(3)
    ]  # the last is not its own, so a second statement is needed
    assert store.commit(finishes) == [True, True, False]


@pytest.mark.parametrize("count", [1, 100, 5000])
def test_a_large_table_is_committed_to_in_the_order_of_the_keys(place: Place, store: PostgresStore, count: int) -> None:
    fill(store)
    assert store._large
    columns: dict[str, bytes] = {name: longs([None] * count) for name in ("windows", "versions")}
    columns |= {name: byte_strings(keys(count)) for name in ("keys", "tokens", "memos")}
    explained = store._pool.use(
        lambda connection: connection.execute(f"EXPLAIN (FORMAT JSON) {_COMMIT_LARGE}", columns).fetchall()
    )
    *_, joined = explained[0][0][0]["Plan"]["Plans"]
    steps = [each for each in _steps(joined) if each != "Nested Loop"]
    assert steps[-2:] == ["Function Scan", "Index Scan"]
    assert not {"Hash Join", "Merge Join", "Sort"}.intersection(steps)


def _steps(plan: dict[str, Any]) -> Iterator[str]:
    yield plan["Node Type"]
    for each in plan.get("Plans", ()):
        yield from _steps(each)


def test_a_stale_owner_waits_only_for_its_own_rows(place: Place, store: PostgresStore) -> None:
    store.claim([ClaimRequest(each, LONG) for each in keys(3)], b"token--1", SHORT)
    time.sleep(OVER)
    assert claim(store, 1, b"token--2") == Won(2, None, suspect=True)
    transaction = store.begin(Claim(key(1), b"token--2"))  # a row that it must not wait for
    assert store.extend([Claim(each, b"token--1") for each in keys(3)], LONG) == [True, False, True]
    assert store.commit([Commit(each, b"token--1", LONG) for each in keys(3)]) == [True, False, True]
    assert store.release([Release(each, b"token--1", LONG, "late") for each in keys(3)]) == [False] * 3
    assert transaction.commit(Commit(key(1), b"token--2", LONG))


def test_the_sweep_walks_the_table_in_steps_and_never_waits(place: Place, store: PostgresStore) -> None:
    every = keys(2000)
    store.claim([ClaimRequest(each, SHORT) for each in every], b"token--1", LONG)
    store.commit([Commit(each, b"token--1", SHORT) for each in every])
    time.sleep(OVER)
    with psycopg.connect(place.server.url(), options=f"-csearch_path={place.name}") as holder:
        holder.execute("SELECT FROM eventonce_claims WHERE key = %s FOR UPDATE", (key(7),))
        removed, cursor, steps = 0, b"", 0
        while True:
            swept = store.sweep(300, cursor)
            assert swept.removed <= 300
            removed, steps = removed + swept.removed, steps + 1
            if swept.cursor is None:
                break
            cursor = swept.cursor
    assert removed == 1999
    assert steps >= 7
    assert place.sql("SELECT key FROM eventonce_claims") == [(key(7),)]
    assert store.sweep(300).removed == 1


def prepared(store: PostgresStore) -> int:
    """Return how many statements the next connection has prepared."""
    count = "SELECT count(*) FROM pg_prepared_statements"
    ((prepared,),) = store._pool.use(lambda connection: connection.execute(count).fetchall())
    return int(prepared)


def fill(store: PostgresStore) -> None:
    every = [key(number) for number in range(10_000, 16_000)]
    store.claim([ClaimRequest(each, LONG) for each in every], b"token--0", LONG)
    store.sweep(1000)


def use(store: PostgresStore) -> None:
    assert claim(store, 1) == Won(1)
    assert store.extend([MINE], LONG) == [True]
    assert finish(store, 1)
    assert store.forget([key(1)]) == [True]


def test_statements_are_prepared_only_while_the_table_is_large(place: Place, store: PostgresStore) -> None:
    use(store)
    assert prepared(store) == 0
    fill(store)
    use(store)
    assert prepared(store) == 3
    place.sql("TRUNCATE eventonce_claims")
    store.sweep(1000)
    use(store)
    assert prepared(store) == 0


def test_a_pooler_that_mixes_up_statements_is_noticed(store: PostgresStore) -> None:
    fill(store)
    use(store)
    store._pool.use(lambda connection: connection.pgconn.exec_(b"DEALLOCATE ALL"))
    use(store)
    assert prepared(store) == 0


def test_nothing_is_prepared_with_prepare_false(place: Place) -> None:
    store = place.store(more="timeout=60s&prepare=false")
    fill(store)
    use(store)
    assert prepared(store) == 0
    store.close()


def test_any_error_text_can_be_remembered(store: PostgresStore) -> None:
    for number, error in enumerate(("a\0b", "ü\n", "")):
        claim(store, number)
        release(store, number, error=error)
        assert claim(store, number, b"token--2") == Won(2, error)
    claim(store, 9)
    release(store, 9, error="half \ud83d")
    assert claim(store, 9, b"token--2") == Won(2, "half \\ud83d")


# --- transactions ---


def transact(place: Place, store: PostgresStore, handle: Callable[[Event, Any], Any], **more: Any) -> list[Outcome]:
    place.sql("CREATE TABLE IF NOT EXISTS effects (number integer PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    with Once(store, **more) as once:
        outcomes: list[Outcome] = once.run([{"id": "1"}], handle)
        return outcomes


def write(ctx: Any, number: int = 1) -> None:
    ctx.tx.execute("INSERT INTO effects VALUES (%s)", (number,))


def effects(place: Place) -> list[int]:
    return [number for (number,) in place.sql("SELECT number FROM effects ORDER BY number")]


@pytest.mark.parametrize("name", ["commit", "rollback", "close"])
def test_a_handler_cannot_end_the_transaction(place: Place, store: PostgresStore, name: str) -> None:
    def handle(event: Event, ctx: Any) -> None:
        write(ctx)
        getattr(ctx.tx, name)()

    (outcome,) = transact(place, store, handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert "committed by eventonce when the handler returns" in str(outcome.error)
    assert effects(place) == []


def test_with_around_the_transaction_ends_nothing(place: Place, store: PostgresStore) -> None:
    def handle(event: Event, ctx: Any) -> None:
        with ctx.tx:
            write(ctx, 1)
        write(ctx, 2)

    assert transact(place, store, handle)[0].kind is OutcomeKind.PROCESSED
    assert effects(place) == [1, 2]


@pytest.mark.parametrize("fails", [False, True])
def test_a_handle_ends_with_its_handler(place: Place, store: PostgresStore, *, fails: bool) -> None:
    """Its connection is reused for the next handler, whose transaction it must not reach."""
    handles: list[Any] = []

    def keep(event: Event, ctx: Any) -> None:
        handles.extend([ctx.tx, ctx.tx.cursor(), ctx.tx.cursor("named")])
        handles[2].execute("SELECT generate_series(1, 1000)")
        if fails:
            raise ValueError("no")

    def misuse(event: Event, ctx: Any) -> None:
        write(ctx)
        tx, cursor, named = handles
        insert = "INSERT INTO effects VALUES (99)"
        for call in (
            lambda: tx.execute(insert),
            lambda: cursor.execute(insert),
            lambda: cursor.executemany("INSERT INTO effects VALUES (%s)", [(98,), (99,)]),
            lambda: cursor.copy("COPY effects FROM STDIN").__enter__(),
            lambda: next(cursor.stream("SELECT 1")),
            named.fetchone,
            lambda: tx.cursor().execute(insert),
            lambda: tx.transaction().__enter__(),
            lambda: tx.pipeline().__enter__(),
            lambda: next(tx.notifies()),
            tx.__enter__,
            lambda: setattr(tx, "autocommit", True),
            tx.cancel,
            tx.cancel_safe,
            tx.commit,
            tx.rollback,
            tx.close,
        ):
            with pytest.raises(EventOnceError, match="has ended with its handler; use it inside the handler"):
                call()
        named.close()
        assert tx.closed
        assert not ctx.tx.closed

    assert transact(place, store, keep)[0].kind is (OutcomeKind.FAILED if fails else OutcomeKind.PROCESSED)
    (outcome,) = transact(place, store, misuse, consumer="other")
    assert (outcome.kind, outcome.error) == (OutcomeKind.PROCESSED, None)
    assert effects(place) == [1]
    assert len(store._transaction_pool._idle) == 1  # it is still the same connection


def test_savepoints_may_fail(place: Place, store: PostgresStore) -> None:
    def handle(event: Event, ctx: Any) -> None:
        write(ctx, 1)
        try:
            with ctx.tx.transaction():
                write(ctx, 2)
                ctx.tx.execute("SELECT FROM nowhere")
        except psycopg.errors.UndefinedTable:
            write(ctx, 3)

    assert transact(place, store, handle)[0].kind is OutcomeKind.PROCESSED
    assert effects(place) == [1, 3]


def test_a_swallowed_error_fails_the_event(place: Place, store: PostgresStore) -> None:
    def handle(event: Event, ctx: Any) -> None:
        write(ctx)
        with pytest.raises(psycopg.Error):
            ctx.tx.execute("SELECT FROM nowhere")

    (outcome,) = transact(place, store, handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert "let the handler fail too" in str(outcome.error)
    assert effects(place) == []


@pytest.mark.parametrize("more", [[], ["SELECT 1"]])
def test_a_transaction_ended_by_sql_fails_the_event(place: Place, store: PostgresStore, more: list[str]) -> None:
    def handle(event: Event, ctx: Any) -> None:
        for sql in ("COMMIT", *more):
            ctx.tx.execute(sql)

    (outcome,) = transact(place, store, handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert isinstance(outcome.error, EventOnceError)
    assert "ended the transaction of ctx.tx with its own SQL" in str(outcome.error)


@pytest.mark.parametrize("sql", ["INSERT INTO effects VALUES (1)", "INSERT INTO nowhere VALUES (1)"])
def test_an_open_pipeline_fails_the_event(place: Place, store: PostgresStore, sql: str) -> None:
    """The results of its statements are unread."""
    pipelines: list[Any] = []

    def handle(event: Event, ctx: Any) -> None:
        pipelines.append(ctx.tx.pipeline())
        pipelines[0].__enter__()
        ctx.tx.execute(sql)

    (outcome,) = transact(place, store, handle)
    with pytest.raises(EventOnceError, match="has ended with its handler"):
        pipelines.pop().__exit__(None, None, None)
    assert (outcome.kind, effects(place)) == (OutcomeKind.FAILED, [])
    assert "left a pipeline of ctx.tx open" in str(outcome.error)
    assert transact(place, store, lambda event, ctx: write(ctx))[0].kind is OutcomeKind.PROCESSED
    assert effects(place) == [1]


def test_a_deferred_constraint_is_the_handlers_own_mistake(place: Place, store: PostgresStore) -> None:
    def handle(event: Event, ctx: Any) -> None:
        write(ctx)
        write(ctx)

    (outcome,) = transact(place, store, handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert isinstance(outcome.error, psycopg.errors.UniqueViolation)
    assert effects(place) == []
    assert [outcome.kind for outcome in transact(place, store, lambda event, ctx: write(ctx))] == [
        OutcomeKind.PROCESSED
    ]


Accident = Callable[[Place, Any], None]


def changed_meanwhile(place: Place, tx: Any) -> None:
    """Under a snapshot, a row that another transaction has changed since cannot be changed."""
    place.sql("UPDATE accounts SET cents = 0 WHERE number = 1")
    tx.execute("UPDATE accounts SET cents = 1 WHERE number = 1")


def skewed_at_the_commit(place: Place, tx: Any) -> None:
    """Each reads what the other writes, and the other commits first."""
    tx.execute("SELECT sum(cents) FROM accounts")
    tx.execute("UPDATE accounts SET cents = 1 WHERE number = 1")
    with psycopg.connect(place.url(more="connect_timeout=5")) as other:
        other.execute("SELECT sum(cents) FROM accounts")
        other.execute("UPDATE accounts SET cents = 2 WHERE number = 2")


def deadlocked(place: Place, tx: Any) -> None:
    with psycopg.connect(place.url(more="connect_timeout=5")) as other:
        other.execute("SET deadlock_timeout = '1h'")  # the handler is the first to notice
        other.execute("UPDATE accounts SET cents = 2 WHERE number = 2")
        tx.execute("UPDATE accounts SET cents = 1 WHERE number = 1")
        waiting = threading.Thread(target=other.execute, args=("UPDATE accounts SET cents = 2 WHERE number = 1",))
        waiting.start()
        try:
            waits_for_a_lock(place)
            tx.execute("UPDATE accounts SET cents = 1 WHERE number = 2")
        finally:
            waiting.join()


def idle_too_long(place: Place, tx: Any) -> None:
    number = tx.execute("SELECT pg_backend_pid()").fetchone()[0]
    tx.execute("SET idle_in_transaction_session_timeout = '50ms'")
    while place.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", number):
        time.sleep(0.01)


def idle_too_long_between_statements(place: Place, tx: Any) -> None:
    idle_too_long(place, tx)
    tx.execute("SELECT 1")


def disk_full(place: Place, tx: Any) -> None:
    tx.execute("DO $$ BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END $$")


@pytest.mark.parametrize(
    ("accident", "isolation", "error"),
    [
        (changed_meanwhile, "repeatable read", psycopg.errors.SerializationFailure),
        (changed_meanwhile, "serializable", psycopg.errors.SerializationFailure),
        (skewed_at_the_commit, "serializable", StoreError),
        (deadlocked, "read committed", psycopg.errors.DeadlockDetected),
        (idle_too_long, "read committed", StoreError),
        (idle_too_long_between_statements, "read committed", psycopg.Error),
        (disk_full, "read committed", psycopg.errors.DiskFull),
    ],
)
def test_what_the_database_does_to_a_handler_is_not_held_against_the_event(
    strict: Place, accident: Accident, error: type[Exception]
) -> None:
    strict.sql("CREATE TABLE accounts (number integer PRIMARY KEY, cents integer)")
    strict.sql("INSERT INTO accounts VALUES (1, 0), (2, 0)")
    store, attempts = strict.store(), []

    def handle(event: Event, ctx: Any) -> None:
        attempts.append(ctx.attempt)
        write(ctx)
        if len(attempts) < 3:
            accident(strict, ctx.tx)

    for _ in range(2):
        (outcome,) = transact(strict, store, handle)
        assert outcome.kind is OutcomeKind.UNKNOWN
        assert isinstance(outcome.error, StoreError)
        assert isinstance(outcome.error, error)
        assert isinstance(outcome.error, StoreUnusable) == (accident is disk_full)
        assert effects(strict) == []
    assert transact(strict, store, handle)[0].kind is OutcomeKind.PROCESSED
    assert (effects(strict), attempts) == ([1], [1, 1, 1])
    store.close()


def test_a_deadlock_in_a_savepoint_may_be_tried_again_by_the_handler(place: Place, store: PostgresStore) -> None:
    def handle(event: Event, ctx: Any) -> None:
        with pytest.raises(psycopg.errors.DeadlockDetected, match="gave up"), ctx.tx.transaction():
            ctx.tx.execute("DO $$ BEGIN RAISE 'gave up' USING ERRCODE = 'deadlock_detected'; END $$")
        write(ctx)

    assert transact(place, store, handle)[0].kind is OutcomeKind.PROCESSED
    assert effects(place) == [1]


def test_what_a_handler_sets_does_not_reach_the_next(place: Place, store: PostgresStore) -> None:
    def meddle(event: Event, ctx: Any) -> None:
        ctx.tx.row_factory = psycopg.rows.dict_row
        ctx.tx.execute("SET search_path = pg_catalog")
        ctx.tx.execute("CREATE TEMP TABLE mess (x int)")
        ctx.tx.execute(f"SET search_path = {place.name}")
        ctx.tx.execute("SET statement_timeout = '7s'")

    def look(event: Event, ctx: Any) -> Any:
        return ctx.tx.execute("SELECT current_setting('statement_timeout'), to_regclass('mess')").fetchone()

    assert transact(place, store, meddle)[0].kind is OutcomeKind.PROCESSED
    (outcome,) = transact(place, store, look, consumer="other")
    assert outcome.result == ("0", None)


@pytest.mark.parametrize("cuts", ["answer", "question"])
def test_a_commit_whose_answer_is_lost_is_exact(place: Place, proxy: FaultProxy, cuts: str) -> None:
    store = place.store(port=proxy.port)
    commit = psycopg.Connection.commit

    def cut(connection: Any) -> None:
        if cuts == "answer":
            proxy.cut_answers(1)
        else:
            proxy.cut_all()
        commit(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", cut)
        (outcome,) = transact(place, store, lambda event, ctx: write(ctx))
    assert outcome.kind is (OutcomeKind.PROCESSED if cuts == "answer" else OutcomeKind.UNKNOWN)
    assert effects(place) == ([1] if cuts == "answer" else [])
    (outcome,) = transact(place, store, lambda event, ctx: write(ctx))
    assert outcome.kind is (OutcomeKind.DUPLICATE if cuts == "answer" else OutcomeKind.PROCESSED)
    assert effects(place) == [1]
    store.close()


def test_a_restart_inside_a_transaction_is_unknown_and_undone(place: Place, store: PostgresStore) -> None:
    def handle(event: Event, ctx: Any) -> None:
        write(ctx, 1)
        place.server.restart()
        write(ctx, 2)

    (outcome,) = transact(place, store, handle)
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert isinstance(outcome.error, psycopg.OperationalError)
    assert effects(place) == []
    (outcome,) = transact(place, store, lambda event, ctx: write(ctx))
    assert (outcome.kind, effects(place)) == (OutcomeKind.PROCESSED, [1])


def test_a_restart_just_before_the_commit_is_unknown_and_undone(place: Place, store: PostgresStore) -> None:
    def handle(event: Event, ctx: Any) -> None:
        write(ctx)
        place.server.restart()

    (outcome,) = transact(place, store, handle)
    assert (outcome.kind, effects(place)) == (OutcomeKind.UNKNOWN, [])
    assert transact(place, store, lambda event, ctx: write(ctx))[0].kind is OutcomeKind.PROCESSED


def test_a_transaction_may_outlast_its_lease(place: Place, store: PostgresStore) -> None:
    other, clock = place.store(), ManualClock()
    answers: list[Any] = []

    def handle(event: Event, ctx: Any) -> None:
        write(ctx)
        for _ in range(3):
            clock.sleep(400)
            time.sleep(0.4)  # on the server's clock too
            answers.append(other.claim([ClaimRequest(ctx.claim.key, LONG)], b"token--2", LONG)[0])
            ctx.check()

    (outcome,) = transact(place, store, handle, lease="0.3s", clock=clock)
    assert outcome.kind is OutcomeKind.PROCESSED
    assert {type(answer) for answer in answers} == {Busy}
    assert effects(place) == [1]
    other.close()


def test_the_heartbeat_goes_on_while_a_transaction_is_open(place: Place, store: PostgresStore) -> None:
    other, answers, clock = place.store(), [], ManualClock()

    def leases() -> list[int]:
        """Return when the leases of the others expire, by the server's clock."""
        return [record.lease for record in other.peek([once.key({"id": each}) for each in "123"]) if record is not None]

    def handle(event: Event, ctx: Any) -> None:
        if event.id == "0":
            _ = ctx.tx
            for _ in range(3):
                before = max(leases())
                clock.sleep(45_000)  # less than the lease, but the heartbeat is due
                until(lambda before=before: min(leases()) > before)  # type: ignore[misc]
                answers.extend(
                    other.claim([ClaimRequest(once.key({"id": each}), LONG) for each in "123"], b"token--2", LONG)
                )

    with Once(store, lease="60s", clock=clock) as once:
        outcomes = once.run([{"id": each} for each in "0123"], handle)
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.PROCESSED}
    assert [type(answer) for answer in answers] == [Busy] * 9
    other.close()


def test_claims_do_not_wait_for_a_transaction_that_begins_meanwhile(place: Place, store: PostgresStore) -> None:
    other = place.store()
    for number in range(10):
        every = [key(1000 * number + each) for each in range(300)]

        def hold(every: list[Key] = every) -> None:
            if isinstance(store.claim([ClaimRequest(each, LONG) for each in every], b"token--1", LONG)[-1], Won):
                transaction = store.begin(Claim(every[-1], b"token--1"))
                time.sleep(0.1)
                transaction.rollback()

        def meet(every: list[Key] = every) -> None:
            other.claim([ClaimRequest(each, LONG) for each in every], b"token--2", LONG)

        assert run_together(hold, meet) == []
    other.close()


def test_a_lost_claim_cannot_begin_a_transaction(store: PostgresStore) -> None:
    claim(store, 1, lease=SHORT)
    time.sleep(OVER)
    claim(store, 1, b"token--2")
    with pytest.raises(LeaseLost):
        store.begin(MINE)
    assert store.extend([MINE], LONG) == [False]
    assert finish(store, 1, b"token--2")


def test_a_key_cannot_be_forgotten_inside_its_transaction(store: PostgresStore) -> None:
    claim(store, 1)
    transaction = store.begin(MINE)
    with pytest.raises(ConfigError, match=r"while ctx\.tx holds it"):
        store.forget([key(1)])
    transaction.rollback()
    transaction.rollback()
    assert store.forget([key(1)]) == [True]


def test_a_worker_killed_inside_a_transaction_leaves_nothing(place: Place, store: PostgresStore) -> None:
    place.sql("CREATE TABLE effects (number integer)")
    child = subprocess.Popen([sys.executable, "-c", _DIES, place.url()], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"inside\n"
    assert isinstance(claim(store, 1, b"token--2"), Busy)
    child.kill()
    child.wait()
    child.stdout.close()
    time.sleep(0.3)
    while isinstance(answer := claim(store, 1, b"token--2"), Busy):  # until the server has noticed it
        time.sleep(0.05)
    assert answer == Won(2, None, suspect=True)
    assert effects(place) == []


_DIES = """
import sys, time
from eventonce import open_store
from eventonce.claims.protocol import Claim
from eventonce.testing.contract import claim, key
store = open_store(sys.argv[1])
claim(store, 1, lease=200)
transaction = store.begin(Claim(key(1), b"token--1"))
transaction.handle.execute("INSERT INTO effects VALUES (1)")
print("inside", flush=True)
time.sleep(600)
"""


def in_the_end_of_a_transaction(code: CodeType) -> bool:
    return code.co_filename.endswith("postgres/transaction.py") and code.co_name in (
        "rollback",
        "_discard_session_state",
    )


@pytest.mark.parametrize("where", [in_the_engine, in_the_end_of_a_transaction])
def test_an_interrupt_anywhere_before_the_commit_strands_nothing(
    place: Place, store: PostgresStore, where: Callable[[CodeType], bool]
) -> None:
    place.sql("CREATE TABLE names (name text)")

    def insert(event: Event, ctx: Any) -> None:
        ctx.tx.execute("INSERT INTO names VALUES (%s)", (event.id,))

    def written(name: str) -> int:
        return len(place.sql("SELECT 1 FROM names WHERE name = %s", name))

    with Once(store) as once:
        assert interrupt_before_the_commit(once, insert, written, where) > 10


# --- processes ---


def test_a_forked_child_opens_its_own_connections(store: PostgresStore) -> None:
    claim(store, 1)
    child = os.fork()
    if not child:
        os._exit(0 if finish(store, 1) and isinstance(claim(store, 1, b"token--2"), Done) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert isinstance(claim(store, 1, b"token--2"), Done)


def test_a_fork_inside_a_transaction_cannot_harm_it(place: Place, store: PostgresStore) -> None:
    def in_child(ctx: Any) -> bool:
        with pytest.raises(StoreUnusable, match="belongs to the parent"):
            write(ctx, 2)
        ctx.transaction.rollback()
        return isinstance(claim(store, 5), Won)

    def handle(event: Event, ctx: Any) -> None:
        write(ctx, 1)
        child = os.fork()
        if not child:
            os._exit(0 if in_child(ctx) else 1)
        assert os.waitpid(child, 0)[1] == 0

    assert transact(place, store, handle)[0].kind is OutcomeKind.PROCESSED
    assert effects(place) == [1]


def test_a_process_may_end_without_closing(place: Place) -> None:
    code = (
        "import sys; from eventonce import open_store; from eventonce.testing.contract import claim, key\n"
        "from eventonce.claims.protocol import Claim\n"
        "store = open_store(sys.argv[1]); claim(store, 1); transaction = store.begin(Claim(key(1), b'token--1'))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, place.url()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_the_store_usable(place: Place) -> None:
    store = place.store()
    claim(store, 1)
    with psycopg.connect(place.server.url(), options=f"-csearch_path={place.name}") as holder:
        holder.execute("LOCK TABLE eventonce_claims IN ACCESS EXCLUSIVE MODE")

        def interrupt_what_waits() -> None:
            waits_for_a_lock(place)
            os.kill(os.getpid(), signal.SIGINT)

        interrupt = threading.Thread(target=interrupt_what_waits)
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            finish(store, 1)
        interrupt.join()
        holder.rollback()
    (record,) = store.peek([key(1)])
    assert isinstance(record, Record)
    assert not record.done_at
    assert finish(store, 1)
    store.close()


def test_more_threads_than_connections_wait_their_turn(place: Place, store: PostgresStore) -> None:
    assert run_together(*(lambda number=number: claim(store, number) for number in range(32))) == []
    hasty = place.store(more="timeout=1s")
    claim(hasty, 1)
    connections = [hasty._pool.take()[0] for _ in range(8)]
    with pytest.raises(StoreBusy, match="all 8 connections were in use"):
        hasty.peek(keys(1))
    for connection in connections:
        hasty._pool.give(connection)
    hasty.close()


# --- SQLAlchemy, as in the docs ---


def test_a_session_of_sqlalchemy_binds_to_the_transaction(place: Place, store: PostgresStore) -> None:
    lent = threading.local()
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: lent.tx, poolclass=sqlalchemy.NullPool, pool_reset_on_return=None
    )
    for end in ("do_commit", "do_rollback", "do_close"):
        setattr(engine.dialect, end, lambda connection: None)

    def handle(event: Event, ctx: Any) -> None:
        lent.tx = ctx.tx
        insert, number = sqlalchemy.text("INSERT INTO effects VALUES (:number)"), event.data["n"]
        with engine.begin() as connection, Session(connection, join_transaction_mode="create_savepoint") as session:
            session.execute(insert, {"number": number})
            session.commit()
            session.execute(insert, {"number": 98})
            session.rollback()
            session.execute(insert, {"number": 10 * number})
            session.commit()
            session.execute(insert, {"number": 99})  # and no commit
            if number == 2:
                raise ValueError("no")
            if number == 3:
                session.execute(insert, {"number": "no number"})

    place.sql("CREATE TABLE effects (number integer)")
    with Once(store) as once:
        outcomes = once.run([{"id": str(n), "n": n} for n in (1, 2, 3, 4)], handle)
        assert [outcome.kind for outcome in outcomes] == [
            OutcomeKind.PROCESSED,
            OutcomeKind.FAILED,
            OutcomeKind.FAILED,
            OutcomeKind.PROCESSED,
        ]
        assert isinstance(outcomes[2].error, sqlalchemy.exc.DataError)
        assert effects(place) == [1, 4, 10, 40]
        assert once.run([{"id": "1", "n": 1}], handle)[0].kind is OutcomeKind.DUPLICATE


@pytest.mark.parametrize("isolation", ["repeatable read"])
def test_a_database_error_through_sqlalchemy_costs_no_attempt(strict: Place) -> None:
    lent = threading.local()
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: lent.tx, poolclass=sqlalchemy.NullPool, pool_reset_on_return=None
    )
    for end in ("do_commit", "do_rollback", "do_close"):
        setattr(engine.dialect, end, lambda connection: None)
    strict.sql("CREATE TABLE accounts (number integer PRIMARY KEY, cents integer)")
    strict.sql("INSERT INTO accounts VALUES (1, 0)")
    attempts = []

    def handle(event: Event, ctx: Any) -> None:
        lent.tx = ctx.tx
        attempts.append(ctx.attempt)
        with engine.begin() as connection, Session(connection, join_transaction_mode="create_savepoint") as session:
            if attempts == [1]:
                strict.sql("UPDATE accounts SET cents = 1 WHERE number = 1")
            session.execute(sqlalchemy.text("UPDATE accounts SET cents = 2 WHERE number = 1"))
            session.commit()

    store = strict.store()
    (outcome,) = transact(strict, store, handle)
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert isinstance(outcome.error, psycopg.errors.SerializationFailure)
    assert transact(strict, store, handle)[0].kind is OutcomeKind.PROCESSED
    assert (attempts, strict.sql("SELECT cents FROM accounts")) == ([1, 1], [(2,)])
    store.close()


def test_trouble_with_the_database_is_no_attempt_whatever_a_handler_makes_of_it(
    place: Place, store: PostgresStore
) -> None:
    attempts = []

    class Mine(Exception):
        pass

    def handle(event: Event, ctx: Any) -> None:
        attempts.append(ctx.attempt)
        try:
            ctx.tx.execute("DO $$ BEGIN RAISE 'gave up' USING ERRCODE = 'deadlock_detected'; END $$")
        except psycopg.Error as error:
            if len(attempts) == 1:
                raise Mine from error
            if len(attempts) == 2:
                raise Mine from None
            raise Mine  # noqa: B904

    outcomes = [transact(place, store, handle)[0] for _ in range(3)]
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNKNOWN] * 3
    assert attempts == [1, 1, 1]


def test_an_error_of_a_handler_keeps_its_class(place: Place, store: PostgresStore) -> None:
    mine = ValueError("no")

    def handle(event: Event, ctx: Any) -> None:
        write(ctx)
        raise mine from mine

    def refuse(event: Event, ctx: Any) -> None:
        try:
            ctx.tx.execute("DO $$ BEGIN RAISE 'gave up' USING ERRCODE = 'deadlock_detected'; END $$")
        except psycopg.Error as error:
            raise EventRejected("cannot be") from error

    (outcome,) = transact(place, store, handle)
    assert (outcome.kind, outcome.error) == (OutcomeKind.FAILED, mine)
    assert transact(place, store, refuse)[0].kind is OutcomeKind.REJECTED


@pytest.mark.parametrize("change", ["SET LOCAL search_path TO pg_catalog", "SET LOCAL ROLE pg_monitor"])
def test_a_handler_may_change_the_search_path_or_the_role(postgres_server: Postgres, change: str) -> None:
    with Once(postgres_server.url()) as once:
        (outcome,) = once.run([{"id": change}], lambda event, ctx: ctx.tx.execute(change) and None)
        assert (outcome.kind, outcome.error) == (OutcomeKind.PROCESSED, None)
