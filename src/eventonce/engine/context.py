"""The context of a run, and how a handler wants to be called with it."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import field

from eventonce.claims.protocol import Claim
from eventonce.clock import Clock, to_datetime
from eventonce.engine.keeper import OpenClaim
from eventonce.errors import ConfigError, StoreError
from eventonce.event.keys import Key
from eventonce.ports import Store, Transaction, Transactional

HandlerFunction = Callable[..., Any]
AsyncHandlerFunction = Callable[..., Awaitable[Any]]


class Context(msgspec.Struct, eq=False):
    """What a handler may know of its run, and use in it: `handle(event, ctx)`."""

    attempt: int  # 1 at first
    replay: str | None  # the name of the replay this event belongs to, as `Event.replay` says
    _key: Key
    _keys: tuple[Key, ...]  # all that are claimed for it
    _version: int | None
    _claim: OpenClaim | None
    _store: Store
    _clock: Clock
    _is_async: bool
    _outer: "Context | None"  # of the run that this one was started in
    _thread: int = field(default_factory=threading.get_ident)
    transaction: Transaction | None = None
    ended: bool = False  # its handler has returned

    @property
    def claim(self) -> Claim | None:
        """Our claim, or None if the event runs unclaimed."""
        return None if self._claim is None else self._claim.claim

    @property
    def idempotency_key(self) -> str:
        """The key that names the event to a receiver. It is the same at every attempt."""
        return idempotency_key(self._key, self._version)

    @property
    def token(self) -> str:
        """The token of the claim in hexadecimal. It is empty without a claim."""
        return "" if self._claim is None else self._claim.token.hex()

    @property
    def deadline(self) -> datetime | None:
        """The time until which the claim is certainly ours. Each heartbeat extends it. None without a claim."""
        if self._claim is None:
            return None
        return to_datetime(self._clock.utc() + self._claim.until - self._clock.steady())

    def check(self) -> None:
        """Raise `LeaseLost` if another worker may have taken over, to stop before the next effect."""
        is_safe = self.transaction is not None and self.transaction.holds
        if self._claim is not None and not is_safe:
            self._claim.check()

    @property
    def tx(self) -> Any:
        """The store's own transaction: what is written through it commits together with the record of it."""
        if self.ended:  # a transaction that begins now would never be committed
            raise ConfigError("ctx.tx has ended with its handler; use it inside the handler only")
        if self.transaction is None:
            self.transaction = self._begin()
        return self.transaction.handle

    def is_run_of(self, keys: tuple[Key, ...], store: Store) -> bool:
        """Return whether this is a run of one of these keys of a store."""
        return self._store is store and not set(self._keys).isdisjoint(keys)

    def and_outer(self) -> "Iterator[Context]":
        """Return this context and those of the runs around it, if they have not ended."""
        context: Context | None = self
        while context is not None:
            if not context.ended:
                yield context
            context = context._outer

    def _begin(self) -> Transaction:
        if self._is_async:
            raise ConfigError("ctx.tx is for synchronous handlers; write this one with def instead of async def")
        if not isinstance(self._store, Transactional):
            raise ConfigError(
                f"ctx.tx needs a store with transactions, and {type(self._store).__name__} has none; "
                "use sqlite:///, postgresql:// or dynamodb://"
            )
        if threading.get_ident() != self._thread:
            raise ConfigError("ctx.tx belongs to the thread that runs the handler; use it there")
        if self._claim is None:
            raise StoreError("ctx.tx needs the store, which did not answer")
        return self._store.begin(self._claim.claim)


CURRENT: ContextVar[Context | None] = ContextVar("eventonce_current", default=None)


def current() -> Context:
    """Return the context of the call or event that runs now. Raise `ConfigError` outside one."""
    context = CURRENT.get()
    if context is None:
        raise ConfigError(
            "eventonce.current() is for code that a decorated function or a handler runs, and none runs here"
        )
    return context


def runs_here() -> "Iterator[Context]":
    """Return the contexts of the runs that this code is part of, the innermost first."""
    context = CURRENT.get()
    return iter(()) if context is None else context.and_outer()


def idempotency_key(key: Key, version: int | None) -> str:
    """Return what names an event to a receiver. Two versions of a thing are two events."""
    return key.hex() if version is None else f"{key.hex()}-{version}"


def wants_context(handler: HandlerFunction) -> Literal["no", "second", "named"]:
    """Return how a handler takes `ctx` beside the event: as its second argument, by name alone, or not at all."""
    import inspect

    try:
        parameters = inspect.signature(handler).parameters
    except (TypeError, ValueError):  # some built-in functions have none
        return "no"
    if "ctx" in parameters and parameters["ctx"].kind is inspect.Parameter.KEYWORD_ONLY:
        return "named"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in parameters.values() if parameter.kind in kinds]
    second = len(positional) > 1 and positional[1].default is inspect.Parameter.empty
    return "second" if second or "ctx" in parameters else "no"


def is_async(handler: HandlerFunction) -> bool:
    """Return whether a handler is `async def`, also as a method, a partial or an object with `__call__`."""
    import inspect

    while hasattr(handler, "func"):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
