"""Finding copies in a table of events, and the fields that differ between them.

Three steps, from what is certain to what is likely:

1. Events with the same envelope id are copies, as EventBridge and CloudEvents promise. A field that differs between
   them belongs to the delivery. Where they differ in what they say, the id is used twice and proves nothing.
2. Events with ids of their own and equal content (`judge` says whether they are copies or repeats).
3. Events that differ in nothing but what `excuse` lets pass, judged the same way. Fields that differ between the
   copies found here belong to the delivery, too.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from eventonce.study import names
from eventonce.study.excuse import Excuses, belongs_to_delivery
from eventonce.study.fields import Cells, Column, Table
from eventonce.study.fresh import fresh_columns
from eventonce.study.gaps import MINUTE
from eventonce.study.judge import MANY, Moment, Question, Verdict, judge, runs
from eventonce.study.series import objection

_LOOK_BACK = 4  # neighbours in time that an event is compared with
_OFTEN = 3


class Record(NamedTuple):
    """One row of the table: its id, where the envelope vouches for it, and when it happened."""

    id: str
    moment: Moment


@dataclass
class Copies:
    """Which events are one, and what shows it."""

    labels: list[int]  # by row: copies of one event have the same
    volatile: dict[int, Column] = field(default_factory=dict)  # what differs between copies
    same_id: int = 0  # copies with their first one's id
    new_id: int = 0  # copies with an id of their own
    apart: int = 0  # events like others, but too far from them to be copies
    reused: int = 0  # events with the id of another one
    exact: Verdict | None = None  # of equal content under several ids
    near: Verdict | None = None  # of nearly equal content under several ids
    equals: int = 0  # events that `exact` was about
    nears: int = 0  # events that `near` was about
    differing: dict[int, Column] = field(default_factory=dict)  # what `near` was about

    @property
    def distinct(self) -> int:
        return len(set(self.labels))

    @property
    def anchored(self) -> bool:
        """Whether all that was found is beyond doubt."""
        return all(verdict.anchored for verdict in (self.exact, self.near) if verdict and verdict.answer == "copies")

    @property
    def doubtful(self) -> bool:
        """Whether some equal events might be copies, and were not taken for such."""
        return any(verdict is not None and verdict.answer == "unclear" for verdict in (self.exact, self.near))


def find(table: Table, records: Sequence[Record]) -> Copies:
    """Find the copies."""
    copies = Copies(labels=list(range(len(records))))
    _by_id(table, records, copies)
    rows = _firsts(copies.labels)
    said = {column.number for column in table.columns if column.steps != ("time",)} - copies.volatile.keys()
    equal = _grouped(rows, lambda row: _said(table.rows[row], said))
    heads = [group[0] for group in equal]
    fresh = fresh_columns(table, heads, [records[row].moment for row in heads])
    if not _settle(table, records, copies, _Tier(rows, equal, fresh, said, near=False)):
        return copies
    excuses = Excuses((table.columns[number] for number in said), len(rows), fresh)
    alike = _grouped(heads, lambda row: _said(table.rows[row], said, excuses))
    near = [_near(table, records, excuses, group) for group in alike]
    clusters = [cluster for each in near for cluster in each]
    essential = {number for number in said if number not in excuses}
    _settle(table, records, copies, _Tier(heads, clusters, fresh, essential, near=True, recurring=_recur(near)))
    copies.new_id = len(records) - copies.distinct - copies.same_id
    return copies


# --- the same id ---


def _by_id(table: Table, records: Sequence[Record], copies: Copies) -> None:
    groups = [
        (group, _differing(table.rows, group))
        for group in _grouped(range(len(records)), lambda row: records[row].id or row)
        if len(group) > 1
    ]
    counted = Counter(number for _, differing in groups for number in differing)
    volatile = {number for number, count in counted.items() if _made_anew(table, number, count, len(groups))}
    for group, differing in groups:
        if differing <= volatile:
            _join(copies.labels, [group])
            copies.same_id += len(group) - 1
            copies.volatile |= {number: table.columns[number] for number in differing}
        else:
            copies.reused += len(group) - 1


def _made_anew(table: Table, number: int, groups: int, of: int) -> bool:
    """Whether a field that differs under one id belongs to the delivery, and not to another event with that id."""
    column = table.columns[number]
    if belongs_to_delivery(column) or column.looks == "time":
        return True
    unique = column.known and not names.of_identity(column.name) and 10 * len(column.cells) >= 9 * len(table.rows)
    return unique and (column.looks == "opaque" or (groups >= _OFTEN and 2 * groups >= of))


# --- ids of their own ---


class _Tier(NamedTuple):
    rows: Sequence[int]  # of which each stands for one event
    groups: Sequence[Sequence[int]]
    fresh: Sequence[Column]
    said: set[int]  # what each group agrees on
    near: bool
    recurring: bool = False


def _settle(table: Table, records: Sequence[Record], copies: Copies, tier: _Tier) -> bool:
    """Judge the groups and join those that are copies; False where nothing more should be joined."""
    groups = [group for group in tier.groups if len(group) > 1]
    if not groups:
        return True
    asked = _question(table, records, tier, groups)
    verdict = judge(asked)
    differing = {number for group in groups for number in _differing(table.rows, group)}
    columns = {number: table.columns[number] for number in differing if number not in copies.volatile}
    if tier.near:
        copies.near, copies.nears, copies.differing = verdict, sum(map(len, groups)), columns
    else:
        copies.exact, copies.equals = verdict, sum(map(len, groups))
    if verdict.answer == "copies":
        split = [run for group, at in zip(groups, asked.groups, strict=True) for run in _split(asked, group, at)]
        copies.apart += len(split) - len(groups)
        copies.volatile |= columns
        _join(copies.labels, split)
    return verdict.answer == "copies"


def _question(table: Table, records: Sequence[Record], tier: _Tier, groups: Sequence[Sequence[int]]) -> Question:
    moments = [record.moment for record in records]
    anchor = _anchor(table, groups, tier)
    return Question(
        groups=[[moments[row] for row in group] for group in groups],
        span=[moments[row] for row in tier.rows],
        anchor=anchor,
        within=MINUTE if tier.near else 15 * MINUTE,
        objection=None if anchor else _objection(table, moments, tier),
    )


def _objection(table: Table, moments: Sequence[Moment], tier: _Tier) -> str | None:
    if tier.recurring:
        return "events like these come at other times, too"
    return objection(table, moments, tier.groups, tier.said)


def _split(asked: Question, group: Sequence[int], at: Sequence[Moment]) -> list[list[int]]:
    return [[group[place] for place in run] for run in runs(asked, at)]


def _anchor(table: Table, groups: Sequence[Sequence[int]], tier: _Tier) -> str | None:
    """A field that is one event's own, and on which the members of each group agree."""
    own = [column for column in table.columns if _is_own(column, table, len(tier.groups))]
    if sum(map(len, groups)) > MANY * len(groups):  # so many share it that it rather is the id of a thing
        own = [column for column in own if column.looks == "opaque"]
    for column in [*tier.fresh, *own]:
        if all(_agree(table.rows, group, column.number) for group in groups):
            return column.path
    return None


def _is_own(column: Column, table: Table, distinct: int) -> bool:
    whole = column.known and column.of_data and column.present == len(table.rows)
    return whole and column.of_event and len(column.cells) >= distinct


def _near(table: Table, records: Sequence[Record], excuses: Excuses, group: Sequence[int]) -> list[list[int]]:
    """Split a group that agrees on all that needs no excuse into what is excused; neighbours in time are compared."""
    clusters: dict[int, list[int]] = {}
    home: dict[int, int] = {}
    ordered = sorted(group, key=lambda row: (records[row].moment.time or 0, row))
    for place, row in enumerate(ordered):
        before = ordered[max(0, place - _LOOK_BACK) : place]
        like = next((each for each in reversed(before) if excuses.hold(table.rows[each], table.rows[row])), row)
        home[row] = home.get(like, row)
        clusters.setdefault(home[row], []).append(row)
    return list(clusters.values())


def _recur(alike: Sequence[Sequence[Sequence[int]]]) -> bool:
    """Whether what was joined mostly has more of its like, not near enough: then being near means little."""
    joined = [clusters for clusters in alike if any(len(cluster) > 1 for cluster in clusters)]
    return 2 * sum(len(clusters) > 1 for clusters in joined) > len(joined)


# --- tools ---


def _said(cells: Cells, numbers: set[int], excuses: Excuses | None = None) -> Hashable:
    return frozenset(
        (number, cell) for number, cell in cells.items() if number in numbers and not (excuses and number in excuses)
    )


def _grouped(rows: Iterable[int], by: Callable[[int], Hashable]) -> list[list[int]]:
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    return list(groups.values())


def _differing(rows: Sequence[Cells], group: Sequence[int]) -> set[int]:
    found: set[int] = set()
    for one, other in pairwise(group):
        found |= {number for number, _ in rows[one].items() ^ rows[other].items()}
    return found


def _agree(rows: Sequence[Cells], group: Sequence[int], number: int) -> bool:
    return len({rows[row].get(number) for row in group}) == 1


def _firsts(labels: Sequence[int]) -> list[int]:
    return [row for row, label in enumerate(labels) if row == label]


def _join(labels: list[int], groups: Iterable[Sequence[int]]) -> None:
    home = {labels[row]: labels[group[0]] for group in groups for row in group}
    for row, label in enumerate(labels):
        labels[row] = home.get(label, label)
