"""Signals: the first requests a stop, and the second has its usual effect."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from eventonce.cli import stderr


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first signal, and restore the usual effect for the second."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def first(number: int, frame: FrameType | None) -> None:
        restore()
        stderr.say("finishing events in progress; a second signal stops at once")
        stop()

    for number in handlers:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
