"""Commands to the masters of a cluster, sent together. Each master has its own replies or its own error.

redis-py's own pipeline fails as a whole if one master cannot be reached. A master that hangs is tried again for each
command, one after the other, while the replies of the others wait.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from redis.exceptions import AskError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as Late

CLIENT_ERRORS = (RedisError, RedisClusterException, OSError)
_UNREACHABLE = (NoConnection, Late, RedisClusterException)
Command = tuple[Any, ...]


class SentCommands:
    """Commands that were sent to one master, on a connection to it."""

    def __init__(self, pool: Any, indexes: Sequence[int], commands: Sequence[Command]) -> None:
        self.indexes = indexes
        self._unread = len(indexes)
        self._pool = pool
        self._connection = pool.get_connection()
        try:
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except BaseException:
            self.close()
            raise

    def read(self) -> Any:
        """Return the next reply, or the error with which the server replied."""
        try:
            reply = self._connection.read_response()
        except ResponseError as error:
            reply = error
        self._unread -= 1
        return reply

    def close(self) -> None:
        if self._unread:  # the next user of the connection would read these replies
            self._connection.disconnect()
        self._pool.release(self._connection)


def send_commands(client: Any, names: Sequence[bytes], commands: Sequence[Command]) -> list[Any]:
    """Send commands to the masters of these keys. Return a reply or an error for each.

    If a connection was cut, as by a restart, its commands are sent once more.
    """
    replies = _send_once(client, names, commands)
    unreachable = [index for index, reply in enumerate(replies) if isinstance(reply, _UNREACHABLE)]
    if unreachable:  # a master may have been replaced
        with suppress(*CLIENT_ERRORS):
            client.nodes_manager.initialize()
    disconnected = [index for index in unreachable if isinstance(replies[index], NoConnection)]
    if disconnected:
        second_replies = _send_once(
            client, [names[index] for index in disconnected], [commands[index] for index in disconnected]
        )
        for index, reply in zip(disconnected, second_replies, strict=True):
            replies[index] = reply
    return replies


def _send_once(client: Any, names: Sequence[bytes], commands: Sequence[Command]) -> list[Any]:
    """Write to all masters, and then read their replies."""
    replies: dict[int, Any] = {}
    sent: list[SentCommands] = []
    try:
        for node, indexes in _by_master(client, names, replies):
            with _record_error(replies, indexes):
                pool = client.get_redis_connection(node).connection_pool
                sent.append(SentCommands(pool, indexes, [commands[index] for index in indexes]))
        for master in sent:
            with _record_error(replies, master.indexes):
                for index in master.indexes:
                    replies[index] = master.read()
    finally:
        for master in sent:
            master.close()
    return [_follow_redirect(client, commands[index], replies[index]) for index in range(len(commands))]


def _by_master(client: Any, names: Sequence[bytes], replies: dict[int, Any]) -> list[tuple[Any, list[int]]]:
    by_name: dict[str, tuple[Any, list[int]]] = {}
    for index, name in enumerate(names):
        with _record_error(replies, [index]):
            node = client.get_node_from_key(name)
            by_name.setdefault(node.name, (node, []))[1].append(index)
    return list(by_name.values())


@contextmanager
def _record_error(replies: dict[int, Any], indexes: Sequence[int]) -> Iterator[None]:
    """Record an error as the reply of all these commands that have none yet."""
    try:
        yield
    except CLIENT_ERRORS as error:
        for index in indexes:
            replies.setdefault(index, error)


def _follow_redirect(client: Any, command: Command, reply: Any) -> Any:
    """Return the reply from another master if the key has moved there."""
    if not isinstance(reply, AskError):
        return reply
    try:
        return client.execute_command(*command)
    except CLIENT_ERRORS as error:
        return error
