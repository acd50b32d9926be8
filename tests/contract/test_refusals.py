"""Servers that are full or read-only, that refuse our password, or that lack our table: the same tests for every store.

`full` and `read_only` are faults that last for a while. `stranger` and `absent` are URLs with a wrong password and
without a table.
"""

import itertools
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from eventonce import Event, Once, OutcomeKind, StoreError, open_store
from eventonce.claims.outcome import Action
from eventonce.errors import StoreUnusable
from eventonce.testing import ManualClock
from eventonce.testing.contract import keys
from tests.conftest import running
from tests.contract.test_dynamodb_store import table_at
from tests.meddler import Answer, Meddler, error
from tests.servers import Dynoxide, Ministack, Postgres, Redis, RedisCluster
from tests.until import until

SECRET = "hunter2"
LEASE = 300  # milliseconds; a store retries for half of it, on a clock that only pauses move
While = Callable[[], AbstractContextManager[None]]


class Refusals:
    """Nothing is lost, what only a person can fix is not retried forever, and no secret is shown."""

    messages: ClassVar[dict[str, str]]  # the expected messages

    @pytest.mark.long
    def test_a_full_server_loses_nothing(self, url: str, full: While) -> None:
        self._loses_nothing(url, full, self.messages["full"])

    @pytest.mark.long
    def test_a_server_that_fills_up_while_we_work_loses_nothing(self, url: str, full: While) -> None:
        self._is_retried(url, full)

    def test_a_read_only_server_loses_nothing(self, url: str, read_only: While) -> None:
        self._loses_nothing(url, read_only, self.messages["read_only"])

    def test_a_server_that_becomes_read_only_while_we_work_loses_nothing(self, url: str, read_only: While) -> None:
        self._is_retried(url, read_only)

    def test_a_wrong_password_is_reported_without_showing_it(
        self, stranger: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG):
            self._is_unusable(stranger, self.messages["stranger"])
        assert SECRET not in caplog.text

    def test_a_missing_table_is_reported(self, absent: str) -> None:
        self._is_unusable(absent, self.messages["absent"])

    def _loses_nothing(self, url: str, fault: While, reason: str) -> None:
        ran: list[str] = []
        events = [{"id": each} for each in "123"]
        with Once(url, lease=f"{LEASE}ms", clock=ManualClock()) as once:  # on which retries end after a fixed number
            once.run([{"id": "0"}], lambda event: None)
            with fault():
                outcomes = once.run(events, lambda event: ran.append(event.id))
            assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNKNOWN] * 3
            assert isinstance(outcomes[0].error, StoreError)
            assert reason in str(outcomes[0].error)
            assert ran == []
            assert {outcome.kind for outcome in once.run(events, lambda event: ran.append(event.id))} == {
                OutcomeKind.PROCESSED
            }
            assert ran == ["1", "2", "3"]

    def _is_retried(self, url: str, fault: While) -> None:
        ran: list[int] = []
        with Once(url, lease=f"{LEASE}ms", clock=ManualClock()) as once, ExitStack() as faults:

            def handle(event: Event, ctx: Any) -> None:
                ran.append(ctx.attempt)
                if len(ran) == 1:
                    faults.enter_context(fault())

            once.run([{"id": "0"}], lambda event: None)
            (outcome,) = once.run([{"id": "1"}], handle)
            faults.close()
            assert (outcome.kind, ran) == (OutcomeKind.UNKNOWN, [1])
            assert outcome.action is Action.RETRY  # its effect is not recorded, so it is not acked
        with Once(url, busy_wait="120s") as once:  # until the lease has expired
            (outcome,) = once.run([{"id": "1"}], handle)
        # The commit may have succeeded later, in the background.
        assert (outcome.kind, ran) in [(OutcomeKind.PROCESSED, [1, 2]), (OutcomeKind.DUPLICATE, [1])]

    def _is_unusable(self, url: str, reason: str) -> None:
        store = open_store(url)
        with pytest.raises(StoreUnusable, match=reason) as caught:
            store.peek(keys(1))
        with Once(store) as once:
            (outcome,) = once.run([{"id": "1"}], lambda event: pytest.fail("ran"))
        assert outcome.kind is OutcomeKind.UNKNOWN
        assert isinstance(outcome.error, StoreUnusable)
        for raised in _chain(caught.value) + _chain(outcome.error):
            assert SECRET not in f"{raised} {raised!r}"
        store.close()


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and all others that its traceback shows."""
    return [] if error is None else [error, *_chain(error.__cause__), *_chain(error.__context__)]


@pytest.fixture(scope="module")
def refusing_redis(servers: Path) -> Iterator[Redis]:
    yield from running(lambda: Redis(servers))


class TestRedisRefuses(Refusals):
    messages: ClassVar[dict[str, str]] = {
        "full": "raise its maxmemory",
        "read_only": "name its master",
        "stranger": "correct the user and password",
        "absent": "DB index is out of range; use a database that it has",
    }

    @pytest.fixture
    def server(self, refusing_redis: Redis) -> Redis:
        return refusing_redis

    @pytest.fixture
    def url(self, server: Redis) -> str:
        server.cli("flushall")
        return server.url()

    @pytest.fixture
    def full(self, server: Redis) -> While:
        return lambda: _configured([server], "maxmemory", "1", "0")

    @pytest.fixture
    def read_only(self, server: Redis) -> While:
        @contextmanager
        def demoted() -> Iterator[None]:
            server.cli("replicaof", "127.0.0.1", "1")
            yield
            server.cli("replicaof", "no", "one")

        return demoted

    @pytest.fixture
    def stranger(self, server: Redis) -> str:
        return server.url().replace("//", f"//ghost:{SECRET}@")

    @pytest.fixture
    def absent(self, server: Redis) -> str:
        return f"redis://127.0.0.1:{server.port}/99"  # Redis has no tables, but databases


class TestRedisClusterRefuses(Refusals):
    messages: ClassVar[dict[str, str]] = {
        "full": "raise its maxmemory",
        "read_only": "NOREPLICAS",
        "stranger": "correct the user and password",
        "absent": "leave cluster=true out",
    }

    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> str:
        redis_cluster.flush()
        return redis_cluster.url()

    @pytest.fixture
    def full(self, redis_cluster: RedisCluster) -> While:
        return lambda: _configured(redis_cluster.nodes, "maxmemory", "1", "0")

    @pytest.fixture
    def read_only(self, redis_cluster: RedisCluster) -> While:
        return lambda: _configured(redis_cluster.nodes, "min-replicas-to-write", "1", "0")

    @pytest.fixture
    def stranger(self, redis_cluster: RedisCluster) -> str:
        return redis_cluster.url().replace("//", f"//ghost:{SECRET}@")

    @pytest.fixture
    def absent(self, redis_server: Redis) -> str:
        return f"redis://127.0.0.1:{redis_server.port}?cluster=true"  # a cluster has but one database: no cluster


@contextmanager
def _configured(nodes: Sequence[Redis], setting: str, value: str, usual: str) -> Iterator[None]:
    for node in nodes:
        node.cli("config", "set", setting, value)
    yield
    for node in nodes:
        node.cli("config", "set", setting, usual)


_numbers = itertools.count()


@pytest.fixture(scope="module")
def guarded_postgres(servers: Path) -> Iterator[Postgres]:
    """A server that requires a password from everyone but its owner."""
    rules = servers / "refusals_hba.conf"
    rules.write_text("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    rules.chmod(0o644)
    yield from running(lambda: Postgres(servers, f"hba_file={rules}"))


class TestPostgresRefuses(Refusals):
    messages: ClassVar[dict[str, str]] = {
        "full": "free some space",
        "read_only": "takes no writes now",
        "stranger": "check the user and the password",
        "absent": "the table eventonce_claims is gone; restore it",
    }

    @pytest.fixture
    def server(self, guarded_postgres: Postgres) -> Postgres:
        return guarded_postgres

    @pytest.fixture
    def schema(self, server: Postgres) -> str:
        name = f"refusals{next(_numbers)}"
        self._sql(server, f"CREATE SCHEMA {name}")
        return name

    @pytest.fixture
    def url(self, server: Postgres, schema: str) -> str:
        return f"{server.url()}?options=-csearch_path%3D{schema}"

    @pytest.fixture
    def full(self, server: Postgres, schema: str) -> While:
        fail = "RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'"
        make = f"CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {fail}; END $$"
        call = f"BEFORE INSERT OR UPDATE ON {schema}.eventonce_claims EXECUTE FUNCTION {schema}.fail()"

        @contextmanager
        def filled() -> Iterator[None]:
            self._sql(server, make, f"CREATE TRIGGER fail {call}")
            yield
            self._sql(server, f"DROP FUNCTION {schema}.fail CASCADE")

        return filled

    @pytest.fixture
    def read_only(self, server: Postgres) -> While:
        @contextmanager
        def locked() -> Iterator[None]:
            self._sql(server, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
            until(lambda: read_only() == "on")  # by then every existing session has the setting too
            yield
            self._sql(server, "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
            until(lambda: read_only() == "off")

        def read_only() -> str:
            with psycopg.connect(server.url()) as connection:
                (setting,) = connection.execute("SHOW default_transaction_read_only").fetchone() or ("",)
                return str(setting)

        return locked

    @pytest.fixture
    def stranger(self, server: Postgres) -> str:
        return server.url().replace("postgres@", f"guest:{SECRET}@")

    @pytest.fixture
    def absent(self, server: Postgres, schema: str, url: str) -> str:
        store = open_store(url)
        store.peek(keys(1))
        store.close()
        self._sql(server, f"DROP TABLE {schema}.eventonce_claims")
        return url

    @staticmethod
    def _sql(server: Postgres, *statements: str) -> None:
        usual = "-cdefault_transaction_read_only=off"
        with psycopg.connect(server.url(), autocommit=True, options=usual) as connection:
            for statement in statements:
                connection.execute(statement.encode())


class DynamoDBRefusals(Refusals):
    """What AWS answers to a table out of capacity, a role that may only read, and wrong keys."""

    messages: ClassVar[dict[str, str]] = {
        "full": "ProvisionedThroughputExceededException",
        "read_only": "allow it in the IAM policy",
        "stranger": "check the AWS credentials",
        "absent": "does not exist; check its name and region, or create it: aws dynamodb create-table",
    }

    @pytest.fixture
    def server(self) -> Dynoxide:
        raise NotImplementedError

    @pytest.fixture
    def meddler(self, server: Dynoxide) -> Iterator[Meddler]:
        meddler = Meddler(server)
        yield meddler
        meddler.close()

    @pytest.fixture
    def url(self, server: Dynoxide, meddler: Meddler) -> str:
        return server.url(table_at(server), meddler.port)

    @pytest.fixture
    def full(self, meddler: Meddler) -> While:
        return lambda: _writes_answered(meddler, error("ProvisionedThroughputExceededException"))

    @pytest.fixture
    def read_only(self, meddler: Meddler) -> While:
        return lambda: _writes_answered(meddler, error("AccessDeniedException"))

    @pytest.fixture
    def stranger(self, url: str, meddler: Meddler, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        meddler.instead = lambda *_: error("UnrecognizedClientException")
        return url

    @pytest.fixture
    def absent(self, server: Dynoxide) -> str:
        return server.url(f"absent-{uuid.uuid4().hex[:8]}")


@contextmanager
def _writes_answered(meddler: Meddler, answer: Answer) -> Iterator[None]:
    meddler.instead = lambda operation, _: None if "Get" in operation else answer
    yield
    meddler.instead = lambda *_: None


class TestDynoxideRefuses(DynamoDBRefusals):
    @pytest.fixture
    def server(self, dynoxide_in_memory: Dynoxide) -> Dynoxide:
        return dynoxide_in_memory


@pytest.mark.long
class TestMinistackRefuses(DynamoDBRefusals):
    @pytest.fixture
    def server(self, ministack: Ministack) -> Dynoxide:
        return ministack
