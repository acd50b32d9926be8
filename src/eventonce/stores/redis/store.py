"""The Redis store: for many workers, on one server, behind Sentinel or in a cluster. Valkey works the same way.

Each verb runs one script for a batch of keys, by the server's clock. A key expires with its record, so Redis cleans up
by itself. In a cluster the keys live in 64 buckets, spread evenly over its slots. A batch is one script for each bucket
there, all sent together.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError
from redis.retry import Retry

from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.clients.passwords import refuse_blank_password
from eventonce.clock import Clock, SystemClock
from eventonce.errors import StoreError, StorePartly
from eventonce.event.keys import Key
from eventonce.forks import register_for_forks
from eventonce.ports import Swept
from eventonce.stores.redis import cluster as masters
from eventonce.stores.redis import record
from eventonce.stores.redis.cluster import CLIENT_ERRORS
from eventonce.stores.redis.errors import translate_error
from eventonce.stores.redis.server import check_server
from eventonce.stores.retry import RELEASE_TIMEOUT, call_with_retries
from eventonce.stores.url import count, flag, options, parse_timeout, redact_url, reject, without

_PREFIX = b"eventonce:"  # with the key, it fills what Redis sets aside for a name of 16 bytes anyway
_BUCKETS = 64  # of a cluster; never to be changed, since keys are named after them
_SLOTS = 16_384
_CHUNK = 1000  # keys in one script, so that no script holds others up for long
_OWN = ("cluster", "sentinel", "timeout", "wait")  # all other options are redis-py's
_SENTINEL_PORT = 26_379
_AWAITED = ("claim", "extend", "commit")  # the verbs that count only if replicas have their changes
_WAIT_MARKER = (b"eventonce:wait", b"", "PX", 60_000)
_FIRST_TIMEOUT = 5000  # milliseconds for retries before the first claim
_SCRIPTS = Path(__file__).with_name("scripts")
_log = logging.getLogger("eventonce")
Result = TypeVar("Result")


Item = TypeVar("Item")
Arguments = Callable[[Sequence[int]], list[bytes | int]]  # for the keys at these indexes
Read = Callable[[Any], list[Item]]


class Script(NamedTuple):
    """A Lua script, and the digest by which Redis runs it once it is loaded."""

    text: str
    digest: str


@cache
def script(verb: str) -> Script:
    """Return the script of a verb."""
    text = "\n".join((_SCRIPTS / f"{name}.lua").read_text() for name in ("record", verb))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def open_url(url: str, clock: Clock | None, create: bool) -> "RedisStore":
    """Open `redis://`, `rediss://` or `unix://`, with `?cluster=true` or `?sentinel=NAME`, `timeout=` and `wait=`."""
    refuse_blank_password(url, f"store: {redact_url(url)}")
    query = {name: value for name, value in _all_options(url).items() if name in _OWN}
    _check_address(url, query)
    timeout = parse_timeout(query.get("timeout", "5s"), f"store: {redact_url(url)}")
    wait = count(url, query, "wait", 1) if "wait" in query else 0
    cluster = flag(url, query, "cluster")
    if cluster and (wait or "sentinel" in query):
        reject(url, "cluster=true goes neither with wait nor with sentinel")
    connect = _connector(url, query, timeout, cluster=cluster)
    return RedisStore(connect, redact_url(url), timeout=timeout, wait=wait, cluster=cluster, clock=clock)


class ScriptCall(NamedTuple):
    """One run of a script, for the keys at these indexes of the batch."""

    indexes: Sequence[int]
    names: list[bytes]
    arguments: list[bytes | int]


class RedisStore:
    """Claims as strings under their keys.

    `connect` creates the client on first use, so an application can start while Redis is down. With `wait`, a claim, an
    extension or a commit counts only if so many replicas have it, and so does the answer that an event is done.
    A client that is not `owned` is never closed.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        address: str,
        *,
        timeout: int = 5000,
        wait: int = 0,
        cluster: bool = False,
        owned: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._connect = connect
        self._owned = owned
        self._address = address
        self._wait_timeout = max(1, timeout // 2)  # of a WAIT; 0 would wait forever
        self._wait = wait
        self._names = _bucketed_names if cluster else _plain_names
        self._cluster = cluster
        self._lock = threading.Lock()
        self._client: Any = None
        self._warned = False  # that the server may forget keys
        self._lease = 2 * _FIRST_TIMEOUT
        register_for_forks(self)

    # --- the verbs ---

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        self._lease = lease
        packed = record.pack_wants(wants)
        keys = [want.key for want in wants]
        read = lambda reply: record.decode_answers(reply, self.clock.utc())  # noqa: E731
        return self._run_with_retries("claim", keys, lambda indexes: [token, lease, packed.argument(indexes)], read)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        packed = record.pack_tokens(claims)
        # Without retries: the keeper extends again by itself.
        keys = [claim.key for claim in claims]

        def arguments(indexes: Sequence[int]) -> list[bytes | int]:
            return [lease, packed.argument(indexes)]

        return self._translate_errors(lambda: self._run("extend", keys, arguments, _booleans))

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        packed = record.pack_finishes(finishes)
        memos = [finish.memo for finish in finishes]
        keys = [finish.key for finish in finishes]

        def arguments(indexes: Sequence[int]) -> list[bytes | int]:
            return [packed.argument(indexes), *record.encode_texts(memos, indexes)]

        return self._run_with_retries("commit", keys, arguments, _booleans)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        packed = record.pack_releases(releases)
        errors = [release.error for release in releases]
        keys = [release.key for release in releases]

        def arguments(indexes: Sequence[int]) -> list[bytes | int]:
            return [packed.argument(indexes), *record.encode_texts(errors, indexes)]

        return self._run_with_retries("release", keys, arguments, _booleans)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return [
            None if value is None else record.decode(value)
            for value in self._with_retries(lambda: self._values(keys), self._lease)
        ]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return self._run_with_retries("forget", keys, lambda indexes: [], _booleans)

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Do nothing, because Redis drops expired keys by itself."""
        return Swept(0, None)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            self._discard(client)

    def _discard(self, client: Any) -> None:
        if self._owned:
            client.close()

    def check(self) -> list[str]:
        """Return what to warn of: a server that may forget keys, or takes no writes."""
        client, problems = self._translate_errors(lambda: self._connect_and_check(check=True))
        client.close()
        self._warned = True
        return problems

    # --- calls ---

    def _run_with_retries(self, verb: str, keys: Sequence[Key], arguments: Arguments, read: Read[Item]) -> list[Item]:
        timeout = RELEASE_TIMEOUT if verb == "release" else self._lease
        return self._with_retries(lambda: self._run(verb, keys, arguments, read), timeout)

    def _with_retries(self, operation: Callable[[], list[Any]], timeout: int) -> list[Any]:
        return call_with_retries(lambda: self._translate_errors(operation), self.clock, min(timeout, self._lease // 2))

    def _run(self, verb: str, keys: Sequence[Key], arguments: Arguments, read: Read[Item]) -> list[Item]:
        """Run the script of a verb for all keys. Return its result for each."""
        if not keys:
            return []
        names = self._names(keys)
        calls = [ScriptCall(indexes, _select(names, indexes), arguments(indexes)) for indexes in self._groups(names)]
        wait = self._wait if verb in _AWAITED else 0
        replies = self._send(script(verb), calls, wait)
        if len(calls) == 1 and not isinstance(replies[0], Exception):
            return read(replies[0])
        by_index: dict[int, Item] = {}
        for call, reply in zip(calls, replies, strict=True):
            if not isinstance(reply, Exception):
                by_index.update(zip(call.indexes, read(reply), strict=True))
        if len(by_index) < len(keys):
            raise self._partial_error(replies, [by_index.get(index) for index in range(len(keys))])
        return [by_index[index] for index in range(len(keys))]

    def _partial_error(self, replies: list[Any], results: list[Item | None]) -> StoreError:
        """Return the error of a call that not all masters of a cluster answered."""
        errors = [self._translate_error(reply) for reply in replies if isinstance(reply, Exception)]
        unusable = next((error for error in errors if not error.retryable), None)
        if unusable is not None or not any(isinstance(reply, bytes | list) for reply in replies):
            return unusable or errors[0]
        return StorePartly(str(errors[0]), results)

    def _groups(self, names: list[bytes]) -> Iterator[Sequence[int]]:
        """Yield the indexes of the keys of each script: all keys, or in a cluster those of one bucket."""
        if not self._cluster:
            yield from _chunks(range(len(names))) if len(names) > _CHUNK else (range(len(names)),)
            return
        buckets: dict[bytes, list[int]] = {}
        for index, name in enumerate(names):
            buckets.setdefault(name.partition(b"}")[0], []).append(index)
        for indexes in buckets.values():
            yield from _chunks(indexes)

    def _send(self, script: Script, calls: list[ScriptCall], wait: int) -> list[Any]:
        client = self._ready_client()
        if len(calls) == 1 and not wait and not self._cluster:
            return [_run_script(client, script, calls[0])]
        replies = self._send_together(client, calls, wait, "EVALSHA", script.digest)
        unloaded = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unloaded:  # and count the replicas once more, since the first count did not include these calls
            repeated = [calls[index] for index in unloaded]
            second_replies = self._send_together(client, repeated, wait, "EVAL", script.text)
            for index, reply in zip(unloaded, second_replies, strict=False):
                replies[index] = reply
            replies[len(calls) :] = second_replies[len(unloaded) :]
        for reply in () if self._cluster else replies:
            if isinstance(reply, Exception):
                raise reply
        if wait:
            self._check_replicas(replies[-1], wait)
        return replies[: len(calls)]

    def _send_together(self, client: Any, calls: list[ScriptCall], wait: int, *command_words: str) -> list[Any]:
        """Send the calls together. Return a reply for each, and with `wait` the number of replicas that have them.

        From Redis 7.2 on, and in Valkey, WAIT counts replicas with the last write of this connection. A commit that is
        repeated over a new connection writes nothing, nor does the answer that an event is done. So a marker is written
        after them: a replica that has it has all that was written before.
        """
        commands = [(*command_words, len(call.names), *call.names, *call.arguments) for call in calls]
        if self._cluster:
            return masters.send_commands(client, [call.names[0] for call in calls], commands)
        with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            if wait:
                pipeline.execute_command("SET", *_WAIT_MARKER)
                pipeline.execute_command("WAIT", wait, self._wait_timeout)
            return cast(list[Any], pipeline.execute(raise_on_error=False))

    def _check_replicas(self, replicas: int, wait: int) -> None:
        if replicas < wait:
            raise StoreError(
                f"{self._address}: only {replicas} of {wait} replicas have it within {self._wait_timeout} ms"
            )

    def _values(self, keys: Sequence[Key]) -> list[bytes | None]:
        if not keys:
            return []
        client, names = self._ready_client(), self._names(keys)
        if self._cluster:
            return cast(list[bytes | None], client.mget_nonatomic(names))
        return cast(list[bytes | None], client.mget(names))

    def _ready_client(self) -> Any:
        """Return the client. Connect on first use, and warn if the server may forget keys."""
        client = self._client
        if client is not None:
            return client
        # Not under the lock, so that threads do not wait for each other's timeouts.
        new_client, problems = self._connect_and_check(check=not self._warned)
        with self._lock:
            if self._client is None:
                for warning in () if self._warned else problems:
                    _log.warning("%s", warning)
                self._client, self._warned = new_client, True
            client = self._client
        if client is not new_client:
            self._discard(new_client)
        return client

    def _connect_and_check(self, *, check: bool) -> tuple[Any, list[str]]:
        client = self._connect()
        try:
            return client, check_server(client, self._address, self._wait) if check else []
        except BaseException:
            self._discard(client)
            raise

    def _translate_errors(self, operation: Callable[[], Result]) -> Result:
        try:
            return operation()
        except CLIENT_ERRORS as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> StoreError:
        if isinstance(error, ReadOnlyError):  # no longer the master; its name may lead to the new one by now
            self.close()
        return translate_error(error, self._address, cluster=self._cluster)

    # --- forks: connections belong to the parent ---

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._client = None
        self._lock.release()


# --- connecting ---


def _connector(url: str, query: dict[str, str], timeout: int, *, cluster: bool) -> Callable[[], Any]:
    settings: dict[str, Any] = {
        "socket_timeout": timeout / 1000,
        "socket_connect_timeout": timeout / 1000,
        "protocol": 2,
        # A connection that a restart has cut is opened again at once. All else is left to our own retries.
        "retry": Retry(NoBackoff(), 1, supported_errors=(NoConnection,)),
    }
    plain = without(url, *_OWN)
    redis_options = _redis_options(url, plain, settings)
    if "sentinel" in query:
        return lambda: _master(url, query["sentinel"], {**settings, **redis_options})
    if cluster:
        if redis_options.get("db"):
            reject(url, "a cluster has no databases; leave the number out")
        return lambda: redis.RedisCluster.from_url(plain, **settings)
    return lambda: redis.Redis.from_url(plain, **settings)


def _redis_options(url: str, plain: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a URL as redis-py reads them. It would report a wrong one only at the first event."""
    try:
        pool = redis.ConnectionPool.from_url(_with_one_host(plain), **settings)
        pool.make_connection()
    except (ValueError, TypeError, RedisError) as error:  # none of which contains a secret
        reject(url, f"redis-py does not accept the options: {error}")
    return {name: value for name, value in pool.connection_kwargs.items() if name not in ("host", "port")}


def _with_one_host(url: str) -> str:
    netloc = urlsplit(url).netloc
    user, at_sign, hosts = netloc.rpartition("@")
    return url.replace(netloc, f"{user}{at_sign}{hosts.partition(',')[0]}", 1)


def _master(url: str, name: str, settings: dict[str, Any]) -> Any:
    """Return a client of the master that these sentinels name, also after a failover."""
    from redis.sentinel import Sentinel

    parts = urlsplit(url)
    sentinels = [_host(address) for address in parts.netloc.rpartition("@")[2].split(",")]
    sentinel_class: Any = Sentinel  # which has no types
    return sentinel_class(sentinels, sentinel_kwargs={"socket_timeout": settings["socket_timeout"]}).master_for(
        name, ssl=parts.scheme == "rediss", **settings
    )


def _host(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    return parts.hostname or "", parts.port or _SENTINEL_PORT


def _all_options(url: str) -> dict[str, str]:
    """Read the options of a URL: ours and those of redis-py."""
    from redis.connection import URL_QUERY_ARGUMENT_PARSERS

    valid_names = set(_OWN) | set(URL_QUERY_ARGUMENT_PARSERS) | {"username", "password"}
    return options(url, *sorted(valid_names), *(name for name in _option_names(url) if name.startswith("ssl_")))


def _check_address(url: str, query: dict[str, str]) -> None:
    """Raise if the address is invalid. redis-py would use database 0 for one that is not a number."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            reject(url, "names no socket, as in unix:///run/redis.sock")
        return
    if not parts.path.strip("/").isdecimal() and parts.path.strip("/"):
        reject(url, "the database is a number, as in redis://HOST:6379/0")
    for address in parts.netloc.rpartition("@")[2].split(",") if "sentinel" in query else [parts.netloc]:
        try:
            port = urlsplit(f"//{address}").port
        except ValueError:
            reject(url, "the port is a number, as in redis://HOST:6379/0")
        if port is None and not urlsplit(f"//{address}").hostname:
            reject(url, "names no host, as in redis://HOST:6379/0")


def _option_names(url: str) -> list[str]:
    return [pair.partition("=")[0] for pair in urlsplit(url).query.split("&")]


# --- keys ---


def _plain_names(keys: Sequence[Key]) -> list[bytes]:
    return [_PREFIX + key for key in keys]


def _bucketed_names(keys: Sequence[Key]) -> list[bytes]:
    tags = _tags()
    return [tags[key[0] % _BUCKETS] + key for key in keys]


@cache
def _tags() -> list[bytes]:
    """Return a hash tag for each bucket, so that buckets are spread evenly over the slots of a cluster."""
    by_bucket: dict[int, bytes] = {}
    number = 0
    while len(by_bucket) < _BUCKETS:
        tag = b"eo%d" % number
        by_bucket.setdefault(key_slot(tag) * _BUCKETS // _SLOTS, b"{%s}" % tag)
        number += 1
    return [by_bucket[bucket] for bucket in range(_BUCKETS)]


def _select(names: list[bytes], indexes: Sequence[int]) -> list[bytes]:
    return names if len(indexes) == len(names) else [names[index] for index in indexes]


def _chunks(indexes: Sequence[int]) -> Iterator[Sequence[int]]:
    return (indexes[start : start + _CHUNK] for start in range(0, len(indexes), _CHUNK))


# --- replies ---


def _run_script(client: Any, script: Script, call: ScriptCall) -> Any:
    """Run one script, or send its text if the server does not know it, as after a restart or a failover."""
    arguments = (len(call.names), *call.names, *call.arguments)
    try:
        return client.execute_command("EVALSHA", script.digest, *arguments)
    except NoScriptError:
        return client.execute_command("EVAL", script.text, *arguments)


def _booleans(reply: bytes) -> list[bool]:
    return [byte == 49 for byte in reply]  # the byte of "1"
