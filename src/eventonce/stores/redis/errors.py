"""Errors of Redis as store errors, retryable or with their remedy. No message contains a password."""

import re

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from eventonce.errors import StoreError, StoreUnusable

_UNREACHABLE = re.compile(r"Error -?\d+ connecting to .+?\. (.+?)\.?")
# redis-py turns some error words of Redis into classes and cuts them off. The others begin the message.
_RETRYABLE_KINDS = (OutOfMemoryError, ReadOnlyError, ClusterDownError, TryAgainError)
_RETRYABLE_WORDS = ("MISCONF", "BUSY", "NOREPLICAS")
NO_CLUSTER = "it belongs to a cluster, so add cluster=true to the URL"
READ_ONLY = "if it stays a replica, name its master in the URL, or its sentinels with sentinel=NAME"
_REMEDIES = {
    "Authentication required": "add the password to the URL: redis://:PASSWORD@HOST",
    "AuthenticationError": "correct the user and password in the URL",
    "NoPermissionError": "allow this user EVALSHA, EVAL, SET, GET, MGET, DEL, TIME and INFO on the keys eventonce:*, "
    "WAIT where the URL says wait=, and in a cluster CLUSTER SLOTS and COMMAND too, on the keys {eo*}*",
    "OutOfMemoryError": "raise its maxmemory, events are retried until there is room",
    "ReadOnlyError": READ_ONLY,
    "MovedError": NO_CLUSTER,
    "ClusterCrossSlotError": NO_CLUSTER,
    "MasterNotFoundError": "check the names and ports of the sentinels, and what they call the master",
    "DB index is out of range": "use a database that it has, as in redis://HOST:6379/0",
    "unknown command 'SENTINEL'": "name sentinels, which usually listen on port 26379, or leave sentinel= out",
    "WRONGTYPE": "another program writes keys that begin with eventonce:",
    "This instance has cluster support disabled": "leave cluster=true out of the URL",
}


def translate_error(error: Exception, address: str, *, cluster: bool) -> StoreError:
    """Return the store error for an error of Redis."""
    if isinstance(error, RedisClusterException):  # its cause, such as an error of a node, says more
        cause = error.__cause__ or error.__context__
        if isinstance(cause, RedisError | RedisClusterException | OSError):
            return translate_error(cause, address, cluster=cluster)
    message = _message(error)
    kind = StoreError if _is_retryable(error, message, cluster=cluster) else StoreUnusable
    return kind(f"{address}: {message}{_remedy(error, message)}")


def _message(error: Exception) -> str:
    """Return the message without the position in our script and without redis-py's internals."""
    if unreachable := _UNREACHABLE.fullmatch(str(error)):
        return f"cannot be reached ({unreachable[1]}); check that it runs and is at this address"
    message = str(error).partition(" script: ")[0].partition(" : <")[0]
    return message.rstrip(" .") or type(error).__name__


def _is_retryable(error: Exception, message: str, *, cluster: bool) -> bool:
    if isinstance(error, AskError):  # or MOVED: the keys are elsewhere, and in a cluster they may still be moving
        return cluster
    if isinstance(error, ResponseError):
        return isinstance(error, _RETRYABLE_KINDS) or message.startswith(_RETRYABLE_WORDS)
    return not isinstance(error, AuthenticationError)


def _remedy(error: Exception, message: str) -> str:
    for beginning, remedy in _REMEDIES.items():
        if message.startswith(beginning) or type(error).__name__ == beginning:
            return f"; {remedy}"
    return ""
