"""The paths at which two JSON values differ."""

from collections.abc import Iterator
from typing import Any

from eventonce.event.keys import canonical
from eventonce.event.paths import quoted


def differences(left: Any, right: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two values differ. Equal numbers do not, however they are written."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in left.keys() | right.keys():
            below = f"{path}.{quoted(name)}" if path else quoted(name)
            if name in left and name in right:
                yield from differences(left[name], right[name], below)
            else:
                yield below
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif canonical(left) != canonical(right):
        yield path or "(all of it)"
