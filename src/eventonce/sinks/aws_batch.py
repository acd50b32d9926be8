"""Entry sinks: ways out whose calls take several events at once and answer for each."""

import threading
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
)

from eventonce.aws import Place
from eventonce.clock import Clock, SystemClock
from eventonce.errors import ConfigError, EventRejected, SinkDown, SinkError
from eventonce.event import Event
from eventonce.sinks.batching import Rounds, Spoilt
from eventonce.sinks.parcel import Entry, Limits, Parcel, Refusal, Taken
from eventonce.sinks.tries import TRIES, Answers, Hopeless, told

MIB = 1_048_576

# Codes of errors, in their plain form.
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
    "413", "batchrequesttoolong", "invalidargument", "invalidinput", "invalidmessagecontents", "invalidparameter",
    "invalidparametervalue", "malformeddetail", "notauthorizedfordetailtype", "notauthorizedforsource",
    "parametervalueinvalid", "paramvalidation", "redactionfailure", "requestentitytoolarge", "requesttoolong",
    "validation", "validationerror",
}  # fmt: skip
_UNANSWERED = (ConfigError, BotoCoreError, OSError, ValueError)


class EntrySink:
    """A way out whose API takes several events at once and answers for each.

    What a service refuses for now is tried again a few times; botocore does that already for whole calls. Then it is
    an answer, and the event comes again later. A call that may or may not have arrived is repeated with the same keys.
    """

    service: str
    limits: Limits
    tries = 3  # by botocore, of a call that fails as a whole
    denies_together = False  # whether one entry that is not allowed denies the whole call

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
        parcels = [Parcel(event, key) for event, key in zip(events, idempotency_keys, strict=True)]
        Rounds(self, self._clock, TRIES).run(parcels)
        return told([None if isinstance(parcel.answer, Taken) else parcel.answer for parcel in parcels])

    def client(self) -> Any:
        """The client of the service, made on first use: even looking for credentials may ask a server."""
        with self._lock:
            if self._client is None:
                self._client = self.place.client(self.service, tries=self.tries)
            return self._client

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- what each service does in its own way ---

    def _prepare(self) -> None:
        """Find out once what calls need."""

    def _entry(self, event: Event, parcel: Parcel) -> Entry:
        """The event as this attempt carries it, as an entry."""
        raise NotImplementedError

    def _put(self, bodies: list[dict[str, Any]]) -> list[Taken | Refusal]:
        """One call, and what was said of each."""
        raise NotImplementedError

    # --- what a carrier does ---

    def ready(self) -> None:
        """Find out once what calls need."""
        if self._prepared:
            return
        try:
            self._prepare()
        except ClientError as error:
            refusal = _refusal(error)
            raise (self._overrun(refusal) if _passes(error, refusal) else self._hopeless(refusal)) from error
        except _UNANSWERED as error:
            raise self._no_answer(error) from error
        self._prepared = True

    def entry(self, parcel: Parcel) -> Entry:
        """The parcel as an entry."""
        try:
            entry = self._entry(parcel.written(), parcel)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EventRejected(f"cannot be written as JSON: {error}") from None
        if entry.size > self.limits.alone:
            raise EventRejected(f"has {entry.size:,} bytes, over the {self.limits.alone:,} of {self.where}")
        return entry if entry.group else entry._replace(group=parcel.group)

    def put(self, entries: Sequence[Entry]) -> list[Taken | Refusal]:
        """One call."""
        try:
            return self._put([entry.body for entry in entries])
        except ClientError as error:
            raise self._trouble(error, len(entries)) from error
        except ParamValidationError as error:
            raise Spoilt(Refusal("ParamValidation", str(error))) from error
        except _UNANSWERED as error:
            raise self._no_answer(error) from error

    def judge(self, refusal: Refusal) -> EventRejected | SinkError:
        """What it means that an entry was refused."""
        if refusal.plain in _OF_THE_EVENT:
            return self.rejected(refusal)
        if refusal.plain in _HOPELESS:
            return self._hopeless(refusal)
        return self._overrun(refusal) if refusal.plain in _PASSING else self._passing(SinkError, refusal)

    def rejected(self, refusal: Refusal) -> EventRejected:
        error = EventRejected(f"{self.where} does not take it ({refusal.code}: {refusal.said})")
        error.code = refusal.code
        return error

    # --- errors ---

    def _trouble(self, error: ClientError, count: int) -> SinkError | Spoilt:
        """What it means that a whole call was refused."""
        refusal = _refusal(error)
        if _passes(error, refusal):
            return self._overrun(refusal)
        hopeless = refusal.plain in _HOPELESS and not (self.denies_together and count > 1)
        return self._hopeless(refusal) if hopeless else Spoilt(refusal)

    def _overrun(self, refusal: Refusal) -> SinkError:
        """Trouble that passes and is no fault of the event."""
        if refusal.plain in _EXPIRED:
            with self._lock:  # where the credentials come from, there may be new ones; other threads may still use it
                self._client = None
        return self._passing(SinkDown, refusal)

    def _passing(self, kind: type[SinkError], refusal: Refusal) -> SinkError:
        error = kind(f"{self.where} did not take it ({refusal.code}: {refusal.said}); trying again later may help")
        error.code = refusal.code
        return error

    def _hopeless(self, refusal: Refusal) -> Hopeless:
        error = Hopeless(
            f"{self.where} cannot be used ({refusal.code}: {refusal.said}); mend that and run again, nothing is lost"
        )
        error.code = refusal.code
        return error

    def _no_answer(self, error: Exception) -> SinkError:
        trouble = self._unanswered(error)
        trouble.code = type(error).__name__
        return trouble

    def _unanswered(self, error: Exception) -> SinkError:
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return Hopeless(
                f"{self.where}: there are no AWS credentials; give this process a role, a profile or AWS_ACCESS_KEY_ID"
            )
        if isinstance(error, NoRegionError | ConfigError):
            return Hopeless(f"{self.where}: {error}")
        if isinstance(error, ValueError):
            return Hopeless(f"{self.where}: the endpoint or region in its URL is not one AWS knows how to call")
        return SinkDown(f"{self.where} did not answer ({type(error).__name__}); trying again later may help")


def _refusal(error: ClientError) -> Refusal:
    told_of = error.response.get("Error", {})
    return Refusal(str(told_of.get("Code", "")), str(told_of.get("Message", "")))


def _passes(error: ClientError, refusal: Refusal) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return refusal.plain in _PASSING or status >= 500
