"""The DynamoDB store: one item for each key, and each change one conditional write.

A batch is sent as PartiQL statements, 25 in a call and several calls at a time. If the condition of a statement fails,
the protocol decides on the existing item, and the result is written only if that item has not changed. So an event
costs two writes and a duplicate one, and no decision rests on an item that may have changed.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Busy, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.clock import Clock, Duration, SystemClock
from eventonce.errors import StoreError
from eventonce.event.keys import Key
from eventonce.ports import Swept
from eventonce.stores.dynamodb.client import DynamoDBClient
from eventonce.stores.dynamodb.items import Items, WriteResult
from eventonce.stores.dynamodb.layout import Item, ItemWrite, Layout, call_arguments, insertion, statement
from eventonce.stores.dynamodb.table import check_table, create_command, create_table
from eventonce.stores.dynamodb.transaction import DynamoDBTransaction
from eventonce.stores.retry import RELEASE_TIMEOUT
from eventonce.stores.url import count, is_address, options, parse_timeout, reject

IN_FLIGHT = 8  # calls at a time
_TIMEOUT = "5s"
_ROUNDS = 100  # lost races for one key before giving up
_FIRST_TIMEOUT = 5000  # milliseconds for retries before the first claim
_HOT = 2000  # milliseconds that a batch of claims waits for single throttled keys
_COOL = 5000  # milliseconds after which such a key is retried
_TABLE = r"[A-Za-z0-9_.-]{3,255}"
_OPTIONS = (
    "region", "endpoint", "timeout", "in_flight", "key", "sort", "ttl", "prefix", "layout", "function", "partition",
)  # fmt: skip
Owned = TypeVar("Owned", Claim, Commit, Release)
Result = TypeVar("Result")
# Returns whether the token owns the claim, and the record to write then.
Decide = Callable[[Record | None, Owned, int], tuple[bool, Record | None]]


def open_url(url: str, clock: Clock | None, create: bool, client: Any = None) -> "DynamoDBStore":
    """Open `dynamodb://TABLE`. docs/stores.md has the options of the URL."""
    parts, query = urlsplit(url), options(url, *_OPTIONS)
    table = unquote(parts.netloc)
    if "@" in table or "@" in query.get("endpoint", ""):
        reject(url, "credentials do not belong in the URL; set them in the environment, a profile or a role")
    if not re.fullmatch(_TABLE, table) or parts.path.strip("/"):
        reject(url, "names no table; use dynamodb://TABLE?region=REGION")
    if "endpoint" in query and not is_address(query["endpoint"]):
        reject(url, "endpoint is not an address; use one like http://localhost:8000")
    return DynamoDBStore(
        table,
        region=query.get("region"),
        endpoint=query.get("endpoint"),
        timeout=query.get("timeout", _TIMEOUT),
        in_flight=count(url, query, "in_flight", IN_FLIGHT),
        layout=_layout(url, query),
        client=client,
        clock=clock,
    )


def _layout(url: str, query: dict[str, str]) -> Layout:
    kind, function = query.get("layout", "eventonce"), query.get("function")
    if kind not in ("eventonce", "powertools"):
        reject(url, f"layout={kind!r} is neither eventonce nor powertools")
    powertools = kind == "powertools"
    if powertools != bool(function):
        reject(
            url,
            "layout=powertools and function= belong together; function is what Powertools for Python writes before "
            "the #",
        )
    if bool(query.get("partition")) != (powertools and "sort" in query):
        reject(url, "partition= is for layout=powertools with a sort key, which needs it: its static_pk_value")
    layout = Layout(
        key=query.get("key", "id"),
        sort=query.get("sort"),
        ttl=query.get("ttl", "expiration"),
        prefix=f"{function}#" if powertools else query.get("prefix", "eventonce#"),
        partition=query.get("partition"),
        results=powertools,
    )
    if problem := layout.check_names():
        reject(url, problem)
    return layout


class DynamoDBStore:
    """Claims in a DynamoDB table.

    The first verb makes the first call, so an application can start while DynamoDB is unavailable. `client` is a
    session or a client of boto3, which is used and never closed.
    """

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        timeout: Duration = _TIMEOUT,
        in_flight: int = IN_FLIGHT,
        layout: Layout | None = None,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._layout = layout or Layout()
        self._client = DynamoDBClient(
            table,
            region=region,
            endpoint=endpoint,
            timeout=parse_timeout(timeout, f"store: dynamodb://{table}"),
            in_flight=in_flight,
            clock=self.clock,
            remedy=create_command(table, self._layout, region),
            foreign=client,
        )
        self._items = Items(self._client, self._layout)
        self._timeout = _FIRST_TIMEOUT  # milliseconds, half of the last lease
        self._has_answered = False  # whether DynamoDB has answered

    @property
    def throttled(self) -> int:
        """The number of throttled calls and statements."""
        return self._client.throttled

    # --- the verbs ---

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        if not wants:
            return []
        self._timeout = lease // 2
        self._learn_time(self._timeout)
        first = {want.key: want for want in reversed(wants)}  # a key that occurs twice is claimed once
        if len(first) == 1:
            answers = [self._with_retries(lambda: self._claim_one(wants[0], token, lease))]
        else:
            claim_part = lambda part: self._with_retries(lambda: self._claim_some(part, token, lease))  # noqa: E731
            answers = self._items.in_parts(claim_part, list(first.values()))
        by_key = dict(zip(first, map(self._in_our_time, answers), strict=True))
        return [by_key[want.key] for want in wants]

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        def change(claim: Claim, now: int) -> ItemWrite:
            return self._layout.extension(claim, now + lease)

        def decide(record: Record | None, claim: Claim, now: int) -> tuple[bool, Record | None]:
            updated = protocol.extend(record, claim.token, lease, now)
            return updated is not None, updated

        def extend_part(claims: Sequence[Claim]) -> list[bool]:
            # A key that stays throttled counts as lost. Raising would make the other keys of the call look lost too.
            results = zip(claims, self._change(claims, change, lease // 4), strict=True)
            return [
                not isinstance(result, StoreError) and self._resolve(claim, result, decide) for claim, result in results
            ]

        return self._answer_unique(claims, extend_part)

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        def decide(record: Record | None, finish: Commit, now: int) -> tuple[bool, Record | None]:
            updated = protocol.commit(record, finish, now)
            return updated is not None, updated

        return self._answer_unique(
            finishes,
            lambda part: self._change_with_retries(part, self._layout.completion, decide, self._timeout),
            weight=lambda finish: len(finish.memo or b""),
        )

    def release(self, releases: Sequence[Release]) -> list[bool]:
        timeout = min(RELEASE_TIMEOUT, self._timeout)

        def remove(release: Release) -> bool:
            return self._items.with_retries(lambda: self._remove(release), timeout)

        def release_part(part: Sequence[Release]) -> list[bool]:
            failed = [release for release in part if release.error is not None]
            owned = self._change_with_retries(failed, self._layout.failure, protocol.release, timeout)
            by_release = dict(zip(failed, owned, strict=True))
            # One by one, because PartiQL treats the deletion of a missing item as a success.
            return [by_release[release] if release.error is not None else remove(release) for release in part]

        return self._answer_unique(releases, release_part)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        items = self._items.read(list(dict.fromkeys(keys)), self._timeout)
        now = self._client.time.now()
        return [protocol.live(self._items.record(items.get(key)), now) for key in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        def forget(key: Key) -> bool:
            deleted = self._with_retries(lambda: self._items.delete_any(key))
            return protocol.live(self._items.record(deleted), self._client.time.now()) is not None

        unique = list(dict.fromkeys(keys))
        existed = dict(zip(unique, self._client.map_parts(forget, unique), strict=True))
        return [existed[key] for key in keys]

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """Do nothing, because DynamoDB deletes expired records by the time to live of the table."""
        return Swept(0, None)

    def begin(self, claim: Claim) -> DynamoDBTransaction:
        """Begin a transaction that collects a handler's writes and sends them with their record."""
        return DynamoDBTransaction(
            self._client, self._layout, claim, self._timeout, self._learn_time, self._commit_alone
        )

    def check(self) -> list[str]:
        """Return what to warn of in the settings of the table."""
        return check_table(self._client, self._layout)

    def create_table(self) -> None:
        """Create the table of this store, paid per request, with its time to live."""
        create_table(self._client, self._layout)

    def close(self) -> None:
        self._client.close()

    # --- claims ---

    def _learn_time(self, timeout: int) -> None:
        """Learn the server's time with a read, before the first change and after our clock was set.

        With a wrong clock a new lease could expire at once, and a running one could seem expired. The first read also
        shows whether the table fits.
        """
        if not (self._has_answered and self._client.time.is_certain()):
            self._items.read([Key(bytes(16))], timeout)
            self._has_answered = True

    def _claim_one(self, want: ClaimRequest, token: Token, lease: int) -> Answer:
        """Claim a key with one write, which may replace an expired item. A refusal returns the existing item."""
        now = self._client.time.now()
        answer, item = self._first_claim(want, token, lease, now)
        result = self._items.put(item, self._layout.if_free(now))
        return answer if result is True else self._decide(want, token, lease, result)

    def _claim_some(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        now = self._client.time.now()
        first_claims = [self._first_claim(want, token, lease, now) for want in wants]
        statements = [insertion(self._client.table, item) for _, item in first_claims]
        results = self._items.execute([want.key for want in wants], statements, min(self._timeout, _HOT))
        if all(isinstance(result, StoreError) for result in results):  # the table is throttled, and not single keys
            _results_or_error(results)
        answers: list[Answer] = []
        for want, (answer, item), result in zip(wants, first_claims, results, strict=True):
            if isinstance(result, StoreError):  # answered as if it were running, so that the others need not wait
                answers.append(Busy(now + _COOL))
            elif result is True or result == item:  # an equal item is ours, and only the reply was lost
                answers.append(answer)
            else:
                answers.append(self._decide(want, token, lease, result))
        return answers

    def _first_claim(self, want: ClaimRequest, token: Token, lease: int, now: int) -> tuple[Answer, Item]:
        """Return the answer and the item of a key without a record."""
        answer, record = protocol.claim(None, want, token, lease, now)
        assert record is not None
        return answer, self._layout.item(want.key, record)

    def _decide(self, want: ClaimRequest, token: Token, lease: int, existing: Item | None) -> Answer:
        """Claim by the protocol over an existing item, and again over the next one if another client was faster."""
        for _ in range(_ROUNDS):
            answer, updated = protocol.claim(self._items.record(existing), want, token, lease, self._client.time.now())
            if updated is None:
                return answer
            result = self._items.put(self._layout.item(want.key, updated), self._layout.if_unchanged(existing))
            if result is True:
                return answer
            existing = result
        raise self._contention_error(want.key)

    def _in_our_time(self, answer: Answer) -> Answer:
        """Return an answer by our clock, with which callers compare the end of a lease."""
        return Busy(answer.until - self._client.time.offset) if isinstance(answer, Busy) else answer

    # --- changes to what is claimed ---

    def _change_with_retries(
        self,
        requests: Sequence[Owned],
        change: Callable[[Owned, int], ItemWrite],
        decide: "Decide[Owned]",
        timeout: int,
    ) -> list[bool]:
        def operation() -> list[bool]:
            results = _results_or_error(self._change(requests, change, timeout))
            return [self._resolve(request, result, decide) for request, result in zip(requests, results, strict=True)]

        return self._items.with_retries(operation, timeout)

    def _change(
        self, requests: Sequence[Owned], change: Callable[[Owned, int], ItemWrite], timeout: int
    ) -> list[WriteResult | StoreError]:
        self._learn_time(timeout)
        now = self._client.time.now()
        statements = [statement(self._client.table, change(request, now)) for request in requests]
        return self._items.execute([request.key for request in requests], statements, timeout)

    def _resolve(self, request: Owned, result: WriteResult, decide: "Decide[Owned]") -> bool:
        """Return whether the claim is owned. If its change was refused, decide by the protocol and write the result."""
        for _ in range(_ROUNDS):
            if result is True:
                return True
            record = self._items.record(result)
            owned, updated = decide(record, request, self._client.time.now())
            if not owned or updated == record:
                return owned
            condition = self._layout.if_unchanged(result)
            if updated is None:
                result = self._items.delete({"Key": self._layout.key(request.key), **condition})
            else:
                result = self._items.put(self._layout.item(request.key, updated), condition)
        raise self._contention_error(request.key)

    def _remove(self, release: Release) -> bool:
        self._learn_time(RELEASE_TIMEOUT)
        change = self._layout.removal(release, self._client.time.now())
        return self._resolve(release, self._items.delete(call_arguments(change)), protocol.release)

    def _commit_alone(self, finish: Commit) -> bool:
        return self.commit([finish])[0]

    def _contention_error(self, key: Key) -> StoreError:
        return StoreError(f"{self._client.address()}: other clients changed key {key.hex()} {_ROUNDS} times meanwhile")

    # --- batches ---

    def _with_retries(self, operation: Callable[[], Result]) -> Result:
        return self._items.with_retries(operation, self._timeout)

    def _answer_unique(
        self,
        requests: Sequence[Owned],
        change_part: Callable[[Sequence[Owned]], list[bool]],
        weight: Callable[[Owned], int] = lambda _: 0,
    ) -> list[bool]:
        """Call a function with parts of the requests. Equal claims are sent once, and a key once in a call."""
        remaining = {(request.key, request.token): request for request in reversed(requests)}
        by_claim: dict[tuple[Key, Token], bool] = {}
        while remaining:
            claims = list({key: (key, token) for key, token in remaining}.values())
            batch = [remaining.pop(claim) for claim in claims]
            by_claim.update(zip(claims, self._items.in_parts(change_part, batch, weight), strict=True))
        return [by_claim[request.key, request.token] for request in requests]


def _results_or_error(results: Sequence[WriteResult | StoreError]) -> list[WriteResult]:
    """Return the results, or raise the first error among them."""
    for result in results:
        if isinstance(result, StoreError):
            raise result
    return [result for result in results if not isinstance(result, StoreError)]
