"""What commands write on stderr: sentences, log lines and a counter, for people or as JSON lines.

Everything goes through here. So no line continues a half-drawn counter, nothing from an event reaches the terminal as
it is, and each line is JSON if that was requested.
"""

import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from json import dumps
from typing import Any

import click

import eventonce
from eventonce.observe import lines
from eventonce.text import printable, safe_json, without_hidden

_CLEAR = "\r\033[K"  # go to the beginning of the line, and clear it
_log = logging.getLogger("eventonce.cli")


class _Stderr(logging.Handler):
    """Writes each record as a line, in place of a counter."""

    in_json = False
    drawn = False  # a counter is on the last line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write(self.format(record))
        except Exception:
            self.handleError(record)

    def write(self, line: str) -> None:
        """Write a line that is safe."""
        with self.alone():
            click.echo(f"{_CLEAR if self.drawn else ''}{without_hidden(line)}", err=True)
            self.drawn = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other thread write meanwhile."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


class _Sentences(lines.TextLines):
    """Formats a record for a command that ends by itself: without a time."""

    def head(self, record: logging.LogRecord) -> str:
        if getattr(record, "bare", False):
            return ""
        plain = record.levelno >= logging.ERROR or (record.name == _log.name and record.levelno == logging.INFO)
        return f"{record.name.partition('.')[0]}: {'' if plain else f'{record.levelname.lower()}: '}"


_stderr = _Stderr()
_stderr.setFormatter(_Sentences())
_log.addHandler(_stderr)
_log.propagate = False
_log.setLevel(logging.INFO)


# --- how to write ---


def start(arguments: Sequence[str]) -> None:
    """Begin a process. With `--json` or `--log-format json` each line is JSON, also if the arguments are wrong."""
    wanted = "--json" in arguments or "--log-format=json" in arguments
    in_json = wanted or ("--log-format", "json") in pairwise(arguments)
    setup(json=in_json)
    threading.excepthook = _report_thread
    if in_json:
        logging.captureWarnings(capture=True)
        sys.unraisablehook = _report_unraisable


def setup(level: str = "warning", *, json: bool = False, timed: bool = False) -> None:
    """Log to stderr from this level on. `timed` gives lines for people a time and a level."""
    lines.setup(level, json=json, handler=_stderr)
    _stderr.in_json = json
    if not json and not timed:
        _stderr.setFormatter(_Sentences())


def in_json() -> bool:
    return _stderr.in_json


def _report_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit and ended.exc_value is not None:
        _log.error("a thread failed", exc_info=ended.exc_value)


def _report_unraisable(ignored: "sys.UnraisableHookArgs") -> None:
    if ignored.exc_value is not None:
        _log.error("an error was ignored", exc_info=ignored.exc_value)


# --- what to write ---


def say(sentence: str) -> None:
    """Write a sentence of the command itself."""
    _log.info("%s", sentence)


def warn(sentence: str) -> None:
    """Write a warning of the command itself."""
    _log.warning("%s", sentence)


def fail(sentence: str, error: BaseException | None = None) -> None:
    """Write why the command ends. An error is written with its traceback."""
    _log.error("%s", sentence, exc_info=error)


def line(text: str, level: int = logging.WARNING) -> None:
    """Write a line that begins with a place, such as a line of a file."""
    _log.log(level, "%s", text, extra={"bare": True})


def result(fields: Mapping[str, Any], *text: str) -> None:
    """Write a result: the fields as JSON, or lines for people."""
    if _stderr.in_json:
        _stderr.write(safe_json(dumps(fields, ensure_ascii=False)))
        return
    for each in text:
        _stderr.write(printable(each))


def banner(fields: Mapping[str, str]) -> None:
    """Write what a worker is connected to."""
    if _stderr.in_json:
        _log.info("started", extra={"seen": {"version": eventonce.__version__, **fields}})
        return
    rows = [f"  {name.replace('_', ' '):<14}{value}" for name, value in fields.items()]
    result({}, f"eventonce {eventonce.__version__}", *rows)


# --- a counter on the last line of a terminal ---


def on_terminal() -> bool:
    """Return whether a counter can be drawn."""
    return not _stderr.in_json and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def drawing(*, last: bool = False) -> Iterator[None]:
    """Draw a counter, which the next line replaces. The last one stays."""
    with _stderr.alone():
        yield
        _stderr.drawn = not last


def draw(counter: str) -> None:
    """Draw a counter in place of the last one."""
    with drawing():
        click.echo(f"{_CLEAR}{counter}", nl=False, err=True)


def clear() -> None:
    """Remove the counter."""
    with _stderr.alone():
        if _stderr.drawn:
            click.echo(_CLEAR, nl=False, err=True)
            _stderr.drawn = False
