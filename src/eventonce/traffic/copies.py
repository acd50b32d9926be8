"""Finding copies in a table of events, and the fields that differ between them.

Four steps, from what is certain to what is likely:

1. Events with the same envelope id are copies, as EventBridge and CloudEvents promise. A field that differs between
   them belongs to the delivery. Where they differ in what they say, the id is used twice and proves nothing.
2. Events with ids of their own and equal content (`judge` says whether they are copies or repeats).
3. Events that differ in nothing but what `excuse` lets pass, judged the same way. Fields that differ between the
   copies found here belong to the delivery, too.
4. Where no anchor has settled it: events that agree on an id which all else depends on (`dependence`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from eventonce.traffic import names
from eventonce.traffic.dependence import Dependence, depend
from eventonce.traffic.excuse import Excuses, belongs_to_delivery
from eventonce.traffic.fields import Column, Table
from eventonce.traffic.fresh import fresh_columns
from eventonce.traffic.gap_histogram import MINUTE
from eventonce.traffic.groups import agree, differing, grouped, only
from eventonce.traffic.judge import MANY, Moment, Question, Verdict, judge, runs
from eventonce.traffic.pace import in_step
from eventonce.traffic.series import between, objection

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
    between: int = 0  # copies that came after another event about the same thing
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
    def found(self) -> bool:
        """Whether some with ids of their own were taken for copies."""
        return any(verdict is not None and verdict.answer == "copies" for verdict in (self.exact, self.near))

    @property
    def settled(self) -> bool:
        """Whether an anchor has told what are copies."""
        return any(verdict is not None and verdict.anchored for verdict in (self.exact, self.near))

    @property
    def doubtful(self) -> bool:
        """Whether some equal events might be copies, and were not taken for such."""
        return any(verdict is not None and verdict.answer == "unclear" for verdict in (self.exact, self.near))

    def start_over(self) -> None:
        """Forget what likeness told: something better is known."""
        self.exact = self.near = None
        self.apart = self.between = 0


def find(table: Table, records: Sequence[Record], about: str) -> Copies:
    """Find the copies; `about` is what the events are called."""
    copies = Copies(labels=list(range(len(records))))
    _by_id(table, records, copies)
    rows = _firsts(copies.labels)
    said = {column.number for column in table.columns if column.steps != ("time",)} - copies.volatile.keys()
    _by_likeness(table, records, copies, _Tier(rows, said, about))
    own = None if copies.settled else depend(table, rows, said, about)
    if own is not None:
        _settle(table, records, copies, _Tier(rows, said - own.excused, about, own.groups, near=True, own=own))
    copies.new_id = len(records) - copies.distinct - copies.same_id
    return copies


# --- the same id ---


def _by_id(table: Table, records: Sequence[Record], copies: Copies) -> None:
    groups = [
        (group, differing(table.rows, group))
        for group in grouped(range(len(records)), lambda row: records[row].id or row)
        if len(group) > 1
    ]
    counted = Counter(number for _, differ in groups for number in differ)
    volatile = {number for number, count in counted.items() if _made_anew(table, number, count, len(groups))}
    for group, differ in groups:
        if differ <= volatile:
            _join(copies.labels, [group])
            copies.same_id += len(group) - 1
            copies.volatile |= {number: table.columns[number] for number in differ}
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
    said: set[int]  # what each group agrees on
    about: str
    groups: Sequence[Sequence[int]] = ()
    fresh: Sequence[Column] = ()
    near: bool = False
    recurring: bool = False
    own: Dependence | None = None

    @property
    def several(self) -> list[Sequence[int]]:
        return [group for group in self.groups if len(group) > 1]


def _by_likeness(table: Table, records: Sequence[Record], copies: Copies, tier: _Tier) -> None:
    equal = grouped(tier.rows, lambda row: only(table.rows[row], tier.said))
    heads = [group[0] for group in equal]
    fresh = fresh_columns(table, heads, [records[row].moment for row in heads])
    if not _settle(table, records, copies, tier._replace(groups=equal, fresh=fresh)):
        return
    excuses = Excuses((table.columns[number] for number in tier.said), len(tier.rows), fresh)
    essential = {number for number in tier.said if number not in excuses}
    alike = grouped(heads, lambda row: only(table.rows[row], essential))
    near = [_near(table, records, excuses, group) for group in alike]
    clusters = [cluster for each in near for cluster in each]
    nearly = _Tier(heads, essential, tier.about, clusters, fresh, near=True, recurring=_recur(near))
    _settle(table, records, copies, nearly)


def _settle(table: Table, records: Sequence[Record], copies: Copies, tier: _Tier) -> bool:
    """Judge the groups and join those that are copies; False where nothing more should be joined."""
    if not tier.several:
        return True
    asked = _question(table, records, tier)
    verdict = judge(asked)
    if tier.own is not None and copies.found and verdict.answer != "copies":
        return False  # likeness told more
    if tier.own is not None:
        copies.start_over()
    _enter(table, copies, tier, verdict)
    if verdict.answer == "copies":
        _join_runs(copies, tier, runs(asked))
        copies.between += 0 if asked.anchor else between(table, _moments(records), tier.groups, tier.said)
    return verdict.answer == "copies"


def _enter(table: Table, copies: Copies, tier: _Tier, verdict: Verdict) -> None:
    """Take down what was found."""
    numbers = {number for group in tier.several for number in differing(table.rows, group)}
    columns = {number: table.columns[number] for number in numbers}
    events = sum(map(len, tier.several))
    if tier.near and columns:
        copies.near, copies.nears, copies.differing = verdict, events, columns
    else:
        copies.exact, copies.equals = verdict, events
    if verdict.answer == "copies":
        copies.volatile |= columns


def _join_runs(copies: Copies, tier: _Tier, split: Sequence[Sequence[Sequence[int]]]) -> None:
    copies.apart += sum(len(each) - 1 for each in split)
    placed = zip(tier.several, split, strict=True)
    _join(copies.labels, [[group[place] for place in run] for group, each in placed for run in each])


def _moments(records: Sequence[Record]) -> list[Moment]:
    return [record.moment for record in records]


def _question(table: Table, records: Sequence[Record], tier: _Tier) -> Question:
    moments = _moments(records)
    anchor = _anchor(table, tier)
    return Question(
        groups=[[moments[row] for row in group] for group in tier.several],
        span=[moments[row] for row in tier.rows],
        anchor=anchor,
        within=MINUTE if tier.near and tier.own is None else 15 * MINUTE,
        objection=None if anchor else _objection(table, moments, tier),
        own=tier.own.told if tier.own else None,
        sure=tier.own is not None and tier.own.sure,
    )


def _objection(table: Table, moments: Sequence[Moment], tier: _Tier) -> str | None:
    if names.happens_again(tier.about) and tier.own is None:
        return "events of this name happen again and again"
    if tier.recurring:
        return "events like these come at other times, too"
    told = objection(table, moments, tier.groups, tier.said)
    sure = tier.own is not None and tier.own.sure
    if told is None and not sure and in_step(table, moments, tier.groups, tier.said):
        return "they follow each other as any two events do"
    return told


def _anchor(table: Table, tier: _Tier) -> str | None:
    """A field that is one event's own, and on which the members of each group agree."""
    own = [column for column in table.columns if _is_own(column, table, len(tier.groups))]
    groups = tier.several
    if sum(map(len, groups)) > MANY * len(groups):  # so many share it that it rather is the id of a thing
        own = [column for column in own if column.looks == "opaque"]
    for column in [*tier.fresh, *own]:
        if all(agree(table.rows, group, column.number) for group in groups):
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


def _firsts(labels: Sequence[int]) -> list[int]:
    return [row for row, label in enumerate(labels) if row == label]


def _join(labels: list[int], groups: Iterable[Sequence[int]]) -> None:
    home = {labels[row]: labels[group[0]] for group in groups for row in group}
    for row, label in enumerate(labels):
        labels[row] = home.get(label, label)
