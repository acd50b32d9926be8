"""As much of CBOR (RFC 8949) as the calls of the new EventBridge bus are written in."""

import struct
from typing import Any

_SIMPLE = {20: False, 21: True, 22: None}
_FLOATS = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}


def encode(value: Any) -> bytes:
    """Texts, whole numbers that are not negative, lists and objects."""
    if isinstance(value, dict):
        return _head(5, len(value)) + b"".join(encode(each) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return _head(4, len(value)) + b"".join(map(encode, value))
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    return _head(0, value)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    size = next(power for power in range(4) if number < 256 ** (2**power))
    return bytes([major << 5 | 24 + size]) + number.to_bytes(2**size, "big")


def decode(data: bytes) -> Any:
    """What some bytes say; a tag (such as that of a time) is left out."""
    return _item(data, 0)[0]


def _item(data: bytes, at: int) -> tuple[Any, int]:
    major, short = data[at] >> 5, data[at] & 31
    if major == 7:
        return _simple(data, at + 1, short)
    number, at = _number(data, at + 1, short)
    if major <= 1:
        return number if major == 0 else -1 - number, at
    if major <= 3:
        raw = data[at : at + number]
        return raw.decode() if major == 3 else raw, at + number
    if major == 6:
        return _item(data, at)
    found, at = _items(data, at, number if major == 4 else 2 * number)
    return found if major == 4 else dict(zip(found[::2], found[1::2], strict=True)), at


def _number(data: bytes, at: int, short: int) -> tuple[int, int]:
    if short < 24:
        return short, at
    size = 2 ** (short - 24)
    return int.from_bytes(data[at : at + size], "big"), at + size


def _simple(data: bytes, at: int, short: int) -> tuple[Any, int]:
    if short in _SIMPLE:
        return _SIMPLE[short], at
    form, size = _FLOATS[short]
    return struct.unpack(form, data[at : at + size])[0], at + size


def _items(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        item, at = _item(data, at)
        found.append(item)
    return found, at
