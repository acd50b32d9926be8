"""The log of eventonce; `logging` is imported when there is something to say, which a cold start rarely has."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging


class _Log:
    def __getattr__(self, name: str) -> Any:
        import logging

        return getattr(logging.getLogger("eventonce"), name)


log: "logging.Logger" = _Log()  # type: ignore[assignment]
