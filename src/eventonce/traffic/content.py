"""The fingerprint of a content, found without its canonical form: an audit compares contents and stores none of them.

What the binary form of MessagePack spells in one way only needs no canonical JSON first. That is all but floats, which
it keeps apart from the integers that they may equal: those are told by their bytes and made integers.
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

# 0xCB stands before the eight bytes of each float, and rarely elsewhere. Those that equal integers are from 2^33 on, or
# have zeros at their end; so have some others.
_PERHAPS_WHOLE = re.compile(rb"\xcb(?=[\x42-\x7f\xc2-\xff].{7}|.{6}\x00\x00)", re.DOTALL)
_FLOAT = 0xCB
_NO_KEY = Key(b"")
_float = Struct(">d").unpack_from
_pack = msgspec.msgpack.Encoder(order="sorted").encode_into


def of_content(rule: CompiledRule, event: Event, packed: bytearray) -> int:
    """Source, type and what the event says, without what its rule ignores. What is in `packed` is lost."""
    said = (event.source, event.type, rule.stripped(event))
    try:
        _pack(said, packed)
        if _FLOAT in packed and _has_whole(packed):
            _pack(_with_integers(msgspec.json.encode(said)), packed)
    except (OverflowError, UnicodeEncodeError):  # integers beyond 64 bits, half a surrogate pair
        return fingerprint.of_content(Keyed(rule, _NO_KEY), event)
    return fingerprint.of_digest(sha256(packed).digest())


def _has_whole(packed: bytearray) -> bool:
    return any(_float(packed, found.end())[0].is_integer() for found in _PERHAPS_WHOLE.finditer(packed))


def _number(text: str) -> int | float:
    """As canonical JSON has it: a float without a fraction is the integer that its shortest digits spell."""
    value = float(text)
    return int(Decimal(repr(value))) if value.is_integer() else value


_with_integers = msgspec.json.Decoder(float_hook=_number).decode
