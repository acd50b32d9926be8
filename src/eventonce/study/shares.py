"""The facts of all traffic, in its order. To find them is nearly all of an audit's work, so large traffic is shared out
to processes, piece by piece; counting stays in one.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from eventonce.rules import Rulebook
from eventonce.study.facts import Facts
from eventonce.study.pieces import Piece, Pieces
from eventonce.study.traffic import Seen, Traffic, unpack

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

WORTH_IT = 32 * 1024 * 1024  # bytes of traffic below which starting processes costs more than it saves
_AHEAD = 8  # pieces for each other process that wait or are under way
_MOST = 8  # times as many may be done and wait for one before them
Found = tuple[int, Facts]  # how many documents, and the facts of what is in them
Search = Callable[[Pieces], Iterable[tuple[Piece, Found]]]


def all_facts(traffic: Traffic, book: Rulebook, processes: int | None = None) -> Iterator[Facts]:
    """The facts of all traffic, in its order."""
    count = _processes(traffic) if processes is None else processes
    if count < 2:
        return _of_files(traffic, book, lambda pieces: ((piece, find(piece, book)) for piece in pieces))
    return _shared_out(traffic, book, count)


def find(piece: Piece, book: Rulebook) -> Found:
    """The facts of a piece; positions count from its begin."""
    facts, documents = Facts(), 0
    for documents, delivery in enumerate(piece.deliveries(), 1):
        for position, event in unpack(documents, delivery):
            facts.add(event, delivery, position, book)
    return documents, facts


def _processes(traffic: Traffic) -> int:
    size = traffic.size
    return (os.cpu_count() or 1) if size is not None and size >= WORTH_IT else 1


def _of_files(traffic: Traffic, book: Rulebook, search: Search) -> Iterator[Facts]:
    for file in traffic.names:
        pieces = Pieces.of(file)
        if pieces is None:
            yield from (_of_batch(batch, book) for batch in traffic.batches(file))
            continue
        for piece, (documents, facts) in search(pieces):
            facts.shift(traffic.passed(piece, documents))
            yield facts


def _of_batch(batch: Iterable[Seen], book: Rulebook) -> Facts:
    facts = Facts()
    for event, delivery, position in batch:
        facts.add(event, delivery, position, book)
    return facts


# --- in several processes ---


def _shared_out(traffic: Traffic, book: Rulebook, processes: int) -> Iterator[Facts]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    others = processes - 1
    with ProcessPoolExecutor(others, get_context("spawn"), _prepare, (book.definition,)) as pool:
        yield from _of_files(traffic, book, lambda pieces: _in_order(pieces, pool, others * _AHEAD, book))


def _in_order(pieces: Pieces, pool: "ProcessPoolExecutor", ahead: int, book: Rulebook) -> Iterator[tuple[Piece, Found]]:
    """While the others have enough to do, this process does not wait for them: it takes the next piece itself."""
    under_way: deque[tuple[Piece, Future[Found]]] = deque()
    for piece in pieces:
        idle = sum(not found.done() for _, found in under_way) < ahead
        under_way.append((piece, pool.submit(_find, piece) if idle else _done(find(piece, book))))
        while under_way and (under_way[0][1].done() or len(under_way) > _MOST * ahead):
            first, found = under_way.popleft()
            yield first, found.result()
    for first, found in under_way:
        yield first, found.result()


def _done(found: Found) -> "Future[Found]":
    from concurrent.futures import Future

    done: Future[Found] = Future()
    done.set_result(found)
    return done


_book: Rulebook  # of a process in the pool


def _prepare(definition: tuple[Any, ...]) -> None:
    global _book  # noqa: PLW0603  # it has no other place
    _book = Rulebook(*definition)


def _find(piece: Piece) -> Found:
    return find(piece, _book)
