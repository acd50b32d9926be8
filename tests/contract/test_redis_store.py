"""The Redis store keeps the contract and survives the faults: on Redis, in a cluster of it, and on Valkey."""

import functools
from collections.abc import Callable, Iterator

import pytest

from eventonce import open_store
from eventonce.ports import Store
from eventonce.testing import FaultProxy, Features, StoreContract, StoreFaults
from eventonce.testing.faults import StoreAt
from tests.servers import Redis, RedisCluster, Valkey


class TestRedis(StoreContract):
    features = Features(processes=True, durable=True)

    @pytest.fixture
    def opener(self, redis_server: Redis) -> Callable[[], Store]:
        redis_server.cli("flushall")
        return functools.partial(open_store, redis_server.url())


@pytest.mark.long
class TestValkey(StoreContract):
    features = Features(processes=True, durable=True)

    @pytest.fixture
    def opener(self, valkey_server: Valkey) -> Callable[[], Store]:
        valkey_server.cli("flushall")
        return functools.partial(open_store, valkey_server.url())


class TestRedisCluster(StoreContract):
    features = Features(processes=True, durable=True)

    @pytest.fixture
    def opener(self, redis_cluster: RedisCluster) -> Callable[[], Store]:
        redis_cluster.flush()
        return functools.partial(open_store, redis_cluster.url())


class TestRedisUnderFaults(StoreFaults):
    @pytest.fixture
    def server(self, redis_server: Redis) -> Redis:
        redis_server.cli("flushall")
        return redis_server

    @pytest.fixture
    def opener(self, server: Redis) -> StoreAt:
        return lambda port, clock, timeout: open_store(f"{server.url(port)}?timeout={timeout}", clock)


@pytest.mark.long
class TestValkeyUnderFaults(TestRedisUnderFaults):
    @pytest.fixture
    def server(self, valkey_server: Valkey) -> Valkey:
        valkey_server.cli("flushall")
        return valkey_server


class TestRedisClusterUnderFaults(StoreFaults):
    """A proxy for all masters, which announce its ports to clients. One of the masters restarts."""

    @pytest.fixture
    def server(self, redis_cluster: RedisCluster) -> RedisCluster:
        redis_cluster.flush()
        return redis_cluster

    @pytest.fixture
    def proxy(self, server: RedisCluster) -> Iterator[FaultProxy]:
        with FaultProxy(*(node.port for node in server.nodes)) as proxy:
            server.announce(proxy.ports)
            yield proxy
            server.settle()
            server.announce([0, 0, 0])

    @pytest.fixture
    def opener(self, server: RedisCluster) -> StoreAt:
        return lambda port, clock, timeout: open_store(f"{server.url(port)}&timeout={timeout}", clock)
