"""Rows of an outbox: events on their way from a transaction to a relay."""

import re
import uuid
from typing import Any, NamedTuple

import msgspec

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.outbox.identity import Identities
from eventonce.outbox.message import read

_OWN = Identities(())
_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
_WHOLE = b'{"eventonce_event":'
_decode = msgspec.json.Decoder(Event).decode


class OutboxRow(NamedTuple):
    """An event as an outbox keeps it."""

    identity: str
    grp: str  # "=" and its group, or "-" and its identity where it has none
    event: bytes

    @property
    def ordered(self) -> bool:
        return self.grp.startswith("=")


class PendingRow(NamedTuple):
    """A row that a relay has taken."""

    number: Any  # what its outbox finds it by
    identity: str
    grp: str
    event: bytes
    failures: int  # how often it could not be published, and was to blame itself
    waited: int  # milliseconds since it was added

    @property
    def group(self) -> str | None:
        return self.grp[1:] if self.grp.startswith("=") else None

    def opened(self) -> Event:
        """Its event; raises `EventRejected` where somebody has changed what is kept."""
        try:
            return _read(self.event)
        except (EventRejected, msgspec.MsgspecError, RecursionError) as error:
            raise EventRejected(f"what the outbox keeps of it cannot be read: {error}") from None


def make_row(event: object, group: str | None, identity: str | None, rules: Identities | None) -> OutboxRow:
    """The row of an event.

    Its identity is fixed here, so that it stays the same whatever happens to the relay: the one that is given, what
    the rules make of the event, its own id, or else a new one.
    """
    found = read(event)
    if identity is None:
        own = _OWN.own(found) if found.named_by else found.id
        identity = rules.of(found) if rules is not None else own or uuid.uuid4().hex
    identity = _named("identity", identity)
    grp = f"-{identity}" if group is None else f"={_named('group', group)}"
    return OutboxRow(identity, grp, _written(found))


def _written(event: Event) -> bytes:
    """The event's own document, which is what people who look into the table expect; field by field where that reads
    as something else, such as an `Event` whose data is a list.
    """
    bare = msgspec.structs.replace(event, raw=b"")
    line = bare.line()
    same = msgspec.structs.replace(read_event(line), raw=b"") == bare
    return line if same else _WHOLE + msgspec.json.encode(bare) + b"}"


def _read(kept: bytes) -> Event:
    if kept.startswith(_WHOLE):
        return _decode(kept[len(_WHOLE) : -1])
    return msgspec.structs.replace(read_event(kept), raw=b"")


def _named(what: str, value: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise EventRejected(f"{what}: {value!r:.60} is no name; use text of 1 to 256 characters that can be printed")
    return value
