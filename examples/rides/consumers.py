"""Two consumers of the same events. Each has a database, and so a record of what it has done, of its own."""

from eventonce import Context, Event

CHARGES = "CREATE TABLE IF NOT EXISTS charges (ride TEXT, cents INTEGER)"  # no key: a charge too many would be seen
RIDES = "CREATE TABLE IF NOT EXISTS rides (id TEXT PRIMARY KEY, rider TEXT, status TEXT, fare INTEGER, version INTEGER)"
UPSERT = """
    INSERT INTO rides VALUES (:rideId, :rider, :status, :fareCents, :version)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, fare = excluded.fare, version = excluded.version
    WHERE excluded.version > rides.version
"""


def charge(event: Event, ctx: Context) -> None:
    """Billing: the charge and the record of it commit together, so a ride is charged once.

    Where the money is moved by somebody else, send `ctx.idempotency_key` along: it is the same at every attempt.
    """
    if event.type != "Ride Completed":
        return
    ctx.tx.execute(CHARGES)
    ctx.tx.execute("INSERT INTO charges VALUES (?, ?)", (event.data["rideId"], event.data["fareCents"]))


def project(event: Event, ctx: Context) -> None:
    """The read model: a ride as it is now. The rule drops versions that are late, and the upsert would too."""
    ctx.tx.execute(RIDES)
    ctx.tx.execute(UPSERT, {name: event.data[name] for name in ("rideId", "rider", "status", "fareCents", "version")})
