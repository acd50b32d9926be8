"""Files that are kept open: whether they are still the ones that others find under their names."""

import os
from pathlib import Path

from eventonce.errors import StoreUnusable


def identity(path: str | Path) -> os.stat_result:
    """What tells a file that has just been opened from one that takes its place."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        raise moved(path) from None


def is_in_place(opened: os.stat_result, path: str | Path) -> bool:
    """Whether who opens the path gets the file that was opened here: it was not moved, deleted or replaced since."""
    try:
        return os.path.samestat(opened, os.stat(path))  # noqa: PTH116  # with each claim, and a Path takes longer
    except FileNotFoundError:
        return False
    except OSError:  # a folder that we may no longer look into: nobody can tell, and the file itself works
        return True


def moved(path: str | Path) -> StoreUnusable:
    """What to say of a file of keys that is no longer in its place: in what is there now, nobody knows of them."""
    return StoreUnusable(
        f"{path}: was moved or deleted while it is open, and nothing new is begun without it; "
        "put it back, or restart to begin with what is there then"
    )
