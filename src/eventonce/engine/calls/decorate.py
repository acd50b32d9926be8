"""How a function is decorated, and what is refused then. What cannot work is one sentence with the remedy."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import structs

import eventonce.claims.memo  # noqa: F401  # nothing is imported behind an effect
from eventonce.claims.lease import read_lease
from eventonce.claims.outcome import Outcome
from eventonce.clock import Duration
from eventonce.engine.calls.binder import make_binder, read_signature
from eventonce.engine.calls.function import (
    AsyncEventHandler,
    AsyncFunction,
    CallDefinition,
    Decorated,
    EventHandler,
    EventRunner,
    Function,
)
from eventonce.engine.calls.keys import ArgumentPath, Content, key_parts
from eventonce.engine.calls.names import RECEIVERS, Named, class_name, full_name, is_lasting, is_name
from eventonce.engine.calls.reading import CallReader, KeyRecipe, Scope
from eventonce.engine.calls.running import CallRunner
from eventonce.engine.calls.waiting import RunningCalls
from eventonce.engine.context import Context, is_async
from eventonce.engine.drivers import Flow, StoreCalls
from eventonce.engine.handler import Handler
from eventonce.engine.options import at_least_one
from eventonce.engine.order import RunLimits
from eventonce.engine.routing import Condition, Route, add_route
from eventonce.engine.steps import Batch, Engine
from eventonce.errors import ConfigError
from eventonce.event.values import return_restorer
from eventonce.rules import CompiledRule
from eventonce.rules.rule import Rule

if TYPE_CHECKING:
    from eventonce.rules.pattern import Pattern


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `@once(key=...)`."""

    key: str | Sequence[str] | Callable[..., object]
    ignore: Sequence[str] = ()
    window: Duration | None = None
    remember: str | None = None
    version: str | None = None
    name: str | None = None
    lease: Duration | None = None
    max_attempts: int | None = None
    replaces: str | Mapping[str, Any] | None = None


def read_options(options: dict[str, Any]) -> CallOptions:
    """Read the options of `@once(key=...)`. Raise `ConfigError` if one is unknown, or if there is no key."""
    unknown = sorted(set(options) - set(CallOptions.__struct_fields__))
    if unknown:
        raise ConfigError(f"@once: unknown option {unknown[0]!r}; use {', '.join(CallOptions.__struct_fields__)}")
    if "key" not in options:
        raise ConfigError('@once: key is missing; say what makes two calls the same, as key="order.id"')
    return CallOptions(**options)


class Workshop(NamedTuple):
    """What a `Once` lends to the functions that it decorates."""

    engine: Engine
    limits: RunLimits
    call_wait: int | None  # how long calls wait for a key, if that is set
    concurrency: int
    defaults: Rule  # its own window, remember and on_store_error
    consumer: str
    outlives: bool  # whether the store outlives the process
    store_calls: StoreCalls
    prepare: Callable[[Any], Handler]  # for events
    batch_type: type[Batch]
    batch: int  # calls that are claimed together
    flow: Callable[[Sequence[object], Handler, RunLimits], Flow[list[Outcome[Any]]]]
    running: RunningCalls
    routes: list[Route]  # what it has registered for some events each
    names: dict[str, Named]  # what it has decorated, by the name that scopes the keys


# --- handlers of events ---


def decorate_handler(workshop: Workshop, function: Any) -> Decorated:
    """Return a decorated handler of events."""
    function, plain = _function_for_events(function, "@once")
    _refuse_second(workshop, plain)
    method = _as_method(workshop, plain) if _is_method(function, plain) else None
    handler = method or workshop.prepare(plain)
    return _handler_of_events(workshop, function, handler, method or _method_if_any(workshop, plain))


def decorate_route(workshop: Workshop, condition: Condition, pattern: "Pattern | None", function: Any) -> Decorated:
    """Return a decorated handler of events, registered for those that fit a condition."""
    function, plain = _function_for_events(function, "@once.on")
    name = full_name(plain)
    if _is_method(function, plain):
        bound = f"shop.{name.rpartition('.')[2]}"
        raise ConfigError(f"@once.on: {name} is a method, of no instance yet; register it bound: once.on(...)({bound})")
    if "" in workshop.names:
        raise ConfigError(
            f"this Once decorates {workshop.names[''].label} for all events; write @once.on(...) above it as well"
        )
    handler = workshop.prepare(plain)
    add_route(workshop.routes, Route(name, condition, pattern, handler.call, handler.is_async, handler.restore))
    return _handler_of_events(workshop, function, handler, None)


def _function_for_events(function: Any, decorator: str) -> tuple[Any, Any]:
    """Return the function of a handler, and what is inside a static or class method. Refuse what cannot be one."""
    function = getattr(function, "eventonce_handler", function)  # a decorated one must not claim twice
    plain = _inner(function)
    _refuse_misfit(decorator, _misfit(plain, decorator))
    _refuse_lambda_handler(plain)
    return function, plain


def _is_method(function: Any, plain: Any) -> bool:
    if type(function) is classmethod:
        return True
    return class_name(plain) is not None and type(function) is not staticmethod and _first_name(plain) in RECEIVERS


def _handler_of_events(workshop: Workshop, function: Any, handler: Handler, method: Handler | None) -> Decorated:
    runner = EventRunner(
        workshop.engine,
        handler,
        method,
        workshop.limits,
        workshop.store_calls,
        workshop.batch_type,
        workshop.flow,
    )
    return AsyncEventHandler(function, runner) if handler.is_async else EventHandler(function, runner)


def _as_method(workshop: Workshop, plain: Any) -> Handler:
    """Return the handler of a method that is bound to something."""
    return workshop.prepare(MethodType(plain, object()))


def _method_if_any(workshop: Workshop, plain: Any) -> Handler | None:
    """Return the same for a function that a class may use as its method, or None if it cannot be one."""
    try:
        return _as_method(workshop, plain)
    except ConfigError:
        return None


def _refuse_second(workshop: Workshop, plain: Any) -> None:
    """Refuse a second handler: under one consumer each would take the other's events for done."""
    named = Named(plain)
    if workshop.routes:
        raise ConfigError(
            f"this Once routes its events, as to {workshop.routes[0].name}; "
            f"write @once.on(...) above {named.label} as well"
        )
    first = workshop.names.setdefault("", named)
    if not first.is_replaced_by(named):
        raise ConfigError(
            f"this Once decorates {first.label} already, and {named.label} would split the events with it; "
            'write @once.on("Order Placed") and the like above each, or give each a Once with a consumer of its own: '
            'Once(..., consumer="mail")'
        )
    workshop.names[""] = named


def _refuse_lambda_handler(plain: Any) -> None:
    """Refuse `(event, context)`: Lambda would call it with two arguments, and its context is not ours."""
    parameters = list(read_signature(plain, full_name(plain)).parameters.values())[1:2]
    for parameter in parameters:
        annotation = parameter.annotation
        kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        is_ours = annotation is Context or kind.rpartition(".")[2] == Context.__name__
        if (parameter.name in ("context", "lambda_context") and not is_ours) or kind.endswith("LambdaContext"):
            raise ConfigError(
                f"{full_name(plain)} takes (event, {parameter.name}), as a Lambda handler does; write "
                "handler = once.aws_lambda(function) for that, or name the parameter ctx for the context of the run"
            )


# --- calls ---


def decorate_function(workshop: Workshop, options: CallOptions, function: Any) -> Decorated:
    """Return a function or method of which each call takes effect once."""
    plain = _inner(function)
    _refuse_misfit("@once(key=...)", _misfit(plain, "@once(key=...)") or _misfit_of_calls(plain))
    label = full_name(plain)
    signature = read_signature(plain, label)
    first = next(iter(signature.parameters), None)
    receiver = first if type(function) is not staticmethod and first in RECEIVERS else None
    name = _name(workshop, options, plain)
    rule = _rule(workshop, options, name)
    recipe = _recipe(options, label, signature, receiver, rule, name)
    limits = _limits(workshop, options, label)
    workshop.engine.keeper.expect(limits.lease)
    handler = Handler(_runs(plain), workshop.concurrency, workshop.engine.hooks)
    handler.restore = return_restorer(plain, label) if rule.remember == "result" else None
    runner = CallRunner(
        engine=structs.replace(workshop.engine, reader=CallReader(workshop.engine.clock), checks_counts=False),
        handler=handler,
        limits=limits,
        store_calls=workshop.store_calls,
        batch_type=workshop.batch_type,
        batch=workshop.batch,
        running=workshop.running,
    )

    def scope_of(owner: type) -> Scope:
        if workshop.outlives and not is_lasting(owner):
            raise ConfigError(
                f"{label} is used on {full_name(owner)}, whose name means nothing in another process; define that "
                "class at the top of a module that others import"
            )
        suffix = f" of {full_name(owner)}"
        return Scope(workshop.consumer, CompiledRule(workshop.consumer, _renamed(rule, name + suffix)), recipe, suffix)

    definition = CallDefinition(
        label=label,
        binder=make_binder(signature, plain.__qualname__),
        hint="; if a decorator under @once adds arguments, put @once under it" if hasattr(plain, "__wrapped__") else "",
        receiver=receiver,
        first_name=None if type(function) is staticmethod else first,
        class_name=class_name(plain),
        scope=Scope(workshop.consumer, CompiledRule(workshop.consumer, rule), recipe, ""),
        scope_of=scope_of,
        runner=runner,
        in_class=class_name(plain) is not None or receiver == "cls",
    )
    _take_name(workshop, name, plain)
    return (AsyncFunction if is_async(plain) else Function)(function, definition)


_NO_NAME = 'whose name means nothing in another process; give it a name of its own: @once(key=..., name="charge")'


def _name(workshop: Workshop, options: CallOptions, plain: Any) -> str:
    """Return the name that scopes the keys. Raise `ConfigError` if it is not one."""
    label = full_name(plain)
    if options.name is None and workshop.outlives and not is_lasting(plain):
        raise ConfigError(f"{label} is a function {_NO_NAME}")
    if options.name is not None and not is_name(options.name):
        raise ConfigError(f"{label}: name: {options.name!r} is not a non-empty string")
    return options.name or label


def _take_name(workshop: Workshop, name: str, plain: Any) -> None:
    """Take a name for the keys of a function. Raise `ConfigError` if another function has it."""
    named = Named(plain)
    if not workshop.names.setdefault(name, named).is_replaced_by(named):
        raise ConfigError(
            f"{named.label}: another function of this Once is called {name!r}; give each a name= of its own"
        )
    workshop.names[name] = named


def _rule(workshop: Workshop, options: CallOptions, name: str) -> Rule:
    """Return the rule of a function. The Once has its defaults."""
    defaults = workshop.defaults
    return Rule(
        name=name,
        key="content",
        window=defaults.window if options.window is None else options.window,
        remember=defaults.remember if options.remember is None else options.remember,  # type: ignore[arg-type]
        on_store_error=defaults.on_store_error,
        version=options.version,
    )


def _renamed(rule: Rule, name: str) -> Rule:
    renamed: Rule = structs.replace(rule, name=name)
    return renamed


def _recipe(
    options: CallOptions, label: str, signature: inspect.Signature, receiver: str | None, rule: Rule, name: str
) -> KeyRecipe:
    old_name, old_key = _replaced(options, label, name)
    parts = key_parts(label, signature, receiver, options.key, options.ignore)
    ignore = options.ignore if old_key == "content" else ()
    return KeyRecipe(
        parts=parts,
        version=None if rule.version is None else ArgumentPath(label, signature, rule.version, "version"),
        content=None if rule.remember == "seen" else Content(label, signature, receiver, options.ignore, strict=False),
        old_name=old_name,
        old_parts=None if old_name is None else key_parts(label, signature, receiver, old_key, ignore),
    )


def _replaced(options: CallOptions, label: str, name: str) -> tuple[str | None, Any]:
    """Return the name and key that the calls had before, if they are to count."""
    if options.replaces is None:
        return None, None
    table = dict(options.replaces) if isinstance(options.replaces, Mapping) else {"name": options.replaces}
    old_name, old_key = table.get("name", name), table.get("key", options.key)
    if not set(table) <= {"name", "key"} or not is_name(old_name):
        raise ConfigError(f"{label}: replaces: use the old name, or a table of name and key")
    if (old_name, old_key) == (name, options.key):
        raise ConfigError(f"{label}: replaces: the name and the key are those that it has now")
    return old_name, old_key


def _limits(workshop: Workshop, options: CallOptions, label: str) -> RunLimits:
    limits = workshop.limits
    lease = limits.lease if options.lease is None else read_lease(options.lease)
    attempts = limits.max_attempts if options.max_attempts is None else options.max_attempts
    attempts = at_least_one(f"{label}: max_attempts", attempts)
    return RunLimits(attempts, lease, lease if workshop.call_wait is None else workshop.call_wait)


def _runs(plain: Any) -> Any:
    """Return the function as a handler: it takes a call in place of an event."""

    def run(call: Any) -> Any:
        return plain(*call.args, **call.kwargs)

    async def run_async(call: Any) -> Any:
        return await plain(*call.args, **call.kwargs)

    return run_async if is_async(plain) else run


# --- what cannot be decorated ---


def _inner(function: Any) -> Any:
    """Return the function itself, without what `staticmethod` or `classmethod` put around it."""
    return function.__func__ if isinstance(function, (staticmethod, classmethod)) else function


def _refuse_misfit(decorator: str, reason: str | None) -> None:
    if reason is not None:
        raise ConfigError(f"{decorator}: {reason}")


def _misfit(plain: Any, decorator: str) -> str | None:
    if isinstance(plain, Decorated):
        return f"{full_name(plain)} is decorated already; decorate its plain function"
    if inspect.isclass(plain):
        return f"{full_name(plain)} is a class; decorate one of its methods, or a function that makes it"
    if hasattr(plain.__class__, "delay") and hasattr(plain.__class__, "apply_async"):
        return f"{getattr(plain, 'name', plain)} is a Celery task; put @app.task above {decorator}"
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        return f"{full_name(plain)} is a generator, which runs later if at all; return a list instead of yield"
    return None if callable(plain) else f"{plain!r:.100} is not a function; write one with def"


def _misfit_of_calls(plain: Any) -> str | None:
    if isinstance(plain, (functools.partial, functools.partialmethod)):
        return f"{plain!r:.100} is a partial, whose arguments would be in no key; write a def function that calls it"
    if isinstance(plain, MethodType):
        return f"{full_name(plain)} is bound to one instance; decorate the method in its class"
    if not hasattr(plain, "__qualname__"):
        return f"{plain!r:.100} is an object that can be called; write a def function that calls it"
    return None


def _first_name(plain: Any) -> str | None:
    return next(iter(read_signature(plain, full_name(plain)).parameters), None)
