"""Errors of PostgreSQL as store errors, retryable or with their remedy. No message contains a password."""

import re

import psycopg

from eventonce.errors import StoreBusy, StoreError, StoreUnusable

_GRANT = (
    "grant the role SELECT, INSERT, UPDATE and DELETE on eventonce_claims and SELECT on eventonce_schema, "
    "and CREATE on the schema if the tables do not exist yet"
)
GONE = "restore it, or drop eventonce_schema too and start again with no records"
_SQLSTATES = {
    "42501": _GRANT,
    "42P01": GONE,
    "3F000": "create the schema that is first in the search_path, or correct options=-csearch_path%3D in the URL",
    "53100": "free some space on the server's disk and run again (no event was lost)",
    "28P01": "check the user and the password",
    "28000": "check the user, and the server's pg_hba.conf",
    "3D000": "create the database, or check its name",
}
# An error of connecting has no SQLSTATE, only a message. Those not listed are retryable.
_REFUSALS = {
    "password authentication failed": _SQLSTATES["28P01"],
    "no password supplied": _SQLSTATES["28P01"],
    "no pg_hba.conf entry": _SQLSTATES["28000"],
    "authentication failed": _SQLSTATES["28000"],
    "is not permitted to log in": _SQLSTATES["28000"],
    "permission denied for database": "grant the role CONNECT on the database",
    "but SSL was required": "enable TLS on the server, or correct sslmode= in the URL",
    "root certificate file": "correct sslrootcert= in the URL",
    "certificate verify failed": "name the certificate of the server's issuer with sslrootcert= in the URL",
    "unrecognized configuration parameter": "correct options= in the URL",
}
_UNREACHABLE = re.compile(
    r"Connection refused|No such file or directory|resolve host|translate host name|timeout expired"
)
READ_ONLY = (
    "it takes no writes now; if it stays so, connect to the primary server (add target_session_attrs=read-write "
    "to the URL) or set default_transaction_read_only to off"
)


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time."""


def translate_error(error: psycopg.Error, address: str) -> StoreError:
    """Return the store error for an error of PostgreSQL."""
    state, message = error.sqlstate or "", _first_line(error)
    if state == "55P03":
        return StoreBusy(f"{address}: {message}; another transaction holds the rows, so keep ctx.tx short")
    if state == "25006":
        return StoreError(f"{address}: {message}; {READ_ONLY}")
    remedy = _SQLSTATES.get(state) or _connect_remedy(error)
    if remedy is None and state.startswith("42"):
        remedy = "its tables are not as eventonce left them, so restore them or use another database"
    if remedy:
        return StoreUnusable(f"{address}: {message}; {remedy}")
    suffix = "; check that it runs and is at this address" if _UNREACHABLE.search(message) else ""
    return StoreError(f"{address}: {message}{suffix}")


def is_connection_lost(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """Return whether the connection is lost, or the server is shutting down."""
    return connection.closed or (error.sqlstate or "").startswith(("08", "57P", "25P03", "25P04"))


def is_blameless(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """Return whether an error has nothing to do with the statement: a lost connection, a conflict or a full disk."""
    return is_connection_lost(error, connection) or (error.sqlstate or "").startswith(("40", "53100"))


def for_handler(error: psycopg.Error) -> StoreError:
    """Return the error for a handler inside ctx.tx: still of psycopg's class, and a store error to the engine."""
    store_error, driver_class = translate_error(error, "nothing was written through ctx.tx"), type(error)
    combined: type[StoreError] = type(
        driver_class.__name__, (type(store_error), driver_class), {"__doc__": driver_class.__doc__}
    )
    return combined(str(store_error))


def _connect_remedy(error: psycopg.Error) -> str | None:
    text = str(error)
    if error.sqlstate or "Multiple connection attempts failed" in text:  # one of several servers may recover
        return None
    if 'FATAL:  database "' in text and "does not exist" in text:
        return _SQLSTATES["3D000"]
    if 'FATAL:  role "' in text and "does not exist" in text:
        return _SQLSTATES["28P01"]
    return next((remedy for message, remedy in _REFUSALS.items() if message in text), None)


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
