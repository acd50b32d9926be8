"""Recorded traffic: audits, deduplication, and the same keys on DuckDB and Spark. Imported on use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventonce.traffic.keys import keys_arrow

__all__ = ["keys_arrow"]


def __getattr__(name: str) -> Any:
    if name == "keys_arrow":
        from eventonce.traffic.keys import keys_arrow

        return keys_arrow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
