"""What a server of Redis is like: whether it may be trusted with keys, as far as it tells."""

from collections.abc import Iterator
from typing import Any

import redis
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import NoPermissionError
from redis.exceptions import TimeoutError as Late

from eventonce.errors import StoreUnusable
from eventonce.stores.redis.errors import NO_CLUSTER, READ_ONLY

_OLDEST = (6, 2)


def warnings(client: Any, place: str, wait: int) -> list[str]:
    """What to warn of; raises where the server cannot be used at all."""
    found: list[str] = []
    try:
        told = [client.info()] if not isinstance(client, redis.RedisCluster) else _masters(client, place, found)
    except NoPermissionError:
        return [f"{place}: may not be asked (INFO) whether it evicts keys; see that maxmemory-policy is noeviction"]
    for info in told:
        _check_version(info, place)
        if info.get("cluster_enabled") and not isinstance(client, redis.RedisCluster):
            raise StoreUnusable(f"{place}: {NO_CLUSTER}")
        found += [f"{place}: {doubt}" for doubt in _doubts(info, wait)]
    return list(dict.fromkeys(found))


def _doubts(info: dict[str, Any], wait: int) -> Iterator[str]:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction" and info.get("maxmemory"):
        yield (
            f"maxmemory-policy is {policy}: when memory is full, Redis forgets keys and their events run again; "
            "set it to noeviction"
        )
    if info.get("role") == "slave" and info.get("slave_read_only", 1):
        yield f"takes no writes, so events are only retried; {READ_ONLY}"
    if info.get("role") == "master" and not info.get("aof_enabled") and not info.get("connected_slaves"):
        yield (
            "keeps no append-only file and has no replica: a restart can forget what was done, "
            "and those events run again; set appendonly yes"
        )
    if info.get("connected_slaves", wait) < wait:
        yield f"has {info['connected_slaves']} replicas and wait={wait} asks for more: no claim will count"


def _masters(client: Any, place: str, found: list[str]) -> list[dict[str, Any]]:
    """What each master of a cluster says of itself. One that is away must not keep us from the keys of the others."""
    told = []
    for node in client.get_primaries():
        try:
            told.append(client.get_redis_connection(node).info())
        except (NoConnection, Late) as error:
            found.append(f"{place}: the master {node.name} does not answer: {error}")
    return told


def _check_version(info: dict[str, Any], place: str) -> None:
    version = tuple(int(part) for part in str(info.get("redis_version", "99")).split(".")[:2])
    if version < _OLDEST:
        raise StoreUnusable(f"{place}: Redis {info['redis_version']} is too old; eventonce needs 6.2 or newer")
