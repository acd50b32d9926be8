"""The contract with every engine: lines of JSON in, keys out, both as Arrow."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_events
from eventonce.rules import Rulebook
from eventonce.sources.documents import LONGEST
from eventonce.traffic.drivers import need
from eventonce.traffic.recorded import millis
from eventonce.wire import load, rulebook

if TYPE_CHECKING:
    import pyarrow as pa

Rules = Rulebook | str | Path  # a book of rules, or the pipeline file that has them


def book_of(rules: Rules) -> Rulebook:
    """The book itself, or that of a pipeline file."""
    return rules if isinstance(rules, Rulebook) else rulebook(load(rules))


def keys_arrow(lines: "pa.Array | pa.ChunkedArray | list[Any]", rules: Rules) -> "pa.Table":
    """The keys of events, a row for each; a line that carries several, as a batch of a queue does, has several rows.

    `line` counts the lines from 0. `key` has 16 bytes, `rule` is the rule's name, `version` what the rule finds of one,
    `time` the event's own time to the millisecond. What has no key has none of these: `ok` is false, and `reason` says
    why.
    """
    found = _Columns(book_of(rules))
    for number, line in enumerate(lines if isinstance(lines, list) else lines.to_pylist()):
        for event in _events(line):
            found.add(number, event)
    return found.table()


def _events(line: Any) -> Sequence[Event | EventRejected]:
    return [EventRejected("is null, not an event")] if line is None else read_events(line, LONGEST)


class _Columns:
    def __init__(self, book: Rulebook) -> None:
        self._book = book
        self._lines: list[int] = []
        self._keys: list[bytes | None] = []
        self._rules: list[int | None] = []
        self._versions: list[int | None] = []
        self._times: list[int | None] = []
        self._reasons: list[str | None] = []

    def add(self, line: int, event: Event | EventRejected) -> None:
        self._lines.append(line)
        try:
            if isinstance(event, EventRejected):
                raise event
            keyed = self._book.key(event)
        except EventRejected as error:
            self._enter(None, None, None, None, str(error))
        else:
            self._enter(keyed.key, keyed.rule.number, keyed.version, millis(event), None)

    def _enter(
        self, key: bytes | None, rule: int | None, version: int | None, time: int | None, reason: str | None
    ) -> None:
        self._keys.append(key)
        self._rules.append(rule)
        self._versions.append(version)
        self._times.append(time)
        self._reasons.append(reason)

    def table(self) -> "pa.Table":
        pa = need("pyarrow", "duckdb")
        reasons = pa.array([_writable(reason) for reason in self._reasons], pa.string())
        names = pa.array([rule.name for rule in self._book.all], pa.string())
        return pa.table(
            {
                "line": pa.array(self._lines, pa.int64()),
                "key": pa.array(self._keys, pa.binary(16)),
                "rule": pa.DictionaryArray.from_arrays(pa.array(self._rules, pa.int32()), names),
                "version": pa.array(self._versions, pa.int64()),
                "time": pa.array(self._times, pa.timestamp("ms", "UTC")),
                "ok": reasons.is_null(),
                "reason": reasons,
            }
        )


def _writable(reason: str | None) -> str | None:
    return None if reason is None else reason.encode("utf-8", "backslashreplace").decode()
