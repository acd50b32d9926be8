"""The S3 store: one object for each key, and each change one conditional write.

The protocol decides on the object as it was read, and the result is written only if the object has not changed. A
claim does not read first: it creates the object, and reads it only where there is one. So an event costs two writes and
a read, a duplicate one write and a read, and no decision rests on an object that may have changed.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Busy, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.clock import Clock, Duration, SystemClock
from eventonce.errors import StoreError
from eventonce.event.keys import Key
from eventonce.ports import Swept
from eventonce.stores.retry import RELEASE_TIMEOUT, call_with_retries
from eventonce.stores.s3.bucket import check_bucket
from eventonce.stores.s3.client import S3Client, StoredObject
from eventonce.stores.s3.record import encode
from eventonce.stores.url import count, is_address, options, parse_timeout, reject

IN_FLIGHT = 16  # calls at a time
_TIMEOUT = "5s"
_ROUNDS = 100  # lost races for one key before giving up
_FIRST_TIMEOUT = 5000  # milliseconds for retries before the first claim
_COOL = 5000  # milliseconds after which a key is claimed again that could not be claimed among others
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_PREFIX = r"[A-Za-z0-9!_.*'()=/-]{1,900}"
Owned = TypeVar("Owned", Claim, Commit, Release)
Request = TypeVar("Request")
Result = TypeVar("Result")
# Returns the result, and the record to have then, or None for no record.
Decide = Callable[[Record | None, int], tuple[Result, Record | None]]


def open_url(url: str, clock: Clock | None, create: bool) -> "S3Store":
    """Open `s3://BUCKET/PREFIX`. docs/stores.md has the options of the URL."""
    parts, query = urlsplit(url), options(url, "region", "endpoint", "timeout", "in_flight")
    bucket, prefix = unquote(parts.netloc), unquote(parts.path).strip("/")
    if "@" in bucket or "@" in query.get("endpoint", ""):
        reject(url, "credentials do not belong in the URL; set them in the environment, a profile or a role")
    if not re.fullmatch(_BUCKET, bucket):
        reject(url, "names no bucket; use s3://BUCKET/PREFIX?region=REGION")
    if not re.fullmatch(_PREFIX, prefix):
        reject(url, "names no prefix for its objects; use s3://BUCKET/PREFIX, with letters, digits and - _ . / only")
    if "endpoint" in query and not is_address(query["endpoint"]):
        reject(url, "endpoint is not an address; use one like http://localhost:4566")
    return S3Store(
        bucket,
        prefix,
        region=query.get("region"),
        endpoint=query.get("endpoint"),
        timeout=query.get("timeout", _TIMEOUT),
        in_flight=count(url, query, "in_flight", IN_FLIGHT),
        clock=clock,
    )


class S3Store:
    """Claims in a bucket. The first verb makes the first call, so an application can start while S3 is unavailable."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        timeout: Duration = _TIMEOUT,
        in_flight: int = IN_FLIGHT,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._client = S3Client(
            bucket,
            f"{prefix}/",
            region=region,
            endpoint=endpoint,
            timeout=parse_timeout(timeout, f"store: s3://{bucket}/{prefix}"),
            in_flight=in_flight,
            clock=self.clock,
        )
        self._timeout = _FIRST_TIMEOUT  # milliseconds, half of the last lease
        self._is_checked = False  # whether the server enforces conditions

    @property
    def throttled(self) -> int:
        """The number of throttled calls."""
        return self._client.throttled

    # --- the verbs ---

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        self._timeout = lease // 2

        def claim(want: ClaimRequest) -> Answer:
            def decide(record: Record | None, now: int) -> tuple[Answer, Record | None]:
                answer, updated = protocol.claim(record, want, token, lease, now)
                return answer, record if updated is None else updated

            return self._change(want.key, None, decide)

        first = {want.key: want for want in reversed(wants)}  # a key that occurs twice is claimed once
        results = self._each(claim, list(first.values()), self._timeout)
        answers = {key: self._in_our_time(result) for key, result in zip(first, results, strict=True)}
        return [answers[want.key] for want in wants]

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        def decide(claim: Claim, record: Record | None, now: int) -> tuple[bool, Record | None]:
            updated = protocol.extend(record, claim.token, lease, now)
            return (False, record) if updated is None else (True, updated)

        # A claim that cannot be extended counts as lost. Raising would make the others of the call look lost too.
        return [result is True for result in self._change_owned(claims, decide, lease // 4)]

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        def decide(finish: Commit, record: Record | None, now: int) -> tuple[bool, Record | None]:
            updated = protocol.commit(record, finish, now)
            return (False, record) if updated is None else (True, updated)

        return _results_or_error(self._change_owned(finishes, decide, self._timeout))

    def release(self, releases: Sequence[Release]) -> list[bool]:
        def decide(release: Release, record: Record | None, now: int) -> tuple[bool, Record | None]:
            return protocol.release(record, release, now)

        return _results_or_error(self._change_owned(releases, decide, min(RELEASE_TIMEOUT, self._timeout)))

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        unique = list(dict.fromkeys(keys))
        stored = dict(zip(unique, _results_or_error(self._each(self._client.read, unique, self._timeout)), strict=True))
        now = self._client.time.now()
        return [protocol.live(_record(stored[key]), now) for key in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        def decide(record: Record | None, now: int) -> tuple[bool, Record | None]:
            return protocol.live(record, now) is not None, None

        def forget(key: Key) -> bool:
            return self._change(key, self._client.read(key), decide)

        unique = list(dict.fromkeys(keys))
        existed = dict(zip(unique, _results_or_error(self._each(forget, unique, self._timeout)), strict=True))
        return [existed[key] for key in keys]

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Do nothing, because a lifecycle rule deletes old objects. A sweep would have to read, and pay for, each."""
        return Swept(0, None)

    def check(self) -> list[str]:
        """Return what to warn of in the settings of the bucket."""
        return check_bucket(self._client)

    def close(self) -> None:
        self._client.close()

    # --- one key ---

    def _change(self, key: Key, stored: StoredObject | None, decide: "Decide[Result]") -> Result:
        """Decide by the protocol and write the result, and again if another client was faster."""
        for _ in range(_ROUNDS):
            record = _record(stored)
            result, updated = decide(record, self._client.time.now())
            if updated == record and (stored is None) == (updated is None):
                return result
            body = b"" if updated is None else encode(updated)
            if stored is not None and updated is None:
                written = self._client.delete(key, stored)
            else:
                written = self._client.write(key, body, stored)
            if written:
                return result
            stored = self._client.read(key)
            if stored is not None and stored.body == body:  # it was written by us, and only the answer was lost
                return result
        raise StoreError(
            f"{self._client.address()}: other clients changed key {key.hex()} {_ROUNDS} times meanwhile; "
            "trying again later may help"
        )

    def _in_our_time(self, answer: Answer | StoreError) -> Answer:
        """Return an answer by our clock, with which callers compare the end of a lease."""
        if isinstance(answer, StoreError):  # answered as if it were running, so that the others need not wait
            return Busy(self.clock.utc() + _COOL)
        return Busy(answer.until - self._client.time.offset) if isinstance(answer, Busy) else answer

    # --- many keys ---

    def _change_owned(
        self,
        requests: Sequence[Owned],
        decide: Callable[[Owned, Record | None, int], tuple[bool, Record | None]],
        timeout: int,
    ) -> list[bool | StoreError]:
        def change(request: Owned) -> bool:
            return self._change(
                request.key, self._client.read(request.key), lambda record, now: decide(request, record, now)
            )

        unique = {(request.key, request.token): request for request in reversed(requests)}
        results = dict(zip(unique, self._each(change, list(unique.values()), timeout), strict=True))
        return [results[request.key, request.token] for request in requests]

    def _each(
        self, operation: Callable[[Request], Result], requests: Sequence[Request], timeout: int
    ) -> list[Result | StoreError]:
        """Call a function with each request, several at a time and each again until the timeout.

        The result is a `StoreError` for a request that failed among others. If all fail, raise.
        """
        if not requests:
            return []
        deadline = self.clock.steady() + timeout
        call_with_retries(self._prepare, self.clock, timeout)
        failures: list[StoreError] = []

        def attempt(request: Request) -> Result | StoreError:
            remaining = deadline - self.clock.steady()
            if failures and remaining <= 0:  # S3 is away, so the rest of a large batch need not wait for it too
                return failures[0]
            try:
                return call_with_retries(lambda: operation(request), self.clock, remaining)
            except StoreError as error:
                if not error.retryable:
                    raise
                failures.append(error)
                return error

        results = self._client.map_parts(attempt, requests)
        if failures and all(isinstance(result, StoreError) for result in results):
            raise failures[0]
        return results

    def _prepare(self) -> None:
        """Check the server once, and learn its time before the first change and after our clock was set.

        With a wrong clock a new lease could expire at once, and a running one could seem expired. The read also shows
        whether the bucket can be used.
        """
        if not self._is_checked:
            self._client.check_conditions()
            self._is_checked = True
        if not self._client.time.is_certain():
            self._client.read(Key(bytes(16)))


def _record(stored: StoredObject | None) -> Record | None:
    return None if stored is None else stored.record


def _results_or_error(results: Sequence[Result | StoreError]) -> list[Result]:
    """Return the results, or raise the first error among them."""
    for result in results:
        if isinstance(result, StoreError):
            raise result
    return [result for result in results if not isinstance(result, StoreError)]
