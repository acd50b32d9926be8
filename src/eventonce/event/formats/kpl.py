"""Aggregates of the Kinesis Producer Library: one record of a stream that holds several of its users.

    f3 89 9a c2 | a message of Protocol Buffers | 16 bytes of MD5 over the message

The message has the partition keys as field 1, hash keys as 2 and the records as 3; a record has its data as field 3.
github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

import hashlib
from collections.abc import Iterator

from eventonce.errors import EventRejected

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST = 16
_MOST = 10_000  # records; a few bytes each would else become a great many objects
_RECORDS, _DATA = 3, 3  # numbers of fields
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10


def recognises(raw: bytes) -> bool:
    """Whether this is an aggregate."""
    return raw.startswith(_MAGIC)


def read(raw: bytes) -> list[bytes]:
    """The data of the records in it."""
    message, digest = raw[len(_MAGIC) : -_DIGEST], raw[-_DIGEST:]
    if len(raw) < len(_MAGIC) + _DIGEST or hashlib.md5(message, usedforsecurity=False).digest() != digest:
        raise _damaged("its checksum is wrong")
    found: list[bytes] = []
    for number, record in _fields(message):
        if number == _RECORDS:
            found.append(_data(record))
            if len(found) > _MOST:
                raise _damaged(f"it holds more than {_MOST:,} records")
    if not found:
        raise _damaged("it holds no record")
    return found


def _data(record: bytes) -> bytes:
    found = [value for number, value in _fields(record) if number == _DATA]
    if not found:
        raise _damaged("a record in it has no data")
    return found[-1]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The number and the bytes of each field that has bytes; the others are numbers, and passed over."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise _damaged("a field in it is of no known kind")
        end = at + size
        if end > len(message):
            raise _damaged("it is cut off")
        if kind == _BYTES:
            yield number, message[at:end]
        at = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, seven bits to the byte, and where it ends."""
    value = 0
    for count, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at + count + 1
    raise _damaged("it is cut off")


def _damaged(why: str) -> EventRejected:
    return EventRejected(f"is an aggregate of the Kinesis Producer Library that cannot be read: {why}")
