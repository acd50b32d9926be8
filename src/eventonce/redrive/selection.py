"""Choosing letters, and what those that were chosen have in common."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from eventonce.dead_letters.letter import MOST
from eventonce.ports import DeadLetter

# What differs between two reasons that are one: names in quotes, numbers, ids.
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\b[0-9a-fA-F][0-9a-fA-F-]{7,}\b|\d+")


class LetterFilter(NamedTuple):
    """Which letters are meant; what is not given does not matter."""

    reason: str | None = None  # a part of it
    rule: str | None = None
    key: str | None = None
    since: datetime | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether this letter is meant."""
        if self.reason is not None and self.reason.lower() not in letter.reason.lower():
            return False
        if self.since is not None and (letter.time is None or letter.time < self.since):
            return False
        return self.rule in (None, letter.rule) and self.key in (None, letter.key)


class RedrivePlan(NamedTuple):
    """What was found, and what of it is to be redriven."""

    found: int
    matching: int
    chosen: list[DeadLetter]  # the first `MOST` that match
    letters: list[DeadLetter]  # those of them that are to be redriven


def plan(letters: Iterable[DeadLetter], choice: LetterFilter, limit: int | None = None) -> RedrivePlan:
    """Look at all letters."""
    found, matching = 0, 0
    chosen: list[DeadLetter] = []
    for letter in letters:
        found += 1
        if choice.takes(letter):
            matching += 1
            chosen += [letter] if len(chosen) < MOST else []
    return RedrivePlan(found, matching, chosen, [letter for letter in chosen if letter.trouble is None][:limit])


class LetterGroup(NamedTuple):
    """Letters of one rule that died of the same."""

    size: int
    rule: str | None
    outcome: str
    reason: str  # of one of them
    trouble: str | None  # why they cannot be redriven


def groups(letters: Iterable[DeadLetter]) -> list[LetterGroup]:
    """The letters by rule and reason, the largest group first."""
    found: dict[tuple[object, ...], LetterGroup] = {}
    for letter in letters:
        alike = (letter.rule, letter.outcome, _VARIES.sub("*", letter.reason), letter.trouble is None)
        first = found.get(alike, LetterGroup(0, letter.rule, letter.outcome, letter.reason, letter.trouble))
        found[alike] = first._replace(size=first.size + 1)
    return sorted(found.values(), key=lambda group: -group.size)
