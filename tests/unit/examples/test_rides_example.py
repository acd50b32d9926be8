"""The parts of the car-ride example by themselves: the API, and consumers that see events in any order."""

import asyncio
import importlib
import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventonce import Once
from eventonce.errors import StoreUnusable
from eventonce.settings import load

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "rides"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE))


class Api:
    """The application, asked without a server."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.ask("POST", path, msgspec.json.encode(body))

    def patch(self, path: str, body: Any) -> httpx.Response:
        return self.ask("PATCH", path, msgspec.json.encode(body))

    def ask(self, method: str, path: str, body: bytes) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://api") as client:
                return await client.request(method, path, content=body)

        return asyncio.run(ask())


@pytest.fixture
def api() -> Iterator[Api]:
    module = importlib.reload(importlib.import_module("api"))  # its files are in the current folder
    module.make_tables()
    yield Api(module.app)
    module.outbox.close()


def rows(query: str, file: str = "rides.db") -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def events() -> list[str]:
    return [identity for (identity,) in rows("SELECT identity FROM eventonce_outbox ORDER BY id")]


def complete(api: Api, ride: str) -> Any:
    api.post("/rides", {"id": ride, "rider": "ada"})
    api.patch(f"/rides/{ride}", {"version": 1, "status": "accepted"})
    api.patch(f"/rides/{ride}", {"version": 2, "status": "started"})
    return api.patch(f"/rides/{ride}", {"version": 3, "status": "completed", "fareCents": 1250})


# --- the API ---


def test_each_change_is_stored_with_its_event(api: Api) -> None:
    answer = complete(api, "r-1")
    assert answer.json() == {"rideId": "r-1", "rider": "ada", "status": "completed", "fareCents": 1250, "version": 4}
    assert rows("SELECT * FROM rides") == [("r-1", "ada", "completed", 1250, 4)]
    assert events() == ["r-1/1", "r-1/2", "r-1/3", "r-1/4"]
    assert {group for (group,) in rows("SELECT grp FROM eventonce_outbox")} == {"=r-1"}
    kinds = [msgspec.json.decode(event)["detail-type"] for (event,) in rows("SELECT event FROM eventonce_outbox")]
    assert kinds == ["Ride Requested", "Ride Accepted", "Ride Started", "Ride Completed"]


def test_a_repeated_request_is_answered_and_not_done_again(api: Api) -> None:
    first = api.post("/rides", {"id": "r-1", "rider": "ada"})
    again = api.post("/rides", {"id": "r-1", "rider": "ada"})
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    first = api.patch("/rides/r-1", {"version": 1, "status": "accepted"})
    again = api.patch("/rides/r-1", {"version": 1, "status": "accepted"})
    assert (first.status_code, first.json()) == (again.status_code, again.json()) == (200, first.json())
    assert events() == ["r-1/1", "r-1/2"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "problem"),
    [
        ("POST", "/rides", "{", 400, "not JSON"),
        ("POST", "/rides", "[" * 100_000, 400, "not JSON"),
        ("POST", "/rides", "[]", 400, "not a JSON object"),
        ("POST", "/rides", '{"id": "r-2"}', 400, "rider: use"),
        ("POST", "/rides", '{"id": "", "rider": "ada"}', 400, "id: use"),
        ("POST", "/rides", '{"id": "a/b", "rider": "ada"}', 400, "id: use"),
        ("POST", "/rides", '{"id": "r-1", "rider": "bob"}', 409, "another rider's"),
        ("PATCH", "/rides/r-9", '{"version": 1, "status": "accepted"}', 404, "no ride r-9"),
        ("PATCH", "/rides/r-1", '{"version": "1", "status": "accepted"}', 400, "version: use"),
        ("PATCH", "/rides/r-1", '{"version": true, "status": "accepted"}', 400, "version: use"),
        ("PATCH", "/rides/r-1", '{"version": 7, "status": "accepted"}', 409, "at version 4"),
        ("PATCH", "/rides/r-1", '{"version": 4, "status": "accepted"}', 409, "is completed"),
        ("PATCH", "/rides/r-1", '{"version": 4, "status": "flying"}', 409, "is completed"),
        ("PATCH", "/rides/r-1", '{"version": 3, "status": "completed"}', 400, "fareCents: use"),
        ("PATCH", "/rides/r-1", '{"version": 3, "status": "completed", "fareCents": -1}', 400, "fareCents: use"),
    ],
)
def test_a_wrong_request_changes_nothing(
    api: Api, method: str, path: str, body: str, status: int, problem: str
) -> None:
    complete(api, "r-1")
    answer = api.ask(method, path, body.encode())
    assert answer.status_code == status
    assert problem in answer.json()["error"]
    assert len(events()) == 4


def test_without_its_event_a_change_does_not_happen(api: Api) -> None:
    complete(api, "r-1")
    with closing(sqlite3.connect("rides.db")) as connection, connection:
        connection.execute("ALTER TABLE eventonce_outbox RENAME TO gone")
    with pytest.raises(StoreUnusable, match="has no outbox"):
        api.post("/rides", {"id": "r-2", "rider": "ada"})
    assert rows("SELECT id FROM rides") == [("r-1",)]


# --- the consumers ---


def ride(version: int, copy: int = 0) -> dict[str, Any]:
    """Version 4 is the last one and completes the ride. A copy has an id of its own, as a bus gives it."""
    kind = "Ride Completed" if version == 4 else "Ride Accepted"
    detail = {"rideId": "r-1", "rider": "ada", "status": f"s{version}", "fareCents": 1250, "version": version}
    detail["_eventonce"] = {"id": f"r-1/{version}", "attempt": 1 + copy}
    return {"id": f"b-{version}-{copy}", "source": "com.example.rides", "detail-type": kind, "detail": detail}


@st.composite
def histories(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Every version at least once, in any order, in batches of any size."""
    versions = draw(st.permutations([1, 2, 3, 4, *draw(st.lists(st.integers(1, 4), max_size=8))]))
    copies = itertools.count()
    left, delivered = [ride(version, next(copies)) for version in versions], []
    while left:
        size = draw(st.integers(1, len(left)))
        delivered.append(left[:size])
        left = left[size:]
    return delivered


def consume(pipeline: str, history: list[list[dict[str, Any]]], folder: Path, rules: bool = True) -> Path:
    """Run a consumer of the example on a history, with a new engine for each batch."""
    consumers, chosen = importlib.import_module("consumers"), load(EXAMPLE / f"{pipeline}.toml")
    file = folder / f"{pipeline}.db"
    file.unlink(missing_ok=True)
    handler = {"billing": consumers.charge, "readmodel": consumers.project}[pipeline]
    for batch in history:
        with closing(Once(f"sqlite:///{file}", consumer=chosen.consumer, rules=chosen.rule if rules else ())) as once:
            outcomes = once.run(batch, handler)
            assert {str(each.kind) for each in outcomes} <= {"processed", "duplicate", "stale"}
    return file


@settings(max_examples=30, deadline=None)
@given(history=histories(), rules=st.booleans())
def test_the_read_model_ends_in_the_newest_state(
    history: list[list[dict[str, Any]]], rules: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """This holds with the rule's `version`, and by the upsert alone."""
    file = consume("readmodel", history, tmp_path_factory.getbasetemp(), rules)
    assert rows("SELECT id, status, version FROM rides", str(file)) == [("r-1", "s4", 4)]


@settings(max_examples=30, deadline=None)
@given(history=histories())
def test_billing_charges_once(history: list[list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = consume("billing", history, tmp_path_factory.getbasetemp())
    assert rows("SELECT ride, cents FROM charges", str(file)) == [("r-1", 1250)]


# --- the carrier that stands in for bus and queues ---


def test_the_carrier_repeats_and_delays_and_loses_nothing(tmp_path: Path) -> None:
    carrier = importlib.import_module("carrier")
    file = tmp_path / "bus.jsonl"
    whole = [f'{{"n": {number}}}\n' for number in range(1, 31)]
    file.write_text("".join(whole) + '{"n": ')
    delivered = list(carrier.unreliably(carrier.lines(file, follow=False)))
    assert set(delivered) == set(whole)
    assert len(delivered) == 40
    assert list(dict.fromkeys(delivered)) != whole
