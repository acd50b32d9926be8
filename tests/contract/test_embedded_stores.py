"""The memory and SQLite stores keep the shipped contract."""

import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventonce import open_store
from eventonce.ports import Store
from eventonce.stores.memory import MemoryStore
from eventonce.testing import Features, StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def opener(self) -> Callable[[], Store]:
        return MemoryStore


class TestSQLite(StoreContract):
    features = Features(processes=True, durable=True, transactions=True)

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Callable[[], Store]:
        return functools.partial(open_store, f"sqlite:///{tmp_path / 'claims.db'}")

    def effect(self, handle: Any, number: int) -> None:
        handle.execute("CREATE TABLE IF NOT EXISTS effects (number INTEGER)")
        handle.execute("INSERT INTO effects VALUES (?)", (number,))

    def effects(self, store: Any) -> list[int]:
        def read(connection: sqlite3.Connection) -> list[int]:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'effects'").fetchone():
                return []
            return [number for (number,) in connection.execute("SELECT number FROM effects ORDER BY number")]

        numbers: list[int] = store._use(read)
        return numbers
