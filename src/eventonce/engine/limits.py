"""The limits of one call of the front door."""

import msgspec


class RunLimits(msgspec.Struct, frozen=True, eq=False):
    """How long claims live, how often to try, and how long to wait (milliseconds).

    With `ends` the claims live until then and are not renewed, as those of a Lambda function end with its time.
    """

    max_attempts: int
    lease: int
    busy_wait: int
    ends: int | None = None

    def lease_from(self, now: int) -> int:
        """Return how long a claim that is made now lives."""
        return self.lease if self.ends is None else max(self.ends - now, 1)

    def deadline_from(self, now: int) -> int:
        """Return until when to wait for a busy key: not until our own claims end, so that time to answer remains."""
        deadline = now + self.busy_wait
        return deadline if self.ends is None else min(deadline, now + (self.ends - now) // 2)
