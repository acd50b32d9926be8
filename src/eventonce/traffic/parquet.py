"""Parquet files with a column that holds the events, each as a line of JSON."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventonce.errors import SourceError
from eventonce.traffic.drivers import need

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"PAR1"
_ROWS = 2000  # read at once: an event may be large
_COMMON_NAMES = ("value", "body", "event", "line", "message", "raw", "data")


def is_parquet(path: str) -> bool:
    """Return whether a file begins as Parquet does. A pipe is not looked into: its bytes can be read only once."""
    try:
        if not Path(path).is_file():
            return False
        with open(path, "rb") as stream:
            return stream.read(4) == MAGIC
    except (OSError, ValueError):  # a name with a NUL in it is a ValueError
        return False


class ParquetLines:
    """A Parquet file with a column of events."""

    def __init__(self, path: str, column: str | None) -> None:
        self._path = path
        parquet, pa = need("pyarrow.parquet", "duckdb"), need("pyarrow", "duckdb")
        try:
            self._file = parquet.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{path}: is not a readable Parquet file: {_first_line(error)}") from None
        self.schema: Any = self._file.schema_arrow
        self.column = column or self._guess()
        if self.column not in self.schema.names:
            raise SourceError(f"{path}: has no column {self.column!r}; {self._remedy()}")

    def batches(self, *, whole: bool = False) -> Iterator["pa.RecordBatch"]:
        """Yield the rows with all columns, or only with that of the events."""
        pa = need("pyarrow", "duckdb")
        try:
            yield from self._file.iter_batches(_ROWS, columns=None if whole else [self.column])
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{self._path}: is damaged: {_first_line(error)}") from None

    def lines(self, batch: "pa.RecordBatch") -> list[Any]:
        """Return the events in some rows as bytes. A null is None."""
        pa = need("pyarrow", "duckdb")
        lines: list[Any] = batch.column(self.column).cast(pa.large_binary()).to_pylist()
        return lines

    def close(self) -> None:
        self._file.close()

    def _guess(self) -> str:
        pa = need("pyarrow", "duckdb")
        names: list[str] = [field.name for field in self.schema if _is_text(pa, field.type)]
        if len(names) == 1:
            return names[0]
        for name in _COMMON_NAMES:
            if name in names:
                return name
        raise SourceError(f"{self._path}: which column holds the events is not clear; {self._remedy()}")

    def _remedy(self) -> str:
        return f"name one with --column, of {', '.join(self.schema.names)[:300]}"


def _is_text(pa: Any, kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
