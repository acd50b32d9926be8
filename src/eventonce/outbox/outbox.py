"""Outbox: events that are kept in the same transaction as the change they tell of, for a relay to publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from eventonce.clock import Clock, SystemClock
from eventonce.closing import Closing
from eventonce.errors import ConfigError, MissingDriver
from eventonce.outbox.identity import Identities
from eventonce.outbox.rows import make_row
from eventonce.rules import given_rules
from eventonce.rules.rule import Rule
from eventonce.stores.url import shown

_TABLES = {
    "postgresql": ("postgres", "PostgresTable", "postgres"),
    "sqlite": ("sqlite", "SQLiteTable", ""),
    "dynamodb": ("dynamodb", "DynamoDBTable", "dynamodb"),
}
_FORMS = "postgresql://HOST/DATABASE, sqlite:///FILE or dynamodb://TABLE"


class Outbox(Closing):
    """`outbox.add(connection, event)` in the transaction of your own change: both are committed, or neither.

    The URL names the database of that change. Nothing is connected to for `add`, which uses your connection only.
    An event's identity is the one that is given, what the `rules` make of it, its own id, or a new one.
    """

    def __init__(
        self,
        url: str,
        *,
        rules: Rule | Sequence[Rule] | str | Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._identities = None if rules is None else Identities(given_rules(rules))
        self.table: Any = _open(url, clock or SystemClock())  # what relays read

    def add(self, connection: Any, event: object, *, group: str | None = None, identity: str | None = None) -> str:
        """Add an event to the transaction that is open on this connection, and say under which identity.

        The connection is psycopg's, sqlite3's, a Connection or Session of SQLAlchemy, or `ctx.tx`. Events of one
        `group` are published in the order of their transactions. Nothing is committed here.
        """
        row = make_row(event, group, identity, self._identities)
        self.table.insert(connection, row)
        return row.identity

    def transact(
        self,
        items: Sequence[Mapping[str, Any]],
        event: object,
        *,
        group: str | None = None,
        identity: str | None = None,
    ) -> str:
        """Write items and an event to DynamoDB, all or nothing, and say under which identity.

        `items` are those of `TransactWriteItems`, as boto3's client takes them.
        """
        if not self.table.streamed:
            raise ConfigError(
                f"outbox: transact is for dynamodb://TABLE; with {self.table.name} use add(connection, event)"
            )
        row = make_row(event, group, identity, self._identities)
        self.table.transact(items, row)
        return row.identity

    def create(self) -> None:
        """Make the outbox's tables where they are not there yet; for those who may, and once is enough."""
        self.table.create()

    def schema(self) -> str:
        """The SQL that `create` runs, for migrations of your own."""
        found: str = self.table.schema()
        return found

    def close(self) -> None:
        """Close what is open to the database."""
        self.table.close()


def _open(url: str, clock: Clock) -> Any:
    scheme, found, _ = url.partition("://")
    if not found or scheme not in _TABLES:
        raise ConfigError(f"outbox: {shown(url)!r} is not the URL of an outbox; use {_FORMS}")
    module, name, extra = _TABLES[scheme]
    try:
        return getattr(import_module(f"eventonce.outbox.{module}"), name)(url, clock)
    except ImportError as error:
        if not extra or (error.name or "").startswith("eventonce"):
            raise
        raise MissingDriver(
            f"outbox: {scheme}: needs the Python package {error.name}; install it with pip install 'eventonce[{extra}]'"
        ) from error
