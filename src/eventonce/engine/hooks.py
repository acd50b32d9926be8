"""All hooks of an engine or a relay as one, which never disturbs it."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar

from eventonce.errors import ConfigError
from eventonce.ports import AttemptDetails, Hook, OutcomeDetails, RelayDetails, StoreCallDetails

P = ParamSpec("P")
Result = TypeVar("Result")
_log = logging.getLogger("eventonce")


class Hooks:
    """Calls each hook. The first error of a hook is logged, and no error goes further."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        if not isinstance(hooks, Sequence):
            raise ConfigError(f"hooks: {hooks!r:.60} is not a list; pass hooks in a list, such as [hook]")
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise ConfigError(f"hooks: {hook!r} is not a Hook; subclass eventonce.ports.Hook")
        self._hooks = tuple(hooks)
        self._failed: set[int] = set()

    def observe_call(self, verb: str, keys: int, call: Callable[P, Result], *args: P.args, **named: P.kwargs) -> Result:
        """Call the store, and report how long that took and how it ended."""
        started_at = time.perf_counter()
        try:
            answer = call(*args, **named)
        except Exception as error:
            self._after_store_call(StoreCallDetails(verb, keys, time.perf_counter() - started_at, error))
            raise
        self._after_store_call(StoreCallDetails(verb, keys, time.perf_counter() - started_at, None))
        return answer

    def _after_store_call(self, details: StoreCallDetails) -> None:
        for hook in self._hooks:
            self._try(hook, hook.after_store_call, details)

    def after_settle(self, details: Sequence[OutcomeDetails]) -> None:
        """Report the outcomes of a batch."""
        for hook in self._hooks:
            self._try(hook, hook.after_settle, details)

    def after_relay(self, details: RelayDetails) -> None:
        """Report what a relay has published, or what waits for it."""
        for hook in self._hooks:
            self._try(hook, hook.after_relay, details)

    @contextmanager
    def around_run(self, attempts: Sequence[AttemptDetails]) -> Iterator[None]:
        """Enter the context of each hook, around the run of one event or the sending of several."""
        entered = [(hook, self._try(hook, _enter, hook, attempts)) for hook in self._hooks]
        try:
            yield
        except BaseException as error:
            self._leave(entered, type(error), error, error.__traceback__)
            raise
        self._leave(entered, None, None, None)

    def _leave(self, entered: list[tuple[Hook, AbstractContextManager[object] | None]], *error: Any) -> None:
        for hook, manager in reversed(entered):
            if manager is not None:
                self._try(hook, manager.__exit__, *error)

    def _try(self, hook: Hook, method: Callable[P, Result], *args: P.args, **named: P.kwargs) -> Result | None:
        try:
            return method(*args, **named)
        except Exception:
            if id(hook) not in self._failed:
                self._failed.add(id(hook))
                _log.exception("a hook failed; the run goes on, and further errors of this hook are not logged")
            return None


def _enter(hook: Hook, attempts: Sequence[AttemptDetails]) -> AbstractContextManager[object]:
    manager = hook.around_run(attempts)
    manager.__enter__()
    return manager
