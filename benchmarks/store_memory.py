"""The memory store: the cost of the path if the store costs next to nothing."""

from collections.abc import Iterator

from benchmarks.harness import FULL, Row, Scale, Traffic, compare, counted, faster, keys, resident
from benchmarks.paths import BARE, OURS, RULE, bare, fill, singly, store_only, whole
from benchmarks.powertools import NAME, OnDict, powertools
from eventonce import Once
from eventonce.event.keys import Key
from eventonce.stores.memory import MemoryStore

SUBJECT = "memory"


def rows(scale: Scale) -> Iterator[Row]:
    store, theirs = MemoryStore(100 * scale.many), OnDict()
    fill(store, keys(scale.resident))
    once = Once(store, consumer="bench", rules=RULE)
    candidates = {OURS: whole(once), BARE: bare(store), NAME: powertools(theirs)}
    for size, name in scale.sizes.items():
        traffic = Traffic(size)
        spent = compare(candidates, lambda traffic=traffic: traffic.events(scale.events), scale.rounds)  # type: ignore[misc]
        has_target = size == 1000
        yield faster(SUBJECT, f"whole path, {name}", "at least 3" if has_target else "", spent, OURS, NAME)
        yield faster(SUBJECT, f"whole path, {name}", "at least 0.5" if has_target else "", spent, OURS, BARE)
    traffic = Traffic()
    spent = compare(candidates, lambda: traffic.events(scale.events), scale.rounds, repeated=True)
    yield faster(SUBJECT, "whole path, duplicates", "", spent, OURS, NAME)
    alone = {OURS: singly(Once(store, consumer="bench", rules=RULE)), NAME: candidates[NAME]}
    spent = compare(alone, lambda: traffic.events(scale.events), scale.rounds)
    yield faster(SUBJECT, "whole path, batch of 1", "at least 1", spent, OURS, NAME)
    once.close()
    yield from at_scale(scale)


def at_scale(scale: Scale) -> Iterator[Row]:
    """Speed and size with very many keys."""
    few, many = MemoryStore(100 * scale.many), MemoryStore(100 * scale.many)
    fill(few, keys(100_000))
    before = resident()
    for _ in range(scale.many // 100_000):
        store_only(many)(keys(100_000))
    size = (resident() - before) / scale.many
    crowded, sparse = f"{scale.many:,} keys", "100,000 keys"
    paths = {crowded: whole(Once(many, rules=RULE)), sparse: whole(Once(few, rules=RULE))}
    traffic = Traffic()
    spent = compare(paths, lambda: traffic.events(scale.events), scale.rounds)
    yield faster(SUBJECT, f"whole path, {crowded} resident", "at least 0.7", spent, crowded, sparse)
    del paths, few, many
    before = resident()
    plain: dict[Key, float] = {}
    for number in range(scale.many // 100_000):
        plain |= {key: number + index / 1e6 for index, key in enumerate(keys(100_000))}
    theirs = (resident() - before) / scale.many
    target = "at most 1" if scale == FULL else ""
    yield counted(SUBJECT, f"size, {crowded}", "110 bytes", target, size, 110, "bytes a key")
    yield counted(SUBJECT, f"size, {crowded}", "plain dict of bytes to float", "", size, theirs, "bytes a key")
