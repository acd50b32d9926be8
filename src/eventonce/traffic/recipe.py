"""What a worker of a cluster needs to make the same keys, and the check that it does."""

import hashlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from eventonce.errors import ConfigError
from eventonce.event.formats import read_event
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_PYTHON = re.compile(r"No module named [\w.']+|Python in worker has different version.*|PYTHON_VERSION_MISMATCH.*")
# Values that JSON libraries have disagreed on: a worker whose library makes other keys of them must not take part.
_LINES = (
    b'{"id": "1", "n": 9007199254740993, "big": 123456789012345678901234567890}',
    b'{"id": "2", "n": 1.0, "m": 1e2, "zero": -0.0, "small": 1e-7, "large": 1e21}',
    '{"id": "3", "n": 1, "n": 2, "\U0001f600": "\\ud83d\\ude00", "\ufb33": null}'.encode(),
)


def golden() -> str:
    """Return a digest of keys. If it is the same on two machines, so are their keys."""
    rulebook = Rulebook("golden", [Rule(name="content", key="content")], identity("14d", "retry"))
    return hashlib.sha256(b"".join(rulebook.key(read_event(line)).key for line in _LINES)).hexdigest()


class Recipe(NamedTuple):
    """The rules, and the keys that the driver makes."""

    definition: tuple[Any, ...]
    golden: str

    @classmethod
    def of(cls, rulebook: Rulebook) -> "Recipe":
        """Return the recipe of a rulebook. Called on the driver."""
        return cls(rulebook.definition, golden())

    def rulebook(self) -> Rulebook:
        """Return the same rulebook on a worker. Raise `ConfigError` if its keys would differ."""
        if golden() != self.golden:
            raise ConfigError(
                f"this worker makes other keys than the driver: it has eventonce {version('eventonce')} and msgspec "
                f"{version('msgspec')} in {sys.executable}; install the versions of the driver there"
            )
        return Rulebook(*self.definition)


def check_workers(spark: "SparkSession") -> None:
    """Raise `ConfigError` if workers cannot make keys: one sentence rather than a page of a worker's trace."""
    try:
        rows = _probed(spark.range(0, 4, 1, 4)).distinct().collect()
    except Exception as error:
        if match := _NO_PYTHON.search(str(error)):
            raise _other_python(match[0]) from None
        raise
    for row in rows:
        if row.error:
            raise _other_python(f"{row.python}: {row.error}")


def _other_python(reason: str) -> ConfigError:
    return ConfigError(
        f"the Python of the workers is not that of the driver and cannot make keys ({reason}); install the same "
        "eventonce[spark] there, or set PYSPARK_PYTHON to a Python that has it"
    )


def _probed(numbers: "DataFrame") -> "DataFrame":
    return numbers.mapInArrow(_by_value(cast(FunctionType, _probe)), "python string, error string")


def _by_value(function: FunctionType) -> Any:
    """Return a function that is sent as it is. One of a module is sent by name, and fails without the module."""
    copy = FunctionType(function.__code__, {"__builtins__": __builtins__}, "probe")
    copy.__module__ = "__main__"
    return copy


def _probe(batches: Iterator[Any]) -> Iterator[Any]:
    import sys

    import pyarrow

    try:
        import eventonce.traffic.keys

        reason = None if eventonce.traffic.keys else "it is empty"
    except Exception as error:
        reason = str(error)
    for _ in batches:
        columns = {"python": [sys.executable], "error": [reason]}
        types = pyarrow.schema([("python", pyarrow.string()), ("error", pyarrow.string())])
        yield pyarrow.RecordBatch.from_pydict(columns, schema=types)
