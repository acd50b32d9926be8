"""The client of a store in AWS. It makes several calls at a time, translates lost connections and counts throttling."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from botocore.exceptions import (
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)

from eventonce.clients import aws
from eventonce.clock import Clock
from eventonce.errors import ConfigError, StoreError, StoreUnusable
from eventonce.forks import register_for_forks
from eventonce.stores.server_time import ServerTime
from eventonce.text import counted

_WARN_EVERY = 60_000
_CONNECTIONS = 50  # that may stay open, for all threads that share the store
_log = logging.getLogger("eventonce")
Part = TypeVar("Part")
Result = TypeVar("Result")

# Codes that end in Exception are those of calls. The others are those of S3, and of single statements in a batch.
THROTTLES = {
    "ProvisionedThroughputExceeded", "ProvisionedThroughputExceededException", "RequestLimitExceeded", "Throttling",
    "ThrottlingError", "ThrottlingException", "TooManyRequestsException", "SlowDown",
}  # fmt: skip


class Denied(StoreUnusable):
    """The IAM policy does not allow it."""


class AwsStoreClient:
    """A client of one table or bucket. `in_flight` is how many calls it makes at a time."""

    service: ClassVar[str]
    validate: ClassVar[bool]  # whether botocore checks the arguments of calls

    def __init__(
        self,
        label: str,
        *,
        region: str | None,
        endpoint: str | None,
        timeout: int,
        in_flight: int,
        clock: Clock,
        foreign: Any = None,
    ) -> None:
        self.clock = clock
        self.time = ServerTime(clock)
        self.throttled = 0
        self._label = label  # what the client is for, in errors
        self._region = region
        self._endpoint = endpoint
        self._timeout = timeout
        self._in_flight = in_flight
        self._foreign = foreign  # a session or a client of the application's own
        self._client: Any = None
        self._lock = threading.Lock()
        self._warned_at: int | None = None
        register_for_forks(self)

    # --- calls ---

    def map_parts(self, operation: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        """Call a function with each part, several at a time. When this returns, no call is running."""
        if len(parts) <= 1 or self._in_flight == 1:
            return [operation(part) for part in parts]
        from concurrent.futures import ThreadPoolExecutor

        # Each batch has its own threads, so that one that waits for a hot key delays no other.
        with ThreadPoolExecutor(min(self._in_flight, len(parts)), f"eventonce-{self.service}") as threads:
            futures = [threads.submit(operation, part) for part in parts]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()

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
        return f"{self._label}{f' in {self._region}' if self._region else ''}{host}"

    def connection_error(self, error: Exception) -> StoreError:
        """Return the store error for a call without an answer."""
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
                self.service,
                label=self.address(),
                region=self._region,
                endpoint=self._endpoint,
                timeout=self._timeout,
                connections=max(_CONNECTIONS, self._in_flight),
                session=self._foreign,
                validate=self.validate,
            )
        except aws.NoRegion as error:
            raise StoreUnusable(str(error)) from error
        except ConfigError as error:
            raise StoreUnusable(
                f"{error}; check region= and endpoint= in the URL, AWS_REGION and AWS_PROFILE"
            ) from error
        client.meta.events.register(f"needs-retry.{self.service}", self._on_attempt)
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
