"""The facts of all traffic, in its order. To find them is nearly all of an audit's work, so large traffic is shared out
to processes, piece by piece; counting stays in one.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from eventonce.rules import Rulebook
from eventonce.traffic.facts import Facts, FactsBuilder
from eventonce.traffic.file_ranges import DocumentRow, LineCounter, Piece, Pieces
from eventonce.traffic.recorded import RecordedEvent, Traffic

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

WORTH_IT = 32 * 1024 * 1024  # bytes of traffic below which starting processes costs more than it saves
_AHEAD = 8  # pieces for each other process that wait or are under way
_MOST = 8  # times as many may be done and wait for one before them
Search = Callable[[Iterable[Piece]], Iterable[tuple[Piece, Facts]]]


def all_facts(traffic: Traffic, book: Rulebook, processes: int | None = None) -> Iterator[Facts]:
    """The facts of all traffic, in its order."""
    count = _processes(traffic) if processes is None else processes
    if count < 2:
        return _of_files(traffic, book, lambda pieces: ((piece, find(piece, book)) for piece in pieces))
    return _shared_out(traffic, book, count)


def find(piece: Piece, book: Rulebook) -> Facts:
    """The facts of a piece; positions and lines count from its begin."""
    facts = _of_piece(piece.documents(hasty=True), piece, book)
    if any(each.group is None for each in facts.rejected):  # there may have been several documents in a line
        return _of_piece(piece.documents(), piece, book)
    return facts


def _of_piece(documents: Iterable[DocumentRow], piece: Piece, book: Rulebook) -> Facts:
    facts = Facts()
    facts.take(documents, piece.shown, book)
    return facts


def _processes(traffic: Traffic) -> int:
    size = traffic.size
    return (os.cpu_count() or 1) if size is not None and size >= WORTH_IT else 1


def _of_files(traffic: Traffic, book: Rulebook, search: Search) -> Iterator[Facts]:
    cuts = ((file, Pieces.of(file)) for file in traffic.names)
    for can_be_cut, some in groupby(cuts, lambda cut: cut[1] is not None):
        if can_be_cut:
            yield from _of_pieces(traffic, search(piece for _, cut in some if cut for piece in cut.unnumbered()))
        else:
            yield from (_of_batch(batch, book) for file, _ in some for batch in traffic.batches(file))


def _of_pieces(traffic: Traffic, found: Iterable[tuple[Piece, Facts]]) -> Iterator[Facts]:
    for file, several in groupby(found, lambda each: each[0].file):
        lines = LineCounter(file)
        for piece, facts in several:
            facts.shift(traffic.passed(piece, facts.documents), lines.before(piece.begin) if facts.rejected else 0)
            yield facts


def _of_batch(batch: Iterable[RecordedEvent], book: Rulebook) -> Facts:
    facts = Facts()
    for shown, several in groupby(batch, lambda seen: str(seen.delivery.origin["source"])):
        rows = FactsBuilder(facts, shown, book)
        for event, delivery, position in several:
            rows.add(event, position, delivery.origin["line"])
        rows.enter()
    return facts


# --- in several processes ---


def _shared_out(traffic: Traffic, book: Rulebook, processes: int) -> Iterator[Facts]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    others = processes - 1
    with ProcessPoolExecutor(others, get_context("spawn"), _prepare, (book.definition,)) as pool:
        yield from _of_files(traffic, book, lambda pieces: _in_order(pieces, pool, others * _AHEAD, book))


def _in_order(
    pieces: Iterable[Piece], pool: "ProcessPoolExecutor", ahead: int, book: Rulebook
) -> Iterator[tuple[Piece, Facts]]:
    """While the others have enough to do, this process does not wait for them: it takes the next piece itself."""
    under_way: deque[tuple[Piece, Future[Facts]]] = deque()
    for piece in pieces:
        idle = sum(not found.done() for _, found in under_way) < ahead
        under_way.append((piece, pool.submit(_find, piece) if idle else _done(find(piece, book))))
        while under_way and (under_way[0][1].done() or len(under_way) > _MOST * ahead):
            first, found = under_way.popleft()
            yield first, found.result()
    for first, found in under_way:
        yield first, found.result()


def _done(found: Facts) -> "Future[Facts]":
    from concurrent.futures import Future

    done: Future[Facts] = Future()
    done.set_result(found)
    return done


_book: Rulebook  # of a process in the pool


def _prepare(definition: tuple[Any, ...]) -> None:
    global _book  # noqa: PLW0603  # it has no other place
    _book = Rulebook(*definition)


def _find(piece: Piece) -> Facts:
    return find(piece, _book)
