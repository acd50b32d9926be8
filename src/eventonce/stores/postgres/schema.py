"""The tables of the PostgreSQL store: made and brought up to date by the first to need them, under one lock."""

from collections.abc import Sequence
from pathlib import Path

from eventonce.errors import StoreUnusable
from eventonce.stores.postgres.connection import Connection
from eventonce.stores.postgres.errors import GONE

FOLDER = Path(__file__).with_name("sql")
_LOCK = 0x65766E746F6E6365  # "evntonce": the advisory lock under which the tables are made
_OLDEST = 140_000  # as the server counts; the sweep needs what came with 14


def statement(name: str) -> str:
    """A statement of ours, without its comments."""
    lines = (FOLDER / f"{name}.sql").read_text().splitlines()
    bare = (line.partition("--")[0].strip() for line in lines)
    return " ".join(line for line in bare if line)


def migrations() -> list[str]:
    return [file.read_text() for file in sorted(FOLDER.glob("[0-9]*.sql"))]


def prepare(connection: Connection, place: str, *, create: bool) -> None:
    """See that the tables are there and of this version; three round trips at most where they are."""
    known = migrations()
    if connection.info.server_version < _OLDEST:
        raise StoreUnusable(f"{place}: is PostgreSQL {connection.info.server_version // 10_000}; 14 or newer is needed")
    version = _version(connection)
    if version > len(known):
        raise StoreUnusable(f"{place}: was written by a newer eventonce (schema {version}); upgrade eventonce")
    if version == len(known):
        _check_claims(connection, place)
        return
    if not create:
        raise StoreUnusable(f"{place}: has no tables of eventonce (schema {version} of {len(known)}); {_REMEDY}")
    with connection.transaction():
        _migrate(connection, known)


_REMEDY = "check the database and its search_path, or run a worker once to have them made"


def _version(connection: Connection) -> int:
    (there,) = connection.run("SELECT to_regclass('eventonce_schema') IS NOT NULL").fetchone() or (False,)
    if not there:
        return 0
    (found,) = connection.run("SELECT max(version) FROM eventonce_schema").fetchone() or (0,)
    return int(found or 0)


def _check_claims(connection: Connection, place: str) -> None:
    """A table that is gone is not made anew: whoever dropped it may not know that all would run again."""
    (there,) = connection.run("SELECT to_regclass('eventonce_claims') IS NOT NULL").fetchone() or (False,)
    if not there:
        raise StoreUnusable(f"{place}: the table eventonce_claims is gone; {GONE}")


def _migrate(connection: Connection, known: Sequence[str]) -> None:
    # A lock that ends with the transaction, so that it works behind a pooler too. Whoever waited for it looks again.
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    connection.execute("CREATE TABLE IF NOT EXISTS eventonce_schema (version integer PRIMARY KEY)")
    for number in range(_version(connection), len(known)):
        connection.execute(known[number].encode())
        connection.execute("INSERT INTO eventonce_schema VALUES (%s)", (number + 1,))
