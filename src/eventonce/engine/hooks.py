"""All hooks of an engine as one, which never disturbs it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar

from eventonce.errors import ConfigError
from eventonce.ports import Attempt, Called, Hook, Relayed, Seen

Given = ParamSpec("Given")
Result = TypeVar("Result")
_log = logging.getLogger("eventonce")


class Hooks:
    """Tells each hook. The first error of each is logged, and none goes further."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise ConfigError(f"hooks: {hook!r} is no hook; derive its class from eventonce.ports.Hook")
        self._hooks = tuple(hooks)
        self._failed: set[int] = set()

    def called(self, call: Called) -> None:
        """The store was called."""
        for hook in self._hooks:
            self._try(hook, hook.called, call)

    def settled(self, seen: Sequence[Seen]) -> None:
        """A batch has come to its end."""
        for hook in self._hooks:
            self._try(hook, hook.settled, seen)

    def relayed(self, relayed: Relayed) -> None:
        """A relay has published, or looked at what waits."""
        for hook in self._hooks:
            self._try(hook, hook.relayed, relayed)

    @contextmanager
    def running(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        """Entered around the run of one event, or around the sending of several."""
        entered = [(hook, self._try(hook, _entered, hook, attempts)) for hook in self._hooks]
        try:
            yield
        except BaseException as error:
            self._leave(entered, type(error), error, error.__traceback__)
            raise
        self._leave(entered, None, None, None)

    def _leave(self, entered: list[tuple[Hook, AbstractContextManager[object] | None]], *how: Any) -> None:
        for hook, manager in reversed(entered):
            if manager is not None:
                self._try(hook, manager.__exit__, *how)

    def _try(
        self, hook: Hook, tell: Callable[Given, Result], *args: Given.args, **named: Given.kwargs
    ) -> Result | None:
        try:
            return tell(*args, **named)
        except Exception:
            if id(hook) not in self._failed:
                self._failed.add(id(hook))
                _log.exception("a hook failed; the run goes on, and further errors of this hook are not shown")
            return None


def _entered(hook: Hook, attempts: Sequence[Attempt]) -> AbstractContextManager[object]:
    manager = hook.running(attempts)
    manager.__enter__()
    return manager
