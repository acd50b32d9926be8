"""The lag of an event."""

from eventonce.event.paths import read_time
from eventonce.ports import Seen


def lag(details: Seen, now: int) -> float | None:
    """Return the seconds since the queue received the event, or else since its own time, if either is known.

    Clocks differ, so the lag is never below 0.
    """
    since = read_time(details.origin.get("sent")) or (details.event.time if details.event is not None else None)
    return None if since is None else max(0.0, now / 1000 - since.timestamp())
