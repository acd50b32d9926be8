"""The protocol of claims, what is remembered of a run, and what becomes of an event."""
