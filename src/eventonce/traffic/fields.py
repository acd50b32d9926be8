"""The fields of recorded events as a table: one column for each path, one row for each event.

A cell is the canonical JSON of a value, or its digest where that is long. Lists of objects are looked into: the
column `items[*].price` holds the prices of all items in their order. Work and memory are bounded whatever the events
look like: below a certain depth an object counts as one value, and beyond a certain number of columns what is left
of an event goes into one last cell that is compared but never proposed.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from eventonce.event import Event
from eventonce.event.keys import canonical
from eventonce.event.paths import ITEM, quoted, read_time
from eventonce.rules.rulebook import VOLATILE
from eventonce.traffic import names

Steps = tuple[str, ...]
Looks = Literal["time", "opaque", "text", "number", "other"]

MOST_COLUMNS = 500
MOST_CELLS = 500_000  # looked at, of one kind
_REST: Steps = ("",)
_DEEPEST = 12
_LONGEST_NAME = 100
_LONGEST_CELL = 40
_ASKED = 200  # cells looked at to see what a column holds
_NULL = b"null"
_UNSAID = frozenset(("id", "source", "detail-type", "type", "replay-name"))  # said elsewhere, or the copy's own
_OPAQUE = re.compile(rb'"(?=[^"]*\d)(?=[^"]*[A-Za-z])[A-Za-z0-9+/=_-]{16,}"|#.*', re.DOTALL)
_SECONDS = range(946_684_800, 4_102_444_800)  # the years 2000 to 2099
_MILLIS = range(_SECONDS.start * 1000, _SECONDS.stop * 1000)

Cells = dict[int, bytes]


class Column:
    """One path: what it holds, in how many rows."""

    def __init__(self, number: int, steps: Steps) -> None:
        self.number = number
        self.steps = steps
        self.cells: dict[bytes, int] = {}  # and in how many rows
        self.present = 0  # rows in which it is there and not null
        self.looks: Looks = "other"
        self.is_id = False  # the id of an event without an envelope

    def __repr__(self) -> str:
        return f"Column({self.path})"

    @property
    def name(self) -> str:
        """The last name of its path, with the one before it where the last says little alone."""
        named = [step for step in self.steps[1:] if step != ITEM] or [self.steps[0]]
        return " ".join(named[-2:]) if named[-1].lower() in names.GENERIC else named[-1]

    @property
    def path(self) -> str:
        """The path as it is written in a rule's key."""
        return spelled(self.steps)

    @property
    def of_event(self) -> bool:
        """Whether it is the event's own id, going by its name."""
        return self.is_id or names.of_event(self.name)

    @property
    def of_data(self) -> bool:
        """Whether it is in the data, not in the envelope."""
        return self.steps[0] == "detail"

    @property
    def known(self) -> bool:
        """Whether it is one path, not what was left over."""
        return self.steps != _REST

    @property
    def varies(self) -> bool:
        return len(self.cells) > 1

    def add(self, cell: bytes) -> None:
        self.cells[cell] = self.cells.get(cell, 0) + 1
        self.present += cell != _NULL

    def settle(self) -> None:
        """All rows are in: see what it holds."""
        asked = [cell for cell, _ in zip(self.cells, range(_ASKED), strict=False) if cell != _NULL]
        if self.known and asked:
            self.looks = self._look(asked)

    def millis(self, cell: bytes) -> int | None:
        """A cell as a moment."""
        if cell[:1] == b'"':
            time = read_time(cell[1:-1].decode()) if b":" in cell else None
            return None if time is None else round(time.timestamp() * 1000)
        if not cell.isdigit() or not names.of_time(self.name):
            return None
        number = int(cell)
        return number if number in _MILLIS else number * 1000 if number in _SECONDS else None

    def _look(self, cells: list[bytes]) -> Looks:
        if all(self.millis(cell) is not None for cell in cells):
            return "time"
        if all(_OPAQUE.fullmatch(cell) for cell in cells) and ITEM not in self.steps:
            return "opaque"
        if all(cell[:1] == b'"' for cell in cells):
            return "text"
        return "number" if all(cell[:1] in b"-0123456789" for cell in cells) else "other"


class Table:
    """The fields of all sampled events of one kind."""

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.rows: list[Cells] = []
        self.cut = False  # some fields are in the last cell only
        self._numbers: dict[Steps, int] = {}
        self._room = MOST_CELLS

    @property
    def full(self) -> bool:
        """Whether there is no room for another row."""
        return self._room <= 0

    def add(self, event: Event) -> None:
        """One more row."""
        row: Cells = {}
        rest = hashlib.sha256()
        fields = _fields(event)
        for steps, value in sorted(fields.items()):
            cell = _cell(value)
            number = self._number(steps)
            if number is None:
                rest.update(repr(steps).encode() + cell)
                continue
            row[number] = cell
            self.columns[number].add(cell)
            self.columns[number].is_id = event.form == "plain" and steps == ("detail", "id")
        if rest.digest() != hashlib.sha256().digest():
            self._left_over(row, rest.digest())
        self._room -= len(fields) + 1
        self.rows.append(row)

    def settle(self) -> None:
        """All rows are in."""
        for column in self.columns:
            column.settle()

    def _number(self, steps: Steps) -> int | None:
        number = self._numbers.get(steps)
        if number is not None or not _sayable(steps) or len(self.columns) >= MOST_COLUMNS:
            return number
        return self._new(steps)

    def _new(self, steps: Steps) -> int:
        number = self._numbers[steps] = len(self.columns)
        self.columns.append(Column(number, steps))
        return number

    def _left_over(self, row: Cells, digest: bytes) -> None:
        self.cut = True
        number = self._numbers.get(_REST)
        number = self._new(_REST) if number is None else number
        row[number] = b"#" + digest
        self.columns[number].add(row[number])


def spelled(steps: Steps) -> str:
    """A path as rules write it."""
    text = ""
    for step in steps:
        if step == ITEM:
            text += ITEM
            continue
        text += f".{quoted(step)}" if text else quoted(step)
    return text


def _sayable(steps: Steps) -> bool:
    return all(0 < len(step) <= _LONGEST_NAME for step in steps)


def _cell(value: Any) -> bytes:
    text = canonical(value)
    return text if len(text) <= _LONGEST_CELL else b"#" + hashlib.sha256(text).digest()[:16]


def _fields(event: Event) -> dict[Steps, Any]:
    """Every path of an event with its value; below a list, the values of all elements with their places."""
    fields: dict[Steps, Any] = {}
    for steps, places, value in _walk(_said(event), (), ()):
        if ITEM in steps:
            fields.setdefault(steps, []).append([*places, value])
        else:
            fields[steps] = value
    return fields


def _said(event: Event) -> dict[str, Any]:
    """The data, without what content keys leave out anyway, and the rest of the envelope."""
    data = event.data
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if name not in VOLATILE}
    if event.form == "plain":
        return {"detail": data}
    envelope = {name: value for name, value in event.attributes.items() if name not in _UNSAID}
    return {**envelope, "detail": data}


def _walk(value: Any, steps: Steps, places: tuple[int, ...]) -> Iterator[tuple[Steps, tuple[int, ...], Any]]:
    if isinstance(value, Mapping) and value and len(steps) < _DEEPEST and ITEM not in value:
        for name, inner in value.items():
            yield from _walk(inner, (*steps, name), places)
    elif isinstance(value, list) and len(steps) < _DEEPEST and any(isinstance(item, Mapping) for item in value):
        for place, item in enumerate(value):
            yield from _walk(item, (*steps, ITEM), (*places, place))
    else:
        yield steps, places, value
