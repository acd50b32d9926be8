"""The user's own connections: how a statement is run inside the transaction that is open on one."""

import re
from collections.abc import Mapping
from typing import Any

from eventonce.errors import ConfigError, StoreUnusable

_NAMED = re.compile(r":(\w+)")
_ALONE = (
    "no transaction is open on this connection, so the event would be added alone; begin one, so that it is added "
    "together with your own change or not at all"
)
_ASYNC = "is asynchronous; with SQLAlchemy write await session.run_sync(lambda sync: outbox.add(sync, event))"
_KNOWN = (
    "give the connection of psycopg or sqlite3 that your change is made on, or a Connection or Session of SQLAlchemy"
)


def execute(connection: Any, sql: str, values: Mapping[str, Any], dialect: str, missing: str) -> None:
    """Run one statement with values named like `:name`. `missing` says what to do where the table is not there."""
    module = type(connection).__module__
    try:
        if "Async" in type(connection).__name__ or module.startswith(("asyncpg", "aiosqlite")):
            raise ConfigError(f"outbox: {type(connection).__name__} {_ASYNC}")
        if module.startswith("sqlalchemy."):
            _with_sqlalchemy(connection, sql, values, dialect)
        else:
            _with_driver(connection, sql, values, dialect)
    except Exception as error:
        if _no_table(error):
            raise StoreUnusable(missing) from error
        raise  # as the driver says it: the caller's own handling of it goes for this too


def _with_sqlalchemy(connection: Any, sql: str, values: Mapping[str, Any], dialect: str) -> None:
    from sqlalchemy import text

    if hasattr(connection, "get_bind"):  # a session, or what hands on to one
        connection = connection.connection()
    if connection.dialect.name != dialect:
        raise ConfigError(f"outbox: this is a connection to {connection.dialect.name}, and the outbox is in {dialect}")
    if _commits_alone(connection, dialect):
        connection.execute(text("SELECT 1"))  # it begins with the first statement, and some in a way of their own
        if _commits_alone(connection, dialect):
            raise ConfigError(f"outbox: {_ALONE}")
    connection.execute(text(sql), values)


def _commits_alone(connection: Any, dialect: str) -> bool:
    driver = connection.connection.driver_connection
    return _alone(driver, dialect) if _dialect(driver) else getattr(driver, "autocommit", False) is True


def _with_driver(connection: Any, sql: str, values: Mapping[str, Any], dialect: str) -> None:
    spoken = _dialect(connection)
    if spoken is None:
        raise ConfigError(f"outbox: {type(connection).__name__!r} is no connection that it knows; {_KNOWN}")
    if spoken != dialect:
        raise ConfigError(f"outbox: this is a connection to {spoken}, and the outbox is in {dialect}")
    if _alone(connection, dialect):
        raise ConfigError(f"outbox: {_ALONE}")
    if dialect == "postgresql":
        connection.execute(_NAMED.sub(r"%(\1)s", sql), values)
    else:
        connection.execute(sql, values)


def _dialect(connection: Any) -> str | None:
    """By its classes, so that no driver is imported for the question."""
    found = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    return "postgresql" if "psycopg" in found else "sqlite" if "sqlite3" in found else None


def _alone(connection: Any, dialect: str) -> bool:
    """Whether the statement would be committed by itself."""
    if dialect == "postgresql":
        return bool(connection.autocommit) and connection.info.transaction_status.name == "IDLE"
    commits = getattr(connection, "autocommit", -1)  # since Python 3.12: True, False, or as isolation_level says
    begins = commits is False or (commits is not True and connection.isolation_level is not None)
    return not connection.in_transaction and not begins


def _no_table(error: BaseException) -> bool:
    for each in (error, getattr(error, "orig", None)):
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if state == "42P01" and "eventonce_outbox" in str(each):
            return True
        if "no such table: eventonce_outbox" in str(each):
            return True
    return False
