"""Dead letters in a database table, beside the claims or in a database of their own."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from eventonce.clients import libpq
from eventonce.dead_letters.letter import DeadEvents, letter_fields, read_letter
from eventonce.errors import ConfigError, SinkError, SourceError
from eventonce.ports import DeadLetter

TABLE = "eventonce_dead_letters"
_TIMEOUT = 10  # seconds
_PAGE = 500
_LOCK = 0x65766E74_64656164  # "evntdead": under which PostgreSQL makes the table
Row = tuple[int, bytes]


class _Database(NamedTuple):
    """What differs between the kinds of databases."""

    name: str  # without secrets
    connect: Callable[[], Any]
    error: type[Exception]
    create: Sequence[str]  # statements that create the table if it is missing
    placeholder: str


class DeadTable:
    """Writes to a table, as `sqlite:///FILE` or `postgresql://HOST/DATABASE`.

    It opens a connection for each batch: dead letters are rare, and an idle connection could go stale.
    """

    def __init__(self, url: str) -> None:
        self._database = _sqlite(url) if url.startswith("sqlite:") else _postgres(url)
        self.name = f"the table {TABLE} of {self._database.name}"

    def write(self, dead: DeadEvents, now: int) -> None:
        """Write letters. They are committed when this returns."""
        rows = [(msgspec.json.encode(letter_fields(delivery, outcome, now)),) for delivery, outcome in dead]
        if rows:
            self._change("INSERT INTO {table} (letter) VALUES ({value})", rows)

    def read(self, after: int, limit: int) -> list[Row]:
        """Return the next letters after this number, the oldest first."""
        with self._transaction() as cursor:
            cursor.execute(f"SELECT id, letter FROM {TABLE} WHERE id > {after:d} ORDER BY id LIMIT {limit:d}")
            return [(number, bytes(raw)) for number, raw in cursor.fetchall()]

    def remove(self, numbers: Iterable[int]) -> None:
        """Delete letters."""
        self._change("DELETE FROM {table} WHERE id = {value}", [(number,) for number in numbers])

    def replace(self, rows: Iterable[Row]) -> None:
        """Replace letters that still exist."""
        self._change("UPDATE {table} SET letter = {value} WHERE id = {value}", [(raw, number) for number, raw in rows])

    def close(self) -> None:
        """Do nothing: no connection is open between two calls."""

    def _change(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._transaction() as cursor:
            cursor.executemany(statement.format(table=TABLE, value=self._database.placeholder), rows)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            with closing(self._database.connect()) as connection, closing(connection.cursor()) as cursor:
                for statement in self._database.create:
                    cursor.execute(statement)
                yield cursor
                connection.commit()
        except self._database.error as error:
            message = " ".join(str(error).split())
            raise SinkError(
                f"{self.name}: cannot be used: {message}; fix this and run again (no event was lost)"
            ) from error


def _sqlite(url: str) -> _Database:
    parts = urlsplit(url)
    file = Path(unquote(parts.path[1:])).absolute()
    if parts.netloc or not parts.path[1:]:
        raise ConfigError(f"dead_letter: {url!r} names no file; use sqlite:///FILE or sqlite:////ABSOLUTE/FILE")
    create = f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY AUTOINCREMENT, letter BLOB NOT NULL)"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(file, timeout=_TIMEOUT)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    return _Database(url.partition("?")[0], connect, sqlite3.Error, [create], "?")


def _postgres(url: str) -> _Database:
    import psycopg

    settings, _ = libpq.read(url, "dead_letter", "timeout", "prepare")
    timeouts = {"connect_timeout": _TIMEOUT, "tcp_user_timeout": _TIMEOUT * 1000}
    columns = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, letter bytea NOT NULL"
    create = (
        f"SET LOCAL statement_timeout = '{_TIMEOUT}s'",
        f"SELECT CASE WHEN to_regclass('{TABLE}') IS NULL THEN pg_advisory_xact_lock({_LOCK}) END",
        f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns})",
    )

    return _Database(
        libpq.address(settings), lambda: psycopg.connect(**{**settings, **timeouts}), psycopg.Error, create, "%s"
    )


class TableBox:
    """Reads the table that a pipeline names as its `dead_letter`."""

    def __init__(self, url: str) -> None:
        file = unquote(urlsplit(url).path[1:])
        if url.startswith("sqlite:") and not Path(file).is_file():  # SQLite would create it
            raise SourceError(f"{file}: there is no such file; check its name")
        self._table = DeadTable(url)
        self.name = self._table.name

    def letters(self) -> Iterator[DeadLetter]:
        last = 0
        while rows := self._table.read(last, _PAGE):
            last = rows[-1][0]
            yield from (read_letter(raw, number) for number, raw in rows)

    def hidden(self) -> int:
        return 0

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        self._table.remove([letter.handle for letter in letters])

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        self._table.replace(
            [(letter.handle, msgspec.json.encode(letter.fields)) for letter in letters if letter.fields]
        )

    def close(self) -> None:
        self._table.close()


open_url = DeadTable
open_box = TableBox
