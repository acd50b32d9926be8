"""Routing: several handlers behind one `Once`, of which each event has the first that takes it.

Keys do not depend on the handler. So an event that moves to another handler stays done.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from eventonce.errors import ConfigError, EventUnrouted
from eventonce.event import Event
from eventonce.event.paths import with_aliases

if TYPE_CHECKING:
    from eventonce.engine.context import Context
    from eventonce.event.event import Restore
    from eventonce.rules.pattern import Pattern

Unrouted = Literal["reject", "skip"]

_LONGEST = 100  # characters of a type or source in an error


class Condition(msgspec.Struct, frozen=True):
    """Which events a handler takes: all that is not empty must fit."""

    types: tuple[str, ...]
    sources: tuple[str, ...]
    match: Mapping[str, Any] | None


class Route(msgspec.Struct, frozen=True, eq=False):
    """A handler, and which events it takes."""

    name: str  # of the function
    condition: Condition
    pattern: "Pattern | None"
    call: "Callable[[Event, Context], Any]"
    is_async: bool
    restore: "Restore | None"  # makes the type that it returns of a remembered result

    def takes(self, event: Event) -> bool:
        """Return whether an event is for this handler."""
        types, sources = self.condition.types, self.condition.sources
        if (types and event.type not in types) or (sources and event.source not in sources):
            return False
        return self.pattern is None or self.pattern.matches(with_aliases(event.document()))


class Router:
    """The handlers of a `Once`, as one handler."""

    def __init__(self, routes: Sequence[Route], unrouted: Unrouted) -> None:
        self._routes = routes
        self._skips = unrouted == "skip"

    def find(self, event: Event) -> Route:
        """Return the first route that takes an event. Raise `EventUnrouted` if none does."""
        for route in self._routes:
            if route.takes(event):
                return route
        kind, source = repr(event.type)[:_LONGEST], repr(event.source)[:_LONGEST]
        raise EventUnrouted(
            f"no handler takes type {kind} of source {source}; "
            'register one with @once.on(...), or drop such events with Once(..., unrouted="skip")',
            skipped=self._skips,
        )

    def __call__(self, event: Event, ctx: "Context") -> Any:
        return self.find(event).call(event, ctx)


class AsyncRouter(Router):
    """The same for `async def` handlers."""

    async def __call__(self, event: Event, ctx: "Context") -> Any:
        return await self.find(event).call(event, ctx)


def make_router(routes: Sequence[Route], unrouted: Unrouted) -> Router:
    """Return the router of what is registered so far, and of what is registered later."""
    if not routes:
        raise ConfigError("this Once has no handlers; pass one, or register them with @once.on(...)")
    return (AsyncRouter if routes[0].is_async else Router)(routes, unrouted)


def check_unrouted(unrouted: str) -> None:
    """Raise `ConfigError` if this is not what can become of an event without a handler."""
    if unrouted not in ("reject", "skip"):
        raise ConfigError(f'unrouted: {unrouted!r} is not a choice; use "reject" or "skip"')


def read_condition(types: Any, source: Any, match: Any) -> tuple[Condition, "Pattern | None"]:
    """Return the arguments of `once.on` as a condition, with its pattern. Raise `ConfigError` if they are not one."""
    if callable(types):
        raise ConfigError('@once.on: say which events the handler takes, as @once.on("Order Placed")')
    condition = Condition(_names("type", types), _names("source", source), match)
    if condition == Condition((), (), None):
        raise ConfigError("@once.on: say which events the handler takes: a type, source= or match=")
    if match is None:
        return condition, None
    from eventonce.rules.pattern import Pattern, PatternError

    try:
        return condition, Pattern(match)
    except PatternError as error:
        raise ConfigError(f"@once.on: match: {error}") from None


def _names(option: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else (value,)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"@once.on: {option}: {name!r:.100} is not a non-empty string; for patterns use match=, as "
                'match={"detail-type": [{"prefix": "Order"}]}'
            )
    return names


def add_route(routes: list[Route], route: Route) -> None:
    """Register a handler. One that is defined anew, as when its module is reloaded, replaces itself."""
    first = routes[0] if routes else route
    if first.is_async != route.is_async:
        raise ConfigError(
            f"{route.name} and {first.name} are handlers of one Once, and only one of them is async def; "
            "write all of them with def, or all with async def"
        )
    for index, other in enumerate(routes):
        if (other.name, other.condition) == (route.name, route.condition) and "<" not in route.name:
            routes[index] = route
            return
    routes.append(route)
