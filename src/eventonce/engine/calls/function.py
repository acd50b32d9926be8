"""Decorated functions: objects that are called like the function, pass for it, and bind to instances as methods do.

`plain` is the function itself. `outcome`, `key`, `forget` and `map` take what the call takes, and a method has them
bound to its instance.
"""

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import msgspec

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.engine.calls.binder import Binder
from eventonce.engine.calls.names import full_name, leads_to
from eventonce.engine.calls.reading import BoundCall, Scope
from eventonce.engine.calls.running import CallRunner
from eventonce.engine.drivers import Flow, StoreCalls, drive, drive_async
from eventonce.engine.handler import Handler
from eventonce.engine.order import RunLimits
from eventonce.engine.plain import run_one
from eventonce.engine.reading import many
from eventonce.engine.steps import Batch, Engine
from eventonce.errors import CallRejected, ConfigError
from eventonce.event import Delivery, Event
from eventonce.event.keys import Key

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
R = TypeVar("R")  # what a call returns: T, or T | None
E = TypeVar("E")  # the event that a handler takes
Receiver = TypeVar("Receiver")
Incoming = bytes | str | Mapping[str, Any] | Event | Delivery

_MAX_SCOPES = 1024  # classes that a method is used on
_CODE = ("__code__", "__defaults__", "__kwdefaults__")  # by which `inspect` takes an object for a function
_UNBOUND: tuple[Any, ...] = ()


class Decorated:
    """What all decorated functions have in common."""

    __name__: str
    __qualname__: str
    __wrapped__: Any  # the function itself, bound as this is

    def __init__(self, function: Any) -> None:
        """Decorate a function, or what `staticmethod` or `classmethod` made of one."""
        plain = getattr(function, "__func__", function)
        functools.update_wrapper(self, plain)  # type: ignore[arg-type]  # which takes any object
        for name in _CODE:
            if hasattr(plain, name):
                setattr(self, name, getattr(plain, name))
        self._function = plain
        self._kind = type(function)  # staticmethod, classmethod, or what a function is
        self._first = _UNBOUND  # the instance or class that it is bound to
        self._owner: type | None = None  # the class that it is used on

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if self._first or self._kind is staticmethod:
            return self
        if self._kind is classmethod:
            return self._bind_to(owner or type(instance), owner or type(instance))
        return self if instance is None else self._bind_to(instance, type(instance))

    def _bind_to(self, receiver: Any, owner: type) -> Self:
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._first = (receiver,)
        bound._owner = receiver if isinstance(receiver, type) else owner
        bound.__wrapped__ = self._function.__get__(receiver, owner)
        return bound

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decorated) or self._function is not other._function:
            return NotImplemented
        ours, theirs = self._first, other._first
        return len(ours) == len(theirs) and all(one is another for one, another in zip(ours, theirs, strict=True))

    def __hash__(self) -> int:
        return hash((id(self._function), *map(id, self._first)))

    def __reduce__(self) -> Any:
        return (getattr, (self._first[0], self.__name__)) if self._first else self.__qualname__

    def __repr__(self) -> str:
        return f"<once {full_name(self._function)}{' of ' + repr(self._first[0]) if self._first else ''}>"


# --- calls ---


class CallDefinition(msgspec.Struct, eq=False):
    """What a decorated function of calls is made of, whatever it is bound to."""

    label: str
    binder: Binder
    hint: str  # on what may be wrong if the arguments do not fit
    receiver: str | None  # the parameter called self or cls, which takes the instance or class
    first_name: str | None  # of its first parameter, which may take them under any name
    class_name: str | None  # that it is defined in
    scope: Scope
    scope_of: Callable[[type], Scope]  # another class that it is used on
    runner: CallRunner
    in_class: bool  # whether it may be a method
    scopes: dict[type, Scope] = {}
    owners: dict[str, tuple[type, bool]] = {}  # by full name, with whether that leads to it
    methods: dict[type, bool] = {}  # whether a class has it as its method

    def bind(self, first: tuple[Any, ...], owner: type | None, args: tuple[Any, ...], kwargs: Any) -> BoundCall[Any]:
        """Return the call with these arguments. Raise `CallRejected` if they do not fit."""
        if first:
            args = first + args
        elif self.in_class and self.first_name is not None and (args or self.first_name in kwargs):
            owner = self._owner(args[0] if args else kwargs[self.first_name])
        try:
            values = self.binder(*args, **kwargs)
        except TypeError as error:
            raise CallRejected(f"{error}{self.hint}") from None
        return BoundCall(self._scope(owner), values, args, kwargs)

    def _owner(self, first: Any) -> type | None:
        """Return the class that a method is used on that is called through its class. `first` is its first argument."""
        if self.receiver == "cls" and not isinstance(first, type):
            raise CallRejected(
                f"{self.label} takes its class first, and {first!r:.60} is not one; put @once above @classmethod"
            )
        if self.receiver is not None and self.class_name is not None:
            return first if self.receiver == "cls" else type(first)
        if isinstance(first, type) and self._is_method_of(first):
            return first
        if self._is_method_of(type(first)):
            return first if isinstance(first, type) else type(first)
        return None

    def _is_method_of(self, kind: type) -> bool:
        is_method = self.methods.get(kind)
        if is_method is None:
            if len(self.methods) >= _MAX_SCOPES:
                self.methods.clear()
            values = [value for base in kind.__mro__ for value in vars(base).values()]
            is_method = self.methods[kind] = any(map(self._is_definition_of, values))
        return is_method

    def _is_definition_of(self, value: object) -> bool:
        if isinstance(value, classmethod):
            value = value.__func__
        return isinstance(value, _CallsDecorated) and value._definition is self

    def _scope(self, owner: type | None) -> Scope:
        if owner is None:
            return self.scope
        scope = self.scopes.get(owner)
        if scope is None:
            if len(self.scopes) >= _MAX_SCOPES:
                self.scopes.clear()
                self.owners.clear()
            name = full_name(owner)
            self._take_name(name, owner)
            scope = self.scope if name == self.class_name else self.scope_of(owner)
            self.scopes[owner] = scope
        return scope

    def _take_name(self, name: str, owner: type) -> None:
        """Scope calls by the name of a class. Raise `ConfigError` if another one has it, unless a module ran again."""
        leads_here = leads_to(owner)
        first, led_there = self.owners.setdefault(name, (owner, leads_here))
        if first is not owner and not (leads_here and led_there):
            raise ConfigError(
                f"{self.label} is used on two classes that are called {name}, which would take each other's calls for "
                "done; give each class a __qualname__ of its own"
            )
        self.owners[name] = owner, leads_here

    def check(self, calls: Iterable[BoundCall[Any]]) -> list[BoundCall[Any]]:
        """Return bound calls as a list. Raise `CallRejected` if one is not a call of this function."""
        if isinstance(calls, BoundCall):
            raise CallRejected(f"{self.label}: map takes many calls; pass a list, such as [fn.bind(...)]")
        bound: list[Any] = many(calls)
        for call in bound:
            if not isinstance(call, BoundCall) or call.scope.recipe is not self.scope.recipe:
                raise CallRejected(f"{self.label}: map takes calls that its own bind returned, not {call!r:.60}")
        return bound


class _CallsDecorated(Decorated):
    def __init__(self, function: Any, definition: CallDefinition) -> None:
        super().__init__(function)
        self._definition = definition

    def __set_name__(self, owner: type, name: str) -> None:
        self._definition.in_class = True

    def _bound(self, args: tuple[Any, ...], kwargs: Any) -> BoundCall[Any]:
        return self._definition.bind(self._first, self._owner, args, kwargs)

    def _key(self, args: tuple[Any, ...], kwargs: Any) -> Key:
        return self._keys(args, kwargs)[0]

    def _keys(self, args: tuple[Any, ...], kwargs: Any) -> tuple[Key, ...]:
        return self._definition.runner.engine.reader.keys(self._bound(args, kwargs))


class Function(_CallsDecorated, Generic[P, T, R]):
    """A decorated `def` function. `T` is what the function returns, and `R` what a call returns: `T`, or `T | None`."""

    @property
    def plain(self) -> Callable[P, T]:
        """The function itself, which runs whenever it is called."""
        plain: Callable[P, T] = self.__wrapped__
        return plain

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it once: return its result, the remembered one, or None. Raise what it raised, or why it did not run."""
        definition = self._definition
        returned: R = value(definition.runner.run(definition.bind(self._first, self._owner, args, kwargs)))
        return returned

    def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | None]:
        """Call it once. Return what became of the call, and raise nothing of it."""
        return self._definition.runner.run(self._bound(args, kwargs))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[T]:
        """Return the call with its arguments, for `map`. It does not run."""
        return self._bound(args, kwargs)

    def map(self, calls: Iterable[BoundCall[T]]) -> list[Outcome[T | None]]:
        """Make many calls together, with one round trip per step. Return one outcome each, in order."""
        definition = self._definition
        return drive(definition.runner.flow(definition.check(calls)), definition.runner.store_calls)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> Key:
        """Return the key of a call, or raise `EventRejected`."""
        return self._key(args, kwargs)

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget a call, so that the next one with its key runs. Return whether it was remembered."""
        return any(self._definition.runner.store_calls.call("forget", list(self._keys(args, kwargs))))

    @overload
    def __get__(self, instance: None, owner: type[object]) -> Self: ...
    @overload
    def __get__(
        self: "Function[Concatenate[Receiver, Q], T, R]", instance: Receiver, owner: type[object] | None = None
    ) -> "Function[Q, T, R]": ...
    @overload
    def __get__(self, instance: object, owner: type[object] | None = None) -> Self: ...
    def __get__(self, instance: object, owner: type[object] | None = None) -> Any:
        self._definition.in_class = True
        return super().__get__(instance, owner)


class AsyncFunction(_CallsDecorated, Generic[P, T, R]):
    """A decorated `async def` function."""

    @property
    def plain(self) -> Callable[P, Coroutine[Any, Any, T]]:
        """The function itself, which runs whenever it is called."""
        plain: Callable[P, Coroutine[Any, Any, T]] = self.__wrapped__
        return plain

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it once, as a `def` function is called."""
        returned: R = value(await self._run(self._bound(args, kwargs)))
        return returned

    async def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | None]:
        """Call it once. Return what became of the call, and raise nothing of it."""
        return await self._run(self._bound(args, kwargs))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[T]:
        """Return the call with its arguments, for `map`. It does not run."""
        return self._bound(args, kwargs)

    async def map(self, calls: Iterable[BoundCall[T]]) -> list[Outcome[T | None]]:
        """Make many calls together, with one round trip per step. Return one outcome each, in order."""
        return await self._run_all(self._definition.check(calls))

    def key(self, *args: P.args, **kwargs: P.kwargs) -> Key:
        """Return the key of a call, or raise `EventRejected`."""
        return self._key(args, kwargs)

    async def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget a call, so that the next one with its key runs. Return whether it was remembered."""
        keys = list(self._keys(args, kwargs))
        return any(await self._definition.runner.store_calls.call_async("forget", keys))

    async def _run(self, call: BoundCall[Any]) -> Outcome[Any]:
        return (await self._run_all([call]))[0]

    async def _run_all(self, calls: list[BoundCall[Any]]) -> list[Outcome[Any]]:
        definition = self._definition
        return await drive_async(definition.runner.flow(calls), definition.runner.store_calls)

    @overload
    def __get__(self, instance: None, owner: type[object]) -> Self: ...
    @overload
    def __get__(
        self: "AsyncFunction[Concatenate[Receiver, Q], T, R]", instance: Receiver, owner: type[object] | None = None
    ) -> "AsyncFunction[Q, T, R]": ...
    @overload
    def __get__(self, instance: object, owner: type[object] | None = None) -> Self: ...
    def __get__(self, instance: object, owner: type[object] | None = None) -> Any:
        self._definition.in_class = True
        return super().__get__(instance, owner)


# --- events ---


class EventRunner(msgspec.Struct, frozen=True, eq=False):
    """Runs the events of one handler."""

    engine: Engine
    handler: Handler  # of the function itself
    method: Handler | None  # the same without its first parameter, if it may be a method
    limits: RunLimits
    store_calls: StoreCalls
    batch_type: type[Batch]
    flow: Callable[[Sequence[object], Handler, RunLimits], Flow[list[Outcome[Any]]]]


class _EventsDecorated(Decorated):
    def __init__(self, function: Any, runner: EventRunner) -> None:
        super().__init__(function)
        self._runner = runner
        self._handler = runner.handler

    @property
    def eventonce_handler(self) -> Callable[..., Any]:
        """The function itself, so that whoever runs it elsewhere claims once."""
        plain: Callable[..., Any] = self.__wrapped__
        return plain

    def _bind_to(self, receiver: Any, owner: type) -> Self:
        if self._runner.method is None:  # it takes an event and nothing before it, wherever it is
            return self
        bound = super()._bind_to(receiver, owner)
        bound._handler = self._runner.method.with_function(self._function.__get__(receiver, owner))
        return bound

    def _event(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the one event, whatever name it is passed by."""
        if len(args) + len(named) == 1:
            return args[0] if args else next(iter(named.values()))
        raise CallRejected(
            f"{full_name(self._function)} takes one event, and {len(args) + len(named)} arguments came; for a Lambda "
            "handler write once.aws_lambda(function), and for a function of other arguments @once(key=...)"
        )

    def _keys(self, event: object) -> tuple[Key, ...]:
        return self._runner.engine.reader.keys(event)

    def _many(self, events: Iterable[object]) -> Flow[list[Outcome[Any]]]:
        return self._runner.flow(many(events), self._handler, self._runner.limits)


class EventHandler(_EventsDecorated, Generic[E, T]):
    """A decorated `def` handler of events."""

    @property
    def plain(self) -> Callable[..., T]:
        """The function itself, which runs whenever it is called."""
        plain: Callable[..., T] = self.__wrapped__
        return plain

    @overload
    def __call__(self, event: E | Incoming, /) -> T | None: ...
    @overload
    def __call__(self, **event: E | Incoming) -> T | None: ...
    def __call__(self, *args: Any, **named: Any) -> T | None:
        """Handle one event once: return the result or the remembered one, or raise."""
        returned: T | None = value(self._run(self._event(args, named)))
        return returned

    def outcome(self, event: E | Incoming, /) -> Outcome[T | None]:
        """Handle one event once. Return what became of it, and raise nothing of it."""
        return self._run(event)

    def map(self, events: Iterable[E | Incoming], /) -> list[Outcome[T | None]]:
        """Handle many events. Return one outcome each, in order."""
        return drive(self._many(events), self._runner.store_calls)

    def key(self, event: E | Incoming, /) -> Key:
        """Return the key of an event, or raise `EventRejected`."""
        return self._keys(event)[0]

    def forget(self, event: E | Incoming, /) -> bool:
        """Forget an event, so that its next copy runs. Return whether it was remembered."""
        return any(self._runner.store_calls.call("forget", list(self._keys(event))))

    def _run(self, event: object) -> Outcome[Any]:
        runner = self._runner
        job = runner.engine.reader.read(0, event, self._handler)
        return run_one(
            runner.engine, self._handler, runner.limits, event, job, runner.store_calls, runner.batch_type
        ).outcome


class AsyncEventHandler(_EventsDecorated, Generic[E, T]):
    """A decorated `async def` handler of events."""

    @property
    def plain(self) -> Callable[..., Coroutine[Any, Any, T]]:
        """The function itself, which runs whenever it is called."""
        plain: Callable[..., Coroutine[Any, Any, T]] = self.__wrapped__
        return plain

    @overload
    async def __call__(self, event: E | Incoming, /) -> T | None: ...
    @overload
    async def __call__(self, **event: E | Incoming) -> T | None: ...
    async def __call__(self, *args: Any, **named: Any) -> T | None:
        """Handle one event once: return the result or the remembered one, or raise."""
        returned: T | None = value(await self._run(self._event(args, named)))
        return returned

    async def outcome(self, event: E | Incoming, /) -> Outcome[T | None]:
        """Handle one event once. Return what became of it, and raise nothing of it."""
        return await self._run(event)

    async def map(self, events: Iterable[E | Incoming], /) -> list[Outcome[T | None]]:
        """Handle many events. Return one outcome each, in order."""
        return await drive_async(self._many(events), self._runner.store_calls)

    def key(self, event: E | Incoming, /) -> Key:
        """Return the key of an event, or raise `EventRejected`."""
        return self._keys(event)[0]

    async def forget(self, event: E | Incoming, /) -> bool:
        """Forget an event, so that its next copy runs. Return whether it was remembered."""
        return any(await self._runner.store_calls.call_async("forget", list(self._keys(event))))

    async def _run(self, event: object) -> Outcome[Any]:
        return (await drive_async(self._many([event]), self._runner.store_calls))[0]


def value(outcome: Outcome[Any]) -> Any:
    """Return or raise what a decorated function returns or raises for an outcome."""
    if outcome.error is not None and outcome.kind is not OutcomeKind.PROCESSED:
        raise outcome.error
    return outcome.result
