"""Selecting letters for a redrive, and grouping them by rule and reason."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from eventonce.dead_letters.letter import MAX_LETTERS
from eventonce.ports import DeadLetter

# The parts in which two equal reasons may differ: names in quotes, numbers, ids.
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\b[0-9a-fA-F][0-9a-fA-F-]{7,}\b|\d+")


class LetterFilter(NamedTuple):
    """The conditions that a letter must meet. None means any."""

    reason: str | None = None  # a part of the letter's reason
    rule: str | None = None
    key: str | None = None
    since: datetime | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Return whether a letter meets all conditions."""
        if self.reason is not None and self.reason.lower() not in letter.reason.lower():
            return False
        if self.since is not None and (letter.time is None or letter.time < self.since):
            return False
        return self.rule in (None, letter.rule) and self.key in (None, letter.key)


class RedrivePlan(NamedTuple):
    """The letters of a box, counted, and those to redrive."""

    total: int
    matching: int
    chosen: list[DeadLetter]  # the first `MAX_LETTERS` that match
    letters: list[DeadLetter]  # those of them to redrive


def plan(letters: Iterable[DeadLetter], letter_filter: LetterFilter, limit: int | None = None) -> RedrivePlan:
    """Read all letters and return those to redrive, at most `limit` of them."""
    total, matching = 0, 0
    chosen: list[DeadLetter] = []
    for letter in letters:
        total += 1
        if letter_filter.matches(letter):
            matching += 1
            chosen += [letter] if len(chosen) < MAX_LETTERS else []
    return RedrivePlan(total, matching, chosen, [letter for letter in chosen if letter.unreadable is None][:limit])


class LetterGroup(NamedTuple):
    """Letters of one rule with the same reason."""

    size: int
    rule: str | None
    outcome: str
    reason: str  # of one of them
    unreadable: str | None  # why they cannot be redriven


def groups(letters: Iterable[DeadLetter]) -> list[LetterGroup]:
    """Return the letters grouped by rule and reason, the largest group first."""
    by_reason: dict[tuple[object, ...], LetterGroup] = {}
    for letter in letters:
        common = (letter.rule, letter.outcome, _VARIES.sub("*", letter.reason), letter.unreadable is None)
        group = by_reason.get(common, LetterGroup(0, letter.rule, letter.outcome, letter.reason, letter.unreadable))
        by_reason[common] = group._replace(size=group.size + 1)
    return sorted(by_reason.values(), key=lambda group: -group.size)
