"""The fields of recorded events as a table: one column for each path, one row for each event.

A cell is the canonical JSON of a value, or its digest if that is long. Lists of objects are looked into: the column
`items[*].price` holds the prices of all items in their order. Work and memory are bounded. Below a certain depth an
object counts as one value. Beyond a certain number of columns the rest of an event goes into one last cell, which is
compared but never proposed.

What a column holds is read off its values, never off its name:

- An **opaque** value is a long token without meaning, such as a UUID, a hash or a receipt. A short one such as `e-17`
  counts as opaque if none of many events shares its value.
- A **clock** shows the time at which its event was sent, in any spelling. It keeps the distance to the envelope's
  time, or it rises along the recording.
- **Rising** values have numbers in them that grow from one event to the next, such as `o-00017`.
"""

import hashlib
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from eventonce.event import Event
from eventonce.event.keys import canonical
from eventonce.event.paths import ITEM, quoted, read_time
from eventonce.rules.ignored import VOLATILE

Steps = tuple[str, ...]
Cells = dict[int, bytes]

MAX_COLUMNS = 500
MAX_CELLS = 500_000  # of one kind
MOST = 0.9  # the share of values that shows what a column holds
_REST: Steps = ("",)
_MAX_DEPTH = 12
_MAX_NAME = 100
_MAX_CELL = 40
_NULL = b"null"
# The rule's match and id have these, and brokers add the last three to each message.
_NOT_COMPARED = frozenset((
    "id", "source", "detail-type", "type", "replay-name", "kafka", "activemq", "rabbitmq",
))  # fmt: skip
_TOKEN = re.compile(r"[A-Za-z0-9+/=_-]{16,}")
_SWITCH = re.compile(r"[a-z](?=[A-Z0-9])|[A-Z](?=[a-z0-9])|[0-9](?=[A-Za-z])")  # between kinds of characters
_SWITCHES = 0.2  # of all characters in a token
_SHORT = re.compile(rb'"(?=[^"]*[A-Za-z])(?=[^"]*\d)[A-Za-z0-9+/=_-]+"')
_UNSHARED = 500  # events of which no two share a value, so there are tens of thousands of values
_DIGITS = 17  # more than a card number has
_NUMBER = re.compile(rb"\.\d+|\d+")
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:[.,]\d+)?))?")
_HALF_DAY = 43_200
_YEARS = (946_684_800, 4_102_444_800)  # 2000 to 2099, in seconds
_LOOSE, _TIGHT = 10.0, 2.0  # seconds that a clock may be off
_FOLLOWS = 0.7  # the share of values that follow the time. Those of late copies may not.
_NEAR = 3  # rows


class Column:
    """One path, and what its values show."""

    def __init__(self, number: int, steps: Steps) -> None:
        self.number = number
        self.steps = steps
        self.cells: Counter[bytes] = Counter()
        self.present = 0  # rows that have it, and not as null
        self.tokens = 0  # rows in which it is a token
        self.rising = self.timed = self.clock = self.fine = self.unshared = False
        self.on_time: set[int] = set()  # rows in which a clock shows when the event was sent

    def __repr__(self) -> str:
        return f"Column({self.path})"

    @property
    def path(self) -> str:
        """Return the path as a rule writes it."""
        text = quoted(self.steps[0])
        for step in self.steps[1:]:
            text += ITEM if step == ITEM else f".{quoted(step)}"
        return text

    @property
    def is_path(self) -> bool:
        """Return whether it is one path, and not the rest."""
        return self.steps != _REST

    @property
    def scalar(self) -> bool:
        """Return whether a key can have it: it holds one string or number in each event."""
        return self.is_path and ITEM not in self.steps and all(cell[:1] not in b"[{tfn" for cell in self.cells)

    @property
    def opaque(self) -> bool:
        return 0 < MOST * self.present <= self.tokens

    @property
    def minted(self) -> bool:
        """Return whether its values look as if each was made for an event: tokens, or numbers that rise."""
        return self.scalar and not self.timed and (self.opaque or self.rising)

    def made_anew(self, row: int) -> bool:
        """Return whether the value in this row may have been made when the event was sent."""
        return self.is_path and (row in self.on_time if self.clock else self.unshared)

    def settle(self, rows: Sequence[int], cells: Sequence[bytes | None], times: Sequence[float] | None) -> None:
        """Determine what it holds, from rows of different ids in the order of the recording, and their times."""
        present = [(row, cell, index) for index, (row, cell) in enumerate(zip(rows, cells, strict=True)) if cell]
        distinct = list(dict.fromkeys(cell for _, cell, _ in present))
        self.unshared = len(distinct) == len(present) > 1 and self.opaque  # also in lists
        if len(distinct) < 2 or not self.scalar:
            return
        numbers = [tuple(map(float, _NUMBER.findall(cell))) for cell in distinct if cell[:1] != b"#"]
        rises = sum(earlier < later for earlier, later in pairwise(numbers))
        self.rising = len(numbers) == len(distinct) and rises >= MOST * (len(numbers) - 1)
        short = len(distinct) >= _UNSHARED and sum(map(bool, map(_SHORT.fullmatch, distinct))) >= MOST * len(distinct)
        self.unshared |= len(distinct) == len(present) and short and not self.rising
        values = [value for _, cell, _ in present if (value := read_seconds(cell)) is not None]
        self.timed = len(values) == len(present)
        if not self.timed:
            return
        ordered = _in_order(values)
        close = ordered if times is None else _at_one_distance(values, [times[index] for *_, index in present], _LOOSE)
        self.fine = any(value % 1 for value in values)  # it shows fractions of a second
        self.clock = sum(close) >= _FOLLOWS * len(close)
        self.on_time = {row for (row, *_), near, fits in zip(present, ordered, close, strict=True) if near or fits}

    def tells_apart(self, cells: Sequence[bytes | None], times: Sequence[float] | None) -> bool:
        """Return whether it shows to the second when each of these events happened."""
        seconds = [read_seconds(cell or _NULL) for cell in cells]
        values = [value for value in seconds if value is not None]
        if not self.clock or times is None or len(values) < len(cells) or 2 * len(set(values)) < len(cells):
            return False
        return sum(_at_one_distance(values, times, _TIGHT)) >= MOST * len(values)


class Table:
    """The fields of all sampled events of one kind."""

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.rows: list[Cells] = []
        self.cut = False  # some fields are in the last cell only
        self._numbers: dict[Steps, int] = {}
        self._room = MAX_CELLS

    @property
    def full(self) -> bool:
        """Return whether there is no room for another row."""
        return self._room <= 0

    def add(self, event: Event) -> None:
        """Add one row."""
        row: Cells = {}
        rest = hashlib.sha256()
        fields = _fields(event)
        for steps, value in sorted(fields.items()):
            number = self._number(steps)
            if number is None:
                self.cut = True
                rest.update(repr(steps).encode() + _cell(value))
            else:
                self._enter(row, number, _cell(value), token=_is_token(value))
        if self.cut:
            number = self._numbers.get(_REST)
            self._enter(row, self._new(_REST) if number is None else number, b"#" + rest.digest(), token=False)
        self._room -= len(fields) + 1
        self.rows.append(row)

    def settle(self, rows: Sequence[int], times: Sequence[float] | None) -> None:
        """Determine what each column holds, from these rows and their times."""
        for column in self.columns:
            column.settle(rows, [self.rows[row].get(column.number) for row in rows], times)

    def _enter(self, row: Cells, number: int, cell: bytes, *, token: bool) -> None:
        column = self.columns[number]
        row[number] = cell
        column.cells[cell] += 1
        column.present += cell != _NULL
        column.tokens += token

    def _number(self, steps: Steps) -> int | None:
        number = self._numbers.get(steps)
        if number is not None or len(self.columns) >= MAX_COLUMNS:
            return number
        return self._new(steps) if all(0 < len(step) <= _MAX_NAME for step in steps) else None

    def _new(self, steps: Steps) -> int:
        number = self._numbers[steps] = len(self.columns)
        self.columns.append(Column(number, steps))
        return number


def read_seconds(cell: bytes) -> float | None:
    """Return the time that a cell shows, in seconds since 1970 or, without a readable date, of half a day."""
    if cell[:1] not in b'"-0123456789':
        return None
    value = msgspec.json.decode(cell)
    if isinstance(value, str) and not value.isdecimal():
        time = read_time(value) if ":" in value or "T" in value else None
        return _time_of_day(value) if time is None else time.timestamp()
    seconds = float(value)
    while seconds > _YEARS[1]:  # milli-, micro- or nanoseconds
        seconds /= 1000
    return seconds if seconds >= _YEARS[0] else None


def _time_of_day(text: str) -> float | None:
    match = _TIME_OF_DAY.search(text)
    if match is None:
        return None
    hours, minutes, seconds = match.groups(default="0")
    return (3600 * int(hours) + 60 * int(minutes) + float(seconds.replace(",", "."))) % _HALF_DAY


def _at_one_distance(values: Sequence[float], times: Sequence[float], tolerance: float) -> list[bool]:
    """Return for each value whether it is as far from its time as most are, up to some seconds."""
    offsets = [value - time for value, time in zip(values, times, strict=True)]
    if max(values) < _HALF_DAY:  # they have no date, and perhaps only 12 hours
        offsets = [(offset - offsets[0] + _HALF_DAY / 2) % _HALF_DAY for offset in offsets]
    middle = statistics.median(offsets)
    return [abs(offset - middle) <= tolerance for offset in offsets]


def _in_order(values: Sequence[float]) -> list[bool]:
    """Return for each value whether it lies between the few values before and after it, to the second."""
    return [
        min(values[max(0, index - _NEAR) : index], default=value) - 1
        <= value
        <= max(values[index + 1 : index + 1 + _NEAR], default=value) + 1
        for index, value in enumerate(values)
    ]


def _is_token(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, list) and _is_token(each[-1]) for each in value)
    text = str(value) if isinstance(value, int) else value
    if not isinstance(text, str) or len(text) < _DIGITS - 1:
        return False
    if text.isdecimal():
        return len(text) >= _DIGITS
    bare = text.replace("-", "").replace("_", "")
    return _TOKEN.fullmatch(text) is not None and len(_SWITCH.findall(bare)) >= _SWITCHES * len(bare)


def _cell(value: Any) -> bytes:
    text = canonical(value)
    return text if len(text) <= _MAX_CELL else b"#" + hashlib.sha256(text).digest()[:16]


def _fields(event: Event) -> dict[Steps, Any]:
    """Return every path of an event with its value. Below a list, that is the values of all items with positions."""
    fields: dict[Steps, Any] = {}
    for steps, positions, value in _walk(_document(event), (), ()):
        if ITEM in steps:
            fields.setdefault(steps, []).append([*positions, value])
        else:
            fields[steps] = value
    return fields


def _document(event: Event) -> dict[str, Any]:
    """Return the data, without what content keys leave out anyway, and the rest of the envelope."""
    data = event.data
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if name not in VOLATILE}
    if event.form == "plain":
        return {"detail": data}
    return {**{name: value for name, value in event.attributes.items() if name not in _NOT_COMPARED}, "detail": data}


def _walk(value: Any, steps: Steps, positions: tuple[int, ...]) -> Iterator[tuple[Steps, tuple[int, ...], Any]]:
    if isinstance(value, Mapping) and value and len(steps) < _MAX_DEPTH and ITEM not in value:
        for name, inner in value.items():
            yield from _walk(inner, (*steps, name), positions)
    elif isinstance(value, list) and len(steps) < _MAX_DEPTH and any(isinstance(item, Mapping) for item in value):
        for position, item in enumerate(value):
            yield from _walk(item, (*steps, ITEM), (*positions, position))
    else:
        yield steps, positions, value
