"""What an error of PostgreSQL means: whether it may pass, and what to do where it does not. Never holds a password."""

import psycopg

from eventonce.errors import StoreBusy, StoreError, StoreUnusable

_GRANT = (
    "grant the role SELECT, INSERT, UPDATE and DELETE on eventonce_claims and SELECT on eventonce_schema, "
    "and CREATE on the schema where the tables are not there yet"
)
GONE = "restore it; or to begin with nothing remembered, drop eventonce_schema too, and start again"
_SQLSTATES = {
    "42501": _GRANT,
    "42P01": GONE,
    "3F000": "create the schema that is first in the search_path, or correct options=-csearch_path%3D in the URL",
    "53100": "free some space on the server's disk and run again, nothing is lost",
    "28P01": "check the user and the password",
    "28000": "check the user, and the server's pg_hba.conf",
    "3D000": "create the database, or check its name",
}
# While connecting there is no SQLSTATE, only the server's words. Any that are not listed may pass.
_REFUSALS = {
    "password authentication failed": _SQLSTATES["28P01"],
    "no password supplied": _SQLSTATES["28P01"],
    "no pg_hba.conf entry": _SQLSTATES["28000"],
    "authentication failed": _SQLSTATES["28000"],
    "is not permitted to log in": _SQLSTATES["28000"],
    "permission denied for database": "grant the role CONNECT on the database",
    "but SSL was required": "switch TLS on at the server, or correct sslmode= in the URL",
    "root certificate file": "correct sslrootcert= in the URL",
    "certificate verify failed": "name the certificate of whoever signed the server's with sslrootcert= in the URL",
    "unrecognized configuration parameter": "correct options= in the URL",
}
READ_ONLY = (
    "it takes no writes now; if it stays so, connect to the primary server (add target_session_attrs=read-write "
    "to the URL) or set default_transaction_read_only to off"
)


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time."""


def translate_error(error: psycopg.Error, place: str) -> StoreError:
    """What an error means to the engine."""
    state, words = error.sqlstate or "", _first_line(error)
    if state == "55P03":
        return StoreBusy(f"{place}: {words}; others hold the rows, keep ctx.tx short")
    if state == "25006":
        return StoreError(f"{place}: {words}; {READ_ONLY}")
    why = _SQLSTATES.get(state) or _refusal(error)
    if why is None and state.startswith("42"):
        why = "its tables are not as eventonce left them, so restore them or name another database"
    return StoreUnusable(f"{place}: {words}; {why}") if why else StoreError(f"{place}: {words}")


def lost(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """Whether the server has gone away, or is about to."""
    return connection.closed or (error.sqlstate or "").startswith(("08", "57P", "25P03", "25P04"))


def blameless(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """Whether whoever sent the statement is not to blame: it is lost, undone for the sake of others, or full."""
    return lost(error, connection) or (error.sqlstate or "").startswith(("40", "53100"))


def inside(error: psycopg.Error) -> StoreError:
    """The same to a handler inside ctx.tx: still psycopg's error, and trouble with the store to the engine."""
    found, theirs = translate_error(error, "nothing was written through ctx.tx"), type(error)
    both: type[StoreError] = type(theirs.__name__, (type(found), theirs), {"__doc__": theirs.__doc__})
    return both(str(found))


def _refusal(error: psycopg.Error) -> str | None:
    text = str(error)
    if error.sqlstate or "Multiple connection attempts failed" in text:  # of several servers one may come back
        return None
    if 'FATAL:  database "' in text and "does not exist" in text:
        return _SQLSTATES["3D000"]
    if 'FATAL:  role "' in text and "does not exist" in text:
        return _SQLSTATES["28P01"]
    return next((why for words, why in _REFUSALS.items() if words in text), None)


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
