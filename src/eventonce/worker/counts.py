"""How deliveries ended, counted."""

from collections import Counter

from eventonce.claims.outcome import Action, Outcome, OutcomeKind
from eventonce.text import counted


class OutcomeCounts:
    """How many deliveries ended in each way, each counted once however often it was tried."""

    def __init__(self) -> None:
        self._kinds: Counter[OutcomeKind] = Counter()
        self._differing = 0
        self._dead = 0
        self._good = True

    def add(self, outcome: Outcome, *, dead: bool) -> None:
        """Count one delivery that has ended."""
        self._kinds[outcome.kind] += 1
        self._dead += dead
        self._good = self._good and outcome.action is Action.ACK
        self._differing += outcome.first is not None and outcome.first.differs is True

    @property
    def events(self) -> int:
        return self._kinds.total()

    @property
    def good(self) -> bool:
        """True if every event took effect, or was rightly left out."""
        return self._good

    def as_dict(self) -> dict[str, int]:
        """Return the count of each outcome, and of the dead letters."""
        counts = {kind.value: self._kinds[kind] for kind in OutcomeKind}
        return {"events": self.events, **counts, "dead_lettered": self._dead, "differing_duplicates": self._differing}

    def __str__(self) -> str:
        counts = {name.replace("_", " "): count for name, count in self.as_dict().items() if count and name != "events"}
        details = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        return f"{counted(self.events, 'event')}{': ' if details else ''}{details}"
