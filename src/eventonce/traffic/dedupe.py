"""An archive without its duplicates, in two passes: keys first, then the files again without what is dropped.

Only keys are brought together. An event itself goes from its file to the output and nowhere else.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec

from eventonce.errors import EventOnceError
from eventonce.rules import Rulebook
from eventonce.traffic.archive import Archive, display_name
from eventonce.traffic.audit import unreadable_files
from eventonce.traffic.dedupe_plan import DedupePlan
from eventonce.traffic.drop_lists import DropCounts, write_drop_lists
from eventonce.traffic.keyed import KeysHeader, key_part
from eventonce.traffic.processes import map_in_processes
from eventonce.traffic.report import Unreadable
from eventonce.traffic.write import Written, write_file

_FIRST, _SECOND = 3, 1  # what a byte costs in each pass


class DedupeEngine(Protocol):
    """What carries out the steps of a deduplication."""

    def map(
        self, function: Callable[[Any, Rulebook], Any], tasks: Iterable[Any], rulebook: Rulebook
    ) -> Iterator[Any]: ...
    def find_drops(self, plan: DedupePlan, headers: list[KeysHeader]) -> DropCounts: ...


class OneMachine:
    """Processes and DuckDB."""

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes

    def map(self, function: Callable[[Any, Rulebook], Any], tasks: Iterable[Any], rulebook: Rulebook) -> Iterator[Any]:
        """Yield what the function returns for each task."""
        several = list(tasks)
        return map_in_processes(function, several, rulebook, self._processes if len(several) > 1 else 1)

    def find_drops(self, plan: DedupePlan, headers: list[KeysHeader]) -> DropCounts:
        """Write the drop lists of all files. Return how many events they drop."""
        return write_drop_lists(plan, headers)


class DedupeResult(msgspec.Struct, frozen=True):
    """What a deduplication has done."""

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
    def complete(self) -> bool:
        """Whether all of the input could be read and keyed."""
        return not self.unreadable and not self.rejected


class Dedupe:
    """One deduplication. `size` and `position` are for a progress bar."""

    def __init__(self, plan: DedupePlan, engine: DedupeEngine | None = None) -> None:
        self._plan = plan
        self._engine = engine or OneMachine()
        self.size: int | None = sum(part.size for part in plan.archive.parts) * (_FIRST + _SECOND)
        self.position = 0

    def run(self, step: Callable[[int], object] = lambda events: None) -> DedupeResult:
        """Do all of it, or what an earlier run has not finished."""
        plan = self._plan
        try:
            with plan.opened():
                headers = self._first_pass(step)
                drops = self._engine.find_drops(plan, headers)
                self._second_pass(headers, step)
                plan.finish()
        except OSError as error:
            reason = error.strerror or str(error).splitlines()[0][:200]
            raise EventOnceError(
                f"{plan.work}: {reason}; {plan.out} was not made, and finished work waits here: "
                "fix the problem and run the same again, or remove the folder"
            ) from None
        return _result(plan.archive, headers, drops)

    def _first_pass(self, step: Callable[[int], object]) -> list[KeysHeader]:
        plan, headers = self._plan, dict[int, KeysHeader]()
        function = partial(key_part, work_folder=plan.work_folder)
        for header in self._engine.map(function, plan.archive.parts, plan.rulebook):
            headers[header.part] = header
            self.position += plan.archive.parts[header.part].size * _FIRST
            step(header.events)
        return [headers[part.number] for part in plan.archive.parts]

    def _second_pass(self, headers: list[KeysHeader], step: Callable[[int], object]) -> None:
        plan = self._plan
        with_documents = {part.file for part in plan.archive.parts if headers[part.number].documents}
        function = partial(write_file, work_folder=plan.work_folder)
        tasks = [target for target in plan.targets if target.file in with_documents]
        written: Written
        for written in self._engine.map(function, tasks, plan.rulebook):
            self.position += written.size * _SECOND
            step(0)


def _result(archive: Archive, headers: list[KeysHeader], drops: DropCounts) -> DedupeResult:
    documents: dict[str, int] = {}
    for part, header in zip(archive.parts, headers, strict=True):
        documents[part.path] = documents.get(part.path, 0) + header.documents
        if header.unreadable is not None:
            archive.mark_unreadable(part.path, header.unreadable)
    events, rejected = sum(header.events for header in headers), sum(header.rejected for header in headers)
    by_name = {display_name(path): count for path, count in documents.items()}
    return DedupeResult(
        files=len(archive.files),
        documents=sum(documents.values()),
        events=events,
        kept=events - rejected - drops.duplicates - drops.stale,
        duplicates=drops.duplicates,
        stale=drops.stale,
        rejected=rejected,
        empty=[name for name, count in by_name.items() if not count and name not in archive.unreadable],
        unreadable=unreadable_files(archive),
    )
