"""The limits of one call of the front door."""

import msgspec


class RunLimits(msgspec.Struct, frozen=True, eq=False):
    """How many attempts there are, how long claims live, and how long to wait for a busy key (milliseconds).

    With `ends`, claims live until then and are not extended: those of a Lambda function end with its time.
    """

    max_attempts: int
    lease: int
    busy_wait: int
    ends: int | None = None

    def lease_from(self, now: int) -> int:
        """Return how long a claim that is made now lives."""
        return self.lease if self.ends is None else max(self.ends - now, 1)

    def deadline_from(self, now: int) -> int:
        """Return until when to wait for a busy key: well before our own claims end, so that time to respond remains."""
        deadline = now + self.busy_wait
        return deadline if self.ends is None else min(deadline, now + (self.ends - now) // 2)
