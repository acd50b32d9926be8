"""An event to publish, with what the caller knows of it."""

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True):
    """An event to publish, where there is more to say than the event itself.

    `identity` is what consumers tell copies by; without one it comes from the event. Events of one `group` keep their
    order. `attempts` is how often it was sent before, so that the count goes on.
    """

    event: Any
    identity: str | None = None
    group: str | None = None
    attempts: int = 0
