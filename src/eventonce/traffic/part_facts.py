"""What an audit needs to know of the events in a part, as Arrow, and a header with what is small."""

from array import array
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from eventonce.errors import SourceError
from eventonce.rules import Rulebook
from eventonce.traffic.audit import OTHERS, alike
from eventonce.traffic.drivers import need
from eventonce.traffic.facts import Facts
from eventonce.traffic.file_ranges import DocumentRow

if TYPE_CHECKING:
    import pyarrow as pa

_DOCUMENTS = 1000  # at once
_EVENTS = 50_000  # in one table
_MOST_NAMES = 5000  # sources and types of a part that are told apart; an audit shows a thousand
_NUMBERS = ("rules", "keys", "versions", "contents", "times", "positions", "ids")


class Documents(Protocol):
    """Where documents are; a part is such a place."""

    @property
    def number(self) -> int: ...
    @property
    def shown(self) -> str: ...
    def documents(self) -> Iterator[DocumentRow]: ...


class FactsHeader(msgspec.Struct):
    """What is small: counts by source and type, which a number stands for."""

    part: int
    documents: int = 0
    events: int = 0
    names: dict[int, tuple[str, str]] = {}
    rules: list[tuple[int, int, int]] = []  # name, rule, events
    rejected: list[tuple[int | None, str, str, int]] = []  # name, reason, place, events
    unreadable: str | None = None


class PartFacts:
    """The facts of a part. `header` is complete when all tables have been taken."""

    def __init__(self, part: Documents, book: Rulebook) -> None:
        self.header = FactsHeader(part.number)
        self._part, self._book = part, book
        self._rules: Counter[tuple[int, int]] = Counter()
        self._rejected: dict[tuple[int | None, str], list[Any]] = {}

    def tables(self) -> Iterator["pa.Table"]:
        """All events, in their order."""
        facts, documents = Facts(), self._part.documents()
        try:
            for first in documents:
                facts.take(chain((first,), islice(documents, _DOCUMENTS)), self._part.shown, self._book)
                if len(facts) >= _EVENTS:
                    yield self._table(facts)
                    facts = Facts(facts.documents)
        except SourceError as error:
            self.header.unreadable = str(error)
        yield self._table(facts)
        self.header.rules = [(*found, count) for found, count in self._rules.items()]
        self.header.rejected = [(name, *found) for (name, _), found in self._rejected.items()]

    def _table(self, facts: Facts) -> "pa.Table":
        pa = need("pyarrow", "duckdb")
        names = [self._name(name) for name in facts.names]
        groups = array("q", [names[number] for number in facts.groups])
        self._rules.update(zip(groups, facts.rules, strict=True))
        self._reject(facts, names)
        self.header.documents = facts.documents
        self.header.events += len(facts)
        columns = {name: _numbers(pa, getattr(facts, name)) for name in _NUMBERS}
        columns["rules"] = columns["rules"].cast(pa.int32())
        columns |= {"names": _numbers(pa, groups), "replayed": _numbers(pa, facts.replayed)}
        return pa.table({"part": pa.array([self._part.number] * len(groups), pa.int32()), **columns})

    def _name(self, name: tuple[str, str]) -> int:
        number = _number(name)
        if number not in self.header.names and len(self.header.names) >= _MOST_NAMES:
            number, name = _number((OTHERS, OTHERS)), (OTHERS, OTHERS)
        self.header.names.setdefault(number, name)
        return number

    def _reject(self, facts: Facts, names: list[int]) -> None:
        for group, reason, file, line in facts.rejected:
            name = None if group is None else names[group]
            self._rejected.setdefault((name, alike(reason)), [reason, f"{file}:{line}", 0])[2] += 1


def _numbers(pa: Any, column: "array[int]") -> Any:
    """Without a copy; what stands for 64 bits stays the same bits, also where an engine knows no unsigned ones."""
    kind = {"I": pa.uint32(), "b": pa.int8()}.get(column.typecode, pa.int64())
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def _number(name: tuple[str, str]) -> int:
    told = "\0".join(name).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(told, digest_size=8).digest(), signed=True)
