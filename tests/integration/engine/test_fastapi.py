"""Decorated functions and routes of a FastAPI application, served by uvicorn in a process of its own."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import ServerProcess
from tests.until import until

MODULE = """
import asyncio, time
from pathlib import Path
from fastapi import FastAPI
from pydantic import BaseModel
from eventonce import Once

app = FastAPI()
once = Once("sqlite:///orders.db", consumer="shop")

class Order(BaseModel):
    id: str
    total: int = 1

class Receipt(BaseModel):
    id: str
    total: int

def effect(order):
    with open("effects", "a") as file:
        print(order.id, file=file)

def may_end():
    return Path("go").exists()

@once(key="order.id", remember="result")
def charge(order: Order) -> Receipt:
    effect(order)
    while not may_end():
        time.sleep(0.01)
    return Receipt(id=order.id, total=order.total)

@once(key="order.id", remember="result")
async def charge_later(order: Order) -> Receipt:
    effect(order)
    while not may_end():
        await asyncio.sleep(0.01)
    return Receipt(id=order.id, total=order.total)

arrived = 0

@app.middleware("http")
async def count(request, call_next):
    global arrived
    arrived += request.method == "POST"
    return await call_next(request)

@app.get("/arrived")
async def count_of_requests() -> int:
    return arrived

@app.post("/service")
def service(order: Order) -> Receipt:
    return charge(order)

@app.post("/async-service")
async def async_service(order: Order) -> Receipt:
    return await charge_later(order)

@app.post("/route")
@once(key="order.id", remember="result", name="route")
def route(order: Order) -> Receipt:
    return charge.plain(order)

@app.post("/async-route")
@once(key="order.id", remember="result", name="async-route")
async def async_route(order: Order) -> Receipt:
    return await charge_later.plain(order)
"""
ROUTES = ["service", "async-service", "route", "async-route"]


class Application(ServerProcess):
    def command(self) -> list[str]:
        return [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(self.port), "--log-level", "warning"]

    def post(self, route: str) -> Any:
        """Send a copy of an order to a route."""
        response = httpx.post(f"{self._url}/{route}", json={"id": route, "total": 30}, timeout=120, trust_env=False)
        assert response.status_code == 200, response.text
        return response.json()

    def arrived(self) -> int:
        return int(httpx.get(f"{self._url}/arrived", timeout=120, trust_env=False).json())

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Application]:
    (tmp_path / "shop.py").write_text(MODULE)
    with Application(tmp_path) as application:
        yield application


def test_copies_of_a_request_take_effect_once(application: Application) -> None:
    expected = [{"id": route, "total": 30} for route in ROUTES]
    with ThreadPoolExecutor(2 * len(ROUTES)) as pool:
        copies = [pool.submit(application.post, route) for route in ROUTES * 2]
        until(lambda: application.arrived() == len(copies))  # and no run has ended
        (application.folder / "go").touch()
        assert [copy.result() for copy in copies] == expected * 2
    application.restart()
    assert [application.post(route) for route in ROUTES] == expected
    effects = (application.folder / "effects").read_text().split()
    assert sorted(effects) == sorted(ROUTES)
