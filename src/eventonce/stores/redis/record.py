"""The arguments and replies of the Redis scripts: requests packed for a whole batch, and stored records.

`scripts/record.lua` describes the layout of a record.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from eventonce.claims.protocol import Answer, Busy, Claim, ClaimRequest, Commit, Done, Record, Release, Stale, Won

_SHIFT = 2**63  # makes versions unsigned
_LONGEST_ERROR = 65_535
_WANT = struct.Struct(">6sB8s")
_FINISH = struct.Struct(">8s6sB8s")
_RELEASE = struct.Struct(">8s6sB")
_NO_VERSION = bytes(8)
_NEW, _ONE = Won(1), ord("1")
_UNSETTLED, _SHARED, _DONE, _VERSION, _MEMO, _ERROR, _TRYING, _TOKEN = (1 << bit for bit in range(8))


class Packed(NamedTuple):
    """One part for each key of a batch, or a single part if all are equal."""

    parts: list[bytes]
    alike: bool

    def argument(self, indexes: Sequence[int]) -> bytes:
        """Return the parts of some of the keys, as one argument."""
        if self.alike:
            return self.parts[0]
        return b"".join([self.parts[index] for index in indexes])


def pack_wants(wants: Sequence[ClaimRequest]) -> Packed:
    return _pack(wants, _pack_want)


def pack_tokens(claims: Sequence[Claim]) -> Packed:
    return _pack(claims, bytes)


def pack_finishes(finishes: Sequence[Commit]) -> Packed:
    return _pack(finishes, _pack_finish)


def pack_releases(releases: Sequence[Release]) -> Packed:
    return _pack(releases, _pack_release)


def encode_texts(values: Sequence[bytes | str | None], indexes: Sequence[int]) -> list[bytes]:
    """Return the memos or errors of some of the keys, or nothing if no key of the batch has one."""
    if values.count(None) == len(values):
        return []
    return [_encode_text(values[index]) for index in indexes]


def decode_answers(reply: bytes | list[bytes], now: int) -> list[Answer]:
    """Decode the reply of the script of claims.

    A script replies how long a lease still lasts, so `now` is by the clock of the caller.
    """
    if isinstance(reply, bytes):  # all are won as new
        return [_NEW] * len(reply)
    new, *others = reply
    by_reply = {other: _decode_answer(other, now) for other in set(others)}  # many keys of a batch have equal replies
    decoded = map(by_reply.__getitem__, others)
    return [_NEW if flag == _ONE else next(decoded) for flag in new]


def _decode_answer(reply: bytes, now: int) -> Answer:
    kind = reply[:1]
    if kind == b"D":
        return Done(decode(reply[1:]))
    if kind == b"B":
        return Busy(now + _number(reply[1:]))
    if kind == b"S":
        return Stale(_decode_version(reply[1:]))
    error = reply[5:].decode() if reply[4:5] == b"1" else None
    return Won(_number(reply[1:3]), error, reply[3:4] == b"1")


def decode(value: bytes) -> Record:
    """Decode a stored record."""
    flags, reader = value[0], _Reader(value, 1)
    token = reader.take(8) if flags & _TOKEN else b""
    lease, tries, expires = (reader.number(6), reader.number(2), reader.number(6)) if flags & _UNSETTLED else (0, 0, 0)
    trying = _decode_version(reader.take(8)) if flags & _TRYING else None
    done_at, until, attempts = (reader.number(6), reader.number(6), reader.number(2)) if flags & _DONE else (0, 0, 0)
    version = _decode_version(reader.take(8)) if flags & _VERSION else None
    error = reader.take(reader.number(2)).decode() if flags & _ERROR else None
    memo = reader.take(len(value)) if flags & _MEMO else None
    shared = bool(flags & _SHARED)
    return Record(token, lease, shared, tries, trying, done_at, until, attempts, version, memo, error, expires or until)


class _Reader:
    """The part of a stored record that is still to be read."""

    def __init__(self, value: bytes, offset: int) -> None:
        self._value, self._offset = value, offset

    def take(self, length: int) -> bytes:
        self._offset += length
        return self._value[self._offset - length : self._offset]

    def number(self, length: int) -> int:
        return _number(self.take(length))


def _encode_text(value: bytes | str | None) -> bytes:
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace")[:_LONGEST_ERROR].decode("utf-8", "ignore").encode()
    return value or b""


def _pack_want(window: int, version: int | None, refresh: bool, shared: bool) -> bytes:
    flags = (version is not None) | refresh << 1 | shared << 2
    return _WANT.pack(_six_bytes(window), flags, _version_bytes(version))


def _pack_finish(token: bytes, window: int, version: int | None, memo: bytes | None) -> bytes:
    flags = (version is not None) | (memo is not None) << 1
    return _FINISH.pack(token, _six_bytes(window), flags, _version_bytes(version))


def _pack_release(token: bytes, window: int, error: str | None) -> bytes:
    return _RELEASE.pack(token, _six_bytes(window), error is not None)


def _pack(requests: Sequence[tuple[Any, ...]], pack: Callable[..., bytes]) -> Packed:
    columns = list(zip(*requests, strict=True))[1:]  # all but the key
    if columns and all(column.count(column[0]) == len(column) for column in columns):  # nearly always
        return Packed([pack(*requests[0][1:])], True)
    return Packed([pack(*request[1:]) for request in requests], False)


def _six_bytes(number: int) -> bytes:
    return number.to_bytes(6, "big")


def _version_bytes(version: int | None) -> bytes:
    return _NO_VERSION if version is None else (version + _SHIFT).to_bytes(8, "big")


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _decode_version(value: bytes) -> int:
    return _number(value) - _SHIFT
