"""The facts of a part of an archive as Arrow tables, and a header with what is small."""

from array import array
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from eventonce.errors import SourceError
from eventonce.rules import Rulebook
from eventonce.traffic.count import OTHERS, AuditCount, kind_of
from eventonce.traffic.drivers import need
from eventonce.traffic.facts import Facts
from eventonce.traffic.file_ranges import DocumentRow

if TYPE_CHECKING:
    import pyarrow as pa

_DOCUMENTS = 1000  # read at once
_EVENTS = 50_000  # in one table
_MAX_NAMES = 5000  # sources and types of a part that are counted apart; an audit shows a thousand
_NUMBERS = ("rules", "keys", "versions", "contents", "times", "positions", "ids")


class Documents(Protocol):
    """A place that documents are read from, such as a part."""

    @property
    def number(self) -> int: ...
    @property
    def display_name(self) -> str: ...
    def documents(self) -> Iterator[DocumentRow]: ...


class FactsHeader(msgspec.Struct):
    """What is small: counts by source and type, each of which has a number."""

    part: int
    documents: int = 0
    events: int = 0
    names: dict[int, tuple[str, str]] = {}
    rules: list[tuple[int, int, int]] = []  # name, rule, events
    rejected: list[tuple[int | None, str, str, int]] = []  # name, reason, place, events
    unreadable: str | None = None

    def add_to(self, count: AuditCount) -> None:
        """Add what the header has counted. Headers must come in the order of their parts."""
        for number, name in self.names.items():
            count.number(number, name)
        for number, rule, events in self.rules:
            count.numbered(number).add_rule(rule, events)
        for name_number, reason, place, events in self.rejected:
            reasons = count.no_events if name_number is None else count.numbered(name_number).rejected
            reasons.add(reason, place, events)


class PartFacts:
    """The facts of a part. `header` is complete when all tables have been read."""

    def __init__(self, part: Documents, rulebook: Rulebook) -> None:
        self.header = FactsHeader(part.number)
        self._part, self._rulebook = part, rulebook
        self._rules: Counter[tuple[int, int]] = Counter()
        self._rejected: dict[tuple[int | None, str], list[Any]] = {}

    def tables(self) -> Iterator["pa.Table"]:
        """Yield the facts of all events, in their order."""
        facts, documents = Facts(), self._part.documents()
        try:
            for first in documents:
                batch = chain((first,), islice(documents, _DOCUMENTS))
                facts.add_documents(batch, self._part.display_name, self._rulebook)
                if len(facts) >= _EVENTS:
                    yield self._table(facts)
                    facts = Facts(facts.documents)
        except SourceError as error:
            self.header.unreadable = str(error)
        yield self._table(facts)
        self.header.rules = [(*name_and_rule, events) for name_and_rule, events in self._rules.items()]
        self.header.rejected = [(name, *entry) for (name, _), entry in self._rejected.items()]

    def _table(self, facts: Facts) -> "pa.Table":
        pa = need("pyarrow", "duckdb")
        names = [self._number(name) for name in facts.names]
        numbers = array("q", [names[number] for number in facts.types])
        self._rules.update(zip(numbers, facts.rules, strict=True))
        self._add_rejected(facts, names)
        self.header.documents = facts.documents
        self.header.events += len(facts)
        columns = {name: _arrow(pa, getattr(facts, name)) for name in _NUMBERS}
        columns["rules"] = columns["rules"].cast(pa.int32())
        columns |= {"names": _arrow(pa, numbers), "replayed": _arrow(pa, facts.replayed)}
        return pa.table({"part": pa.array([self._part.number] * len(numbers), pa.int32()), **columns})

    def _number(self, name: tuple[str, str]) -> int:
        """Return the number of a source and type. Beyond those counted apart, that of the others."""
        number = _digest(name)
        if number not in self.header.names and len(self.header.names) >= _MAX_NAMES:
            number, name = _digest(OTHERS), OTHERS
        self.header.names.setdefault(number, name)
        return number

    def _add_rejected(self, facts: Facts, names: list[int]) -> None:
        for number, reason, file, line in facts.rejected:
            name = None if number is None else names[number]
            self._rejected.setdefault((name, kind_of(reason)), [reason, f"{file}:{line}", 0])[2] += 1


def _arrow(pa: Any, column: "array[int]") -> Any:
    """Return a column without copying it. 64 bits stay the same bits: some engines have no unsigned integers."""
    kind = {"I": pa.uint32(), "b": pa.int8()}.get(column.typecode, pa.int64())
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def _digest(name: tuple[str, str]) -> int:
    text = "\0".join(name).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), signed=True)
