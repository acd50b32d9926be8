"""What `Once` takes from the environment: a store, a consumer, and whether it is disabled."""

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from eventonce import Context, Event, Once
from eventonce.claims.outcome import OutcomeKind
from eventonce.environment import with_password
from eventonce.errors import ConfigError
from eventonce.settings import load
from eventonce.stores.memory import MemoryStore
from eventonce.wire import open_once

EVENT = {"id": "1"}


def test_a_store_and_a_consumer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENTONCE_STORE", f"sqlite:///{tmp_path / 'a.db'}")
    monkeypatch.setenv("EVENTONCE_CONSUMER", "billing")
    with Once() as once, Once(consumer="billing") as same, Once(consumer="mail") as other:
        assert once.run([EVENT], bool)[0].kind is OutcomeKind.PROCESSED
        assert same.run([EVENT], bool)[0].kind is OutcomeKind.DUPLICATE
        assert other.run([EVENT], bool)[0].kind is OutcomeKind.PROCESSED
    with Once("memory:") as elsewhere:
        assert elsewhere.run([EVENT], bool)[0].kind is OutcomeKind.PROCESSED


def test_without_a_store_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENTONCE_STORE", raising=False)
    with pytest.raises(ConfigError, match=r'Once\("sqlite:///orders.db"\), or set EVENTONCE_STORE'):
        Once()
    monkeypatch.setenv("EVENTONCE_STORE", " ")
    with pytest.raises(ConfigError, match="EVENTONCE_STORE"):
        Once()


def test_disabled_every_copy_runs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("EVENTONCE_DISABLED", "1")
    ran: list[Any] = []
    with caplog.at_level(logging.WARNING), Once("memory:") as once:
        assert [outcome.kind for outcome in once.run([EVENT] * 3, ran.append)] == [OutcomeKind.PROCESSED] * 3
        decorated = once(ran.append)
        decorated(EVENT)
        decorated(EVENT)
        (failed,) = once.run([EVENT], lambda event: 1 / 0)
        assert isinstance(failed.error, ZeroDivisionError)
        assert once.peek([once.key(EVENT)]) == [None]
        assert once.forget([once.key(EVENT)]) == [False]
    assert len(ran) == 5
    assert [record.message for record in caplog.records] == [
        "EVENTONCE_DISABLED is set: handlers run for every copy, and nothing is remembered"
    ]


def test_disabled_ctx_tx_is_a_plain_transaction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENTONCE_DISABLED", "true")
    file = tmp_path / "a.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE charged (id TEXT)")
    connection.close()

    def charge(event: Event, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO charged VALUES (?)", (event.id,))
        if event.id == "bad":
            raise ValueError("no")

    with Once(f"sqlite:///{file}?shared=true") as once:
        kinds = [outcome.kind for outcome in once.run([EVENT, {"id": "bad"}, EVENT], charge)]
    assert kinds == [OutcomeKind.PROCESSED, OutcomeKind.FAILED, OutcomeKind.PROCESSED]
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT id FROM charged").fetchall() == [("1",), ("1",)]
    connection.close()


def test_disabled_a_store_without_transactions_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTONCE_DISABLED", "1")
    with Once("memory:") as once:
        (outcome,) = once.run([EVENT], lambda event, ctx: ctx.tx)
    assert "the store has no transactions" in str(outcome.error)


def test_disabled_a_store_of_ones_own_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTONCE_DISABLED", "1")
    closed: list[bool] = []
    monkeypatch.setattr(MemoryStore, "close", lambda self: closed.append(True))
    with Once(MemoryStore()) as once:
        once.run([EVENT], bool)
    assert closed == []


def test_disabled_is_for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTONCE_DISABLED", "1")
    with pytest.raises(ConfigError, match="EVENTONCE_DISABLED is set, which is for tests"):
        open_once(load(store="memory:"))
    monkeypatch.setenv("EVENTONCE_DISABLED", "perhaps")
    with pytest.raises(ConfigError, match="'perhaps' is neither 1 nor 0"):
        Once("memory:")
    monkeypatch.setenv("EVENTONCE_DISABLED", "0")
    Once("memory:").close()


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://host", "redis://:p%40%2F%3A%3F@host"),
        ("redis://me@host:1/2?wait=1", "redis://me:p%40%2F%3A%3F@host:1/2?wait=1"),
        ("rediss://a,b/0", "rediss://:p%40%2F%3A%3F@a,b/0"),
        ("unix:///run/redis.sock", "unix://:p%40%2F%3A%3F@/run/redis.sock"),
        ("postgresql://me@host/db", "postgresql://me:p%40%2F%3A%3F@host/db"),
        ("redis://host?client_name=a@b", "redis://:p%40%2F%3A%3F@host?client_name=a@b"),
    ],
)
def test_a_password_stands_apart(url: str, whole: str) -> None:
    assert with_password(url, "p@/:?") == whole
    assert with_password(url, None) == url


@pytest.mark.parametrize(
    ("url", "password", "reason"),
    [
        ("redis://me:other@host", "p", "has a password already"),
        ("redis://host?password=other", "p", "has a password already"),
        ("redis://host", b"p", "store_password: is of type bytes"),
        ("sqlite:///a.db", "p", "sqlite: takes no password"),
        ("memory:", "p", "memory: takes no password"),
        ("dynamodb://table", "p", "dynamodb: takes no password"),
        ("redis://host", " ", "store_password: is empty"),
    ],
)
def test_a_password_that_does_not_fit(url: str, password: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Once(url, store_password=password)
    assert "other" not in reason
