"""The contract with every engine: lines of JSON in, keys out, both in Arrow."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_events
from eventonce.rules import Rulebook
from eventonce.settings import load, rulebook
from eventonce.sources.documents import LONGEST
from eventonce.traffic.archive import time_ms
from eventonce.traffic.drivers import need

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray, Table
else:
    Array = ChunkedArray = Table = Any  # so that type hints can be read without Arrow

Rules = Rulebook | str | Path  # a rulebook, or the pipeline file that has the rules


def rulebook_of(rules: Rules) -> Rulebook:
    """Return the rulebook itself, or that of a pipeline file."""
    return rules if isinstance(rules, Rulebook) else rulebook(load(rules))


def keys_arrow(lines: "Array | ChunkedArray | list[Any]", rules: Rules) -> "Table":
    """Return the keys of events, a row for each. A line with several events, as a queue's batch, has several rows.

    `line` counts the lines from 0. `key` has 16 bytes, `rule` is the rule's name, `version` is null without one, and
    `time` is the event's own time to the millisecond. An event without a key has none of these: `ok` is false, and
    `reason` says why.
    """
    columns = _Columns(rulebook_of(rules))
    for number, line in enumerate(lines if isinstance(lines, list) else lines.to_pylist()):
        for event in _events(line):
            columns.add(number, event)
    return columns.table()


def _events(line: Any) -> Sequence[Event | EventRejected]:
    return [EventRejected("is null, not an event")] if line is None else read_events(line, LONGEST)


class _Columns:
    def __init__(self, rulebook: Rulebook) -> None:
        self._rulebook = rulebook
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
            keyed = self._rulebook.key(event)
        except EventRejected as error:
            self._append(None, None, None, None, str(error))
        else:
            self._append(keyed.key, keyed.rule.number, keyed.version, time_ms(event), None)

    def _append(
        self, key: bytes | None, rule: int | None, version: int | None, time: int | None, reason: str | None
    ) -> None:
        self._keys.append(key)
        self._rules.append(rule)
        self._versions.append(version)
        self._times.append(time)
        self._reasons.append(reason)

    def table(self) -> "Table":
        pa = need("pyarrow", "duckdb")
        reasons = pa.array([_encodable(reason) for reason in self._reasons], pa.string())
        names = pa.array([rule.name for rule in self._rulebook.all], pa.string())
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


def _encodable(reason: str | None) -> str | None:
    return None if reason is None else reason.encode("utf-8", "backslashreplace").decode()
