"""Columns of a batch as PostgreSQL arrays in binary form, without an adapter for each value.

See array_recv in PostgreSQL's source: dimensions, whether there are nulls, the type, the length and the first index.
Then each value follows its size, which is -1 for null.
"""

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.postgres import adapters as _usual
from psycopg.pq import Format

_BYTEA, _BYTEA_ARRAY, _INT8, _INT8_ARRAY = 17, 1001, 20, 1016
_head = struct.Struct(">iiiii").pack
_size = struct.Struct(">i").pack
_sized_long = struct.Struct(">iq").pack
_NULL = _size(-1)
Value = TypeVar("Value")


class Bytes(bytes):
    """An array of byte strings."""


class Longs(bytes):
    """An array of 64-bit integers."""


class _BytesDumper(Dumper):
    oid, format = _BYTEA_ARRAY, Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _LongsDumper(_BytesDumper):
    oid = _INT8_ARRAY


ADAPTERS = AdaptersMap(_usual)
ADAPTERS.register_dumper(Bytes, _BytesDumper)
ADAPTERS.register_dumper(Longs, _LongsDumper)


def byte_strings(values: Sequence[bytes | None]) -> Bytes:
    return Bytes(_head(1, 1, _BYTEA, len(values), 1) + (_equal_sized_body(values) or _body(values, _byte_string)))


def longs(values: Sequence[int | None]) -> Longs:
    return Longs(_head(1, 1, _INT8, len(values), 1) + _body(values, _long))


def _equal_sized_body(values: Sequence[bytes | None]) -> bytes | None:
    """Return the body of an array whose values all have one size, such as keys. Return None for all others."""
    if None in values or len(sizes := set(map(len, values))) != 1:  # type: ignore[arg-type]
        return None
    size = _size(sizes.pop())
    return size + size.join(values)  # type: ignore[arg-type]


def _byte_string(value: bytes | None) -> bytes:
    return _NULL if value is None else _size(len(value)) + value


def _long(value: int | None) -> bytes:
    return _NULL if value is None else _sized_long(8, value)


def _body(values: Sequence[Value], encode: Callable[[Value], bytes]) -> bytes:
    if values and values.count(values[0]) == len(values):  # as most columns of a batch are
        return encode(values[0]) * len(values)
    return b"".join(map(encode, values))
