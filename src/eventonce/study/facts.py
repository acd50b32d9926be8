"""Facts: what an audit needs to know of an event, small enough to pass from one process to another.

Finding them is nearly all of an audit's work, so large traffic is shared out to processes. Counting stays in one.
"""

import os
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from eventonce.errors import EventRejected
from eventonce.rules import Rulebook
from eventonce.study import fingerprint
from eventonce.study.pieces import Piece, Pieces
from eventonce.study.traffic import Seen, Traffic, unpack

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

WORTH_IT = 32 * 1024 * 1024  # bytes of traffic below which starting processes costs more than it saves
_AHEAD = 3  # pieces for each process that wait or are under way
Found = tuple[int, list[tuple[Any, ...]]]  # how many documents, and the facts of what is in them
_LONGEST_NAME = 200


class Facts(NamedTuple):
    """One event, or why it is none."""

    source: str
    type: str
    position: int
    time: int | None = None
    rule: int = -1  # its number in the book
    key: int = 0
    version: int | None = None
    content: int = 0
    own_id: int | None = None
    replayed: bool = False
    rejected: str | None = None
    place: str = ""
    known: bool = True  # whether there was an event to reject


def facts(book: Rulebook, seen: Seen) -> Facts:
    """The facts of one event."""
    event = seen.event
    if isinstance(event, EventRejected):
        return Facts("", "", seen.position, rejected=str(event), place=seen.place, known=False)
    source, kind = event.source[:_LONGEST_NAME], event.type[:_LONGEST_NAME]
    try:
        keyed = book.find(event).key(event)
    except EventRejected as error:
        return Facts(source, kind, seen.position, rejected=str(error), place=seen.place)
    return Facts(
        source,
        kind,
        seen.position,
        seen.time,
        keyed.rule.number,
        fingerprint.of_key(keyed.key),
        keyed.version,
        fingerprint.of_content(keyed, event),
        fingerprint.of_id(event),
        bool(event.replay),
    )


def all_facts(traffic: Traffic, book: Rulebook, processes: int | None = None) -> Iterator[Facts]:
    """The facts of all traffic, in its order."""
    count = _processes(traffic) if processes is None else processes
    if count < 2:
        return (facts(book, seen) for seen in traffic)
    return _shared_out(traffic, book, count)


def _processes(traffic: Traffic) -> int:
    size = traffic.size
    return (os.cpu_count() or 1) if size is not None and size >= WORTH_IT else 1


def _shared_out(traffic: Traffic, book: Rulebook, processes: int) -> Iterator[Facts]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(processes, get_context("spawn"), _prepare, (book.definition,)) as pool:
        for file in traffic.names:
            pieces = Pieces.of(file)
            if pieces is None:  # gzip, a pipe, or not there: read here
                yield from (facts(book, seen) for seen in traffic.of(file))
            else:
                yield from _in_order(traffic, pool, pieces, _AHEAD * processes)


def _in_order(traffic: Traffic, pool: "ProcessPoolExecutor", pieces: Pieces, ahead: int) -> Iterator[Facts]:
    under_way: deque[tuple[Piece, Future[Found]]] = deque()
    for piece in pieces:
        under_way.append((piece, pool.submit(_find, piece)))
        if len(under_way) >= ahead:
            yield from _taken(traffic, *under_way.popleft())
    while under_way:
        yield from _taken(traffic, *under_way.popleft())


def _taken(traffic: Traffic, piece: Piece, found: "Future[Found]") -> Iterator[Facts]:
    documents, rows = found.result()
    before = traffic.passed(piece, documents)
    for source, kind, position, *rest in rows:
        yield Facts(source, kind, position + before, *rest)


# --- in a process of its own ---

_book: Rulebook


def _prepare(definition: tuple[Any, ...]) -> None:
    global _book  # noqa: PLW0603  # a process of a pool has no other place
    _book = Rulebook(*definition)


def _find(piece: Piece) -> "Found":
    rows = []
    documents = 0
    for documents, delivery in enumerate(piece.deliveries(), 1):
        rows += [tuple(facts(_book, seen)) for seen in unpack(documents, delivery)]
    return documents, rows
