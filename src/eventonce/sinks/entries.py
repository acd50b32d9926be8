"""Entries: events on their way into a call of AWS that takes several, and what becomes of each."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError, PartialCredentialsError

from eventonce.aws import Place
from eventonce.clock import Clock, SystemClock
from eventonce.errors import ConfigError, EventRejected, SinkDown, SinkError
from eventonce.event import Event
from eventonce.sinks.tries import TRIES, Answers, Hopeless, pause, told

MIB = 1_048_576

# Codes of errors, without what differs between services: the part before a dot, the ending, capital letters.
_HOPELESS = {
    "accessdenied", "authorizationerror", "incompletesignature", "invalidaccountid", "invalidaddress",
    "invalidclienttokenid", "invalidsecurity", "invalidsignature", "invalidstate", "kmsaccessdenied", "kmsdisabled",
    "kmsinvalidkeyusage", "kmsinvalidstate", "kmsnotfound", "kmsoptinrequired", "missingauthenticationtoken",
    "nonexistentqueue", "notfound", "optinrequired", "queuedeletedrecently", "queuedoesnotexist", "resourcenotfound",
    "signaturedoesnotmatch", "unrecognizedclient", "unsupportedoperation",
}  # fmt: skip
_PASSING = {
    "expiredtoken", "kmsthrottled", "kmsthrottling", "provisionedthroughputexceeded", "requestexpired",
    "requestlimitexceeded", "requestthrottled", "requesttimeout", "slowdown", "throttled", "throttling",
    "toomanyrequests",
}  # fmt: skip
_EXPIRED = {"expiredtoken", "requestexpired"}
_OF_THE_EVENT = {
    "batchrequesttoolong", "invalidargument", "invalidinput", "invalidmessagecontents", "invalidparameter",
    "invalidparametervalue", "malformeddetail", "notauthorizedfordetailtype", "notauthorizedforsource",
    "parametervalueinvalid", "redactionfailure", "validation", "validationerror",
}  # fmt: skip


class Entry(NamedTuple):
    """One event as an API takes it."""

    body: dict[str, Any]
    size: int  # as the service counts it
    group: str | None = None  # entries of one group keep their order
    number: int = 0  # which of the events it is


class Limits(NamedTuple):
    """What a call can hold."""

    entries: int
    together: int  # bytes
    alone: int  # bytes of an entry that is larger than that and goes by itself; the service may refuse it all the same


class Refusal(NamedTuple):
    """Why a service did not take an entry, or a whole call."""

    code: str
    said: str

    @property
    def plain(self) -> str:
        return self.code.rpartition(".")[2].removesuffix("Exception").lower()


def packed(entries: Iterable[Entry], limits: Limits) -> Iterator[list[Entry]]:
    """Entries by call. No call has two of one group: the second could get through where the first does not."""
    call: list[Entry] = []
    for entry in entries:
        size = sum(other.size for other in call) + entry.size
        groups = {other.group for other in call} - {None}
        if call and (len(call) == limits.entries or size > limits.together or entry.group in groups):
            yield call
            call = []
        call.append(entry)
    if call:
        yield call


class EntrySink:
    """A way out whose API takes several events at once and answers for each.

    What a service refuses for now is tried again a few times; botocore does that already for whole calls. Then it is
    an answer, and the event comes again later. A call that may or may not have arrived is repeated with the same keys.
    """

    service: str
    limits: Limits

    def __init__(self, place: Place, clock: Clock | None = None) -> None:
        if place.name.startswith("arn:") and place.name.count(":") > 4:
            place.options.setdefault("region", place.name.split(":")[3])
        self.place = place
        self.where = f"{place.scheme}://{place.name}"
        self._clock = clock or SystemClock()
        self._client: Any = None
        self._prepared = False
        self._lock = threading.Lock()

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Answers:
        """Send them in as few calls as may be; raises `SinkError` where nothing can be sent until someone acts."""
        answers: dict[int, Exception | None] = {}
        stuck: set[str | None] = set()
        trouble = self._ready()
        for call in packed(self._entries(events, idempotency_keys, answers), self.limits):
            if trouble is None:
                trouble = self._deliver([entry for entry in call if entry.group not in stuck], answers)
            for entry in call:
                answer = answers.setdefault(entry.number, trouble or self._held_back())
                if isinstance(answer, SinkError):
                    stuck |= {entry.group} - {None}
        return told([answers[number] for number in range(len(events))])

    def client(self) -> Any:
        """The client of the service, made on first use: even looking for credentials may ask a server."""
        with self._lock:
            if self._client is None:
                self._client = self.place.client(self.service)
            return self._client

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- what each service does in its own way ---

    def _prepare(self) -> None:
        """Find out once what calls need."""

    def _entry(self, event: Event, key: str) -> Entry:
        raise NotImplementedError

    def _put(self, bodies: list[dict[str, Any]]) -> list[Refusal | None]:
        """One call, and what was said of each."""
        raise NotImplementedError

    # --- sending ---

    def _entries(
        self, events: Sequence[Event], keys: Sequence[str], answers: dict[int, Exception | None]
    ) -> Iterator[Entry]:
        for number, (event, key) in enumerate(zip(events, keys, strict=True)):
            try:
                entry = self._entry(event, key)
                if entry.size > self.limits.alone:
                    raise EventRejected(f"has {entry.size:,} bytes, over the {self.limits.alone:,} of {self.where}")
            except EventRejected as error:
                answers[number] = error
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                answers[number] = EventRejected(f"cannot be written as JSON: {error}")
            else:
                yield entry._replace(number=number)

    def _ready(self) -> SinkError | None:
        if self._prepared:
            return None
        try:
            self._prepare()
        except ClientError as error:
            refusal = _refusal(error)
            return self._overrun(refusal) if _passes(error, refusal) else self._hopeless(refusal)
        except (ConfigError, BotoCoreError, OSError, ValueError) as error:
            return self._no_answer(error)
        self._prepared = True
        return None

    def _deliver(self, entries: list[Entry], answers: dict[int, Exception | None]) -> SinkError | None:
        """Send what goes into one call, and again what may get through; gives what stops all further sending."""
        try:
            for tried in range(1, TRIES + 1):
                if entries:
                    entries = self._call(entries, answers)
                if not entries or tried == TRIES:
                    return None
                self._clock.sleep(pause(tried))
        except SinkError as error:
            return error
        return None

    def _call(self, entries: list[Entry], answers: dict[int, Exception | None]) -> list[Entry]:
        """Make a call, and give what may get through another time."""
        try:
            refusals = self._put([entry.body for entry in entries])
        except ClientError as error:
            refusal = _refusal(error)
            if _passes(error, refusal):
                raise self._overrun(refusal) from error
            if refusal.plain in _HOPELESS:
                raise self._hopeless(refusal) from error
            if len(entries) > 1:  # one of them is to blame, and that must not be all the others' fate
                return [left for entry in entries for left in self._call([entry], answers)]
            refusals = [refusal]
        except (ConfigError, BotoCoreError, OSError, ValueError) as error:
            raise self._no_answer(error) from error
        return self._note(entries, refusals, answers)

    def _note(
        self, entries: list[Entry], refusals: list[Refusal | None], answers: dict[int, Exception | None]
    ) -> list[Entry]:
        again: list[Entry] = []
        for entry, refusal in zip(entries, refusals, strict=True):
            error = None if refusal is None else self._error(refusal)
            answers[entry.number] = error
            if isinstance(error, SinkError):
                again.append(entry)
        for entry in again:
            if isinstance(hopeless := answers[entry.number], Hopeless):
                raise hopeless
        return again

    # --- errors ---

    def _error(self, refusal: Refusal) -> SinkError | EventRejected:
        if refusal.plain in _OF_THE_EVENT:
            return EventRejected(f"{self.where} does not take it ({refusal.code}: {refusal.said})")
        if refusal.plain in _HOPELESS:
            return self._hopeless(refusal)
        return self._overrun(refusal) if refusal.plain in _PASSING else SinkError(self._passing(refusal))

    def _overrun(self, refusal: Refusal) -> SinkDown:
        """Trouble that passes and is no fault of the event."""
        if refusal.plain in _EXPIRED:
            with self._lock:  # where the credentials come from, there may be new ones; other threads may still use it
                self._client = None
        return SinkDown(self._passing(refusal))

    def _passing(self, refusal: Refusal) -> str:
        return f"{self.where} did not take it ({refusal.code}: {refusal.said}); trying again later may help"

    def _hopeless(self, refusal: Refusal) -> Hopeless:
        return Hopeless(
            f"{self.where} cannot be used ({refusal.code}: {refusal.said}); mend that and run again, nothing is lost"
        )

    def _no_answer(self, error: Exception) -> SinkError:
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return Hopeless(
                f"{self.where}: there are no AWS credentials; give this process a role, a profile or AWS_ACCESS_KEY_ID"
            )
        if isinstance(error, NoRegionError | ConfigError):
            return Hopeless(f"{self.where}: {error}")
        if isinstance(error, ValueError):
            return Hopeless(f"{self.where}: the endpoint or region in its URL is not one AWS knows how to call")
        return SinkDown(f"{self.where} did not answer ({type(error).__name__}); trying again later may help")

    @staticmethod
    def _held_back() -> SinkError:
        return SinkDown("was held back, because an event of its group before it could not be sent")


def _refusal(error: ClientError) -> Refusal:
    told_of = error.response.get("Error", {})
    return Refusal(str(told_of.get("Code", "")), str(told_of.get("Message", "")))


def _passes(error: ClientError, refusal: Refusal) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return refusal.plain in _PASSING or status >= 500
