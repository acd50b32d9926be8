"""What passes between us and the scripts of Redis: requests packed for a whole batch, and records as they are kept.

The layout of a record stands in `scripts/record.lua`.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from eventonce.claims.protocol import Answer, Busy, Claim, Done, Finish, Record, Release, Stale, Want, Won

_SHIFT = 2**63  # makes versions unsigned
_LONGEST_ERROR = 65_535
_WANT = struct.Struct(">6sB8s")
_FINISH = struct.Struct(">8s6sB8s")
_RELEASE = struct.Struct(">8s6sB")
_NO_VERSION = bytes(8)
_NEW, _ONE = Won(1), ord("1")
_UNSETTLED, _SHARED, _DONE, _VERSION, _MEMO, _ERROR, _TRYING, _TOKEN = (1 << bit for bit in range(8))


class Packed(NamedTuple):
    """One part for each key of a batch; where all are the same, the script takes it once."""

    parts: list[bytes]
    alike: bool

    def of(self, places: Sequence[int]) -> bytes:
        """The parts of some of the keys."""
        if self.alike:
            return self.parts[0]
        return b"".join([self.parts[at] for at in places])


def wants(asked: Sequence[Want]) -> Packed:
    return _pack(asked, _want)


def tokens(claims: Sequence[Claim]) -> Packed:
    return _pack(claims, bytes)


def finishes(given: Sequence[Finish]) -> Packed:
    return _pack(given, _finish)


def releases(given: Sequence[Release]) -> Packed:
    return _pack(given, _release)


def texts(values: Sequence[bytes | str | None], places: Sequence[int]) -> list[bytes]:
    """The memos or errors of some of the keys; nothing where none of them has one."""
    if values.count(None) == len(values):
        return []
    return [_text(values[at]) for at in places]


def answers(reply: bytes | list[bytes], now: int) -> list[Answer]:
    """What the script of claims has said. It says how long a lease still lasts; `now` is by the clock of who asks."""
    if isinstance(reply, bytes):  # all are won as new
        return [_NEW] * len(reply)
    new, *others = reply
    known = {other: _answer(other, now) for other in set(others)}  # what was done together comes again together
    told = map(known.__getitem__, others)
    return [_NEW if each == _ONE else next(told) for each in new]


def _answer(reply: bytes, now: int) -> Answer:
    kind = reply[:1]
    if kind == b"D":
        return Done(read(reply[1:]))
    if kind == b"B":
        return Busy(now + _number(reply[1:]))
    if kind == b"S":
        return Stale(_version(reply[1:]))
    error = reply[5:].decode() if reply[4:5] == b"1" else None
    return Won(_number(reply[1:3]), error, reply[3:4] == b"1")


def read(value: bytes) -> Record:
    """A record as it is kept."""
    flags, rest = value[0], _Rest(value, 1)
    token = rest.take(8) if flags & _TOKEN else b""
    lease, tries, expires = (rest.number(6), rest.number(2), rest.number(6)) if flags & _UNSETTLED else (0, 0, 0)
    trying = _version(rest.take(8)) if flags & _TRYING else None
    done_at, until, took = (rest.number(6), rest.number(6), rest.number(2)) if flags & _DONE else (0, 0, 0)
    version = _version(rest.take(8)) if flags & _VERSION else None
    error = rest.take(rest.number(2)).decode() if flags & _ERROR else None
    memo = rest.take(len(value)) if flags & _MEMO else None
    shared = bool(flags & _SHARED)
    return Record(token, lease, shared, tries, trying, done_at, until, took, version, memo, error, expires or until)


class _Rest:
    """What is still to be read of a record."""

    def __init__(self, value: bytes, at: int) -> None:
        self._value, self._at = value, at

    def take(self, length: int) -> bytes:
        self._at += length
        return self._value[self._at - length : self._at]

    def number(self, length: int) -> int:
        return _number(self.take(length))


def _text(value: bytes | str | None) -> bytes:
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace")[:_LONGEST_ERROR].decode("utf-8", "ignore").encode()
    return value or b""


def _want(window: int, version: int | None, refresh: bool, shared: bool) -> bytes:
    flags = (version is not None) | refresh << 1 | shared << 2
    return _WANT.pack(_six(window), flags, _eight(version))


def _finish(token: bytes, window: int, version: int | None, memo: bytes | None) -> bytes:
    flags = (version is not None) | (memo is not None) << 1
    return _FINISH.pack(token, _six(window), flags, _eight(version))


def _release(token: bytes, window: int, error: str | None) -> bytes:
    return _RELEASE.pack(token, _six(window), error is not None)


def _pack(asked: Sequence[tuple[Any, ...]], pack: Callable[..., bytes]) -> Packed:
    columns = list(zip(*asked, strict=True))[1:]  # all but the key
    if columns and all(column.count(column[0]) == len(column) for column in columns):  # nearly always
        return Packed([pack(*asked[0][1:])], True)
    return Packed([pack(*each[1:]) for each in asked], False)


def _six(number: int) -> bytes:
    return number.to_bytes(6, "big")


def _eight(version: int | None) -> bytes:
    return _NO_VERSION if version is None else (version + _SHIFT).to_bytes(8, "big")


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _version(value: bytes) -> int:
    return _number(value) - _SHIFT
