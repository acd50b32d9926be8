"""The fingerprint of a content, found without its canonical form: an audit compares contents and stores none of them.

What the binary form of MessagePack spells in one way only needs no canonical JSON first. That is all but floats, which
it keeps apart from the integers that they may equal. Whoever read the event may know that there are none of these; else
floats are told by their mark, and those that equal integers are made such.
"""

from decimal import Decimal
from hashlib import sha256

import msgspec

from eventonce.event import Event
from eventonce.key import Key
from eventonce.rules.book import CompiledRule, Keyed
from eventonce.study import fingerprint

_FLOAT = b"\xcb"  # stands before each float, and rarely elsewhere
_NO_KEY = Key(b"")
_packed = msgspec.msgpack.Encoder(order="sorted").encode


def of_content(rule: CompiledRule, event: Event) -> int:
    """Source, type and what the event says, without what its rule ignores."""
    said = (event.source, event.type, rule.stripped(event))
    try:
        packed = _packed(said)
        if not event.plain_numbers and _FLOAT in packed:
            packed = _packed(_with_integers(msgspec.json.encode(said)))
    except (OverflowError, UnicodeEncodeError):  # integers beyond 64 bits, half a surrogate pair
        return fingerprint.of_content(Keyed(rule, _NO_KEY), event)
    return fingerprint.of_digest(sha256(packed).digest())


def _number(text: str) -> int | float:
    """As canonical JSON has it: a float without a fraction is the integer that its shortest digits spell."""
    value = float(text)
    return int(Decimal(repr(value))) if value.is_integer() else value


_with_integers = msgspec.json.Decoder(float_hook=_number).decode
