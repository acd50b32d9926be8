"""Ours, from raw bytes to the outcome; and bare: the same parse, key and store calls without any of our own engine."""

import os
from collections.abc import Callable, Sequence

from benchmarks.harness import IGNORED, batches
from eventonce import Once, Rule
from eventonce.claims.protocol import Finish, Want, Won
from eventonce.event.formats import eventbridge
from eventonce.event.keys import Digester, Key, canonical_parsed
from eventonce.event.paths import Ignored, ignored_path
from eventonce.ports import Store

Act = Callable[[Sequence[bytes]], None]
RULE = Rule(name="orders", match={"source": ["com.example.shop"]}, key="content", ignore=IGNORED)
WINDOW, LEASE = 14 * 86_400_000, 60_000
OURS, BARE = "eventonce", "bare"


def nothing(event: object) -> None:
    """A handler."""


def whole(once: Once, size: int = 100) -> Act:
    def act(events: Sequence[bytes]) -> None:
        for some in batches(events, size):
            once.run(some, nothing)

    return act


def singly(once: Once) -> Act:
    handle = once(nothing)

    def act(events: Sequence[bytes]) -> None:
        for raw in events:
            handle(raw)

    return act


def keyer() -> Callable[[bytes], Key]:
    """Parse and key, without rules or an event."""
    digest = Digester("bench", "orders", "content")
    ignored = Ignored([ignored_path(text) for text in IGNORED])

    parse = eventbridge._decoder().decode

    def key(raw: bytes) -> Key:
        body = parse(raw)
        return digest.content(body.source, body.kind, canonical_parsed(ignored.strip(body.detail), plain=True))

    return key


def bare(store: Store, size: int = 100) -> Act:
    key = keyer()

    def act(events: Sequence[bytes]) -> None:
        for some in batches(events, size):
            wants = [Want(key(raw), WINDOW, None, False, True) for raw in some]
            two_phases(store, wants, some)

    return act


def two_phases(store: Store, wants: Sequence[Want], events: Sequence[object]) -> None:
    """Claim, run and commit."""
    token = os.urandom(8)
    answers = store.claim(wants, token, LEASE)
    finishes = []
    for want, event, answer in zip(wants, events, answers, strict=True):
        if type(answer) is Won:
            nothing(event)
            finishes.append(Finish(want.key, token, WINDOW))
    store.commit(finishes)


def store_only(store: Store, size: int = 100) -> Callable[[Sequence[Key]], None]:
    def act(keys: Sequence[Key]) -> None:
        for some in batches(keys, size):
            two_phases(store, [Want(key, WINDOW, None, False, True) for key in some], some)

    return act


def fill(store: Store, keys: Sequence[Key]) -> None:
    """Let a store know these keys."""
    store_only(store, 1000)(keys)
