"""The Redis store keeps the contract and survives the faults, on one server; in a cluster it keeps the contract too."""

import functools
from collections.abc import Callable

import pytest

from eventonce import open_store
from eventonce.clock import Clock
from eventonce.ports import Store
from eventonce.testing import Features, StoreContract, StoreFaults
from eventonce.testing.servers import Redis, RedisCluster


class TestRedis(StoreContract):
    features = Features(processes=True, durable=True)

    @pytest.fixture
    def opener(self, redis_server: Redis) -> Callable[[], Store]:
        redis_server.cli("flushall")
        return functools.partial(open_store, redis_server.url())


class TestRedisCluster(StoreContract):
    features = Features(processes=True)

    @pytest.fixture
    def opener(self, redis_cluster: RedisCluster) -> Callable[[], Store]:
        for node in redis_cluster.nodes:
            node.cli("flushall")
        return functools.partial(open_store, redis_cluster.url())


class TestRedisUnderFaults(StoreFaults):
    @pytest.fixture
    def server(self, redis_server: Redis) -> Redis:
        redis_server.cli("flushall")
        return redis_server

    @pytest.fixture
    def opener(self, server: Redis) -> Callable[[int, Clock], Store]:
        return lambda port, clock: open_store(f"{server.url(port)}?timeout=1s", clock)
