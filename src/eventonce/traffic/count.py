"""What an audit counts. Memory, DuckDB and the workers of Spark feed it, and a worker's count merges into another."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappush, heappushpop
from itertools import compress
from operator import add, not_
from typing import NamedTuple

import msgspec

from eventonce.traffic.gap_histogram import Gaps
from eventonce.traffic.ledger import NEW, AuditDecision, Decision
from eventonce.traffic.report import Counts, Reason

OTHERS = ("(others)", "(others)")
_MAX_TYPES = 1000  # sources and types counted apart; the others are one type
_MAX_REASONS = 50  # for each type
_MAX_PAIRS, _MAX_ALL_PAIRS = 50, 1000  # suspicious drops that are compared, of a type and in all
_OTHERS_NUMBER = 0
_SUMS = ("new_id", "only_id", "only_content", "id_and_content", "suspicious", "suspicious_new_id", "replayed")
_NUMBER = re.compile(r"\d[\d,]*")


class Pair(NamedTuple):
    """The positions of a suspicious drop and of the event it is taken for."""

    first: int
    copy: int


class DecisionColumns(NamedTuple):
    """Events in columns, with what an audit has found out about each."""

    types: Sequence[int]  # by their numbers
    decisions: Sequence[AuditDecision]
    same_id: Sequence[bool | None]  # None without an id
    same_content: Sequence[bool]
    replayed: Sequence[int]
    positions: Sequence[int]


class AlikeEvents(NamedTuple):
    """Events that a query has counted together: the first of their keys, or plain copies of those."""

    type: int
    new: bool
    same_id: bool | None
    same_content: bool
    replayed: bool
    gap: int | None  # after the first of their key
    events: int


def kind_of(reason: str) -> str:
    """Return a reason without its numbers."""
    return _NUMBER.sub("0", reason)


class Reasons(msgspec.Struct):
    """Why events were rejected. Reasons that differ in numbers only count as one."""

    events: int = 0
    by_kind: dict[str, tuple[str, str, int]] = {}  # the first reason of a kind, its place, and the events

    def add(self, reason: str, place: str, events: int = 1) -> None:
        """Count events that were rejected for a reason."""
        self.events += events
        kind = kind_of(reason)
        if kind not in self.by_kind and len(self.by_kind) >= _MAX_REASONS:
            kind = reason = OTHERS[0]
        reason, place, before = self.by_kind.get(kind, (reason, place, 0))
        self.by_kind[kind] = (reason, place, before + events)

    def ranked(self) -> list[Reason]:
        """Return the reasons, the most frequent one first."""
        ranked = sorted(self.by_kind.values(), key=lambda entry: -entry[2])
        return [Reason(reason, events, place) for reason, place, events in ranked]


class TypeCounts(msgspec.Struct):
    """What was counted of one source and type."""

    decisions: list[int] = msgspec.field(default_factory=lambda: [0] * (len(Decision) + 1))
    new_id: int = 0
    only_id: int = 0
    only_content: int = 0
    id_and_content: int = 0
    suspicious: int = 0
    suspicious_new_id: int = 0
    replayed: int = 0
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    pairs: list[tuple[int, int]] = []  # a heap: copy (negative) and first, with the latest copy on top
    rules: dict[int, int] = {}  # events by rule number
    rejected: Reasons = msgspec.field(default_factory=Reasons)

    def add_rule(self, rule: int, events: int) -> None:
        """Count events that fell under a rule."""
        self.rules[rule] = self.rules.get(rule, 0) + events

    def add_new(self, events: int, *, same_id: bool | None, same_content: bool, replayed: int) -> None:
        """Count events that are the first of their key."""
        self.decisions[Decision.NEW] += events
        self.replayed += events * replayed
        if replayed:
            return  # it was sent again on purpose
        if same_id and same_content:
            self.id_and_content += events
        elif same_id:
            self.only_id += events
        elif same_content:
            self.only_content += events

    def add_copies(self, decision: AuditDecision, events: int = 1, *, same_id: bool | None, replayed: int) -> None:
        """Count events whose key an earlier event has."""
        self.decisions[decision.kind] += events
        self.replayed += events * replayed
        if decision.kind is Decision.DUPLICATE and same_id is False:
            self.new_id += events
            self.suspicious_new_id += events * (decision.differs_from is not None)
        if decision.kind is Decision.NEWER:
            return
        if decision.gap is None:
            self.gaps.unknown += events
        elif decision.gap == 0 and same_id and decision.differs_from is None:
            self.gaps.same_time += events
        else:
            self.gaps.add(decision.gap, events)

    def add_suspicious(self, pair: Pair) -> None:
        """Count a copy with another content than its first."""
        self.suspicious += 1
        self._add_pair((-pair.copy, pair.first))

    def merge(self, other: "TypeCounts") -> None:
        """Add all that another one has counted."""
        self.decisions = [*map(add, self.decisions, other.decisions)]
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.gaps.merge(other.gaps)
        for entry in other.pairs:
            self._add_pair(entry)
        for rule, events in other.rules.items():
            self.add_rule(rule, events)
        for reason, place, events in other.rejected.by_kind.values():
            self.rejected.add(reason, place, events)

    def earliest_pairs(self) -> list[Pair]:
        """Return the pairs to compare, in the order of their copies."""
        return [Pair(first, -negative) for negative, first in sorted(self.pairs, reverse=True)]

    def counts(self) -> Counts:
        """Return the numbers alone."""
        decisions = self.decisions
        return Counts(
            events=sum(decisions) + self.rejected.events,
            distinct=decisions[Decision.NEW] + decisions[Decision.NEWER],
            duplicates=decisions[Decision.DUPLICATE],
            new_id=self.new_id,
            stale=decisions[Decision.STALE],
            late=decisions[Decision.LATE],
            only_id=self.only_id,
            only_content=self.only_content,
            id_and_content=self.id_and_content,
            suspicious=self.suspicious,
            suspicious_new_id=self.suspicious_new_id,
            rejected=self.rejected.events,
            replayed=self.replayed,
        )

    def _add_pair(self, entry: tuple[int, int]) -> None:
        (heappush if len(self.pairs) < _MAX_PAIRS else heappushpop)(self.pairs, entry)


class AuditCount:
    """Counts by source and type, in any order of events. A type is known by its name, and in columns by a number."""

    def __init__(self) -> None:
        self.no_events = Reasons()
        self.types: dict[tuple[str, str], TypeCounts] = {}
        self._by_number: dict[int, TypeCounts] = {}

    @classmethod
    def on_worker(cls, numbers: Iterable[int]) -> "AuditCount":
        """Return a count of the types with these numbers, whose names a worker does not need, and of all others."""
        count = cls()
        count._by_number = {number: TypeCounts() for number in numbers}
        return count

    def named(self, name: tuple[str, str]) -> TypeCounts:
        """Return the counts of a source and type. Beyond the first thousand, those of all others."""
        counts = self.types.get(name)
        if counts is None:
            name = name if len(self.types) < _MAX_TYPES else OTHERS
            counts = self.types.setdefault(name, TypeCounts())
        return counts

    def number(self, number: int, name: tuple[str, str]) -> None:
        """Give a type its number. Those of the others would fill the memory, and need none."""
        if number not in self._by_number and (counts := self.named(name)) is not self.types.get(OTHERS):
            self._by_number[number] = counts

    def numbered(self, number: int) -> TypeCounts:
        """Return the counts of the type with this number, or those of all others."""
        return self._by_number.get(number) or self.named(OTHERS)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all types that are counted apart."""
        return list(self._by_number)

    def add(self, types: Sequence[TypeCounts] | Mapping[int, TypeCounts], events: DecisionColumns) -> None:
        """Count events. Most of them are new, and those that are alike are counted together."""
        new = [decision is NEW for decision in events.decisions]
        alike = zip(
            *(compress(column, new) for column in (events.types, events.same_id, events.same_content, events.replayed)),
            strict=True,
        )
        for (number, same_id, same_content, replayed), count in Counter(alike).items():
            types[number].add_new(count, same_id=same_id, same_content=same_content, replayed=replayed)
        for number, decision, same_id, _, replayed, position in compress(zip(*events, strict=True), map(not_, new)):
            types[number].add_copies(decision, same_id=same_id, replayed=replayed)
            if decision.differs_from is not None:
                types[number].add_suspicious(Pair(decision.differs_from, position))

    def add_alike(self, rows: Iterable[AlikeEvents]) -> None:
        """Count events of which a query knows enough."""
        for row in rows:
            counts = self.numbered(row.type)
            if row.new:
                counts.add_new(row.events, same_id=row.same_id, same_content=row.same_content, replayed=row.replayed)
            else:
                decision = AuditDecision(Decision.DUPLICATE, row.gap)
                counts.add_copies(decision, row.events, same_id=row.same_id, replayed=row.replayed)

    def packed(self) -> bytes:
        """Return all that a worker has counted, by number."""
        types = {_OTHERS_NUMBER: self.types.get(OTHERS, TypeCounts()), **self._by_number}
        return msgspec.msgpack.encode({number: counts for number, counts in types.items() if any(counts.decisions)})

    def merge(self, packed: bytes) -> None:
        """Add all that a worker has counted."""
        for number, counts in msgspec.msgpack.decode(packed, type=dict[int, TypeCounts]).items():
            self.numbered(number).merge(counts)

    def pairs_to_compare(self) -> dict[tuple[str, str], list[Pair]]:
        """Return suspicious drops by type: the earliest of each, and of those the earliest in all."""
        pairs = {name: counts.earliest_pairs() for name, counts in self.types.items()}
        chosen = set(sorted(_all(pairs), key=lambda pair: pair.copy)[:_MAX_ALL_PAIRS])
        return {name: [pair for pair in some if pair in chosen] for name, some in pairs.items()}


def _all(pairs: Mapping[tuple[str, str], Iterable[Pair]]) -> Iterator[Pair]:
    return (pair for some in pairs.values() for pair in some)
