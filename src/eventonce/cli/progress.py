"""A progress bar on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from types import TracebackType
from typing import Any, Self

import click

from eventonce.cli import stderr
from eventonce.ports import Measured
from eventonce.text import counted

_DRAW_SECONDS = 0.1  # between two drawings
_LINE_SECONDS = 60.0  # between two lines, without a terminal


class Progress:
    """How far a file has been read. On a pipe, how many events have come."""

    def __init__(self, source: object) -> None:
        self._measured = source if isinstance(source, Measured) else None
        self._events = 0
        self._drawn_at = 0.0
        self._started_at = self._line_at = time.monotonic()
        self._on_terminal = stderr.on_terminal()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._on_terminal and self._size:
            self._bar = click.progressbar(length=self._size, label="events", file=sys.stderr)
            with stderr.drawing():
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
        """Count events that are done, and show them from time to time."""
        self._events += events
        if self._on_terminal and time.monotonic() - self._drawn_at > _DRAW_SECONDS:
            self._drawn_at = time.monotonic()
            self._draw()
        elif self._size and not self._on_terminal and time.monotonic() - self._line_at > _LINE_SECONDS:
            self._line_at = time.monotonic()
            self._write_line(self._size)

    def done(self) -> None:
        """Remove the counter. A bar stays as it is at the end."""
        if self._bar is not None:
            with stderr.drawing(last=True):
                self._bar.update(self._position - self._bar.pos)
                self._bar.__exit__(None, None, None)
            self._bar = None
        else:
            stderr.clear()
        self._on_terminal = False

    def _write_line(self, size: int) -> None:
        """Write for a log how far it is, and how long it will take."""
        done = max(1, self._position)
        remaining = (time.monotonic() - self._started_at) * (size - done) / done
        minutes = max(1, round(remaining / 60))
        text = f"{100 * done // size} %, {counted(self._events, 'event')}, about {minutes} min left"
        stderr.line(text, logging.INFO)

    def _draw(self) -> None:
        if self._bar is None:
            stderr.draw(counted(self._events, "event"))
            return
        with stderr.drawing():
            self._bar.label = counted(self._events, "event")
            self._bar.update(self._position - self._bar.pos)
