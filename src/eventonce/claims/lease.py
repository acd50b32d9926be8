"""A lease as a user writes it."""

from eventonce.claims.protocol import LONGEST_LEASE
from eventonce.clock import Duration, duration, format_duration
from eventonce.errors import ConfigError


def read_lease(value: Duration) -> int:
    """Return a lease in milliseconds. Raise `ConfigError` if none can be that long."""
    lease = duration(value, "lease")
    if not lease:
        raise ConfigError("lease: 0 would let every worker take over every claim at once")
    if lease > LONGEST_LEASE:
        raise ConfigError(
            f"lease: {format_duration(lease)} is longer than a day; a worker that lives extends its leases, "
            "so write one like 60s or 10m"
        )
    return lease
