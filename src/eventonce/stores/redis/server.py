"""Checks of a Redis server: its version, and settings with which it may forget keys."""

from collections.abc import Iterator
from typing import Any

import redis
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import NoPermissionError
from redis.exceptions import TimeoutError as Late

from eventonce.errors import StoreUnusable
from eventonce.stores.redis.errors import NO_CLUSTER, READ_ONLY

_OLDEST = (6, 2)


def check_server(client: Any, address: str, wait: int) -> list[str]:
    """Return what to warn of. Raise if the server cannot be used at all."""
    problems: list[str] = []
    try:
        clustered = isinstance(client, redis.RedisCluster)
        infos = _master_infos(client, address, problems) if clustered else [client.info()]
    except NoPermissionError:
        return [f"{address}: no permission for INFO, eviction not checked; see that maxmemory-policy is noeviction"]
    for info in infos:
        _check_version(info, address)
        if info.get("cluster_enabled") and not clustered:
            raise StoreUnusable(f"{address}: {NO_CLUSTER}")
        problems += [f"{address}: {problem}" for problem in _problems(info, wait)]
    return list(dict.fromkeys(problems))


def _problems(info: dict[str, Any], wait: int) -> Iterator[str]:
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
            "has no append-only file and no replica: a restart can forget what was done, "
            "and those events run again; set appendonly yes"
        )
    if info.get("connected_slaves", wait) < wait:
        yield f"has {info['connected_slaves']} replicas and wait={wait} asks for more: no claim will count"


def _master_infos(client: Any, address: str, problems: list[str]) -> list[dict[str, Any]]:
    """Return the INFO of each master of a cluster. One that is down must not make the keys of others unavailable."""
    infos = []
    for node in client.get_primaries():
        try:
            infos.append(client.get_redis_connection(node).info())
        except (NoConnection, Late) as error:
            problems.append(f"{address}: the master {node.name} does not answer: {error}")
    return infos


def _check_version(info: dict[str, Any], address: str) -> None:
    version = tuple(int(part) for part in str(info.get("redis_version", "99")).split(".")[:2])
    if version < _OLDEST:
        raise StoreUnusable(f"{address}: Redis {info['redis_version']} is too old; eventonce needs 6.2 or newer")
