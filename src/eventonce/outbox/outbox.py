"""Outbox: events that are added in the transaction of the change that they report, for a relay to publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from eventonce.clients.drivers import from_extra
from eventonce.clock import Clock, SystemClock
from eventonce.closing import Closing
from eventonce.errors import ConfigError
from eventonce.outbox.identity import Identities
from eventonce.outbox.rows import make_row
from eventonce.rules import resolve_rules
from eventonce.rules.rule import Rule
from eventonce.stores.url import redact_url

_TABLES = {
    "postgresql": ("postgres", "PostgresTable", "postgres"),
    "sqlite": ("sqlite", "SQLiteTable", ""),
    "dynamodb": ("dynamodb", "DynamoDBTable", "dynamodb"),
}
_FORMS = "postgresql://HOST/DATABASE, sqlite:///FILE or dynamodb://TABLE"


class Outbox(Closing):
    """`outbox.add(connection, event)` in the transaction of your own change: both are committed, or neither.

    The URL names the database of that change. `add` uses your connection, and opens none. The identity of an event is
    the one that you pass, else what the `rules` make of it, else its own id, else a new one.
    """

    def __init__(
        self,
        url: str,
        *,
        rules: Rule | Sequence[Rule] | str | Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._identities = None if rules is None else Identities(resolve_rules(rules))
        self.table: Any = _open(url, clock or SystemClock())  # what relays read

    def add(self, connection: Any, event: object, *, group: str | None = None, identity: str | None = None) -> str:
        """Add an event to the transaction that is open on this connection. Return its identity.

        The connection is one of psycopg or sqlite3, a Connection or Session of SQLAlchemy, or `ctx.tx`. Events of one
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
        """Write items and an event to DynamoDB, all or nothing. Return the identity of the event.

        `items` are those of `TransactWriteItems`, in the form of boto3's client.
        """
        if not self.table.streamed:
            raise ConfigError(
                f"outbox: transact is for dynamodb://TABLE; with {self.table.name} use add(connection, event)"
            )
        row = make_row(event, group, identity, self._identities)
        self.table.transact(items, row)
        return row.identity

    def create(self) -> None:
        """Create the tables of the outbox if they are missing, or upgrade them. This needs the permission for it."""
        self.table.create()

    def schema(self) -> str:
        """Return the SQL that `create` runs, for migrations of your own."""
        sql: str = self.table.schema()
        return sql

    def close(self) -> None:
        """Close the connections to the database."""
        self.table.close()


def _open(url: str, clock: Clock) -> Any:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _TABLES:
        raise ConfigError(f"outbox: {redact_url(url)!r} is not the URL of an outbox; use {_FORMS}")
    module, name, extra = _TABLES[scheme]
    with from_extra(extra, f"outbox: {scheme}"):
        return getattr(import_module(f"eventonce.outbox.{module}"), name)(url, clock)
