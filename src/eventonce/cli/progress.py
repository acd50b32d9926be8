"""A progress bar on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Self

import click

from eventonce.ports import Measured

_EVERY = 0.1  # seconds between two drawings
_SAID_EVERY = 60.0  # seconds between two lines, where there is no terminal


class Progress:
    """How far a file has been read; on a pipe, how many events have come."""

    def __init__(self, source: object) -> None:
        self._measured = source if isinstance(source, Measured) else None
        self._events = 0
        self._drawn_at = 0.0
        self._began_at = self._said_at = time.monotonic()
        self._shown = sys.stderr.isatty()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._shown and self._size:
            self._bar = click.progressbar(length=self._size, label="events", file=sys.stderr)
            self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()

    @property
    def _size(self) -> int | None:
        return self._measured.size if self._measured is not None else None

    @property
    def _position(self) -> int:
        return self._measured.position if self._measured is not None else 0

    def step(self, events: int = 1) -> None:
        """So many more events have ended."""
        self._events += events
        if self._shown and time.monotonic() - self._drawn_at > _EVERY:
            self._drawn_at = time.monotonic()
            self._draw()
        elif self._size and not self._shown and time.monotonic() - self._said_at > _SAID_EVERY:
            self._said_at = time.monotonic()
            self._tell(self._size)

    def say(self, line: str) -> None:
        """A line for the reader."""
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)
        click.echo(line, err=True)

    def done(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.update(self._position - self._bar.pos)
            self._bar.__exit__(None, None, None)
            self._bar = None
        elif self._shown and self._events:
            click.echo("\r\033[K", nl=False, err=True)
        self._shown = False

    def _tell(self, size: int) -> None:
        """How far it is and how long it will take, for who reads a log."""
        done = max(1, self._position)
        left = (time.monotonic() - self._began_at) * (size - done) / done
        self.say(f"{100 * done // size} %, {self._events:,} events, about {max(1, round(left / 60))} min left")

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.label = f"{self._events:,} events"
            self._bar.update(self._position - self._bar.pos)
        else:
            click.echo(f"\r\033[K{self._events:,} events", nl=False, err=True)
