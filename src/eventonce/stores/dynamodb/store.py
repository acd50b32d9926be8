"""The DynamoDB store: one item per key, every change one conditional write.

A batch goes out as PartiQL statements, 25 in a call and several calls at a time. What a statement's condition refuses
is looked at, decided by the protocol, and written only if the item is still as it was read. So an event costs two
writes and a duplicate one, and nothing is ever decided by a read and a hope.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Busy, Claim, Finish, Record, Release, Token, Want
from eventonce.clock import Clock, SystemClock
from eventonce.errors import StoreError
from eventonce.event.keys import Key
from eventonce.ports import Swept
from eventonce.stores.dynamodb.client import DynamoDBClient
from eventonce.stores.dynamodb.items import Fate, Items
from eventonce.stores.dynamodb.layout import Item, ItemWrite, Layout, expression, insertion, statement
from eventonce.stores.dynamodb.table import check_table, create_command, create_table
from eventonce.stores.dynamodb.transaction import DynamoDBTransaction
from eventonce.stores.retry import GIVING_BACK
from eventonce.stores.url import count, options, parse_timeout, wrong

IN_FLIGHT = 8  # calls at a time
_TIMEOUT = "5s"
_ROUNDS = 100  # of losing a race for one key
_UNLEASED = 5000  # milliseconds of patience before anything was claimed
_HOT = 2000  # how long a batch of claims waits for single keys that are throttled
_COOL = 5000  # and when those are to come back
_TABLE = r"[A-Za-z0-9_.-]{3,255}"
_OPTIONS = (
    "region", "endpoint", "timeout", "in_flight", "key", "sort", "ttl", "prefix", "layout", "function", "partition",
)  # fmt: skip
Held = TypeVar("Held", Claim, Finish, Release)
Result = TypeVar("Result")
Look = Callable[[Record | None, Held, int], tuple[bool, Record | None]]  # whether it is held, and what to keep then


def open_url(url: str, clock: Clock | None, create: bool) -> "DynamoDBStore":
    """Open `dynamodb://TABLE`; docs/stores.md says what may follow the question mark."""
    parts, found = urlsplit(url), options(url, *_OPTIONS)
    table = unquote(parts.netloc)
    if "@" in table or "@" in found.get("endpoint", ""):
        wrong(url, "credentials do not belong in the URL; AWS finds them in the environment, a profile or a role")
    if not re.fullmatch(_TABLE, table) or parts.path.strip("/"):
        wrong(url, "names no table; use dynamodb://TABLE?region=REGION")
    if "endpoint" in found and not _is_address(found["endpoint"]):
        wrong(url, "endpoint is no address; use one like http://localhost:8000")
    return DynamoDBStore(
        table,
        region=found.get("region"),
        endpoint=found.get("endpoint"),
        timeout=found.get("timeout", _TIMEOUT),
        in_flight=count(url, found, "in_flight", IN_FLIGHT),
        layout=_layout(url, found),
        clock=clock,
    )


def _is_address(endpoint: str) -> bool:
    try:
        port = urlsplit(endpoint).port
    except ValueError:
        return False
    return port != 0 and re.match(r"https?://[^/]", endpoint) is not None


def _layout(url: str, found: dict[str, str]) -> Layout:
    kind, function = found.get("layout", "eventonce"), found.get("function")
    if kind not in ("eventonce", "powertools"):
        wrong(url, f"layout={kind!r} is neither eventonce nor powertools")
    powertools = kind == "powertools"
    if powertools != bool(function):
        wrong(url, "layout=powertools and function= belong together; function is what Powertools puts before the #")
    if bool(found.get("partition")) != (powertools and "sort" in found):
        wrong(url, "partition= is for layout=powertools with a sort key, and then it is needed: its static_pk_value")
    layout = Layout(
        key=found.get("key", "id"),
        sort=found.get("sort"),
        ttl=found.get("ttl", "expiration"),
        prefix=f"{function}#" if powertools else found.get("prefix", "eventonce#"),
        partition=found.get("partition"),
        results=powertools,
    )
    if trouble := layout.trouble():
        wrong(url, trouble)
    return layout


class DynamoDBStore:
    """Claims in a DynamoDB table.

    Nothing is called before the first verb is, so an application can start while DynamoDB is away.
    """

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        timeout: str | float = _TIMEOUT,
        in_flight: int = IN_FLIGHT,
        layout: Layout | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._layout = layout or Layout()
        self._server = DynamoDBClient(
            table,
            region=region,
            endpoint=endpoint,
            timeout=parse_timeout(timeout, f"store: dynamodb://{table}"),
            in_flight=in_flight,
            clock=self.clock,
            remedy=create_command(table, self._layout, region),
        )
        self._items = Items(self._server, self._layout)
        self._patience = _UNLEASED  # half of the last lease
        self._met = False  # whether the server has answered

    @property
    def throttled(self) -> int:
        """How often DynamoDB said to slow down."""
        return self._server.throttled

    # --- the verbs ---

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        if not wants:
            return []
        self._patience = lease // 2
        self._ask_the_time(self._patience)
        first = {want.key: want for want in reversed(wants)}  # a key that stands twice is claimed once
        if len(first) == 1:
            answers = [self._patiently(lambda: self._claim_one(wants[0], token, lease))]
        else:
            some = lambda part: self._patiently(lambda: self._claim_some(part, token, lease))  # noqa: E731
            answers = self._items.in_parts(some, list(first.values()))
        known = dict(zip(first, map(self._in_our_time, answers), strict=True))
        return [known[want.key] for want in wants]

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        def change(claim: Claim, now: int) -> ItemWrite:
            return self._layout.extension(claim, now + lease)

        def look(record: Record | None, claim: Claim, now: int) -> tuple[bool, Record | None]:
            kept = protocol.extend(record, claim.token, lease, now)
            return kept is not None, kept

        def part(claims: Sequence[Claim]) -> list[bool]:
            # A key that stays throttled counts as lost. To raise would make its neighbours look lost too.
            fates = zip(claims, self._change(claims, change, lease // 4), strict=True)
            return [not isinstance(fate, StoreError) and self._settle(claim, fate, look) for claim, fate in fates]

        return self._alike(claims, part)

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        def look(record: Record | None, finish: Finish, now: int) -> tuple[bool, Record | None]:
            kept = protocol.commit(record, finish, now)
            return kept is not None, kept

        return self._alike(
            finishes,
            lambda part: self._change_patiently(part, self._layout.completion, look, self._patience),
            weight=lambda finish: len(finish.memo or b""),
        )

    def release(self, releases: Sequence[Release]) -> list[bool]:
        within = min(GIVING_BACK, self._patience)

        def remove(given: Release) -> bool:
            return self._items.patiently(lambda: self._remove(given), within)

        def part(some: Sequence[Release]) -> list[bool]:
            failed = [given for given in some if given.error is not None]
            known = dict(
                zip(failed, self._change_patiently(failed, self._layout.failure, protocol.release, within), strict=True)
            )
            # One by one: in PartiQL, to delete what is not there is a success.
            return [known[given] if given.error is not None else remove(given) for given in some]

        return self._alike(releases, part)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        items = self._items.read(list(dict.fromkeys(keys)), self._patience)
        now = self._server.time.now()
        return [protocol.live(self._items.record(items.get(key)), now) for key in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        def forget(key: Key) -> bool:
            gone = self._patiently(lambda: self._items.drop(key))
            return protocol.live(self._items.record(gone), self._server.time.now()) is not None

        unique = list(dict.fromkeys(keys))
        known = dict(zip(unique, self._server.map_parts(forget, unique), strict=True))
        return [known[key] for key in keys]

    def sweep(self, limit: int, cursor: bytes = b"") -> Swept:
        """DynamoDB removes by itself what is over, by the attribute that its time to live is set on."""
        return Swept(0, None)

    def begin(self, claim: Claim) -> DynamoDBTransaction:
        """Collect a handler's writes, to be sent together with the record of them."""
        return DynamoDBTransaction(
            self._server, self._layout, claim, self._patience, self._ask_the_time, self._commit_alone
        )

    def check(self) -> list[str]:
        """What to warn of in how the table is set up."""
        return check_table(self._server, self._layout)

    def create_table(self) -> None:
        """Make the table as this store wants it, paid per request, with its time to live set."""
        create_table(self._server, self._layout)

    def close(self) -> None:
        self._server.close()

    # --- claims ---

    def _ask_the_time(self, within: int) -> None:
        """See how far our clock is from the server's: at first, which also shows whether the table fits, and when ours
        was set. A lease that is written by a wrong clock may be over at once, and one that lasts seem to be over.
        """
        if not (self._met and self._server.time.known()):
            self._items.read([Key(bytes(16))], within)
            self._met = True

    def _claim_one(self, want: Want, token: Token, lease: int) -> Answer:
        """One write, also over an item whose time is over. If it is refused, that says what is there."""
        now = self._server.time.now()
        answer, item = self._first(want, token, lease, now)
        fate = self._items.put(item, self._layout.free(now))
        return answer if fate is True else self._decide(want, token, lease, fate)

    def _claim_some(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        now = self._server.time.now()
        firsts = [self._first(want, token, lease, now) for want in wants]
        statements = [insertion(self._server.table, item) for _, item in firsts]
        fates = self._items.execute([want.key for want in wants], statements, min(self._patience, _HOT))
        if all(isinstance(fate, StoreError) for fate in fates):  # then it is the table, and no single key
            _answered(fates)
        answers: list[Answer] = []
        for want, (answer, item), fate in zip(wants, firsts, fates, strict=True):
            if isinstance(fate, StoreError):  # the others need not wait for it: it comes back as if it were running
                answers.append(Busy(now + _COOL))
            elif fate is True or fate == item:  # the same item: it is ours, and only the reply was lost
                answers.append(answer)
            else:
                answers.append(self._decide(want, token, lease, fate))
        return answers

    def _first(self, want: Want, token: Token, lease: int, now: int) -> tuple[Answer, Item]:
        """The answer and the item of a key that nothing is known of."""
        answer, record = protocol.claim(None, want, token, lease, now)
        assert record is not None
        return answer, self._layout.item(want.key, record)

    def _decide(self, want: Want, token: Token, lease: int, found: Item | None) -> Answer:
        """What the protocol says to the item that is there, and to the next one if somebody else was quicker."""
        for _ in range(_ROUNDS):
            answer, kept = protocol.claim(self._items.record(found), want, token, lease, self._server.time.now())
            if kept is None:
                return answer
            fate = self._items.put(self._layout.item(want.key, kept), self._layout.unchanged(found))
            if fate is True:
                return answer
            found = fate
        raise self._fought_over(want.key)

    def _in_our_time(self, answer: Answer) -> Answer:
        """Callers compare the end of a lease with their own clock."""
        return Busy(answer.until - self._server.time.offset) if isinstance(answer, Busy) else answer

    # --- changes to what is claimed ---

    def _change_patiently(
        self, asked: Sequence[Held], change: Callable[[Held, int], ItemWrite], look: "Look[Held]", within: int
    ) -> list[bool]:
        def act() -> list[bool]:
            fates = _answered(self._change(asked, change, within))
            return [self._settle(each, fate, look) for each, fate in zip(asked, fates, strict=True)]

        return self._items.patiently(act, within)

    def _change(
        self, asked: Sequence[Held], change: Callable[[Held, int], ItemWrite], within: int
    ) -> list[Fate | StoreError]:
        self._ask_the_time(within)
        now = self._server.time.now()
        statements = [statement(self._server.table, change(each, now)) for each in asked]
        return self._items.execute([each.key for each in asked], statements, within)

    def _settle(self, asked: Held, fate: Fate, look: "Look[Held]") -> bool:
        """Whether it is held. What the change did not apply to may be, too: look, and write what is to be kept."""
        for _ in range(_ROUNDS):
            if fate is True:
                return True
            record = self._items.record(fate)
            held, kept = look(record, asked, self._server.time.now())
            if not held or kept == record:
                return held
            condition = self._layout.unchanged(fate)
            if kept is None:
                fate = self._items.delete({"Key": self._layout.key(asked.key), **condition})
            else:
                fate = self._items.put(self._layout.item(asked.key, kept), condition)
        raise self._fought_over(asked.key)

    def _remove(self, given: Release) -> bool:
        self._ask_the_time(GIVING_BACK)
        change = self._layout.removal(given, self._server.time.now())
        return self._settle(given, self._items.delete(expression(change)), protocol.release)

    def _commit_alone(self, finish: Finish) -> bool:
        return self.commit([finish])[0]

    def _fought_over(self, key: Key) -> StoreError:
        return StoreError(f"{self._server.where()}: others changed key {key.hex()} {_ROUNDS} times meanwhile")

    # --- batches ---

    def _patiently(self, act: Callable[[], Result]) -> Result:
        return self._items.patiently(act, self._patience)

    def _alike(
        self,
        asked: Sequence[Held],
        part: Callable[[Sequence[Held]], list[bool]],
        weight: Callable[[Held], int] = lambda _: 0,
    ) -> list[bool]:
        """Let a function answer all, in parts. What stands twice is answered alike, and one key in one call once."""
        left = {(each.key, each.token): each for each in reversed(asked)}
        known: dict[tuple[Key, Token], bool] = {}
        while left:
            names = list({key: (key, token) for key, token in left}.values())
            some = [left.pop(name) for name in names]
            known.update(zip(names, self._items.in_parts(part, some, weight), strict=True))
        return [known[each.key, each.token] for each in asked]


def _answered(fates: Sequence[Fate | StoreError]) -> list[Fate]:
    """The fates, if there is one of each."""
    for fate in fates:
        if isinstance(fate, StoreError):
            raise fate
    return [fate for fate in fates if not isinstance(fate, StoreError)]
