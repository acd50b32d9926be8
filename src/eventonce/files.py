"""Files that stay open: a check that others still find the same file under its name."""

import os
from pathlib import Path

from eventonce.errors import StoreUnusable


def identity(path: str | Path) -> os.stat_result:
    """Return what identifies a file that was just opened, so that a later one in its place is recognised."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        raise moved(path) from None


def is_in_place(opened: os.stat_result, path: str | Path) -> bool:
    """Return whether the path still leads to the opened file: it was not moved, deleted or replaced since."""
    try:
        return os.path.samestat(opened, os.stat(path))  # noqa: PTH116  # at each claim, and a Path takes longer
    except FileNotFoundError:
        return False
    except OSError:  # no permission for the folder any more: it cannot be determined, and the file itself works
        return True


def moved(path: str | Path) -> StoreUnusable:
    """Return the error for a file of keys that was moved or deleted. A file in its place does not have them."""
    return StoreUnusable(
        f"{path}: was moved or deleted while it is open, and nothing new is started without it; "
        "put it back, or restart with the file that is there then"
    )
