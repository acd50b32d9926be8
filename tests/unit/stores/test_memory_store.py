"""The memory store: which keys it drops, and when it is full."""

import pytest

from eventonce import ConfigError, StoreError, open_store
from eventonce.claims.protocol import ClaimRequest, Commit, Record
from eventonce.dead_letters import check_dead_letters
from eventonce.event.keys import Key
from eventonce.outbox import Outbox
from eventonce.settings import Settings, dead_letter_url
from eventonce.stores import check_url
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock

HOUR = 3_600_000


class Counting(MemoryStore):
    """A memory store that counts the keys at which it looks to drop them."""

    looked = 0

    def _drop(self, key: Key, now: int) -> int:
        self.looked += 1
        return super()._drop(key, now)

    @property
    def records(self) -> dict[Key, Record]:
        return self._records


def add(store: MemoryStore, numbers: range, window: int = HOUR) -> None:
    keys = [Key(number.to_bytes(16, "big")) for number in numbers]
    store.claim([ClaimRequest(key, window) for key in keys], b"token--1", 1000)
    store.commit([Commit(key, b"token--1", window) for key in keys])


def test_claims_drop_expired_keys_a_few_at_a_time() -> None:
    clock = ManualClock()
    store = Counting(clock=clock)
    add(store, range(1000))
    clock.sleep(2 * HOUR)
    looked = []
    for number in range(1000, 1100):
        before = store.looked
        add(store, range(number, number + 1))
        looked.append(store.looked - before)
    assert max(looked) <= 34
    assert store.looked == 1000
    assert len(store.records) == 100


def test_a_key_costs_the_same_however_many_there_are() -> None:
    clock = ManualClock()
    store = Counting(clock=clock)
    for number in range(0, 20_000, 100):
        add(store, range(number, number + 100))
        clock.sleep(HOUR // 20)
    assert store.looked <= 20_000
    assert len(store.records) <= 100 * 25


def test_a_key_that_was_refreshed_waits_again() -> None:
    clock = ManualClock()
    store = Counting(clock=clock)
    add(store, range(1))
    for _ in range(10):
        clock.sleep(HOUR // 2)
        store.claim([ClaimRequest(Key(bytes(16)), HOUR, refresh=True)], b"token--2", 1000)
        store.sweep(100)
    assert len(store.records) == 1
    clock.sleep(2 * HOUR)
    store.sweep(100)
    assert len(store.records) == 0


def test_a_full_store_says_so_and_forgets_nothing() -> None:
    store = open_store("memory:?max_keys=10")
    assert isinstance(store, MemoryStore)
    add(store, range(10))
    with pytest.raises(StoreError, match="full with 10 keys in memory; shorten the window"):
        add(store, range(10, 11))
    assert all(store.peek([Key(number.to_bytes(16, "big")) for number in range(10)]))
    add(store, range(10))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://x", "has an address"),
        ("memory:?max_keys=none", "max_keys='none' is not a whole number above 0"),
        ("memory:?size=3", "unknown option 'size'; use max_keys"),
        ("memry:", "memry: is not supported; did you mean memory:"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///a.db?shared=maybe", "neither true nor false"),
        ("sqlite:///a.db?wal=1", "unknown option 'wal'"),
        ("nothing", "'nothing' is not supported; use memory:, sqlite:///FILE"),
        ("sqlite:a.db", "sqlite: is not supported; did you mean sqlite:///FILE"),
        ("postgresqll://host/db", "did you mean postgresql://HOST/DATABASE"),
    ],
)
def test_wrong_urls_are_refused_with_the_remedy(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(url)


def test_postgres_is_another_spelling_of_postgresql() -> None:
    settings = Settings(store="postgres://localhost:1/shop", dead_letter="store")
    check_url(settings.store)
    check_dead_letters(dead_letter_url(settings))
    open_store(settings.store).close()
    with Outbox(settings.store) as outbox:
        assert outbox.table.name == "postgresql://localhost:1/shop"


def test_a_password_in_a_url_is_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        open_store("redis2://user:geheim@host/0?password=geheim")
    assert "geheim" not in str(caught.value)
