"""The rides service: each change of a ride and its event are one transaction.

    POST  /rides       {"id": "r-1", "rider": "ada"}
    PATCH /rides/r-1   {"version": 3, "status": "completed", "fareCents": 1250}

A client repeats a request that gets no response. So it names the ride itself, and the version that it has seen. A
change that was already made is reported and not repeated.
"""

import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from eventonce.outbox import Outbox

FILE = "rides.db"
NEXT = {
    "requested": ("accepted", "cancelled"),
    "accepted": ("started", "cancelled"),
    "started": ("completed",),
}
TEXT = re.compile(r"[\w-]{1,64}", re.ASCII)
Ride = dict[str, Any]
outbox = Outbox(f"sqlite:///{FILE}")


# --- storage ---


@contextmanager
def transaction() -> Iterator[sqlite3.Connection]:
    """Open a write transaction, which is rolled back unless the block succeeds."""
    connection = sqlite3.connect(FILE, timeout=30, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


def make_tables() -> None:
    outbox.create()
    with transaction() as db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS rides "
            "(id TEXT PRIMARY KEY, rider TEXT, status TEXT, fare_cents INTEGER, version INTEGER)"
        )


def find(db: sqlite3.Connection, name: str) -> Ride | None:
    row = db.execute("SELECT id, rider, status, fare_cents, version FROM rides WHERE id = ?", (name,)).fetchone()
    return None if row is None else dict(zip(("rideId", "rider", "status", "fareCents", "version"), row, strict=True))


def save(db: sqlite3.Connection, ride: Ride) -> Ride:
    """Store a ride and its event. The event holds the whole ride, so no consumer needs an earlier one."""
    db.execute(
        "INSERT OR REPLACE INTO rides (id, rider, status, fare_cents, version) "
        "VALUES (:rideId, :rider, :status, :fareCents, :version)",
        ride,
    )
    event = {
        "id": f"{ride['rideId']}/{ride['version']}",
        "source": "com.example.rides",
        "detail-type": f"Ride {ride['status'].title()}",
        "detail": ride,
    }
    outbox.add(db, event, group=ride["rideId"])
    return ride


def create(name: str, rider: str) -> Ride:
    with transaction() as db:
        ride = find(db, name)
        if ride is None:
            return save(db, {"rideId": name, "rider": rider, "status": "requested", "fareCents": None, "version": 1})
        if ride["rider"] != rider:
            raise HTTPException(409, f"ride {name} is another rider's")
        return ride  # the request is a repetition


def change(name: str, version: int, status: str, fare: int | None) -> Ride:
    with transaction() as db:
        ride = find(db, name)
        if ride is None:
            raise HTTPException(404, f"there is no ride {name}")
        if ride["version"] == version + 1 and ride["status"] == status:
            return ride  # the response to this very request was lost
        if ride["version"] != version or status not in NEXT.get(ride["status"], ()):
            raise HTTPException(409, f"ride {name} is {ride['status']} at version {ride['version']}")
        return save(db, {**ride, "status": status, "fareCents": fare, "version": version + 1})


# --- requests ---


async def post(request: Request) -> JSONResponse:
    body = await read(request)
    ride = await run_in_threadpool(create, text(body, "id"), text(body, "rider"))
    return JSONResponse(ride, 201)


async def patch(request: Request) -> JSONResponse:
    body = await read(request)
    status = text(body, "status")
    fare = number(body, "fareCents") if status == "completed" else None
    ride = await run_in_threadpool(change, request.path_params["id"], number(body, "version"), status, fare)
    return JSONResponse(ride)


async def read(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return body


def text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not TEXT.fullmatch(value):
        raise HTTPException(400, f"{name}: use 1 to 64 letters, digits, - or _")
    return value


def number(body: dict[str, Any], name: str) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value <= 10**9:
        raise HTTPException(400, f"{name}: use a whole number from 0 to 1,000,000,000")
    return value


async def refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    make_tables()
    yield


app = Starlette(
    routes=[Route("/rides", post, methods=["POST"]), Route("/rides/{id}", patch, methods=["PATCH"])],
    exception_handlers={HTTPException: refuse},
    lifespan=lifespan,
)
