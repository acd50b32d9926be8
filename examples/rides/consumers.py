"""Two consumers of the same events. Each has its own database, which also records what it has done."""

from eventonce import Context, Event

CHARGES = (
    "CREATE TABLE IF NOT EXISTS charges (ride TEXT, cents INTEGER)"  # no key, so that a second charge would be seen
)
RIDES = "CREATE TABLE IF NOT EXISTS rides (id TEXT PRIMARY KEY, rider TEXT, status TEXT, fare INTEGER, version INTEGER)"
UPSERT = """
    INSERT INTO rides VALUES (:rideId, :rider, :status, :fareCents, :version)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, fare = excluded.fare, version = excluded.version
    WHERE excluded.version > rides.version
"""


def charge(event: Event, ctx: Context) -> None:
    """Charge a completed ride once: the charge and the record of it commit together.

    If another service moves the money, send it `ctx.idempotency_key`, which is the same at every attempt.
    """
    if event.type != "Ride Completed":
        return
    ctx.tx.execute(CHARGES)
    ctx.tx.execute("INSERT INTO charges VALUES (?, ?)", (event.data["rideId"], event.data["fareCents"]))


def project(event: Event, ctx: Context) -> None:
    """Update the read model with the newest state of a ride. The rule drops late versions, and so would the upsert."""
    ctx.tx.execute(RIDES)
    ctx.tx.execute(UPSERT, {name: event.data[name] for name in ("rideId", "rider", "status", "fareCents", "version")})
