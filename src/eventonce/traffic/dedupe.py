"""A deduplicated copy of an archive, in two passes: keys first, then the files again without what lost.

Only keys are brought together; an event itself goes from its file to the output and nowhere else.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec

from eventonce.errors import EventOnceError
from eventonce.rules import Rulebook
from eventonce.traffic.archive import Archive, printable
from eventonce.traffic.dedupe_plan import DedupePlan
from eventonce.traffic.drop_lists import DropCounts, judge
from eventonce.traffic.keyed import KeysHeader, key_part
from eventonce.traffic.pool import shared_out
from eventonce.traffic.report import Unreadable
from eventonce.traffic.write import Written, write_file

_FIRST, _SECOND = 3, 1  # what a byte costs in each pass


class Engine(Protocol):
    """What carries out the steps of a copy."""

    def map(self, act: Callable[[Any, Rulebook], Any], tasks: Iterable[Any], book: Rulebook) -> Iterator[Any]: ...
    def judge(self, plan: DedupePlan, headers: list[KeysHeader]) -> DropCounts: ...


class OneMachine:
    """Processes and DuckDB."""

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes

    def map(self, act: Callable[[Any, Rulebook], Any], tasks: Iterable[Any], book: Rulebook) -> Iterator[Any]:
        """What becomes of each task, in any order."""
        several = list(tasks)
        return shared_out(act, several, book, self._processes if len(several) > 1 else 1)

    def judge(self, plan: DedupePlan, headers: list[KeysHeader]) -> DropCounts:
        """Which events lose."""
        return judge(plan, headers)


class DedupeResult(msgspec.Struct, frozen=True):
    """What a copy has done."""

    files: int
    documents: int
    events: int
    kept: int
    duplicates: int
    stale: int
    rejected: int
    empty: list[str]
    unreadable: list[Unreadable]

    @property
    def good(self) -> bool:
        """Whether all of the input could be read and keyed."""
        return not self.unreadable and not self.rejected


class Copy:
    """One copy. It knows how far it is, for who shows that."""

    def __init__(self, plan: DedupePlan, engine: Engine | None = None) -> None:
        self._plan = plan
        self._engine = engine or OneMachine()
        self.size: int | None = sum(part.size for part in plan.archive.parts) * (_FIRST + _SECOND)
        self.position = 0

    def run(self, step: Callable[[int], object] = lambda events: None) -> DedupeResult:
        """Do it, or what an earlier run has left of it."""
        plan = self._plan
        try:
            with plan.opened():
                headers = self._first(step)
                judged = self._engine.judge(plan, headers)
                self._second(headers, step)
                plan.finish()
        except OSError as error:
            why = error.strerror or str(error).splitlines()[0][:200]
            raise EventOnceError(
                f"{plan.work}: {why}; {plan.out} was not made, and what is finished waits here: "
                "mend that and run the same again, or remove it"
            ) from None
        return _told(plan.archive, headers, judged)

    def _first(self, step: Callable[[int], object]) -> list[KeysHeader]:
        plan, found = self._plan, dict[int, KeysHeader]()
        act = partial(key_part, places=plan.places)
        for header in self._engine.map(act, plan.archive.parts, plan.book):
            found[header.part] = header
            self.position += plan.archive.parts[header.part].size * _FIRST
            step(header.events)
        return [found[part.number] for part in plan.archive.parts]

    def _second(self, headers: list[KeysHeader], step: Callable[[int], object]) -> None:
        plan = self._plan
        holds = {part.file for part in plan.archive.parts if headers[part.number].documents}
        act = partial(write_file, places=plan.places)
        tasks = [target for target in plan.targets if target.file in holds]
        written: Written
        for written in self._engine.map(act, tasks, plan.book):
            self.position += written.size * _SECOND
            step(0)


def _told(archive: Archive, headers: list[KeysHeader], judged: DropCounts) -> DedupeResult:
    documents: dict[str, int] = {}
    for part, header in zip(archive.parts, headers, strict=True):
        documents[part.path] = documents.get(part.path, 0) + header.documents
        if header.unreadable is not None:
            archive.left_out(part.path, header.unreadable)
    events, rejected = sum(each.events for each in headers), sum(each.rejected for each in headers)
    shown = {printable(path): count for path, count in documents.items()}
    return DedupeResult(
        files=archive.files,
        documents=sum(documents.values()),
        events=events,
        kept=events - rejected - judged.duplicates - judged.stale,
        duplicates=judged.duplicates,
        stale=judged.stale,
        rejected=rejected,
        empty=[path for path, count in shown.items() if not count and path not in archive.unreadable],
        unreadable=[Unreadable(path, reason) for path, reason in archive.unreadable.items()],
    )
