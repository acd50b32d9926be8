"""Stores for unit tests: real ones, with faults put in on demand."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventonce import Once, Rule, StoreError
from eventonce.stores.memory import MemoryStore


class Faulty(MemoryStore):
    """The memory store, of which named verbs do not answer: before they act, or after."""

    def __init__(self, *before: str, after: Sequence[str] = ()) -> None:
        super().__init__()
        self.before, self.after = list(before), list(after)
        self.calls: list[str] = []

    def _act(self, verb: str, act: Callable[[], Any]) -> Any:
        self.calls.append(verb)
        if verb in self.before:
            raise StoreError(f"no answer to {verb}")
        answer = act()
        if verb in self.after:
            raise StoreError(f"the answer to {verb} was lost")
        return answer

    def claim(self, *args: Any) -> Any:
        return self._act("claim", lambda: super(Faulty, self).claim(*args))

    def extend(self, *args: Any) -> Any:
        return self._act("extend", lambda: super(Faulty, self).extend(*args))

    def commit(self, *args: Any) -> Any:
        return self._act("commit", lambda: super(Faulty, self).commit(*args))

    def release(self, *args: Any) -> Any:
        return self._act("release", lambda: super(Faulty, self).release(*args))


class Bench:
    """Makes engines, and closes them after the test."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'store.db'}"
        self._made: list[Once] = []

    def once(self, store: Any = None, **settings: Any) -> Once:
        rule = {name: settings.pop(name) for name in list(settings) if name in Rule.__struct_fields__}
        if rule:
            settings["rules"] = Rule(**{"name": "r", "key": "content", **rule})
        made = Once("memory:" if store is None else store, **settings)
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()
