"""A handler or a sink, checked and inspected once, and how it is run over the jobs of a turn."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from eventonce.engine.context import CURRENT, Context, HandlerFunction, idempotency_key, is_async, wants_context
from eventonce.engine.drivers import Each, Step
from eventonce.engine.jobs import Chain, Runnable
from eventonce.engine.keeper import OpenClaim
from eventonce.engine.results import Results
from eventonce.engine.routing import Router
from eventonce.errors import ConfigError, LeaseLost, SinkError
from eventonce.event import Event
from eventonce.event.event import Restore
from eventonce.event.groups import GroupQueue
from eventonce.ports import AttemptDetails, Sink
from eventonce.text import type_of

if TYPE_CHECKING:
    from eventonce.engine.hooks import Hooks


class Handler:
    """A handler or a sink, ready to run. It holds nothing of a run, so threads may share it."""

    def __init__(
        self,
        handler: HandlerFunction | Sink,
        concurrency: int,
        hooks: "Hooks | None" = None,
        *,
        remembers_results: bool = False,
        names_later: bool = False,
    ) -> None:
        self._sink = handler if isinstance(handler, Sink) and not callable(handler) else None
        self.function: Any = getattr(handler, "eventonce_handler", handler)  # a decorated one must not claim twice
        self.is_sink = self._sink is not None
        self._takes_context: Literal["no", "second", "named"] = "no"
        self.router: Router | None = None
        self.is_async = False
        self.restore: Restore | None = None
        self._validate: Callable[[Event], Any] | None = None  # makes what the function takes of an event
        if not self.is_sink:
            _check(self.function)
            self._takes_context = wants_context(self.function)
            self.is_async = is_async(self.function)
            self._read_annotations(remembers_results=remembers_results, names_later=names_later)
        self.is_plain = hooks is None and not self.is_sink and not self.is_async
        self.context: Context | None = None  # of a run that is played back
        self._has_run = False
        self._concurrency = concurrency
        self._hooks = hooks

    def _read_annotations(self, *, remembers_results: bool, names_later: bool) -> None:
        from inspect import isroutine, unwrap

        inner = unwrap(self.function)
        if isinstance(inner, Router):  # it has handlers of its own
            self.router = inner
            return
        label = f"the handler {getattr(self.function, '__qualname__', type(self.function).__name__)}"
        if remembers_results:
            from eventonce.event.values import return_restorer

            self.restore = return_restorer(self.function, label)
        is_bare = isroutine(inner) and not getattr(
            inner, "__annotations__", None
        )  # nearly always, and cheaper than a signature
        annotation = Any if is_bare else _event_annotation(self.function)
        if annotation is not Any and annotation is not Event:
            from eventonce.event.typed import event_validator

            self._validate = event_validator(self.function, annotation, label, names_later=names_later)

    def played_back(self, function: HandlerFunction, context: Context | None) -> "Handler":
        """Return the same handler with a function that only repeats how the real one ended, in its context if any."""
        other = self.with_function(function)
        other.context, other._has_run = context, function is not self.function
        if other._has_run:
            other._validate = None
        return other

    def with_function(self, function: HandlerFunction) -> "Handler":
        """Return the same handler with another function of the same signature, such as one bound to an instance."""
        other = Handler.__new__(Handler)
        other.__dict__.update(self.__dict__)
        other.function = function
        return other

    def call(self, event: Event, context: Context | None) -> Any:
        """Call the function with an event as it takes it. Raise `EventInvalid` if its data does not fit."""
        if self._validate is not None:
            event = self._validate(event)
        if self._takes_context == "no":
            return self.function(event)
        if self._takes_context == "second":
            return self.function(event, context)
        return self.function(event, ctx=context)

    def run(self, chains: Sequence[Chain], results: Results) -> Step:
        """Return the step that runs chains side by side, each in order and up to its first failure."""
        results.expect(chains)
        if self._sink is not None:
            return Each(partial(self._send_all, self._sink, results), [chains] if chains else [])
        run_chain = self._run_chain_async if self.is_async else self.run_chain
        return Each(partial(run_chain, results), chains, self._concurrency)

    def run_chain(self, results: Results, chain: Chain) -> None:
        """Run the jobs of a chain one after another."""
        outer = CURRENT.get()
        try:
            for runnable in chain:
                CURRENT.set(runnable.context)
                if not self._run(results, runnable):
                    return
        finally:
            CURRENT.set(outer)

    def _run(self, results: Results, runnable: Runnable) -> bool:
        """Run one job. Return whether those behind it in its chain may run."""
        try:
            if self._hooks is None:
                results.returning = runnable, self._call(runnable)
            else:
                with self._hooks.around_run([_details(runnable)]):
                    results.returning = runnable, self._call(runnable)
            return results.returned(*results.returning)
        except Exception as error:
            return results.raised(runnable, error)

    async def _run_chain_async(self, results: Results, chain: Chain) -> None:
        from asyncio import CancelledError, current_task

        for runnable in chain:
            CURRENT.set(runnable.context)  # in a task of ours, which nothing else uses
            try:
                with nullcontext() if self._hooks is None else self._hooks.around_run([_details(runnable)]):
                    result = await self._call(runnable)
                goes_on = results.returned(runnable, result)
            except CancelledError as error:
                task = current_task()
                if task is None or task.cancelling():
                    raise
                reason = f"the handler ended with {error!r}, although it was not cancelled"
                goes_on = results.raised(runnable, RuntimeError(reason))
            except Exception as error:
                goes_on = results.raised(runnable, error)
            if not goes_on:
                return

    def _call(self, runnable: Runnable) -> Any:
        if not self._has_run:
            _check_claim(runnable)  # others may have taken over while earlier jobs ran
        return self.call(runnable.job.event, runnable.context)

    # --- a sink ---

    def _send_all(self, sink: Sink, results: Results, chains: Sequence[Chain]) -> None:
        """Send the first of each chain together, then the second of those that go on, and so forth."""
        queue = GroupQueue((runnable for chain in chains for runnable in chain), lambda each: each.job.group)
        while queue.free:
            runnables = list(queue.free)
            queue.free.clear()
            for runnable, well in zip(runnables, self._send(sink, results, runnables), strict=True):
                queue.ended(runnable, well=well)

    def _send(self, sink: Sink, results: Results, runnables: Sequence[Runnable]) -> list[bool]:
        """Send these in one call. Return for each whether it ended well."""
        errors: dict[Runnable, Exception | None] = {runnable: _lease_lost(runnable) for runnable in runnables}
        ours = [runnable for runnable, error in errors.items() if error is None]
        errors.update(zip(ours, self._call_sink(sink, results, ours), strict=True))
        return [
            results.returned(runnable, None) if error is None else results.raised(runnable, error)
            for runnable, error in errors.items()
        ]

    def _call_sink(self, sink: Sink, results: Results, runnables: Sequence[Runnable]) -> Sequence[Exception | None]:
        """Send these. Return None or an error for each."""
        events = [runnable.job.event for runnable in runnables]
        keys = [idempotency_key(runnable.job.key, runnable.job.version) for runnable in runnables]
        try:
            if self._hooks is None:
                results.sent = runnables, sink.send(events, keys)
            else:
                with self._hooks.around_run(list(map(_details, runnables))):
                    results.sent = runnables, sink.send(events, keys)
            return results.sent[1]
        except SinkError:  # nothing can be sent until someone acts
            raise
        except Exception as error:
            return [error] * len(runnables)


def _check_claim(runnable: Runnable) -> None:
    if runnable.context is not None:
        runnable.context.check()
    elif type(runnable.basis) is OpenClaim:
        runnable.basis.check()


def _lease_lost(runnable: Runnable) -> LeaseLost | None:
    try:
        _check_claim(runnable)
    except LeaseLost as error:
        return error
    return None


def _details(runnable: Runnable) -> AttemptDetails:
    return AttemptDetails(runnable.job.event, runnable.job.rule.name, runnable.job.key, runnable.attempt)


# --- what is read, and refused, when the handler is passed ---


def _event_annotation(function: Any) -> Any:
    """Return the annotation of the parameter that takes the event, or Any if it has none."""
    import inspect

    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have none
        return Any
    if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL or parameters[0].annotation is inspect.Parameter.empty:
        return Any
    return parameters[0].annotation


def _check(function: Any) -> None:
    import inspect

    if not callable(function):
        raise ConfigError(f"the handler is {type_of(function)}; pass a function or a sink")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError("the handler is a generator, which would never run; return instead of yield")
    _check_arguments(function)


def _check_arguments(function: Any) -> None:
    """Raise `ConfigError` now if every call would fail."""
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    context = wants_context(function)
    positional = ("event", "ctx") if context == "second" else ("event",)
    named = {"ctx": "ctx"} if context == "named" else {}
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        raise ConfigError(
            f"the handler takes {signature}, and it is called with (event) or (event, ctx): {error}"
        ) from None
