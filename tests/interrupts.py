"""Interrupts at each line: `KeyboardInterrupt` where a signal's handler could raise it, one place after the other."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import eventonce
from eventonce import Context, Event, Once, OutcomeKind

_CODE = Path(eventonce.__file__).parent
_ENGINE = _CODE / "engine"


Where = Callable[[CodeType], bool]


def in_the_engine(code: CodeType) -> bool:
    """Leave stores out: they have many lines, and each costs a test several commits to the disk."""
    return Path(code.co_filename).parent in (_CODE, _ENGINE)


class Interrupt:
    """Raises an error at the nth line of some of eventonce's code that this thread runs while it is armed."""

    def __init__(self, nth: int, error: type[BaseException], where: Where = in_the_engine) -> None:
        self._where = where
        self.armed = False
        self.raised = False
        self._left = nth
        self._error = error
        self._before: Callable[..., Any] | None = None

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if not self._where(frame.f_code):
            return None
        if event == "line" and self.armed and not self.raised:
            self._left -= 1
            if not self._left:
                self.raised = True
                raise self._error
        return self._trace


def interrupt_before_the_commit(
    once: Once, write: Callable[[Event, Context], None], written: Callable[[str], int], where: Where = in_the_engine
) -> int:
    """Interrupt a batch at each line between the return of a handler that used `ctx.tx` and the run of the next one.

    One, whose effect is plain, must be committed; two is undone or recorded with its effect; three is given back.
    Returns at how many lines it was interrupted.
    """
    nth = 0
    while _interrupted_at(nth := nth + 1, once, write, written, where):
        pass
    return nth - 1


def _interrupted_at(
    nth: int, once: Once, write: Callable[[Event, Context], None], written: Callable[[str], int], where: Where
) -> bool:
    _, two, three = events = [{"id": f"{name}-{nth}"} for name in ("one", "two", "three")]
    interrupt = Interrupt(nth, KeyboardInterrupt, where)

    def handle(event: Event, ctx: Context) -> None:
        interrupt.armed = event.id == two["id"]
        if interrupt.armed:
            write(event, ctx)

    with interrupt:
        raised = _error_of(lambda: once.run(events, handle))
    if not interrupt.raised:
        return False
    first, second, third = once.peek([once.key(event) for event in events])
    assert type(raised) is KeyboardInterrupt, f"line {nth}: {raised!r}"
    assert first is not None
    assert first.done_at, f"line {nth}: what had taken effect was not committed"
    assert third is None, f"line {nth}: what had not run was not given back"
    assert written(two["id"]) == (0 if second is None else 1), f"line {nth}: the effect and its record differ"
    kinds = [outcome.kind for outcome in once.run(events, write)]
    assert kinds == [
        OutcomeKind.DUPLICATE,
        OutcomeKind.PROCESSED if second is None else OutcomeKind.DUPLICATE,
        OutcomeKind.PROCESSED,
    ]
    assert [written(event["id"]) for event in (two, three)] == [1, 1]
    return True


def _error_of(run: Callable[[], object]) -> BaseException | None:
    try:
        run()
    except BaseException as error:
        return error
    return None
