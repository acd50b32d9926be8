"""The search for copies among recorded events, and for the fields that differ between them.

1. Events with one envelope id are copies, as EventBridge and CloudEvents promise. If they differ in more than what is
   made anew when an event is sent, the id is used twice and proves nothing.
2. What is **made anew** is a clock that shows the time of sending, or a token that no other event has. A field of any
   other kind, such as a price, a counter or a status, has a meaning. Events that differ there are never copies.
3. Events that are **equal but for what is made anew** are one event sent again, or the same thing happening again.
   Two events do not show which. The traffic as a whole does. Copies share an id that was made for the event and on
   which all else depends. They are rare, come soon, and strike any event alike (`_doubt`).

To drop an event is worse than to run one twice, so "unclear" counts as "not copies".
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from eventonce.clock import format_duration
from eventonce.text import counted
from eventonce.traffic.gap_histogram import DAY, MINUTE, SECOND
from eventonce.traffic.table import MOST, Column, Table

Answer = Literal["copies", "repeats", "unclear"]
Groups = list[list[int]]

# What a sender does that sends an event again:
_MANY = 4  # no more equal events than this, on average
_RARE = 0.3  # of all events at most are repeated
_SOON = 15 * MINUTE  # at the latest
_BEAT = 10 * SECOND  # a longer distance is not always the same
_SOONER = 4  # times as soon as the next event comes, if there is no other evidence
_FAR = 10  # times as late as nine of ten copies: not a copy
# What shows a pattern, and what may be chance:
_STEADY, _BEATS = 0.2, 4  # the deviation of gaps as a share of their mean, and how many gaps show it
_UNRELATED = 0.125  # of the recording or more lies between two events that have nothing to do with each other
_CHANCE, _ALIKE = -4.0, 0.5  # the logarithm of one in ten thousand; a probability
_FEW, _STATES = 20, 2  # values of a state, states in a key
_DEVIATIONS, _LEAST = 4.5, 5  # from the share of all; events
_EVENTS = 5  # about one thing, on average at most


class SampleRow(NamedTuple):
    """The id that a row's envelope vouches for, and its time in milliseconds."""

    id: str
    time: int | None


class Likeness(NamedTuple):
    """Events that are equal but for some fields, and what they are taken for."""

    answer: Answer
    reason: str
    events: int
    differing: tuple[Column, ...]
    certain: bool = False  # they agree on when they happened


@dataclass
class Copies:
    """Which events are one, and the evidence for it."""

    labels: list[int]  # by row; copies of one event have the same label
    volatile: dict[int, Column] = field(default_factory=dict)  # the columns that differ between copies
    same_id: int = 0  # copies with the id of their first one
    reused: int = 0  # events with the id of another one
    apart: int = 0  # events like others, but too far from them to be copies
    between: int = 0  # copies that came after another event about the same thing
    likenesses: list[Likeness] = field(default_factory=list)
    series: tuple[Column, ...] = ()  # an id of which there are several events, and the states that tell them apart

    @property
    def distinct(self) -> int:
        return len(set(self.labels))

    @property
    def new_id(self) -> int:
        """Return how many copies have an id of their own."""
        return len(self.labels) - self.distinct - self.same_id

    @property
    def certain(self) -> bool:
        """Return whether all copies are beyond doubt."""
        return all(likeness.certain for likeness in self.likenesses if likeness.answer == "copies")

    @property
    def doubtful(self) -> list[Likeness]:
        """Return the likenesses that may be copies, and are not taken for copies."""
        return [likeness for likeness in self.likenesses if likeness.answer == "unclear"]

    def join(self, groups: Iterable[Sequence[int]]) -> None:
        """Label the rows of each group as copies of one event."""
        new_labels = {self.labels[row]: self.labels[group[0]] for group in groups for row in group}
        self.labels = [new_labels.get(label, label) for label in self.labels]


def find(table: Table, sample: Sequence[SampleRow]) -> Copies:
    """Find the copies among the rows of a table."""
    copies = Copies(list(range(len(sample))))
    by_id = [group for group in grouped(range(len(sample)), lambda row: sample[row].id or row) if len(group) > 1]
    repeated = {row for group in by_id for row in group[1:]}
    firsts = [row for row in range(len(sample)) if row not in repeated]
    times = [each.time for each in sample if each.time is not None]
    timed = len(times) == len(sample) and 2 * len(set(times)) > len(firsts)
    table.settle(firsts, [times[row] / 1000 for row in firsts] if timed else None)
    _join_same_id(table, by_id, copies)
    _Search(table, _firsts(copies.labels), times if timed else None, copies).run()
    return copies


def _join_same_id(table: Table, groups: Groups, copies: Copies) -> None:
    for group in groups:
        differ = [table.columns[number] for number in _differing(table, group)]
        if all(column.steps == ("time",) or column.clock or column.made_anew(group[0]) for column in differ):
            copies.join([group])
            copies.same_id += len(group) - 1
            copies.volatile |= {column.number: column for column in differ}
        else:
            copies.reused += len(group) - 1


class _Search:
    """The search for copies under new ids, among rows each of which is one event."""

    def __init__(self, table: Table, rows: Sequence[int], times: Sequence[int] | None, copies: Copies) -> None:
        self._table = table
        self._rows = rows
        self._times = times
        self._copies = copies
        self._columns = table.columns
        self._own_time = {column.number for column in table.columns if column.steps == ("time",)}
        anew = {column.number for column in table.columns if any(map(column.made_anew, rows))}
        self._content_columns = [column for column in table.columns if column.number not in anew | self._own_time]
        self._thing: Column | None = None
        self._states: list[Column] = []

    def run(self) -> None:
        """Decide on the events that agree on the time at which they happened, then on those that are alike."""
        exact = grouped(self._rows, lambda row: self._content(row, clocks=True))
        heads = [group[0] for group in exact]
        alike = grouped(heads, lambda row: self._content(row, clocks=False))
        gaps = sorted(gap for group in exact for gap in self._gaps(group)) or [0]
        fine = gaps[len(gaps) // 2] > SECOND  # if not, a clock of whole seconds shows nothing
        clock = next((each for each in self._columns if self._tells_apart(each, heads) and (fine or each.fine)), None)
        members = {group[0]: group for group in exact}
        groups = alike if clock else [[row for head in group for row in members[head]] for group in alike]
        self._find_thing(groups)
        if clock is not None and any(len(group) > 1 for group in exact):
            self._settle(exact, self._certain(exact, clock), certain=True)
        if any(len(group) > 1 for group in groups):
            self._settle(groups, self._judge(groups), certain=False)
        if self._thing is not None and self._states:
            self._series(groups, self._thing)

    def _content(self, row: int, *, clocks: bool) -> frozenset[tuple[int, bytes | None]]:
        """Return the content of this row, without what is made anew. With `clocks`, that of clocks is left in."""
        return frozenset(
            (number, None if column.made_anew(row) and not (clocks and column.clock) else cell)
            for number, cell in self._table.rows[row].items()
            if number not in self._own_time and (column := self._columns[number])
        )

    def _tells_apart(self, column: Column, rows: Sequence[int]) -> bool:
        cells = [self._table.rows[row].get(column.number) for row in rows]
        times = None if self._times is None else [self._times[row] / 1000 for row in rows]
        return column.number not in self._own_time and column.tells_apart(cells, times)

    def _find_thing(self, groups: Groups) -> None:
        """Find the id of what the events are about, and what differs between the events about one thing."""
        columns = self._content_columns
        whole = [column for column in columns if column.minted and column.present == len(self._table.rows)]
        often = [column for column in whole if _EVENTS * len(column.cells) >= len(groups)]
        self._thing = max(often, key=lambda each: (len(each.cells), each.rising, -len(each.steps)), default=None)
        numbers: set[int] = set()
        for heads in self._by_thing(groups):
            for one, other in pairwise(heads):
                numbers |= {
                    number for number, _ in self._content(one, clocks=False) ^ self._content(other, clocks=False)
                }
        self._states = [column for column in self._columns if column.number in numbers]

    def _by_thing(self, groups: Groups) -> Groups:
        heads = [group[0] for group in groups]
        thing = self._thing
        return [] if thing is None else grouped(heads, lambda row: self._table.rows[row][thing.number])

    # --- what they are ---

    def _settle(self, groups: Groups, decision: tuple[Answer, str], *, certain: bool) -> None:
        several = [group for group in groups if len(group) > 1]
        numbers = {number for group in several for number in _differing(self._table, group)}
        differing = tuple(column for column in self._columns if column.number in numbers)
        answer, reason = decision
        self._copies.likenesses.append(Likeness(answer, reason, sum(map(len, several)), differing, certain))
        if answer != "copies":
            return
        runs = [group if certain else run for group in several for run in self._runs(group, self._reach(several))]
        self._copies.apart += 0 if certain else len(runs) - len(several)
        self._copies.join(runs)
        self._copies.volatile |= {column.number: column for column in differing}
        self._copies.between += 0 if certain else self._between(groups)

    def _certain(self, groups: Groups, clock: Column) -> tuple[Answer, str]:
        if _mean_size(groups) > _MANY:
            return "repeats", f"{_mean_size(groups):,.0f} events on average say the same"
        return "copies", f"they agree on {clock.path}, which shows when each event happened"

    def _judge(self, groups: Groups) -> tuple[Answer, str]:
        several = [group for group in groups if len(group) > 1]
        gaps = [self._gaps(group) for group in several]
        sorted_gaps = sorted(gap for each in gaps for gap in each)
        distance = f" ({format_duration(sorted_gaps[0])} to {format_duration(sorted_gaps[-1])})" if self._times else ""
        if _mean_size(groups) > _MANY:
            return "repeats", f"{_mean_size(groups):,.0f} events on average say the same"
        if any(len(each) >= _BEATS and _is_steady(each) for each in gaps):
            return "repeats", f"they come in a steady beat{distance}"
        evidence = self._dependence(groups, len(sorted_gaps))
        if evidence is None and statistics.median(sorted_gaps) > _UNRELATED * sum(self._gaps(self._rows)):
            return "repeats", f"they are as far apart as unrelated events are{distance}"
        doubt = self._doubt(groups, sorted_gaps, dependent=evidence is not None)
        if doubt is not None:
            return "unclear", f"{doubt}{distance}"
        return "copies", f"{evidence or 'they follow each other far sooner than any two events do'}{distance}"

    def _dependence(self, groups: Groups, repeats: int) -> str | None:
        """Return the evidence, if any, that all else depends on the id: by chance it would be equal far less often."""
        if self._thing is None:
            return None
        own = {self._thing.number, *(each.number for each in self._states)}
        others = {column.number for column in self._content_columns} - own
        heads = [head for head, *_ in self._by_thing(groups)]
        contents = Counter(
            frozenset((number, cell) for number, cell in self._table.rows[head].items() if number in others)
            for head in heads
        )
        pairs = sum(count * (count - 1) for count in contents.values())
        alike = max(pairs / max(1, len(heads) * (len(heads) - 1)), 1 / len(heads))
        if alike > _ALIKE or repeats * math.log10(alike) > _CHANCE:
            return None
        paths = " with ".join(column.path for column in (self._thing, *self._states))
        return (
            f"whenever {paths} recurred ({counted(repeats, 'time')}) they agreed on all else, "
            f"as two others do in {alike:.1%} of all cases at most"
        )

    def _doubt(self, groups: Groups, gaps: Sequence[int], *, dependent: bool) -> str | None:
        """Return the first reason to doubt that these are copies, which are rare, come soon and strike any event."""
        thing = self._thing
        if thing is None:
            return "they have no id that looks as if it was made for the event"
        if self._times is None and not (dependent and thing.rising):
            return "there are no times to compare"
        late = 0 if self._times is None else gaps[int(MOST * (len(gaps) - 1))]
        reach = DAY if dependent and thing.rising else _SOON if dependent else MINUTE
        several = sum(len(group) > 1 for group in groups)
        state = next((column.path for column in self._content_columns if self._favours(column, groups)), None)
        doubts = (
            (late > reach, "they are too far apart for a sender that tries again"),
            (state is not None, f"it depends on {state} whether an event is repeated"),
            (2 * self._between(groups) > several, "other events about the same thing come in between"),
            (
                not dependent and _SOONER * statistics.median(gaps) > statistics.median(self._gaps(self._rows)),
                "they follow each other as any two events do",
            ),
            (late > _BEAT and len(gaps) >= _BEATS and _is_steady(gaps), "they all come at the same distance"),
            (
                several > _RARE * len(groups),
                f"{several / len(groups):.0%} of all are repeated, too many for a sender that tries again",
            ),
        )
        return next((doubt for holds, doubt in doubts if holds), None)

    def _favours(self, column: Column, groups: Groups) -> bool:
        """Return whether events in some states are repeated more often than others. Copies strike any event alike."""
        if not column.scalar or not 1 < len(column.cells) <= _FEW:
            return False
        cells = [self._table.rows[group[0]].get(column.number) for group in groups]
        repeated = Counter(cell for cell, group in zip(cells, groups, strict=True) if group[1:])
        share = sum(repeated.values()) / len(groups)
        for cell, count in Counter(cells).items():
            expected = count * share
            if abs(repeated[cell] - expected) > max(_LEAST, _DEVIATIONS * math.sqrt(expected * (1 - share))):
                return True
        return False

    def _between(self, groups: Groups) -> int:
        """Return how many groups have another event about the same thing between their first and last."""
        times = {group[0]: [self._time(row) for row in group] for group in groups}
        count = 0
        for heads in self._by_thing(groups) if self._states else ():
            for index, head in enumerate(heads):
                others = heads[max(0, index - _FEW) : index] + heads[index + 1 : index + _FEW]  # bounds the work
                first, last = min(times[head]), max(times[head])
                count += first < last and any(first < time < last for other in others for time in times[other])
        return count

    # --- distances ---

    def _time(self, row: int) -> tuple[int, int]:
        """Return the time of a row, and the row where times are equal. Without times, rows are the only measure."""
        return (row if self._times is None else self._times[row], row)

    def _gaps(self, group: Sequence[int]) -> list[int]:
        return [later[0] - earlier[0] for earlier, later in pairwise(sorted(map(self._time, group)))]

    def _reach(self, groups: Groups) -> float:
        """Return how far a copy may be from the one before it."""
        gaps = sorted(gap for group in groups for gap in self._gaps(group))
        return math.inf if self._times is None else max(_SOON, _FAR * gaps[int(MOST * (len(gaps) - 1))])

    def _runs(self, group: Sequence[int], reach: float) -> Groups:
        """Split a group where the next event is too far away to be a copy."""
        ordered = sorted(group, key=self._time)
        runs = [ordered[:1]]
        for earlier, later in pairwise(ordered):
            if self._time(later)[0] - self._time(earlier)[0] > reach:
                runs.append([])
            runs[-1].append(later)
        return runs

    # --- several events about one thing ---

    def _series(self, groups: Groups, thing: Column) -> None:
        """Note what tells the events about one thing apart, and the doubt if there are no other copies."""
        events = sum(len(heads) for heads in self._by_thing(groups) if len(heads) > 1)
        simple = all(each.scalar and each.present == len(self._table.rows) for each in self._states)
        if simple and len(self._states) <= _STATES and all(len(each.cells) <= _FEW for each in self._states):
            self._copies.series = (thing, *self._states)
        others = self._copies.new_id or self._copies.doubtful
        if len(self._states) <= _STATES and not others and self._dependence(groups, events):
            reason = f"they have the same {thing.path}, and what differs may be what happened to it"
            self._copies.likenesses.append(Likeness("unclear", reason, events, tuple(self._states)))


def grouped(rows: Iterable[int], key: Callable[[int], Hashable]) -> Groups:
    """Return the rows in groups of equal keys, in the order of their first rows."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return list(groups.values())


def _firsts(labels: Sequence[int]) -> list[int]:
    return [row for row, label in enumerate(labels) if row == label]


def _differing(table: Table, group: Sequence[int]) -> set[int]:
    """Return the columns that the rows of a group differ in."""
    numbers: set[int] = set()
    for one, other in pairwise(group):
        numbers |= {number for number, _ in table.rows[one].items() ^ table.rows[other].items()}
    return numbers


def _mean_size(groups: Groups) -> float:
    sizes = [len(group) for group in groups if len(group) > 1]
    return statistics.fmean(sizes)


def _is_steady(gaps: Sequence[int]) -> bool:
    return statistics.pstdev(gaps) < _STEADY * statistics.fmean(gaps)
