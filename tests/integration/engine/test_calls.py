"""Calls on real stores, and in several processes."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eventonce import Once, current
from tests.servers import Redis
from tests.until import until

MODULE = """
import sys, time
from eventonce import Once

once = Once(sys.argv[1], consumer="calls", busy_wait="60s")

@once(key="order", remember="result", lease="5s")
def charge(order, retries=3):
    with open("effects", "a") as file:
        print(order, file=file)
    time.sleep(0.3)
    return f"charged {order}"

if __name__ == "__main__":
    print([charge(order) for order in ("a", "b", "a")])
"""


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server: Redis = request.getfixturevalue("redis_server")
    return server.url()


def test_processes_wait_for_one_another(url: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(MODULE)
    command = [sys.executable, "-m", "tasks", url]
    workers = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        assert worker.communicate(timeout=120)[0] == "['charged a', 'charged b', 'charged a']\n"
    assert sorted((tmp_path / "effects").read_text().split()) == ["a", "b"]


def test_threads_and_tasks_make_each_call_once(url: str) -> None:
    ran: list[Any] = []
    with Once(url, consumer="threads") as once:

        @once(key="n", name="plain", remember="result")
        def plain(n: int) -> int:
            ran.append(n)
            return n

        @once(key="n", name="later", remember="result")
        async def later(n: int) -> int:
            ran.append(-n)
            await asyncio.sleep(0.01)
            return n

        async def main() -> list[int]:
            return await asyncio.gather(*[later(n) for n in (1, 2, 1, 2, 1)])

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(plain, [1, 2, 3] * 2)) == [1, 2, 3] * 2
        assert asyncio.run(main()) == [1, 2, 1, 2, 1]
        assert sorted(ran) == [-2, -1, 1, 2, 3]
        assert [outcome.kind for outcome in plain.map(map(plain.bind, [3, 4]))] == ["duplicate", "processed"]
        assert [plain.forget(4), plain.forget(4)] == [True, False]


def test_a_call_keeps_the_lease_that_its_function_has(url: str) -> None:
    with Once(url, consumer="leases", lease="60s") as once:

        @once(key="n", name="slow", lease="500ms")
        def slow(n: int) -> int:
            deadline = current().deadline
            until(lambda: current().deadline != deadline)  # the keeper has extended the claim
            return current().attempt

        assert slow(1) == 1
