"""The steps of a setup."""

from collections.abc import Callable
from typing import Literal, NamedTuple

Apply = Callable[[], object]


class SetupStep(NamedTuple):
    """A resource to create or change, or one that is as desired."""

    verb: Literal["create", "change", "keep"]
    description: str
    apply: Apply | None = None
