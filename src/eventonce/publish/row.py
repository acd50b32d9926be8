"""Rows of an outbox: events on their way from a transaction to a relay."""

import re
import uuid
from typing import Any, NamedTuple

import msgspec

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.formats import read_event

_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
_decode = msgspec.json.Decoder(Event).decode


class Row(NamedTuple):
    """An event as an outbox keeps it."""

    identity: str
    grp: str  # "=" and its group, or "-" and its identity where it has none
    event: bytes

    @property
    def ordered(self) -> bool:
        return self.grp.startswith("=")


class Pending(NamedTuple):
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
            return _decode(self.event)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EventRejected(f"what the outbox keeps of it cannot be read: {error}") from None


def make_row(event: object, group: str | None, identity: str | None) -> Row:
    """The row of an event: as it was read, without the bytes it was read from."""
    identity = uuid.uuid4().hex if identity is None else _named("identity", identity)
    grp = f"-{identity}" if group is None else f"={_named('group', group)}"
    bare = msgspec.structs.replace(read_event(event), raw=b"")
    try:
        return Row(identity, grp, msgspec.json.encode(bare))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventRejected(f"cannot be written as JSON: {error}") from None


def _named(what: str, value: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise EventRejected(f"{what}: {value!r:.60} is no name; use text of 1 to 256 characters that can be printed")
    return value
