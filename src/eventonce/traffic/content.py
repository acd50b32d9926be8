"""The fingerprint of a content without its canonical form: an audit compares contents and stores none of them.

Values that MessagePack spells in one way only need no canonical JSON. That is all but floats, which it keeps apart from
the integers that they may equal: those are recognised by their bytes and made integers.
"""

import re
from decimal import Decimal
from hashlib import sha256
from struct import Struct

import msgspec

from eventonce.event import Event
from eventonce.event.keys import Key
from eventonce.rules.rulebook import CompiledRule, Keyed
from eventonce.traffic import fingerprint

# 0xCB precedes the eight bytes of each float, and is rare elsewhere. Floats that equal integers are from 2^33 on, or
# have zeros at their end. So have some others.
_PERHAPS_WHOLE = re.compile(rb"\xcb(?=[\x42-\x7f\xc2-\xff].{7}|.{6}\x00\x00)", re.DOTALL)
_FLOAT = 0xCB
_NO_KEY = Key(b"")
_float = Struct(">d").unpack_from
_pack = msgspec.msgpack.Encoder(order="sorted").encode_into


def of_content(rule: CompiledRule, event: Event, packed: bytearray) -> int:
    """Return the fingerprint of source, type and content, without what the rule ignores. Overwrites `packed`."""
    fields = (event.source, event.type, rule.stripped(event))
    try:
        _pack(fields, packed)
        if _FLOAT in packed and _has_whole(packed):
            _pack(_with_integers(msgspec.json.encode(fields)), packed)
    except (OverflowError, UnicodeEncodeError):  # integers beyond 64 bits, half a surrogate pair
        return fingerprint.of_content(Keyed(rule, _NO_KEY), event)
    return fingerprint.of_digest(sha256(packed).digest())


def _has_whole(packed: bytearray) -> bool:
    return any(_float(packed, match.end())[0].is_integer() for match in _PERHAPS_WHOLE.finditer(packed))


def _number(text: str) -> int | float:
    """Read a number as canonical JSON does: a float without a fraction becomes the integer of its shortest digits."""
    value = float(text)
    return int(Decimal(repr(value))) if value.is_integer() else value


_with_integers = msgspec.json.Decoder(float_hook=_number).decode
