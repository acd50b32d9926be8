"""Real servers for tests and benchmarks. Each is a separate process on a free port, with its data in a folder."""

from tests.servers.dynamodb import Dynoxide, Ministack
from tests.servers.postgres import Postgres
from tests.servers.process import Missing, ServerProcess
from tests.servers.redis import Redis, RedisCluster, Valkey

__all__ = ["Dynoxide", "Ministack", "Missing", "Postgres", "ServerProcess", "Redis", "RedisCluster", "Valkey"]
