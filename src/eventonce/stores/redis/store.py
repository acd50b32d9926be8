"""The Redis store: for many workers, on one server, behind Sentinel or in a cluster. Valkey is the same to it.

A batch of claims is one script, decided on the server's clock; so are extend, commit and release. A key's record ends
with the key itself, so Redis cleans up alone. In a cluster the keys live in 64 buckets spread evenly over its slots,
and a batch is one script for each bucket, all sent together.
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

from eventonce.claims.protocol import Answer, Claim, Finish, Record, Release, Token, Want
from eventonce.clock import Clock, SystemClock
from eventonce.errors import StoreError, StorePartly
from eventonce.event.keys import Key
from eventonce.forks import register_for_forks
from eventonce.ports import Swept
from eventonce.stores.redis import cluster as masters
from eventonce.stores.redis import record
from eventonce.stores.redis.cluster import TROUBLE
from eventonce.stores.redis.errors import trouble
from eventonce.stores.redis.server import warnings
from eventonce.stores.retry import GIVING_BACK, ask
from eventonce.stores.url import count, flag, options, patience, shown, without, wrong

_PREFIX = b"eventonce:"  # with the key, it fills what Redis sets aside for a name of 16 bytes anyway
_BUCKETS = 64  # of a cluster; never to be changed, since keys are named after them
_SLOTS = 16_384
_CHUNK = 1000  # keys in one script, so that no script holds others up for long
_OWN = ("cluster", "sentinel", "timeout", "wait")  # the options that are not redis-py's
_SENTINEL_PORT = 26_379
_AWAITED = ("claim", "extend", "commit")  # the verbs that count only where replicas have them
_MARK = (b"eventonce:wait", b"", "PX", 60_000)
_UNLEASED = 5000  # milliseconds of patience before anything was claimed
_SCRIPTS = Path(__file__).with_name("scripts")
_log = logging.getLogger("eventonce")
Result = TypeVar("Result")


Told = TypeVar("Told")
Arguments = Callable[[Sequence[int]], list[bytes | int]]  # of the keys at these places
Read = Callable[[Any], list[Told]]


class Script(NamedTuple):
    """A script of ours, and what Redis knows it by once it has seen it."""

    text: str
    digest: str


@cache
def script(verb: str) -> Script:
    """The script of a verb."""
    text = "\n".join((_SCRIPTS / f"{name}.lua").read_text() for name in ("record", verb))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def open_url(url: str, clock: Clock | None, create: bool) -> "RedisStore":
    """Open `redis://`, `rediss://` or `unix://`, with `?cluster=true` or `?sentinel=NAME`, `timeout=` and `wait=`."""
    found = {name: value for name, value in _all_options(url).items() if name in _OWN}
    _check_place(url, found)
    timeout = patience(found.get("timeout", "5s"), f"store: {shown(url)}")
    wait = count(url, found, "wait", 1) if "wait" in found else 0
    cluster = flag(url, found, "cluster")
    if cluster and (wait or "sentinel" in found):
        wrong(url, "cluster=true goes neither with wait nor with sentinel")
    connect = _connector(url, found, timeout, cluster=cluster)
    return RedisStore(connect, shown(url), timeout=timeout, wait=wait, cluster=cluster, clock=clock)


class ScriptCall(NamedTuple):
    """One script to be run: over the keys at these places of the batch."""

    places: Sequence[int]
    names: list[bytes]
    arguments: list[bytes | int]


class RedisStore:
    """Claims as strings under their keys.

    `connect` makes the client, on first use: an application can start while Redis is away. With `wait`, a claim, an
    extension or a commit counts only when so many replicas have it, and so does an answer that an event is done.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        place: str,
        *,
        timeout: int = 5000,
        wait: int = 0,
        cluster: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._connect = connect
        self._place = place
        self._wait_for = max(1, timeout // 2)  # by a WAIT; 0 would be for ever
        self._wait = wait
        self._names = _bucketed if cluster else _plain
        self._cluster = cluster
        self._lock = threading.Lock()
        self._client: Any = None
        self._told = False  # of what may be forgotten
        self._lease = 2 * _UNLEASED
        register_for_forks(self)

    # --- the verbs ---

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        self._lease = lease
        packed = record.wants(wants)
        keys = [want.key for want in wants]
        read = lambda reply: record.answers(reply, self.clock.utc())  # noqa: E731
        return self._patiently("claim", keys, lambda places: [token, lease, packed.of(places)], read)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        packed = record.tokens(claims)
        # Without patience: the keeper asks again by itself.
        keys = [claim.key for claim in claims]
        return self._answered(lambda: self._run("extend", keys, lambda places: [lease, packed.of(places)], _yes))

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        packed = record.finishes(finishes)
        memos = [finish.memo for finish in finishes]
        keys = [finish.key for finish in finishes]
        return self._patiently("commit", keys, lambda places: [packed.of(places), *record.texts(memos, places)], _yes)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        packed = record.releases(releases)
        errors = [given.error for given in releases]
        keys = [given.key for given in releases]
        return self._patiently("release", keys, lambda places: [packed.of(places), *record.texts(errors, places)], _yes)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        return [
            None if value is None else record.read(value)
            for value in self._ask(lambda: self._values(keys), self._lease)
        ]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        return self._patiently("forget", keys, lambda places: [], _yes)

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Nothing to do: Redis drops what is over by itself."""
        return Swept(0, None)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def check(self) -> list[str]:
        """What to warn of: a server that may forget, or takes no writes."""
        client, found = self._answered(lambda: self._met(ask=True))
        client.close()
        self._told = True
        return found

    # --- asking ---

    def _patiently(self, verb: str, keys: Sequence[Key], arguments: Arguments, read: Read[Told]) -> list[Told]:
        most = GIVING_BACK if verb == "release" else self._lease
        return self._ask(lambda: self._run(verb, keys, arguments, read), most)

    def _ask(self, act: Callable[[], list[Any]], most: int) -> list[Any]:
        return ask(lambda: self._answered(act), self.clock, min(most, self._lease // 2))

    def _run(self, verb: str, keys: Sequence[Key], arguments: Arguments, read: Read[Told]) -> list[Told]:
        """Run a verb's script over all keys; what it says of each key."""
        if not keys:
            return []
        names = self._names(keys)
        calls = [ScriptCall(places, _at(names, places), arguments(places)) for places in self._groups(names)]
        wait = self._wait if verb in _AWAITED else 0
        replies = self._send(script(verb), calls, wait)
        if len(calls) == 1 and not isinstance(replies[0], Exception):
            return read(replies[0])
        told: dict[int, Told] = {}
        for call, reply in zip(calls, replies, strict=True):
            if not isinstance(reply, Exception):
                told.update(zip(call.places, read(reply), strict=True))
        if len(told) < len(keys):
            raise self._partly(replies, [told.get(at) for at in range(len(keys))])
        return [told[at] for at in range(len(keys))]

    def _partly(self, replies: list[Any], told: list[Told | None]) -> StoreError:
        """Some masters of a cluster did not answer."""
        errors = [self._trouble(reply) for reply in replies if isinstance(reply, Exception)]
        unusable = next((error for error in errors if not error.retryable), None)
        if unusable is not None or not any(isinstance(reply, bytes | list) for reply in replies):
            return unusable or errors[0]
        return StorePartly(str(errors[0]), told)

    def _groups(self, names: list[bytes]) -> Iterator[Sequence[int]]:
        """Which keys go into one script: all of them, or in a cluster those of one bucket."""
        if not self._cluster:
            yield from _chunks(range(len(names))) if len(names) > _CHUNK else (range(len(names)),)
            return
        buckets: dict[bytes, list[int]] = {}
        for at, name in enumerate(names):
            buckets.setdefault(name.partition(b"}")[0], []).append(at)
        for places in buckets.values():
            yield from _chunks(places)

    def _send(self, script: Script, calls: list[ScriptCall], wait: int) -> list[Any]:
        client = self._ready()
        if len(calls) == 1 and not wait and not self._cluster:
            return [_one(client, script, calls[0])]
        replies = self._together(client, calls, wait, "EVALSHA", script.digest)
        unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:  # and then the replicas are counted once more: what they had before says nothing of these
            again = self._together(client, [calls[at] for at in unknown], wait, "EVAL", script.text)
            for at, reply in zip(unknown, again, strict=False):
                replies[at] = reply
            replies[len(calls) :] = again[len(unknown) :]
        for reply in () if self._cluster else replies:
            if isinstance(reply, Exception):
                raise reply
        if wait:
            self._check_replicas(replies[-1], wait)
        return replies[: len(calls)]

    def _together(self, client: Any, calls: list[ScriptCall], wait: int, *words: str) -> list[Any]:
        """Send the calls in one go; one reply for each, and where we wait the last: how many replicas have them.

        From Redis 7.2 on, and in Valkey, WAIT asks for what this connection itself has written last. A commit that is
        repeated over a new connection writes nothing, nor does the answer that an event is done; so a mark is written
        behind them, and what a replica has of that it has of all before it.
        """
        commands = [(*words, len(call.names), *call.names, *call.arguments) for call in calls]
        if self._cluster:
            return masters.together(client, [call.names[0] for call in calls], commands)
        with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            if wait:
                pipeline.execute_command("SET", *_MARK)
                pipeline.execute_command("WAIT", wait, self._wait_for)
            return cast(list[Any], pipeline.execute(raise_on_error=False))

    def _check_replicas(self, have: int, wait: int) -> None:
        if have < wait:
            raise StoreError(f"{self._place}: only {have} of {wait} replicas have it within {self._wait_for} ms")

    def _values(self, keys: Sequence[Key]) -> list[bytes | None]:
        if not keys:
            return []
        client, names = self._ready(), self._names(keys)
        if self._cluster:
            return cast(list[bytes | None], client.mget_nonatomic(names))
        return cast(list[bytes | None], client.mget(names))

    def _ready(self) -> Any:
        """The client, made on first use; and then it is said loudly if the server may forget."""
        client = self._client
        if client is not None:
            return client
        # Not under the lock: threads need not wait for each other's timeouts.
        made, found = self._met(ask=not self._told)
        with self._lock:
            if self._client is None:
                for warning in () if self._told else found:
                    _log.warning("%s", warning)
                self._client, self._told = made, True
            client = self._client
        if client is not made:
            made.close()
        return client

    def _met(self, *, ask: bool) -> tuple[Any, list[str]]:
        client = self._connect()
        try:
            return client, warnings(client, self._place, self._wait) if ask else []
        except BaseException:
            client.close()
            raise

    def _answered(self, act: Callable[[], Result]) -> Result:
        try:
            return act()
        except TROUBLE as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> StoreError:
        if isinstance(error, ReadOnlyError):  # it was the master; its name may lead to the new one by now
            self.close()
        return trouble(error, self._place, cluster=self._cluster)

    # --- forks: the connections are the parent's ---

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._client = None
        self._lock.release()


# --- connecting ---


def _connector(url: str, found: dict[str, str], timeout: int, *, cluster: bool) -> Callable[[], Any]:
    settings: dict[str, Any] = {
        "socket_timeout": timeout / 1000,
        "socket_connect_timeout": timeout / 1000,
        "protocol": 2,
        # A connection that a restart has cut is made again at once; all else is for our own patience.
        "retry": Retry(NoBackoff(), 1, supported_errors=(NoConnection,)),
    }
    plain = without(url, *_OWN)
    given = _given(url, plain, settings)
    if "sentinel" in found:
        return lambda: _master(url, found["sentinel"], {**settings, **given})
    if cluster:
        if given.get("db"):
            wrong(url, "a cluster has no databases; leave the number out")
        return lambda: redis.RedisCluster.from_url(plain, **settings)
    return lambda: redis.Redis.from_url(plain, **settings)


def _given(url: str, plain: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What a URL says, as redis-py reads it; which would complain of a wrong option at the first event only."""
    try:
        pool = redis.ConnectionPool.from_url(_with_one_host(plain), **settings)
        pool.make_connection()
    except (ValueError, TypeError, RedisError) as error:  # none of which holds a secret
        wrong(url, f"the options are not as redis-py takes them: {error}")
    return {name: value for name, value in pool.connection_kwargs.items() if name not in ("host", "port")}


def _with_one_host(url: str) -> str:
    netloc = urlsplit(url).netloc
    user, at, places = netloc.rpartition("@")
    return url.replace(netloc, f"{user}{at}{places.partition(',')[0]}", 1)


def _master(url: str, name: str, settings: dict[str, Any]) -> Any:
    """The master that these sentinels name, now and after each failover."""
    from redis.sentinel import Sentinel

    parts = urlsplit(url)
    sentinels = [_host(place) for place in parts.netloc.rpartition("@")[2].split(",")]
    guards: Any = Sentinel  # which has no types
    return guards(sentinels, sentinel_kwargs={"socket_timeout": settings["socket_timeout"]}).master_for(
        name, ssl=parts.scheme == "rediss", **settings
    )


def _host(place: str) -> tuple[str, int]:
    parts = urlsplit(f"//{place}")
    return parts.hostname or "", parts.port or _SENTINEL_PORT


def _all_options(url: str) -> dict[str, str]:
    """The options of a URL: ours, and those that redis-py knows."""
    from redis.connection import URL_QUERY_ARGUMENT_PARSERS

    known = set(_OWN) | set(URL_QUERY_ARGUMENT_PARSERS) | {"username", "password"}
    return options(url, *sorted(known), *(name for name in _names(url) if name.startswith("ssl_")))


def _check_place(url: str, found: dict[str, str]) -> None:
    """redis-py would take a database that is no number for the first one."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return
    if not parts.path.strip("/").isdecimal() and parts.path.strip("/"):
        wrong(url, "the database is a number, as in redis://HOST:6379/0")
    for place in parts.netloc.rpartition("@")[2].split(",") if "sentinel" in found else [parts.netloc]:
        try:
            port = urlsplit(f"//{place}").port
        except ValueError:
            wrong(url, "the port is a number, as in redis://HOST:6379/0")
        if port is None and not urlsplit(f"//{place}").hostname:
            wrong(url, "names no host, as in redis://HOST:6379/0")


def _names(url: str) -> list[str]:
    return [pair.partition("=")[0] for pair in urlsplit(url).query.split("&")]


# --- keys ---


def _plain(keys: Sequence[Key]) -> list[bytes]:
    return [_PREFIX + key for key in keys]


def _bucketed(keys: Sequence[Key]) -> list[bytes]:
    tags = _tags()
    return [tags[key[0] % _BUCKETS] + key for key in keys]


@cache
def _tags() -> list[bytes]:
    """A name for each bucket, so that the buckets are spread evenly over the slots of a cluster."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < _BUCKETS:
        tag = b"eo%d" % number
        found.setdefault(key_slot(tag) * _BUCKETS // _SLOTS, b"{%s}" % tag)
        number += 1
    return [found[bucket] for bucket in range(_BUCKETS)]


def _at(names: list[bytes], places: Sequence[int]) -> list[bytes]:
    return names if len(places) == len(names) else [names[at] for at in places]


def _chunks(places: Sequence[int]) -> Iterator[Sequence[int]]:
    return (places[start : start + _CHUNK] for start in range(0, len(places), _CHUNK))


# --- replies ---


def _one(client: Any, script: Script, call: ScriptCall) -> Any:
    """Run one script; with its text where the server does not know it, as after a restart or a failover."""
    words = (len(call.names), *call.names, *call.arguments)
    try:
        return client.execute_command("EVALSHA", script.digest, *words)
    except NoScriptError:
        return client.execute_command("EVAL", script.text, *words)


def _yes(reply: bytes) -> list[bool]:
    return [each == 49 for each in reply]  # the byte of "1"
