"""Stores over clients that an application has already. They are used and never closed."""

from typing import TYPE_CHECKING, Any

from eventonce.clock import Clock
from eventonce.errors import ConfigError

if TYPE_CHECKING:
    from eventonce.ports import Store

_REMEDIES = {  # by the package of what was passed
    "asyncpg": "pass the URL, as postgresql://HOST/DATABASE; eventonce opens connections of its own",
    "psycopg": "pass a ConnectionPool of psycopg_pool or the URL; one connection cannot serve many callers",
    "sqlalchemy": "pass the URL of its database, as postgresql://HOST/DATABASE or sqlite:///FILE",
    "sqlite3": "pass the URL of its file, as sqlite:///FILE?shared=true",
    "aiobotocore": "pass a session or a client of boto3 as client=, beside dynamodb://TABLE",
    "boto3": 'pass it as client=, beside the table, as Once("dynamodb://TABLE", client=session)',
    "botocore": 'pass it as client=, beside the table, as Once("dynamodb://TABLE", client=client)',
}
_FORMS = "use the URL of a store such as sqlite:///FILE, a store, a client of redis-py or a psycopg_pool.ConnectionPool"


def store_of(client: Any, clock: Clock) -> "Store":
    """Return the store of a client. Raise `ConfigError` if there is none."""
    package, _, module = type(client).__module__.partition(".")
    if package == "redis":
        return _redis_store(client, clock, is_async=module.startswith("asyncio"))
    if package == "psycopg_pool":
        return _postgres_store(client, clock)
    raise ConfigError(f"store: {client!r:.100} is neither a URL nor a store; {_REMEDIES.get(package, _FORMS)}")


def store_with(url: str, client: Any, clock: Clock) -> "Store":
    """Return the store of a URL, which calls AWS through a client or a session of boto3."""
    if not url.startswith("dynamodb:"):
        raise ConfigError(
            "client: goes with dynamodb://TABLE; pass a client of redis-py or a psycopg_pool in place of the URL"
        )
    if type(client).__module__.partition(".")[0] not in ("boto3", "botocore") or not _is_for_dynamodb(client):
        raise ConfigError(f"client: {client!r:.100} is neither a session of boto3 nor a client of DynamoDB")
    from eventonce.stores.dynamodb.store import open_url

    return open_url(url, clock, create=True, client=client)


def _is_for_dynamodb(client: Any) -> bool:
    service = getattr(getattr(client, "meta", None), "service_model", None)
    return hasattr(client, "get_credentials") if service is None else service.service_name == "dynamodb"


def _redis_store(client: Any, clock: Clock, *, is_async: bool) -> "Store":
    import redis

    from eventonce.stores.redis.store import RedisStore

    is_pipeline = isinstance(client, redis.client.Pipeline | redis.cluster.ClusterPipeline)  # it answers later
    if is_async or is_pipeline or not isinstance(client, redis.Redis | redis.RedisCluster):
        raise ConfigError(
            f"store: {type(client).__qualname__} cannot be used; pass redis.Redis or redis.RedisCluster, which async "
            "def handlers use as well"
        )
    if client.get_encoder().decode_responses:
        raise ConfigError("store: the client decodes what it reads, and records are bytes; leave decode_responses out")
    is_cluster = isinstance(client, redis.RedisCluster)
    return RedisStore(lambda: client, "redis", cluster=is_cluster, owned=False, clock=clock)


def _postgres_store(pool: Any, clock: Clock) -> "Store":
    """Return a store with connections of its own, which have the parameters of those in a pool."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from eventonce.stores.postgres.store import PostgresStore

    conninfo, options = _value(pool.conninfo), _value(pool.kwargs) or {}
    if not isinstance(conninfo, str):
        raise ConfigError("store: the pool computes its parameters asynchronously; pass the URL of its database")
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    settings = conninfo_to_dict(conninfo, **{name: value for name, value in options.items() if name in known})
    return PostgresStore(settings, clock=clock)


def _value(setting: Any) -> Any:
    """Return a setting of a pool, which may be a function that returns it."""
    return setting() if callable(setting) else setting
