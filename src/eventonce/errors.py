"""Every error eventonce raises on purpose.

EventOnceError
├── ConfigError              a setting, URL or option is wrong           exit 2
│   └── MissingDriver        a package that an extra brings is missing
├── StoreError               the store did not answer, but may later
│   ├── StoreBusy            others held it for too long; it did nothing
│   ├── StorePartly          some of its servers did not answer, and others did
│   └── StoreUnusable        it will not answer until someone acts       exit 2
├── SourceError              the source cannot be read                   exit 2
├── SinkError                the sink cannot be written                  exit 2
│   ├── SinkDown             it did not answer, whatever it was sent
│   │   └── SinkUnusable     nothing can be sent until someone acts
│   └── LettersNotKept       a dead-letter sink can never store some of the letters, and has stored the others
├── EventRejected            this event can never be processed
│   ├── CallRejected         a decorated function cannot be called with these arguments
│   ├── EventInvalid         its data does not fit the type that its handler takes
│   └── EventUnrouted        no handler is registered for it
├── EventBusy                another worker is running this event now
├── EventStale               a newer version of it has been processed
├── EventExpired             it is older than its rule's max_age
├── TooManyAttempts          it failed max_attempts times
├── LeaseLost                another worker has taken the claim over
└── ResultUnavailable        it was processed, but its result was not stored

Two are defined beside their only cause: `TransactionRefused` (stores/dynamodb), `LateRows` (traffic/spark).
"""

from collections.abc import Sequence
from typing import Any


def describe(error: BaseException | None) -> str:
    """Return the message of an error, even if the error itself fails to give it."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:
        return f"({type(error).__name__} with no message)"


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
    """Some of the store's servers did not answer. `answers` has the answers of the others, and None for these."""

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
    retry_at: int | None = None  # when the receiver wants the next try (milliseconds, UTC), if it says so
    code: str | None = None  # the service's own name for the error, if it has one


class SinkDown(SinkError):
    """The sink did not answer, whatever it was sent."""


class SinkUnusable(SinkDown):
    """Nothing can be sent until someone acts."""


class LettersNotKept(SinkError):
    """The dead-letter sink can never store some letters. It has stored all others of the same call."""

    def __init__(self, message: str, numbers: Sequence[int]) -> None:
        super().__init__(message)
        self.numbers = numbers  # their indexes in the call


class EventRejected(EventOnceError):
    """This event can never be processed. A handler may raise it to dead-letter an event at once."""

    code: str | None = None  # the name that a service gave to its refusal


class CallRejected(EventRejected, TypeError):
    """A decorated function cannot be called with these arguments."""


class EventInvalid(EventRejected):
    """The data of this event does not fit the type that its handler takes."""


class EventUnrouted(EventRejected):
    """No handler is registered for this event. It is dropped if `skipped`, and rejected if not."""

    def __init__(self, message: str, *, skipped: bool) -> None:
        super().__init__(message)
        self.skipped = skipped


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
    """This event was processed before, but its result was not stored."""
