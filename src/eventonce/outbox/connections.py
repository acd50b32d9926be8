"""The user's own connections: running a statement in the transaction that is open on one."""

import re
from collections.abc import Mapping
from typing import Any

from eventonce.errors import ConfigError, StoreUnusable

_NAMED = re.compile(r":(\w+)")
_ALONE = (
    "no transaction is open on this connection, so the event would be committed alone; begin one, so that it is "
    "committed together with your own change or not at all"
)
_ASYNC = "is asynchronous; with SQLAlchemy write await session.run_sync(lambda sync: outbox.add(sync, event))"
_SUPPORTED = "use the psycopg or sqlite3 connection of your own change, or a Connection or Session of SQLAlchemy"


def execute(connection: Any, sql: str, values: Mapping[str, Any], dialect: str, missing: str) -> None:
    """Run a statement with values named like `:name`. Raise `StoreUnusable(missing)` if there is no outbox table."""
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
        raise  # unchanged, for the caller's own handling of the driver's errors


def _with_sqlalchemy(connection: Any, sql: str, values: Mapping[str, Any], dialect: str) -> None:
    from sqlalchemy import text

    if hasattr(connection, "get_bind"):  # a session, or a proxy of one
        connection = connection.connection()
    if connection.dialect.name != dialect:
        raise ConfigError(f"outbox: this is a connection to {connection.dialect.name}, and the outbox is in {dialect}")
    if _commits_alone(connection, dialect):
        connection.execute(text("SELECT 1"))  # the first statement begins a transaction, for some in their own way
        if _commits_alone(connection, dialect):
            raise ConfigError(f"outbox: {_ALONE}")
    connection.execute(text(sql), values)


def _commits_alone(connection: Any, dialect: str) -> bool:
    driver = connection.connection.driver_connection
    return _driver_commits_alone(driver, dialect) if _dialect(driver) else getattr(driver, "autocommit", False) is True


def _with_driver(connection: Any, sql: str, values: Mapping[str, Any], dialect: str) -> None:
    own_dialect = _dialect(connection)
    if own_dialect is None:
        raise ConfigError(f"outbox: unsupported connection {type(connection).__name__!r}; {_SUPPORTED}")
    if own_dialect != dialect:
        raise ConfigError(f"outbox: this is a connection to {own_dialect}, and the outbox is in {dialect}")
    if _driver_commits_alone(connection, dialect):
        raise ConfigError(f"outbox: {_ALONE}")
    if dialect == "postgresql":
        connection.execute(_NAMED.sub(r"%(\1)s", sql), values)
    else:
        connection.execute(sql, values)


def _dialect(connection: Any) -> str | None:
    """Return the dialect of a connection, by the modules of its classes. No driver is imported for this."""
    modules = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    return "postgresql" if "psycopg" in modules else "sqlite" if "sqlite3" in modules else None


def _driver_commits_alone(connection: Any, dialect: str) -> bool:
    """Return whether the statement would be committed by itself."""
    if dialect == "postgresql":
        return bool(connection.autocommit) and connection.info.transaction_status.name == "IDLE"
    commits = getattr(connection, "autocommit", -1)  # since Python 3.12: True, False, or -1 for isolation_level
    begins = commits is False or (commits is not True and connection.isolation_level is not None)
    return not connection.in_transaction and not begins


def _no_table(error: BaseException) -> bool:
    for candidate in (error, getattr(error, "orig", None)):
        state = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if state == "42P01" and "eventonce_outbox" in str(candidate):
            return True
        if "no such table: eventonce_outbox" in str(candidate):
            return True
    return False
