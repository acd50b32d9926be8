"""The rows of an outbox: events between a transaction and a relay."""

import re
import uuid
from typing import Any, NamedTuple

import msgspec

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.outbox.identity import Identities
from eventonce.outbox.message import read_publishable

_WITHOUT_RULES = Identities(())
_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}")
_WRAPPER = b'{"eventonce_event":'  # of an event that is stored field by field
_decode = msgspec.json.Decoder(Event).decode


class OutboxRow(NamedTuple):
    """An event as it is added to an outbox."""

    identity: str
    grp: str  # "=" and its group, or "-" and its identity if it has no group
    event: bytes

    @property
    def ordered(self) -> bool:
        return self.grp.startswith("=")


class PendingRow(NamedTuple):
    """A row that a relay has taken."""

    number: Any  # its key in the outbox
    identity: str
    grp: str
    event: bytes
    failures: int  # failed attempts for which the event itself was to blame
    waited: int  # milliseconds since it was added

    @property
    def group(self) -> str | None:
        return self.grp[1:] if self.grp.startswith("=") else None

    def decode(self) -> Event:
        """Return the event. Raise `EventRejected` if the row was changed and cannot be read."""
        try:
            return _decode_event(self.event)
        except (EventRejected, msgspec.MsgspecError, RecursionError) as error:
            raise EventRejected(f"its row in the outbox cannot be read: {error}") from None


def make_row(event: object, group: str | None, identity: str | None, rules: Identities | None) -> OutboxRow:
    """Return the row of an event.

    Its identity is fixed here, so that it stays the same whatever happens to the relay. It is the one that the caller
    chose, else what the rules make of the event, else its own id, else a new one.
    """
    readable = read_publishable(event)
    if identity is None:
        own_id = _WITHOUT_RULES.of_id(readable) if readable.named_by else readable.id
        identity = rules.of(readable) if rules is not None else own_id or uuid.uuid4().hex
    identity = _check_name("identity", identity)
    grp = f"-{identity}" if group is None else f"={_check_name('group', group)}"
    return OutboxRow(identity, grp, _encode_event(readable))


def _encode_event(event: Event) -> bytes:
    """Return the event's own document, as people who look into the table expect.

    If that reads as another event, such as for an `Event` whose data is a list, it is stored field by field.
    """
    bare = msgspec.structs.replace(event, raw=b"")
    line = bare.line()
    same = msgspec.structs.replace(read_event(line), raw=b"") == bare
    return line if same else _WRAPPER + msgspec.json.encode(bare) + b"}"


def _decode_event(stored: bytes) -> Event:
    if stored.startswith(_WRAPPER):
        return _decode(stored[len(_WRAPPER) : -1])
    return msgspec.structs.replace(read_event(stored), raw=b"")


def _check_name(field: str, value: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise EventRejected(f"{field}: {value!r:.60} is invalid; use 1 to 256 printable characters")
    return value
