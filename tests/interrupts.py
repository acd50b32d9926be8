"""Interrupts at each line: a `KeyboardInterrupt` wherever a signal handler could raise it, one line after the other."""

import sys
from collections.abc import Callable
from linecache import getline
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import eventonce
from eventonce import Context, Event, Once, OutcomeKind

_CODE = Path(eventonce.__file__).parent
_ENGINE = _CODE / "engine"


CodeFilter = Callable[[CodeType], bool]


def in_the_engine(code: CodeType) -> bool:
    """Return whether this is code of the engine. Stores have many lines, and each would cost several commits."""
    return Path(code.co_filename).parent in (_CODE, _ENGINE)


class Interrupt:
    """A tracer that raises an error at the nth line that this thread runs in some of the code while it is armed."""

    def __init__(self, line: int, error: type[BaseException], is_traced: CodeFilter = in_the_engine) -> None:
        self._is_traced = is_traced
        self.armed = False
        self.raised = False
        self._remaining = line
        self._error = error
        self._previous_trace: Callable[..., Any] | None = None

    def __enter__(self) -> Self:
        self._previous_trace = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._previous_trace)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if not self._is_traced(frame.f_code):
            return None
        if event == "line" and self.armed and not self.raised and not _is_lock(frame):
            self._remaining -= 1
            if not self._remaining:
                self.raised = True
                raise self._error
        return self._trace


def _is_lock(frame: FrameType) -> bool:
    """Return whether this line takes or releases a lock. A tracer can come between the two ends, and no signal can."""
    return getline(frame.f_code.co_filename, frame.f_lineno).strip() == "with self._lock:"


def interrupt_before_the_commit(
    once: Once,
    write: Callable[[Event, Context], None],
    count_writes: Callable[[str], int],
    is_traced: CodeFilter = in_the_engine,
) -> int:
    """Interrupt a batch at each line between the return of a handler that used `ctx.tx` and the run of the next one.

    The first event, with a plain effect, must be committed. The second must be undone, or recorded with its effect. The
    third must be released. Return the number of lines at which the batch was interrupted.
    """
    line = 0
    while _interrupted_at(line := line + 1, once, write, count_writes, is_traced):
        pass
    return line - 1


def _interrupted_at(
    line: int,
    once: Once,
    write: Callable[[Event, Context], None],
    count_writes: Callable[[str], int],
    is_traced: CodeFilter,
) -> bool:
    _, two, three = events = [{"id": f"{name}-{line}"} for name in ("one", "two", "three")]
    interrupt = Interrupt(line, KeyboardInterrupt, is_traced)

    def handle(event: Event, ctx: Context) -> None:
        interrupt.armed = event.id == two["id"]
        if interrupt.armed:
            write(event, ctx)

    with interrupt:
        raised = _error_of(lambda: once.run(events, handle))
    if not interrupt.raised:
        return False
    first, second, third = once.peek([once.key(event) for event in events])
    assert type(raised) is KeyboardInterrupt, f"line {line}: {raised!r}"
    assert first is not None
    assert first.done_at, f"line {line}: the first event was not committed"
    assert third is None, f"line {line}: the third event was not released"
    assert count_writes(two["id"]) == (0 if second is None else 1), f"line {line}: the effect and its record differ"
    kinds = [outcome.kind for outcome in once.run(events, write)]
    assert kinds == [
        OutcomeKind.DUPLICATE,
        OutcomeKind.PROCESSED if second is None else OutcomeKind.DUPLICATE,
        OutcomeKind.PROCESSED,
    ]
    assert [count_writes(event["id"]) for event in (two, three)] == [1, 1]
    return True


def _error_of(run: Callable[[], object]) -> BaseException | None:
    try:
        run()
    except BaseException as error:
        return error
    return None
