"""How far behind an event is."""

from eventonce.event.paths import read_time
from eventonce.ports import Seen


def lag(seen: Seen, now: int) -> float | None:
    """Seconds since the queue had it, or since the event's own time where the queue does not say; else None.

    Clocks differ, so never below 0.
    """
    since = read_time(seen.origin.get("sent")) or (seen.event.time if seen.event is not None else None)
    return None if since is None else max(0.0, now / 1000 - since.timestamp())
