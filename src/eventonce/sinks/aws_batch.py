"""AWS batches: sinks whose calls take several events and return a result for each."""

import threading
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from eventonce.clients.aws import AwsUrl, ErrorKind, error_kind
from eventonce.clock import Clock, SystemClock
from eventonce.errors import ConfigError, EventRejected, SinkDown, SinkError, SinkUnusable
from eventonce.event import Event
from eventonce.ports import BatchEntry, BatchRefused, CallLimits, EntryAccepted, EntryRefusal, Sendable
from eventonce.sinks.batching import MAX_ATTEMPTS, BatchSender, SendJob, raise_if_unusable

MIB = 1_048_576

_INVALID = {ErrorKind.INVALID, ErrorKind.TOO_LARGE}  # the refusal concerns this event only
_PASSING = {ErrorKind.THROTTLED, ErrorKind.EXPIRED}
_UNUSABLE = {
    ErrorKind.CREDENTIALS, ErrorKind.DENIED, ErrorKind.MISSING, ErrorKind.DELETED, ErrorKind.UNUSABLE,
}  # fmt: skip
_UNANSWERED = (ConfigError, BotoCoreError, OSError, ValueError)


class AwsBatchSink:
    """A sink whose API takes several events in a call and returns a result for each.

    An entry that the service refuses for now is retried a few times, as botocore does for whole calls. After that the
    refusal is its result, and the event is redelivered later. A call that may or may not have arrived is repeated with
    the same keys.
    """

    service: str
    limits: CallLimits
    tries = 3  # by botocore, of a call that fails as a whole
    denies_together = False  # whether one entry that is not allowed denies the whole call

    def __init__(self, address: AwsUrl, clock: Clock | None = None) -> None:
        if address.name.startswith("arn:") and address.name.count(":") > 4:
            address.options.setdefault("region", address.name.split(":")[3])
        self.address = address
        self.label = f"{address.scheme}://{address.name}"
        self._clock = clock or SystemClock()
        self._client: Any = None
        self._prepared = False
        self._lock = threading.Lock()

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]:
        """Send events in as few calls as possible. Raise `SinkUnusable` if none was sent and none can be."""
        jobs = [SendJob(event, key) for event, key in zip(events, idempotency_keys, strict=True)]
        BatchSender(self, self._clock, MAX_ATTEMPTS).run(jobs)
        return raise_if_unusable([None if isinstance(job.result, EntryAccepted) else job.result for job in jobs])

    def client(self) -> Any:
        """Return the client of the service. It is created on first use: even finding credentials may need a server."""
        with self._lock:
            if self._client is None:
                self._client = self.address.client(self.service, tries=self.tries)
            return self._client

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- what each service does in its own way ---

    def _prepare(self) -> None:
        """Look up what calls need."""

    def _entry(self, event: Event, item: Sendable) -> BatchEntry:
        """Return the entry of an event as this attempt carries it."""
        raise NotImplementedError

    def _put(self, bodies: list[dict[str, Any]]) -> list[EntryAccepted | EntryRefusal]:
        """Make a call and return a result for each entry."""
        raise NotImplementedError

    # --- what a carrier does ---

    def ready(self) -> None:
        """Look up what calls need, once."""
        if self._prepared:
            return
        try:
            self._prepare()
        except ClientError as error:
            refusal = _refusal(error)
            raise (self._down(refusal) if _passes(error, refusal) else self._unusable(refusal)) from error
        except _UNANSWERED as error:
            raise self._connection_error(error) from error
        self._prepared = True

    def entry(self, item: Sendable) -> BatchEntry:
        """Return the entry of an event. Raise `EventRejected` if it has none."""
        try:
            entry = self._entry(item.next_event(), item)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EventRejected(f"cannot be written as JSON: {error}") from None
        if entry.size > self.limits.alone:
            raise EventRejected(f"has {entry.size:,} bytes, over the {self.limits.alone:,} of {self.label}")
        return entry if entry.group else entry._replace(group=item.group)

    def put(self, entries: Sequence[BatchEntry]) -> list[EntryAccepted | EntryRefusal]:
        """Make a call and return a result for each entry."""
        try:
            return self._put([entry.body for entry in entries])
        except ClientError as error:
            raise self._call_error(error, len(entries)) from error
        except ParamValidationError as error:
            raise BatchRefused(EntryRefusal("ParamValidation", str(error))) from error
        except _UNANSWERED as error:
            raise self._connection_error(error) from error

    def judge(self, refusal: EntryRefusal) -> EventRejected | SinkError:
        """Return the error that the refusal of an entry means."""
        kind = error_kind(refusal.code)
        if kind in _INVALID:
            return self.rejected(refusal)
        if kind in _UNUSABLE:
            return self._unusable(refusal)
        return self._down(refusal) if kind in _PASSING else self._passing(SinkError, refusal)

    def rejected(self, refusal: EntryRefusal) -> EventRejected:
        """Return the error that concerns this event only."""
        error = EventRejected(f"{self.label} does not take it ({refusal.code}: {refusal.message})")
        error.code = refusal.code
        return error

    # --- errors ---

    def _call_error(self, error: ClientError, count: int) -> SinkError | BatchRefused:
        """Return the error that the refusal of a whole call means."""
        refusal = _refusal(error)
        if _passes(error, refusal):
            return self._down(refusal)
        unusable = error_kind(refusal.code) in _UNUSABLE and not (self.denies_together and count > 1)
        return self._unusable(refusal) if unusable else BatchRefused(refusal)

    def _down(self, refusal: EntryRefusal) -> SinkError:
        """Return an error that passes and is not the event's fault. Drop the client if its credentials expired."""
        if error_kind(refusal.code) is ErrorKind.EXPIRED:
            with self._lock:  # a new client may get new credentials; not closed, as other threads may use it
                self._client = None
        return self._passing(SinkDown, refusal)

    def _passing(self, kind: type[SinkError], refusal: EntryRefusal) -> SinkError:
        error = kind(f"{self.label} did not take it ({refusal.code}: {refusal.message}); trying again later may help")
        error.code = refusal.code
        return error

    def _unusable(self, refusal: EntryRefusal) -> SinkUnusable:
        error = SinkUnusable(
            f"{self.label} cannot be used ({refusal.code}: {refusal.message}); fix this and run again "
            "(no event was lost)"
        )
        error.code = refusal.code
        return error

    def _connection_error(self, error: Exception) -> SinkError:
        """Return the error that a call without a response means."""
        translated = self._translate(error)
        translated.code = type(error).__name__
        return translated

    def _translate(self, error: Exception) -> SinkError:
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return SinkUnusable(
                f"{self.label}: there are no AWS credentials; give this process a role, a profile or AWS_ACCESS_KEY_ID"
            )
        if isinstance(error, ConfigError):  # which names the URL
            return SinkUnusable(str(error))
        if isinstance(error, ValueError):
            return SinkUnusable(f"{self.label}: the endpoint or region in its URL is not valid; fix the URL")
        return SinkDown(f"{self.label} did not answer ({type(error).__name__}); trying again later may help")


def _refusal(error: ClientError) -> EntryRefusal:
    fields = error.response.get("Error", {})
    return EntryRefusal(str(fields.get("Code", "")), str(fields.get("Message", "")))


def _passes(error: ClientError, refusal: EntryRefusal) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return error_kind(refusal.code) in _PASSING or status >= 500
