"""Aggregates of the Kinesis Producer Library: one stream record that holds several user records.

    f3 89 9a c2 | a message of Protocol Buffers | 16 bytes of MD5 over the message

The message has the partition keys as field 1, hash keys as 2 and the records as 3. A record has its data as field 3.
github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md
"""

import hashlib
from collections.abc import Iterator

from eventonce.errors import EventRejected

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST = 16
_MAX_RECORDS = 10_000  # a few bytes each would else become a great many objects
_RECORDS, _DATA = 3, 3  # numbers of fields
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10


def recognises(raw: bytes) -> bool:
    """Return whether this is an aggregate."""
    return raw.startswith(_MAGIC)


def read(raw: bytes) -> list[bytes]:
    """Return the data of the records in it."""
    message, digest = raw[len(_MAGIC) : -_DIGEST], raw[-_DIGEST:]
    if len(raw) < len(_MAGIC) + _DIGEST or hashlib.md5(message, usedforsecurity=False).digest() != digest:
        raise _damaged("its checksum is wrong")
    records: list[bytes] = []
    for number, record in _fields(message):
        if number == _RECORDS:
            records.append(_data(record))
            if len(records) > _MAX_RECORDS:
                raise _damaged(f"it holds more than {_MAX_RECORDS:,} records")
    if not records:
        raise _damaged("it holds no record")
    return records


def _data(record: bytes) -> bytes:
    values = [value for number, value in _fields(record) if number == _DATA]
    if not values:
        raise _damaged("a record in it has no data")
    return values[-1]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each field that has bytes. The others are numbers and are skipped."""
    offset = 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, offset = _varint(message, offset)
            continue
        if kind == _BYTES:
            size, offset = _varint(message, offset)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise _damaged("a field in it has an unknown type")
        end = offset + size
        if end > len(message):
            raise _damaged("it is cut off")
        if kind == _BYTES:
            yield number, message[offset:end]
        offset = end


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return a number, seven bits to the byte, and the offset after it."""
    value = 0
    for count, byte in enumerate(message[offset : offset + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, offset + count + 1
    raise _damaged("it is cut off")


def _damaged(reason: str) -> EventRejected:
    return EventRejected(f"is an aggregate of the Kinesis Producer Library that cannot be read: {reason}")
