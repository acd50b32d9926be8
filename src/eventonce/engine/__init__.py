"""The engine: from an event to its outcome. Begin with `steps.py`, which has the order of the steps."""

from eventonce.engine.once import Once

__all__ = ["Once"]
