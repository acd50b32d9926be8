"""The client of the DynamoDB store. It makes several calls at a time, translates errors and counts throttling."""

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
from eventonce.text import counted

_WARN_EVERY = 60_000
_CONNECTIONS = 50  # that may stay open, for all threads that share the store
_log = logging.getLogger("eventonce")
Part = TypeVar("Part")
Result = TypeVar("Result")

# Codes that end in Exception are those of calls. The others are those of single statements in a batch.
THROTTLES = {
    "ProvisionedThroughputExceeded", "ProvisionedThroughputExceededException", "RequestLimitExceeded", "Throttling",
    "ThrottlingError", "ThrottlingException", "TooManyRequestsException", "SlowDown",
}  # fmt: skip
RETRYABLE = THROTTLES | {
    "ExpiredToken", "ExpiredTokenException", "InternalServerError", "InternalServerErrorException",
    "ServiceUnavailable", "ServiceUnavailableException", "TransactionConflict", "TransactionConflictException",
    "TransactionInProgressException",
}  # fmt: skip
_REFUSALS = {"ConditionalCheckFailedException"}
_TRANSACTION_REFUSALS = {
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
    "MissingAuthenticationToken": "set AWS credentials",
    "MissingAuthenticationTokenException": "set AWS credentials",
    "UnrecognizedClientException": "check the AWS credentials and the region",
    "InvalidClientTokenId": "check the AWS credentials and the region",
}


class Denied(StoreUnusable):
    """The IAM policy does not allow it."""


class RequestRefusal(Exception):
    """DynamoDB refused a request, because a condition did not hold or the request is invalid."""

    def __init__(self, code: str, response: Any) -> None:
        super().__init__(f"{code}: {_message(response)}")
        self.code = code
        self.item = response.get("Item")  # before the request, if it existed
        self.reasons: list[dict[str, Any]] = response.get("CancellationReasons") or []


class DynamoDBClient:
    """A client of one table. `in_flight` is how many calls it makes at a time."""

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
        foreign: Any = None,
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
        self._foreign = foreign  # a session or a client of the application's own
        self._client: Any = None
        self._lock = threading.Lock()
        self._warned_at: int | None = None
        register_for_forks(self)

    # --- calls ---

    def call(self, name: str, *, required: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Call DynamoDB. Raise `RequestRefusal` if a condition did not hold, and `StoreError` for all other errors.

        `required` is a field that the response must have, because botocore reads a truncated response as an empty one.
        """
        try:
            client, sent_at = self.client(), self.clock.steady()
            if name == "transact_write_items":  # with the writes of a handler
                validate_parameters(
                    arguments, client.meta.service_model.operation_model("TransactWriteItems").input_shape
                )
            response: dict[str, Any] = getattr(client, name)(**arguments)
        except ClientError as error:
            self._learn(error.response, sent_at)
            code = error.response.get("Error", {}).get("Code", "")
            if code in _REFUSALS or (name == "transact_write_items" and code in _TRANSACTION_REFUSALS):
                raise RequestRefusal(code, error.response) from error
            raise self.translate_error(code, error.response, name) from error
        except (BotoCoreError, ResponseParserError, OSError) as error:
            if name == "transact_write_items" and isinstance(error, ParamValidationError):
                raise RequestRefusal(type(error).__name__, {"Message": " ".join(str(error).split())}) from error
            raise self._connection_error(error) from error
        self._learn(response, sent_at)
        if required is not None and required not in response:
            raise StoreError(f"{self.address()} gave an incomplete response to {name}")
        return response

    def map_parts(self, operation: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        """Call a function with each part, several at a time. When this returns, no call is running."""
        if len(parts) <= 1 or self._in_flight == 1:
            return [operation(part) for part in parts]
        from concurrent.futures import ThreadPoolExecutor

        # Each batch has its own threads, so that one that waits for a hot key delays no other.
        with ThreadPoolExecutor(min(self._in_flight, len(parts)), "eventonce-dynamodb") as threads:
            futures = [threads.submit(operation, part) for part in parts]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()

    def _learn(self, response: Any, sent_at: int) -> None:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        if str(headers.get("server")).endswith("amazon.com"):  # moto, in its server and in this process; not AWS
            raise StoreUnusable(
                f"{self.address()} is moto, which lets two claims of a key win and loses writes; use ministack or "
                "dynoxide in its place, or the store memory: in unit tests"
            )
        self.time.learn(headers.get("date"), self.clock.steady() - sent_at)

    # --- throttling ---

    def count_throttled(self, count: int = 1) -> None:
        """Count throttled calls, and warn, but not each time."""
        with self._lock:
            self.throttled += count
            now, throttled = self.clock.steady(), self.throttled
            if self._warned_at is not None and now - self._warned_at < _WARN_EVERY:
                return
            self._warned_at = now
        _log.warning(
            "%s throttles (%s so far); raise its capacity if that continues", self.address(), counted(throttled, "time")
        )

    def _on_attempt(self, response: Any = None, **_: Any) -> None:
        """Count a throttled attempt. botocore also reports those that it repeats by itself."""
        if response is not None and response[1].get("Error", {}).get("Code") in THROTTLES:
            self.count_throttled()

    # --- errors ---

    def address(self) -> str:
        host = f" at {urlsplit(self._endpoint).netloc}" if self._endpoint else ""  # which contains no secret
        return f"DynamoDB table {self.table!r}{f' in {self._region}' if self._region else ''}{host}"

    def translate_error(self, code: str, response: Any, name: str) -> StoreError:
        """Return the store error for an error of DynamoDB."""
        message = _message(response)
        if code in RETRYABLE or response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
            return StoreError(f"{self.address()} did not do {name} ({code}: {message}); trying again later may help")
        if code in _NO_TABLE:
            return StoreUnusable(
                f"{self.address()} does not exist; check its name and region, or create it: {self._remedy}"
            )
        if "key element does not match" in message or "mandatory equality" in message:
            return StoreUnusable(f"{self.address()} has another key; set key= and sort= in the URL ({message})")
        kind = Denied if code in _DENIED else StoreUnusable
        remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
        return kind(f"{self.address()} refused {name} ({code}: {message}){remedy}")

    def _connection_error(self, error: Exception) -> StoreError:
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return StoreUnusable(
                f"{self.address()}: there are no AWS credentials; set a role, a profile or an access key"
            )
        if isinstance(error, SSOError | TokenRetrievalError | NoAuthTokenError):
            return StoreUnusable(
                f"{self.address()}: the AWS login has expired ({type(error).__name__}); "
                "log in again, as with aws sso login"
            )
        if isinstance(error, OSError):  # from a file with credentials
            return StoreError(f"{self.address()} could not be called ({error}); check the AWS credentials")
        return StoreError(f"{self.address()} did not answer ({type(error).__name__})")

    # --- the client, which threads may share and processes may not ---

    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        if self._foreign is not None and not hasattr(self._foreign, "client"):  # it is a client and not a session
            self._region = self._foreign.meta.region_name
            return self._foreign
        # botocore's adaptive mode would slow down all calls because of one hot key, so the store waits itself.
        try:
            client = aws.client(
                "dynamodb",
                label=self.address(),
                region=self._region,
                endpoint=self._endpoint,
                timeout=self._timeout,
                connections=max(_CONNECTIONS, self._in_flight),
                session=self._foreign,
                validate=False,  # which takes a fifth of the client's time; DynamoDB itself refuses invalid requests
            )
        except aws.NoRegion as error:
            raise StoreUnusable(str(error)) from error
        except ConfigError as error:
            raise StoreUnusable(
                f"{error}; check region= and endpoint= in the URL, AWS_REGION and AWS_PROFILE"
            ) from error
        client.meta.events.register("needs-retry.dynamodb", self._on_attempt)
        self._region = client.meta.region_name
        return client

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None and client is not self._foreign:
            client.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # connections belong to the parent
            self._client = None
        self._lock.release()


def _message(response: Any) -> str:
    return str(response.get("Error", {}).get("Message") or response.get("Message") or "")
