"""A guard before a handler: while the worker stops, nothing new is begun."""

from collections.abc import Callable
from typing import Any

from eventonce.engine.context import is_async
from eventonce.errors import LeaseLost
from eventonce.ports import Sink


class NotBegun(LeaseLost):
    """The worker stops, and this was not begun."""


def guard(handler: Sink | Callable[..., Any], closed: Callable[[], bool]) -> Sink | Callable[..., Any]:
    """The same handler, which is not called any more once `closed` says so. A sink sends its batch in one go.

    What is not begun counts as no attempt, and its claim is given back.
    """
    if not callable(handler):
        return handler
    function: Any = getattr(handler, "eventonce_handler", handler)

    def check() -> None:
        if closed():
            raise NotBegun

    def guarded(*args: Any, **named: Any) -> Any:
        check()
        return function(*args, **named)

    async def guarded_async(*args: Any, **named: Any) -> Any:
        check()
        return await function(*args, **named)

    chosen: Any = guarded_async if is_async(function) else guarded
    chosen.__wrapped__ = function  # whose arguments decide how it is called
    return chosen  # type: ignore[no-any-return]
