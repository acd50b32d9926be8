"""An audit whose events come from an engine: sorted by key, those without copies only counted."""

from collections.abc import Iterable
from heapq import heappush, heappushpop
from typing import Any

import msgspec

from eventonce.rules import Rulebook
from eventonce.traffic.audit import OTHERS, Audit, Pair, TypeCounts
from eventonce.traffic.gap_histogram import Gaps
from eventonce.traffic.ledger import AuditDecision, Decision
from eventonce.traffic.part_facts import FactsHeader

_OTHERS = 0  # stands for all sources and types that are not told apart
_MOST_PAIRS, _MOST_PAIRS_IN_ALL = 50, 1000  # as many as an audit compares


class _Counted(msgspec.Struct):
    """What a worker has counted of one source and type."""

    number: int
    verdicts: list[int]
    missed: list[tuple[bool, bool, int]]
    suspicious: int
    replayed: int
    gaps: dict[str, Any]
    pairs: list[tuple[int, int]]

    @classmethod
    def of(cls, number: int, group: TypeCounts, pairs: list[Pair]) -> "_Counted":
        missed = [(*found, events) for found, events in group.missed.items()]
        gaps = vars(group.gaps)
        return cls(
            number,
            group.verdicts,
            missed,
            group.suspicious,
            group.replayed,
            gaps,
            [(pair.first, pair.copy) for pair in pairs],
        )

    def into(self, group: TypeCounts) -> None:
        group.verdicts = [one + more for one, more in zip(group.verdicts, self.verdicts, strict=True)]
        for same_id, same_content, events in self.missed:
            group.missed[same_id, same_content] += events
        group.suspicious += self.suspicious
        group.replayed += self.replayed
        gaps = Gaps()
        vars(gaps).update(self.gaps)
        group.gaps.merge(gaps)


class AuditCount(Audit):
    """Counts what `eventonce audit` counts, in any order of keys."""

    def __init__(self, book: Rulebook) -> None:
        super().__init__(book)
        self._by_name: dict[int, TypeCounts] = {}
        self._earliest: dict[int, list[tuple[int, Pair]]] = {}  # by group: a heap, the latest pair first

    def head(self, headers: Iterable[FactsHeader]) -> None:
        """Take the headers of all parts, in their order."""
        for header in headers:
            for number, name in header.names.items():
                if number not in self._by_name:
                    self._by_name[number] = self._group(name)
            for number, rule, events in header.rules:
                self.named(number).rules[self._book.all[rule]] += events
            for group, reason, place, events in header.rejected:
                (self.no_events if group is None else self.named(group).rejected).add(reason, place, events)
            self._forget_others()

    @property
    def numbers(self) -> list[int]:
        """Of all that are told apart."""
        return list(self._by_name)

    def named(self, number: int) -> TypeCounts:
        """The group of a source and type; beyond those told apart, that of the others."""
        return self._by_name.get(number) or self._group((OTHERS, OTHERS))

    def count(self, alike: Iterable[tuple[int, bool, bool, bool, int, int | None, int]]) -> None:
        """Count events of which a query knows enough: they are the first of their key, or plain copies of it.

        Of each kind: its source and type, if it is the first, if its id and its content were seen, if it is replayed,
        how long after the first it came, and how many there are.
        """
        for number, new, same_id, same_content, replayed, gap, events in alike:
            group = self.named(number)
            group.replayed += events * replayed
            if new:
                self.count_new(group, events, same_id=same_id, same_content=same_content, replayed=replayed)
            else:
                self.count_known(group, AuditDecision(Decision.DUPLICATE, gap), events, same_id=same_id)

    def expect(self, numbers: Iterable[int]) -> None:
        """On a worker: count these apart. Their names are not known there."""
        self._by_name = {number: TypeCounts() for number in numbers}

    def counted(self) -> bytes:
        """On a worker: all that was counted."""
        groups = [*self._by_name.items(), (_OTHERS, self.groups.get((OTHERS, OTHERS), TypeCounts()))]
        return msgspec.msgpack.encode([_Counted.of(number, group, self._pairs_of(group)) for number, group in groups])

    def merge(self, counted: bytes) -> None:
        """What a worker has counted, too."""
        for each in msgspec.msgpack.decode(counted, type=list[_Counted]):
            if any(each.verdicts):
                group = self.named(each.number)
                each.into(group)
                for pair in each.pairs:
                    self._keep(group, Pair(*pair))

    def settle(self) -> None:
        """Choose the pairs to compare: the earliest, as if the events had come in their order."""
        found = [(-late, pair) for heap in self._earliest.values() for late, pair in heap]
        chosen = {pair for _, pair in sorted(found)[:_MOST_PAIRS_IN_ALL]}
        for group in self.groups.values():
            group.pairs = sorted((pair for pair in self._pairs_of(group) if pair in chosen), key=lambda pair: pair.copy)

    def _suspect(self, group: TypeCounts, pair: Pair) -> None:
        group.suspicious += 1
        self._keep(group, pair)

    def _pairs_of(self, group: TypeCounts) -> list[Pair]:
        return [pair for _, pair in self._earliest.get(id(group), [])]

    def _keep(self, group: TypeCounts, pair: Pair) -> None:
        heap = self._earliest.setdefault(id(group), [])
        (heappush if len(heap) < _MOST_PAIRS else heappushpop)(heap, (-pair.copy, pair))

    def _forget_others(self) -> None:
        """Names beyond those told apart would fill the memory."""
        others = self.groups.get((OTHERS, OTHERS))
        self._by_name = {number: group for number, group in self._by_name.items() if group is not others}
