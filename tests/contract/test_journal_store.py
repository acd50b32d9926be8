"""The journal store keeps the shipped contract."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from eventonce import open_store
from eventonce.ports import Store
from eventonce.testing import Features, StoreContract


class TestJournal(StoreContract):
    features = Features(durable=True)

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Callable[[], Store]:
        return functools.partial(open_store, f"journal:///{tmp_path / 'claims.journal'}")
