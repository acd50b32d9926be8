"""Output files of a deduplication: lines of JSON, gzip or not, or Parquet."""

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from eventonce.traffic.drivers import need

_BUFFER = 1024 * 1024  # bytes of lines that are written at once
_LEVEL = 1  # of gzip: the next ones take twice the time for a few percent


class Output(Protocol):
    """A file that lines are written to."""

    def write(self, lines: Sequence[bytes]) -> None: ...
    def close(self) -> None: ...


def open_output(file: Path, form: str) -> Output:
    """Open a file for writing."""
    if form == "parquet":
        return ParquetOutput(file)
    return LineOutput(file, packed=form == "gzip")


class LineOutput:
    """One line of JSON for each event."""

    def __init__(self, file: Path, *, packed: bool) -> None:
        self._file = open(file, "wb")  # noqa: SIM115  # closed by close()
        # Neither a name nor a time inside: the same events make the same file.
        self._stream: Any = (
            gzip.GzipFile("", "wb", compresslevel=_LEVEL, fileobj=self._file, mtime=0) if packed else self._file
        )
        self._lines: list[bytes] = []
        self._size = 0

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines."""
        self._lines += lines
        self._size += sum(map(len, lines))
        if self._size > _BUFFER:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
            if self._stream is not self._file:
                self._stream.close()
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def _flush(self) -> None:
        if self._lines:
            self._stream.write(b"\n".join(self._lines) + b"\n")
            self._lines, self._size = [], 0


class ParquetOutput:
    """Events in a string column, `value`, or rows with the schema of the input."""

    def __init__(self, file: Path, schema: Any = None) -> None:
        pa, parquet = need("pyarrow", "duckdb"), need("pyarrow.parquet", "duckdb")
        self._schema = schema or pa.schema([("value", pa.string())])
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._tables: list[Any] = []

    def write(self, lines: Sequence[bytes]) -> None:
        """Write events."""
        pa = need("pyarrow", "duckdb")
        self.write_rows(pa.table([pa.array(lines, pa.binary()).cast(pa.string())], schema=self._schema))

    def write_rows(self, rows: Any) -> None:
        """Write a table of rows."""
        self._tables.append(rows)
        if sum(table.nbytes for table in self._tables) > 16 * _BUFFER:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        if self._tables:
            self._writer.write_table(need("pyarrow", "duckdb").concat_tables(self._tables))
            self._tables = []
