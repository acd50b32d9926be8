"""Events: how they are read, the paths into them, and what their keys are made of."""

from eventonce.event.event import Delivery, Event

__all__ = ["Delivery", "Event"]
