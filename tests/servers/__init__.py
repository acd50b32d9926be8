"""Real servers for tests and benchmarks: each a process of our own on a free port, with its data in a folder."""

from eventonce.testing.servers.dynamodb import Dynoxide, Ministack
from eventonce.testing.servers.postgres import Postgres
from eventonce.testing.servers.process import Missing, Process
from eventonce.testing.servers.redis import Redis, RedisCluster, Valkey

__all__ = ["Dynoxide", "Ministack", "Missing", "Postgres", "Process", "Redis", "RedisCluster", "Valkey"]
