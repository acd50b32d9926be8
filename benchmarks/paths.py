"""Two paths from raw bytes to the outcome: ours, and a bare one with the same parse, key and store calls alone."""

import os
from collections.abc import Callable, Sequence

from benchmarks.harness import IGNORED, batches
from eventonce import Once, Rule
from eventonce.claims.protocol import ClaimRequest, Commit, Won
from eventonce.event.formats import eventbridge
from eventonce.event.keys import Digester, Key, canonical_parsed
from eventonce.event.paths import Ignored, ignored_path
from eventonce.ports import Store

RunEvents = Callable[[Sequence[bytes]], None]
RULE = Rule(name="orders", match={"source": ["com.example.shop"]}, key="content", ignore=IGNORED)
WINDOW, LEASE = 14 * 86_400_000, 60_000
OURS, BARE = "eventonce", "bare"


def nothing(event: object) -> None:
    """A handler."""


def whole(once: Once, size: int = 100) -> RunEvents:
    def run(events: Sequence[bytes]) -> None:
        for batch in batches(events, size):
            once.run(batch, nothing)

    return run


def singly(once: Once) -> RunEvents:
    handle = once(nothing)

    def run(events: Sequence[bytes]) -> None:
        for raw in events:
            handle(raw)

    return run


def keyer() -> Callable[[bytes], Key]:
    """Return a function that parses and keys, without rules or an event."""
    digest = Digester("bench", "orders", "content")
    ignored = Ignored([ignored_path(text)[1:] for text in IGNORED])  # of the data

    parse = eventbridge._decoder().decode

    def key(raw: bytes) -> Key:
        body = parse(raw)
        return digest.content(body.source, body.kind, canonical_parsed(ignored.strip(body.detail), plain=True))

    return key


def bare(store: Store, size: int = 100) -> RunEvents:
    key = keyer()

    def run(events: Sequence[bytes]) -> None:
        for batch in batches(events, size):
            wants = [ClaimRequest(key(raw), WINDOW, None, False, True) for raw in batch]
            two_phases(store, wants, batch)

    return run


def two_phases(store: Store, wants: Sequence[ClaimRequest], events: Sequence[object]) -> None:
    """Claim, run and commit."""
    token = os.urandom(8)
    answers = store.claim(wants, token, LEASE)
    finishes = []
    for want, event, answer in zip(wants, events, answers, strict=True):
        if type(answer) is Won:
            nothing(event)
            finishes.append(Commit(want.key, token, WINDOW))
    store.commit(finishes)


def store_only(store: Store, size: int = 100) -> Callable[[Sequence[Key]], None]:
    def run(keys: Sequence[Key]) -> None:
        for batch in batches(keys, size):
            two_phases(store, [ClaimRequest(key, WINDOW, None, False, True) for key in batch], batch)

    return run


def fill(store: Store, keys: Sequence[Key]) -> None:
    """Run these keys through a store, so that it remembers them."""
    store_only(store, 1000)(keys)
