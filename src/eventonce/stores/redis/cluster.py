"""What goes to the masters of a cluster together. Each has its own answers, or its own trouble.

redis-py's own pipeline fails as a whole where one master cannot be reached. One that stands still it asks again for
each command, one after the other, while the answers of the others wait.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from redis.exceptions import AskError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as Late

TROUBLE = (RedisError, RedisClusterException, OSError)
Command = tuple[Any, ...]


class Sent:
    """The commands of one master, on a connection to it."""

    def __init__(self, pool: Any, places: Sequence[int], commands: Sequence[Command]) -> None:
        self.places = places
        self._unread = len(places)
        self._pool = pool
        self._connection = pool.get_connection()
        try:
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except BaseException:
            self.end()
            raise

    def read(self) -> Any:
        """The next reply, which may be an error of the server's."""
        try:
            reply = self._connection.read_response()
        except ResponseError as error:
            reply = error
        self._unread -= 1
        return reply

    def end(self) -> None:
        if self._unread:  # the next user would take these replies for its own
            self._connection.disconnect()
        self._pool.release(self._connection)


def together(client: Any, names: Sequence[bytes], commands: Sequence[Command]) -> list[Any]:
    """Send commands to the masters of these keys: a reply for each, or the error in its place.

    Where a connection was cut, as by a restart, that is done once more.
    """
    replies = _once(client, names, commands)
    away = [at for at, reply in enumerate(replies) if isinstance(reply, (NoConnection, Late, RedisClusterException))]
    if away:  # it may have been replaced
        with suppress(*TROUBLE):
            client.nodes_manager.initialize()
    cut = [at for at in away if isinstance(replies[at], NoConnection)]
    if cut:
        again = _once(client, [names[at] for at in cut], [commands[at] for at in cut])
        for at, reply in zip(cut, again, strict=True):
            replies[at] = reply
    return replies


def _once(client: Any, names: Sequence[bytes], commands: Sequence[Command]) -> list[Any]:
    """Write to all masters, and then read."""
    replies: dict[int, Any] = {}
    sent: list[Sent] = []
    try:
        for node, places in _by_master(client, names, replies):
            with _noted(replies, places):
                pool = client.get_redis_connection(node).connection_pool
                sent.append(Sent(pool, places, [commands[at] for at in places]))
        for each in sent:
            with _noted(replies, each.places):
                for at in each.places:
                    replies[at] = each.read()
    finally:
        for each in sent:
            each.end()
    return [_followed(client, commands[at], replies[at]) for at in range(len(commands))]


def _by_master(client: Any, names: Sequence[bytes], replies: dict[int, Any]) -> list[tuple[Any, list[int]]]:
    found: dict[str, tuple[Any, list[int]]] = {}
    for at, name in enumerate(names):
        with _noted(replies, [at]):
            node = client.get_node_from_key(name)
            found.setdefault(node.name, (node, []))[1].append(at)
    return list(found.values())


@contextmanager
def _noted(replies: dict[int, Any], places: Sequence[int]) -> Iterator[None]:
    """An error is the reply of all at these places that have none yet."""
    try:
        yield
    except TROUBLE as error:
        for at in places:
            replies.setdefault(at, error)


def _followed(client: Any, command: Command, reply: Any) -> Any:
    """Where the key has moved to another master, its answer from there."""
    if not isinstance(reply, AskError):
        return reply
    try:
        return client.execute_command(*command)
    except TROUBLE as error:
        return error
