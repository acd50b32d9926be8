"""Signals: the first one asks to stop, the second does what it would have done."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import click

Say = Callable[[str], None]


def say_aloud(line: str) -> None:
    click.echo(f"eventonce: {line}", err=True)


@contextmanager
def stopping(stop: Callable[[], None], say: Say = say_aloud) -> Iterator[None]:
    """Have the first signal call this, and the second do what it would have done."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def first(number: int, frame: FrameType | None) -> None:
        restore()
        say("stopping when what is in hand is done; a second signal stops at once")
        stop()

    for number in before:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
