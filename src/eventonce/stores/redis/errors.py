"""What an error of Redis means: whether it may pass, and what to do where it does not. Never holds a password."""

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

# redis-py gives some of Redis's words a class and cuts them off; the others stand before the text.
_PASSING_KINDS = (OutOfMemoryError, ReadOnlyError, ClusterDownError, TryAgainError)
_PASSING_WORDS = ("MISCONF", "BUSY", "NOREPLICAS")
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
    "DB index is out of range": "name a database that it has, as in redis://HOST:6379/0",
    "unknown command 'SENTINEL'": "name sentinels, which listen on port 26379 as a rule, or leave sentinel= out",
    "WRONGTYPE": "something else writes keys that begin with eventonce:",
    "This instance has cluster support disabled": "leave cluster=true out of the URL",
}


def trouble(error: Exception, place: str, *, cluster: bool) -> StoreError:
    """What an error means to the engine."""
    if isinstance(error, RedisClusterException):  # it may come of what a node said, which tells more
        cause = error.__cause__ or error.__context__
        if isinstance(cause, RedisError | RedisClusterException | OSError):
            return trouble(cause, place, cluster=cluster)
    said = _words(error)
    kind = StoreError if _passes(error, said, cluster=cluster) else StoreUnusable
    return kind(f"{place}: {said}{_remedy(error, said)}")


def _words(error: Exception) -> str:
    """What it says, without the place in our script and redis-py's inner parts."""
    said = str(error).partition(" script: ")[0].partition(" : <")[0]
    return said.rstrip(" .") or type(error).__name__


def _passes(error: Exception, said: str, *, cluster: bool) -> bool:
    if isinstance(error, AskError):  # or MOVED: the keys are elsewhere, and in a cluster they may still be moving
        return cluster
    if isinstance(error, ResponseError):
        return isinstance(error, _PASSING_KINDS) or said.startswith(_PASSING_WORDS)
    return not isinstance(error, AuthenticationError)


def _remedy(error: Exception, said: str) -> str:
    for sign, why in _REMEDIES.items():
        if said.startswith(sign) or type(error).__name__ == sign:
            return f"; {why}"
    return ""
