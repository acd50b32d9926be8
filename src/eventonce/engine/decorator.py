"""`@once` and `@once(key=...)`. What they make is in `calls/`, and is imported on use.

Most of this is for type checkers alone, which see what a decorated function takes and returns.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from eventonce.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from typing import Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, overload

    from eventonce.claims.outcome import Outcome
    from eventonce.clock import Duration
    from eventonce.engine.calls.decorate import Workshop
    from eventonce.engine.calls.function import AsyncEventHandler, AsyncFunction, EventHandler, Function
    from eventonce.engine.calls.reading import BoundCall
    from eventonce.engine.context import Context
    from eventonce.event.keys import Key

    P = ParamSpec("P")
    T = TypeVar("T")
    R = TypeVar("R")  # what a call returns: T, or T | None
    E = TypeVar("E")  # the event that a handler takes
    S = TypeVar("S")  # the class of a method
    K = TypeVar("K", bound=type[Any])  # the first parameter of a class method
    E_contra = TypeVar("E_contra", contravariant=True)
    T_co = TypeVar("T_co", covariant=True)

    Async = Coroutine[Any, Any, T]
    KeyOption = str | Sequence[str] | Callable[..., object]


class Decorator:
    """What a `Once` decorates."""

    if TYPE_CHECKING:
        # Handlers of events: (event), (event, ctx) and (event, *, ctx), and methods. A coroutine is also a T, so async
        # comes first, and before it what returns Any, which is also a coroutine.
        @overload
        def __call__(self, handler: "Callable[..., OnlyAny]", /) -> "EventHandler[Any, Any]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "Callable[[E], Async[T]]", /) -> "AsyncEventHandler[E, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "Callable[[E], T]", /) -> "EventHandler[E, T]": ...
        @overload
        def __call__(self, handler: "Callable[[E, Context], Async[T]]", /) -> "AsyncEventHandler[E, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "Callable[[E, Context], T]", /) -> "EventHandler[E, T]": ...
        @overload
        def __call__(self, handler: "NamesContext[E, Async[T]]", /) -> "AsyncEventHandler[E, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "NamesContext[E, T]", /) -> "EventHandler[E, T]": ...
        @overload
        def __call__(self, handler: "Callable[[S, E], Async[T]]", /) -> "AsyncEventMethod[S, E, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "Callable[[S, E], T]", /) -> "EventMethod[S, E, T]": ...
        @overload
        def __call__(self, handler: "Callable[[S, E, Context], Async[T]]", /) -> "AsyncEventMethod[S, E, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "Callable[[S, E, Context], T]", /) -> "EventMethod[S, E, T]": ...
        # Any function or method. With remember="result" a duplicate has a result, and without it may have none.
        @overload
        def __call__(
            self,
            /,
            *,
            key: KeyOption,
            remember: Literal["result"],
            ignore: Sequence[str] = ...,
            window: Duration = ...,
            version: str = ...,
            name: str = ...,
            lease: Duration = ...,
            max_attempts: int = ...,
            replaces: str | Mapping[str, Any] = ...,
        ) -> "Returns": ...
        @overload
        def __call__(
            self,
            /,
            *,
            key: KeyOption,
            remember: Literal["seen", "note"] = ...,
            ignore: Sequence[str] = ...,
            window: Duration = ...,
            version: str = ...,
            name: str = ...,
            lease: Duration = ...,
            max_attempts: int = ...,
            replaces: str | Mapping[str, Any] = ...,
        ) -> "MayReturn": ...

    def __call__(self, handler: Any = None, /, **options: Any) -> Any:
        """Decorate a handler of events, or with `key=` any function or method, so that it takes effect once.

        `key` is a path into the arguments ("order.id"), several, "content" for all of them, or a function of those
        that it names. `ignore`, `window`, `remember` and `version` are as in rules. `name` takes the place of the
        module and qualified name, and `replaces` is the name before. `lease` and `max_attempts` are its own.
        """
        from eventonce.engine.calls import decorate

        if handler is not None and not options:
            return decorate.decorate_handler(self._workshop(), handler)
        if handler is not None or not options:
            raise ConfigError("write @once above a handler of events, or @once(key=...) above any other function")
        read = decorate.read_options(options)
        return lambda function: decorate.decorate_function(self._workshop(), read, function)

    def on(
        self,
        types: "str | Sequence[str]" = (),
        /,
        *,
        source: "str | Sequence[str]" = (),
        match: "Mapping[str, Any] | None" = None,
    ) -> "Registers":
        """Register a handler for the events of a type, or of several. The first registered that takes an event runs.

        `source` is one exact source or several. `match` is an event pattern of EventBridge. All that is named must fit.
        """
        from eventonce.engine.calls import decorate
        from eventonce.engine.routing import read_condition

        condition, pattern = read_condition(types, source, match)
        register: Any = partial(decorate.decorate_route, self._workshop(), condition, pattern)
        return register  # type: ignore[no-any-return]

    def _workshop(self) -> "Workshop":
        raise NotImplementedError


if TYPE_CHECKING:

    class OnlyAny:
        """Nothing is an instance of it. So what takes or returns one takes anything, or returns Any."""

    # --- what a decorated function is, if it is a method ---

    class NamesContext(Protocol[E_contra, T_co]):
        """A handler that takes its context by name alone."""

        def __call__(self, event: E_contra, /, *, ctx: Context) -> T_co: ...

    class ClassFunction(Generic[K, P, T, R]):
        """A decorated class method, or a function whose first parameter is a class."""

        @property
        def plain(self) -> Callable[Concatenate[K, P], T]: ...
        def __call__(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
        def outcome(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | None]: ...
        def bind(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> BoundCall[T]: ...
        def map(self, calls: Iterable[BoundCall[T]]) -> list[Outcome[T | None]]: ...
        def key(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> Key: ...
        def forget(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> bool: ...
        def __get__(self, instance: object, owner: type[object] | None = None) -> Function[P, T, R]: ...

    class AsyncClassFunction(Generic[K, P, T, R]):
        """The same for `async def`."""

        @property
        def plain(self) -> Callable[Concatenate[K, P], Async[T]]: ...
        async def __call__(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
        async def outcome(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | None]: ...
        def bind(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> BoundCall[T]: ...
        async def map(self, calls: Iterable[BoundCall[T]]) -> list[Outcome[T | None]]: ...
        def key(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> Key: ...
        async def forget(self, cls: K, /, *args: P.args, **kwargs: P.kwargs) -> bool: ...
        def __get__(self, instance: object, owner: type[object] | None = None) -> AsyncFunction[P, T, R]: ...

    class EventMethod(Generic[S, E, T]):
        """A decorated method for events."""

        @overload
        def __get__(self, instance: None, owner: type[object]) -> Self: ...
        @overload
        def __get__(self, instance: S, owner: type[object] | None = None) -> EventHandler[E, T]: ...
        def __get__(self, instance: Any, owner: type[object] | None = None) -> Any: ...

    class AsyncEventMethod(Generic[S, E, T]):
        """The same for `async def`."""

        @overload
        def __get__(self, instance: None, owner: type[object]) -> Self: ...
        @overload
        def __get__(self, instance: S, owner: type[object] | None = None) -> AsyncEventHandler[E, T]: ...
        def __get__(self, instance: Any, owner: type[object] | None = None) -> Any: ...

    # --- what @once.on(...) returns: the decorator of a handler ---

    class Registers(Protocol):
        """The decorator of a handler of some events."""

        @overload
        def __call__(self, handler: "Callable[[E], Async[T]]", /) -> "AsyncEventHandler[E, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "Callable[[E], T]", /) -> "EventHandler[E, T]": ...
        @overload
        def __call__(self, handler: "Callable[[E, Context], Async[T]]", /) -> "AsyncEventHandler[E, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "Callable[[E, Context], T]", /) -> "EventHandler[E, T]": ...
        @overload
        def __call__(self, handler: "NamesContext[E, Async[T]]", /) -> "AsyncEventHandler[E, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, handler: "NamesContext[E, T]", /) -> "EventHandler[E, T]": ...

    # --- what @once(key=...) returns: the decorator of a function ---

    # A parameter that takes anything takes a class too, and Any is also a coroutine: such functions come first.

    class Returns(Protocol):
        """The decorator with remember="result": a duplicate has the result too."""

        @overload
        def __call__(self, function: "Callable[Concatenate[OnlyAny, P], OnlyAny]", /) -> "Function[..., Any, Any]": ...
        @overload
        def __call__(  # type: ignore[overload-overlap]
            self, function: "Callable[Concatenate[OnlyAny, P], Async[T]]", /
        ) -> "AsyncFunction[..., T, T]": ...
        @overload
        def __call__(self, function: "Callable[Concatenate[OnlyAny, P], T]", /) -> "Function[..., T, T]": ...
        @overload
        def __call__(  # type: ignore[overload-overlap]
            self, function: "Callable[Concatenate[K, P], OnlyAny]", /
        ) -> "ClassFunction[K, P, Any, Any]": ...
        @overload
        def __call__(self, function: "Callable[P, OnlyAny]", /) -> "Function[P, Any, Any]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(  # type: ignore[overload-overlap]
            self, function: "Callable[Concatenate[K, P], Async[T]]", /
        ) -> "AsyncClassFunction[K, P, T, T]": ...
        @overload
        def __call__(self, function: "Callable[Concatenate[K, P], T]", /) -> "ClassFunction[K, P, T, T]": ...
        @overload
        def __call__(self, function: "Callable[P, Async[T]]", /) -> "AsyncFunction[P, T, T]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, function: "Callable[P, T]", /) -> "Function[P, T, T]": ...

    class MayReturn(Protocol):
        """The decorator without it: a duplicate may return None."""

        @overload
        def __call__(self, function: "Callable[Concatenate[OnlyAny, P], OnlyAny]", /) -> "Function[..., Any, Any]": ...
        @overload
        def __call__(  # type: ignore[overload-overlap]
            self, function: "Callable[Concatenate[OnlyAny, P], Async[T]]", /
        ) -> "AsyncFunction[..., T, T | None]": ...
        @overload
        def __call__(self, function: "Callable[Concatenate[OnlyAny, P], T]", /) -> "Function[..., T, T | None]": ...
        @overload
        def __call__(  # type: ignore[overload-overlap]
            self, function: "Callable[Concatenate[K, P], OnlyAny]", /
        ) -> "ClassFunction[K, P, Any, Any]": ...
        @overload
        def __call__(self, function: "Callable[P, OnlyAny]", /) -> "Function[P, Any, Any]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(  # type: ignore[overload-overlap]
            self, function: "Callable[Concatenate[K, P], Async[T]]", /
        ) -> "AsyncClassFunction[K, P, T, T | None]": ...
        @overload
        def __call__(self, function: "Callable[Concatenate[K, P], T]", /) -> "ClassFunction[K, P, T, T | None]": ...
        @overload
        def __call__(self, function: "Callable[P, Async[T]]", /) -> "AsyncFunction[P, T, T | None]": ...  # type: ignore[overload-overlap]
        @overload
        def __call__(self, function: "Callable[P, T]", /) -> "Function[P, T, T | None]": ...
