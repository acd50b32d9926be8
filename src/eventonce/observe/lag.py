"""How far behind its time an event is."""

from eventonce.event import Event


def lag(event: Event | None, now: int) -> float | None:
    """Seconds from the event's own time until now; None where it has no time. Clocks differ, so never below 0."""
    return None if event is None or event.time is None else max(0.0, now / 1000 - event.time.timestamp())
