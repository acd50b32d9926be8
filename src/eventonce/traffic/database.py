"""DuckDB with bounded memory, and a folder that it spills to."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventonce.errors import EventOnceError
from eventonce.traffic.drivers import need

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MEMORY = "384MB"  # beyond it, DuckDB uses the disk
_ROWS = 20_000


class Database:
    """A database that lasts as long as its folder."""

    def __init__(self, folder: Path, memory: str = MEMORY) -> None:
        self._duckdb = need("duckdb", "duckdb")
        need("pyarrow", "duckdb")
        settings = {"memory_limit": memory, "temp_directory": str(folder / "spill"), "preserve_insertion_order": False}
        self._connection: duckdb.DuckDBPyConnection = self._duckdb.connect(config=settings)

    def run(self, query: str, *values: Any) -> None:
        """Execute a statement."""
        try:
            self._connection.execute(query, values)
        except self._duckdb.Error as error:
            raise self._translate(error) from None

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small result."""
        try:
            return self._connection.execute(query).fetchall()
        except self._duckdb.Error as error:
            raise self._translate(error) from None

    def batches(self, query: str) -> Iterator["pa.RecordBatch"]:
        """Yield a large result, some rows at a time."""
        try:
            yield from self._connection.sql(query).to_arrow_reader(_ROWS)
        except (self._duckdb.Error, OSError) as error:
            raise self._translate(error) from None

    def close(self) -> None:
        self._connection.close()

    def _translate(self, error: Exception) -> EventOnceError:
        return EventOnceError(f"DuckDB: {' '.join(str(error).split())[:300]}")
