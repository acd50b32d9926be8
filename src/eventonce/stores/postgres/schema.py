"""The tables of the PostgreSQL store. The first process that needs them creates or migrates them, under one lock."""

from collections.abc import Sequence
from pathlib import Path

from eventonce.errors import StoreUnusable
from eventonce.stores.postgres.connection import Connection
from eventonce.stores.postgres.errors import GONE

FOLDER = Path(__file__).with_name("sql")
_LOCK = 0x65766E746F6E6365  # "evntonce": the advisory lock for creating the tables
_OLDEST = 140_000  # server_version; the sweep needs a feature of 14


def statement(name: str) -> str:
    """Return one of our statements, without its comments."""
    lines = (FOLDER / f"{name}.sql").read_text().splitlines()
    bare = (line.partition("--")[0].strip() for line in lines)
    return " ".join(line for line in bare if line)


def migrations() -> list[str]:
    return [file.read_text() for file in sorted(FOLDER.glob("[0-9]*.sql"))]


def create_tables(connection: Connection, address: str, *, create: bool) -> None:
    """Create or migrate the tables if needed. If they are up to date, that takes three round trips at most."""
    scripts = migrations()
    server_version = connection.info.server_version
    if server_version < _OLDEST:
        raise StoreUnusable(f"{address}: is PostgreSQL {server_version // 10_000}; use 14 or newer")
    version = _version(connection)
    if version > len(scripts):
        raise StoreUnusable(f"{address}: was written by a newer eventonce (schema {version}); upgrade eventonce")
    if version == len(scripts):
        _check_claims(connection, address)
        return
    if not create:
        raise StoreUnusable(f"{address}: has no eventonce tables (schema {version} of {len(scripts)}); {_REMEDY}")
    with connection.transaction():
        _migrate(connection, scripts)


_REMEDY = "check the database and its search_path, or run a worker once to create them"


def _version(connection: Connection) -> int:
    (exists,) = connection.run("SELECT to_regclass('eventonce_schema') IS NOT NULL").fetchone() or (False,)
    if not exists:
        return 0
    (version,) = connection.run("SELECT max(version) FROM eventonce_schema").fetchone() or (0,)
    return int(version or 0)


def _check_claims(connection: Connection, address: str) -> None:
    """Raise if the table is missing. Creating it again would run every event again, which its owner may not want."""
    (exists,) = connection.run("SELECT to_regclass('eventonce_claims') IS NOT NULL").fetchone() or (False,)
    if not exists:
        raise StoreUnusable(f"{address}: the table eventonce_claims is gone; {GONE}")


def _migrate(connection: Connection, scripts: Sequence[str]) -> None:
    # This lock ends with the transaction, so it works behind a pooler too. The version may have changed meanwhile.
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    connection.execute("CREATE TABLE IF NOT EXISTS eventonce_schema (version integer PRIMARY KEY)")
    for number in range(_version(connection), len(scripts)):
        connection.execute(scripts[number].encode())
        connection.execute("INSERT INTO eventonce_schema VALUES (%s)", (number + 1,))
