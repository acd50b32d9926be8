"""Every error eventonce raises on purpose.

EventOnceError
├── ConfigError              a setting, URL or option is wrong           exit 2
│   └── MissingDriver        a package that an extra brings is missing
├── StoreError               the store did not answer; try again later
│   ├── StoreBusy            others held it for too long; it did nothing
│   ├── StorePartly          some of its servers did not answer, and others did
│   └── StoreUnusable        it will not answer until someone acts       exit 2
├── SourceError              a way in cannot be read                     exit 2
├── SinkError                a way out cannot be written                 exit 2
│   ├── SinkDown             it did not answer at all: no fault of the event
│   │   └── SinkUnusable     nothing can be sent until someone acts
│   └── LettersNotKept       a place for dead letters can never take some of them, and has kept the others
├── EventRejected            this event can never be processed
├── EventBusy                another worker is running this event now
├── EventStale               a newer version of it has been processed
├── EventExpired             it is older than its rule's max_age
├── TooManyAttempts          it failed max_attempts times
├── LeaseLost                another worker has taken the claim over
├── LateRows                 the engine of a stream dropped rows as late, which may be unique
├── TransactionRefused       the database refused what a handler wrote through ctx.tx
└── ResultNotKept            it was processed, but its result was not kept
"""

from collections.abc import Sequence
from typing import Any


def describe(error: BaseException | None) -> str:
    """What an error says, also where it is one that cannot say it."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:
        return f"(a {type(error).__name__} without words)"


class EventOnceError(Exception):
    """Something went wrong in eventonce."""

    retryable = False
    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class ConfigError(EventOnceError):
    """A setting is wrong."""

    exit_code = 2


class MissingDriver(ConfigError):
    """A driver is not installed."""


class StoreError(EventOnceError):
    """The store did not answer."""

    retryable = True


class StoreBusy(StoreError):
    """Others held the store for too long, and it did nothing."""


class StorePartly(StoreError):
    """Some of the servers of the store did not answer. `answers` has those of the others, and None for these."""

    def __init__(self, message: str, answers: Sequence[Any]) -> None:
        super().__init__(message)
        self.answers = answers


class StoreUnusable(StoreError):
    """The store cannot be used until someone acts."""

    retryable = False
    exit_code = 2


class SourceError(EventOnceError):
    """The source cannot be read."""

    exit_code = 2


class SinkError(EventOnceError):
    """The sink cannot be written."""

    exit_code = 2
    retry_at: int | None = None  # when the receiver wants to be asked again (milliseconds, UTC), where it says so
    code: str | None = None  # what a service calls it, where it says so


class SinkDown(SinkError):
    """The sink did not answer, whatever it was sent."""


class SinkUnusable(SinkDown):
    """Nothing can be sent until someone acts."""


class LettersNotKept(SinkError):
    """The place for dead letters can never take some of them. It has kept all others of the same call."""

    def __init__(self, message: str, numbers: Sequence[int]) -> None:
        super().__init__(message)
        self.numbers = numbers  # their places in the call


class EventRejected(EventOnceError):
    """This event can never be processed. A handler may raise it to dead-letter an event at once."""

    code: str | None = None  # what a service that does not take it calls that


class EventBusy(EventOnceError):
    """Another worker is running this event now."""

    retryable = True


class EventStale(EventOnceError):
    """A newer version of this event has been processed."""


class EventExpired(EventOnceError):
    """This event is older than its rule allows."""


class TooManyAttempts(EventOnceError):
    """This event failed too often."""


class LeaseLost(EventOnceError):
    """Another worker may have taken this claim over; stop working on it."""

    retryable = True


class ResultUnavailable(EventOnceError):
    """This event was processed before, but its result was not kept."""


class LateRows(EventOnceError):
    """The engine has dropped rows as late, which may have been unique."""


class TransactionRefused(EventOnceError):
    """The database refused the handler's own writes, so none of them was made."""
