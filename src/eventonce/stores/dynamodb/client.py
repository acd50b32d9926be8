"""The server side of the DynamoDB store: calls, several at a time, their errors in our words, throttling counted."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoAuthTokenError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError
from botocore.validate import validate_parameters

from eventonce.clients import aws
from eventonce.clock import Clock
from eventonce.errors import ConfigError, StoreError, StoreUnusable
from eventonce.forks import register_for_forks
from eventonce.stores.dynamodb.time import ServerTime

_WARN_EVERY = 60_000
_CONNECTIONS = 50  # that may stay open; threads that share the store have calls in flight each
_log = logging.getLogger("eventonce")
Part = TypeVar("Part")
Result = TypeVar("Result")

# With and without the ending: whole calls have it, single statements of a batch do not.
THROTTLES = {
    "ProvisionedThroughputExceeded", "ProvisionedThroughputExceededException", "RequestLimitExceeded", "Throttling",
    "ThrottlingError", "ThrottlingException", "TooManyRequestsException", "SlowDown",
}  # fmt: skip
PASSING = THROTTLES | {
    "ExpiredToken", "ExpiredTokenException", "InternalServerError", "InternalServerErrorException",
    "ServiceUnavailable", "ServiceUnavailableException", "TransactionConflict", "TransactionConflictException",
    "TransactionInProgressException",
}  # fmt: skip
_ANSWERS = {"ConditionalCheckFailedException"}
_OF_TRANSACTIONS = {
    "TransactionCanceledException", "IdempotentParameterMismatchException", "ValidationException",
    "ResourceNotFoundException",
}  # fmt: skip
_DENIED = {"AccessDenied", "AccessDeniedException"}
_NO_TABLE = {"ResourceNotFound", "ResourceNotFoundException"}
_REMEDIES = {
    "AccessDenied": "allow it in the IAM policy of this role",
    "AccessDeniedException": "allow it in the IAM policy of this role",
    "IncompleteSignatureException": "check the AWS credentials",
    "InvalidSignatureException": "check the AWS secret key and this machine's clock",
    "MissingAuthenticationToken": "give AWS credentials",
    "MissingAuthenticationTokenException": "give AWS credentials",
    "UnrecognizedClientException": "check the AWS credentials and the region",
    "InvalidClientTokenId": "check the AWS credentials and the region",
}


class Denied(StoreUnusable):
    """The IAM policy does not allow it."""


class Refused(Exception):
    """DynamoDB says no to what was asked, and why."""

    def __init__(self, code: str, response: Any) -> None:
        super().__init__(f"{code}: {_said(response)}")
        self.code = code
        self.item = response.get("Item")  # as it was, where there is one
        self.reasons: list[dict[str, Any]] = response.get("CancellationReasons") or []


class DynamoDBClient:
    """DynamoDB as this store calls it. `in_flight` is how many calls are made at a time."""

    def __init__(
        self,
        table: str,
        *,
        region: str | None,
        endpoint: str | None,
        timeout: int,
        in_flight: int,
        clock: Clock,
        remedy: str,
    ) -> None:
        self.table = table
        self.clock = clock
        self.time = ServerTime(clock)
        self.throttled = 0
        self._region = region
        self._endpoint = endpoint
        self._timeout = timeout
        self._in_flight = in_flight
        self._remedy = remedy  # how to create the table
        self._client: Any = None
        self._lock = threading.Lock()
        self._warned_at: int | None = None
        register_for_forks(self)

    # --- calling ---

    def call(self, operation: str, *, tells: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Call DynamoDB; raises `Refused` where a condition did not hold, and a `StoreError` else.

        `tells` is what the answer must have: botocore takes one that was cut short for an empty one.
        """
        try:
            client, sent = self.client(), self.clock.steady()
            if operation == "transact_write_items":  # which has what a handler wrote
                validate_parameters(
                    arguments, client.meta.service_model.operation_model("TransactWriteItems").input_shape
                )
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except ClientError as error:
            self._learn(error.response, sent)
            code = error.response.get("Error", {}).get("Code", "")
            if code in _ANSWERS or (operation == "transact_write_items" and code in _OF_TRANSACTIONS):
                raise Refused(code, error.response) from error
            raise self.trouble(code, error.response, operation) from error
        except (BotoCoreError, ResponseParserError, OSError) as error:
            if operation == "transact_write_items" and isinstance(error, ParamValidationError):
                raise Refused(type(error).__name__, {"Message": " ".join(str(error).split())}) from error
            raise self._no_answer(error) from error
        self._learn(answer, sent)
        if tells is not None and tells not in answer:
            raise StoreError(f"{self.where()} gave half an answer to {operation}")
        return answer

    def each(self, act: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        """Let a function act on all parts, several at a time. Nothing is still under way when this ends."""
        if len(parts) <= 1 or self._in_flight == 1:
            return [act(part) for part in parts]
        from concurrent.futures import ThreadPoolExecutor

        # Threads of its own for each batch: one that waits for a hot key holds up no other.
        with ThreadPoolExecutor(min(self._in_flight, len(parts)), "eventonce-dynamodb") as threads:
            futures = [threads.submit(act, part) for part in parts]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()

    def _learn(self, answer: Any, sent: int) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.time.learn(headers.get("date"), self.clock.steady() - sent)

    # --- throttling ---

    def count_throttled(self, count: int = 1) -> None:
        """DynamoDB said to slow down. Said on, but not each time."""
        with self._lock:
            self.throttled += count
            now, throttled = self.clock.steady(), self.throttled
            if self._warned_at is not None and now - self._warned_at < _WARN_EVERY:
                return
            self._warned_at = now
        _log.warning("%s throttles (%d times so far); raise its capacity if that goes on", self.where(), throttled)

    def _see_attempt(self, response: Any = None, **_: Any) -> None:
        """botocore tells of every attempt of a call, also of those it repeats by itself."""
        if response is not None and response[1].get("Error", {}).get("Code") in THROTTLES:
            self.count_throttled()

    # --- errors ---

    def where(self) -> str:
        host = f" at {urlsplit(self._endpoint).netloc}" if self._endpoint else ""  # which holds no secret
        return f"DynamoDB table {self.table!r}{f' in {self._region}' if self._region else ''}{host}"

    def trouble(self, code: str, response: Any, operation: str) -> StoreError:
        """What an error of DynamoDB means to the engine."""
        said = _said(response)
        if code in PASSING or response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
            return StoreError(f"{self.where()} did not do {operation} ({code}: {said}); trying again later may help")
        if code in _NO_TABLE:
            return StoreUnusable(
                f"{self.where()} does not exist; check its name and region, or create it: {self._remedy}"
            )
        if "key element does not match" in said or "mandatory equality" in said:
            return StoreUnusable(f"{self.where()} has another key; name it with key= and sort= in the URL ({said})")
        kind = Denied if code in _DENIED else StoreUnusable
        remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
        return kind(f"{self.where()} refused {operation} ({code}: {said}){remedy}")

    def _no_answer(self, error: Exception) -> StoreError:
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return StoreUnusable(
                f"{self.where()}: there are no AWS credentials; give this process a role, a profile or an access key"
            )
        if isinstance(error, SSOError | TokenRetrievalError | NoAuthTokenError):
            return StoreUnusable(
                f"{self.where()}: the AWS login is over ({type(error).__name__}); log in again, as with aws sso login"
            )
        if isinstance(error, OSError):  # of a file with credentials
            return StoreError(f"{self.where()} could not be asked ({error}); check the AWS credentials")
        return StoreError(f"{self.where()} did not answer ({type(error).__name__})")

    # --- the client, which threads may share and processes may not ---

    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        # botocore's adaptive mode would slow down all calls because of one hot key, so the store itself waits instead.
        try:
            client = aws.client(
                "dynamodb",
                region=self._region,
                endpoint=self._endpoint,
                timeout=self._timeout,
                connections=max(_CONNECTIONS, self._in_flight),
                validate=False,  # a fifth of the client's time, and DynamoDB itself refuses what is wrong
            )
        except ConfigError as error:
            raise StoreUnusable(
                f"{self.where()}: {error}; check region= and endpoint= in the URL, AWS_REGION and AWS_PROFILE"
            ) from error
        client.meta.events.register("needs-retry.dynamodb", self._see_attempt)
        self._region = client.meta.region_name
        return client

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # the connections are the parent's
            self._client = None
        self._lock.release()


def _said(response: Any) -> str:
    return str(response.get("Error", {}).get("Message") or response.get("Message") or "")
