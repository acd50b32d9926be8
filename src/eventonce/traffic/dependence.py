"""An id that all else an event says depends on: `orderId`, where an order comes again as it was or not at all.

Copies that are sent again late look like the same thing happening again. What tells them apart is an id that was made
for the event. Of such an id the traffic shows that

* whenever it comes again, all else is the same, but for what belongs to a delivery;
* that is no chance: other events differ in the rest, and so would one that only shares the id. Where m events came
  again as they were and two others are alike with a probability of p, chance would have done it with p^m.

A thing's own id shows the same where an event repeats what is known of the thing: a product that is looked at twice
keeps its price. Only names tell these apart, so they have to (`names`): no id of what lasts, like a product or a user,
and no kind of event that happens again, like a click, unless it is the id of the click. Where the name says that it
happens to a thing once, as `Order Placed` does, the dependence is beyond a fair doubt at any distance. Elsewhere
nearness must speak for copies, too, and the id must look as if it was made for the event: without meaning, or rising
from event to event.

Where the events of one id differ in a state or two, id and state are asked together, and never without nearness: a
state may come back.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from eventonce.event.paths import ITEM
from eventonce.traffic import names
from eventonce.traffic.excuse import belongs_to_delivery
from eventonce.traffic.fields import Column, Table
from eventonce.traffic.groups import differing, grouped, only

_CHANCE = -4.0  # the logarithm of one in ten thousand
_ALIKE = 0.5
_RISES = 0.75
_DIGITS = re.compile(rb"\d{1,18}")
_FEW = 20
_MOST_STATES = 2
_MOST_ASKED = 60  # bounds the work


class Dependence(NamedTuple):
    """Fields that the rest depends on, and the rows that agree on them."""

    columns: tuple[Column, ...]
    groups: list[list[int]]
    excused: set[int]  # what they may differ in all the same
    once: bool  # the names say that it happens to one thing once
    alike: float  # how probably two events that differ there agree on the rest

    @property
    def again(self) -> int:
        """Events that came again."""
        return sum(len(group) - 1 for group in self.groups)

    @property
    def shown(self) -> bool:
        """Whether it is no chance that the rest is the same."""
        return self.alike <= _ALIKE and self.again * math.log10(self.alike) <= _CHANCE

    @property
    def sure(self) -> bool:
        return self.once and self.shown

    @property
    def told(self) -> str:
        """The evidence in words."""
        own = " with ".join(column.path for column in self.columns)
        if not self.shown:
            return f"by the names, {own} has but one event of this kind"
        once = ", and by the names it has but one event of this kind" if self.once else ""
        alike = f"two others do in {self.alike:.1%} of all cases at most"
        return f"whenever {own} came again ({self.again:,} times) they agreed on all else, as {alike}{once}"


def depend(table: Table, rows: Sequence[int], said: set[int], about: str) -> Dependence | None:
    """The best id that all else depends on; `about` is what the events are called."""
    ids = [column for column in table.columns if column.number in said and _is_id(column, table, about)]
    found = [each for column in ids[:_MOST_ASKED] for each in _asked(table, rows, said, column, about)]
    return max(found, key=lambda each: (each.sure, -len(each.columns), each.again), default=None)


def _is_id(column: Column, table: Table, about: str) -> bool:
    whole = column.known and column.of_data and ITEM not in column.steps and column.present == len(table.rows)
    shaped = column.looks == "opaque" and names.of_topic(column.name, about)
    named = (names.of_identity(column.name) and column.looks != "time") or shaped
    return whole and named and not belongs_to_delivery(column) and not _comes_again(column, about)


def _comes_again(column: Column, about: str) -> bool:
    again = names.happens_again(about) or names.of_lasting(column.name, about)
    return again and not names.happens_once(column.name, about)


def _asked(table: Table, rows: Sequence[int], said: set[int], own: Column, about: str) -> Iterator[Dependence]:
    once = names.happens_once(own.name, about)
    excused = {number for number in said if _is_excused(table.columns[number], len(rows), once=once)} - {own.number}
    alone = _groups(table, rows, {own.number})
    states = [table.columns[n] for group in alone for n in differing(table.rows, group) & said - excused]
    columns = (own, *dict.fromkeys(states))
    if len(columns) > 1 + _MOST_STATES or not all(_is_state(column) for column in columns[1:]):
        return
    groups = _groups(table, rows, {column.number for column in columns}) if states else alone
    rest = said - excused - {column.number for column in columns}
    found = Dependence(columns, groups, excused, once and not states, _alike(table, groups, rest))
    if found.again and (found.once or (found.shown and _is_made(table, rows, own))):
        yield found


def _groups(table: Table, rows: Sequence[int], numbers: set[int]) -> list[list[int]]:
    return grouped(rows, lambda row: only(table.rows[row], numbers))


def _is_state(column: Column) -> bool:
    return column.known and names.of_state(column.name) and len(column.cells) <= _FEW


def _is_excused(column: Column, events: int, *, once: bool) -> bool:
    """Whether a delivery may have made it anew; more may be where the event cannot happen to the same thing again."""
    if not column.known or belongs_to_delivery(column):
        return column.known
    stamped = column.looks == "time" and names.of_any_time(column.name)
    numbered = column.looks == "opaque" and len(column.cells) >= events
    return once and (stamped or (numbered and (column.of_event or not names.of_identity(column.name))))


def _is_made(table: Table, rows: Sequence[int], own: Column) -> bool:
    """Whether it looks as if each event was given one: without meaning, or rising."""
    firsts = dict.fromkeys(table.rows[row][own.number] for row in rows)
    numbers = [[int(digits) for digits in _DIGITS.findall(cell)] for cell in firsts]
    rising = sum(later > earlier for earlier, later in pairwise(numbers))
    return own.looks == "opaque" or rising >= _RISES * (len(numbers) - 1)


def _alike(table: Table, groups: Sequence[Sequence[int]], rest: set[int]) -> float:
    counts = Counter(only(table.rows[group[0]], rest) for group in groups)
    pairs = sum(count * (count - 1) for count in counts.values())
    return max(pairs / max(1, len(groups) * (len(groups) - 1)), 1 / len(groups))
