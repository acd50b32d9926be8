"""Which worker has which shard, and how far each shard is done: kept in the store, by its ordinary verbs.

A shard is a key. Who reads it holds a claim on that key. A checkpoint is a commit, which has the sequence number as its
memo and is one version higher than the last; it ends the claim, so the owner claims the next version at once. Who
comes between, or comes when the lease is over, has all that was committed: it asks for the version after the one that
it saw, and gets no other. From then on the old owner's token fits no more, and what it sends changes nothing: a
checkpoint never goes back.

Workers find each other by seats, which are keys too. There are as many as shards, and each worker sits on one: nobody
takes more than an equal part of the shards, and who has more gives some back.
"""

import os
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from eventonce.claims.protocol import TOKEN_BYTES, Claim, Done, Finish, Record, Release, Token, Want, Won, running
from eventonce.clock import Clock
from eventonce.event.keys import Digester, Key, part
from eventonce.ports import Store

_KEPT = 366 * 86_400_000  # a stream keeps nothing for longer than a year
_SEATS = 100  # at most; a worker without one stands by


class _Held:
    """A shard that is ours."""

    __slots__ = ("finish", "loose", "saved", "token", "until", "version")

    def __init__(self, version: int, token: Token, until: int, saved: str | None) -> None:
        self.version = version  # of the next checkpoint
        self.token = token
        self.until = until  # by the steady clock
        self.saved = saved  # the last checkpoint
        self.finish: Finish | None = None  # one on its way: sent again as it is until it is answered
        self.loose = False  # it was, and that has ended the claim


class _Seen(NamedTuple):
    version: int
    position: str | None
    free: bool


class ShardLeases:
    """The shards of one stream that this worker holds for its consumer. For one thread, but `holds` is for all.

    Every call raises `StoreError` where the store does not answer; the next one goes on where it stopped.
    """

    def __init__(self, store: Store, consumer: str, stream: str, lease: int, clock: Clock) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._digest = Digester(consumer, stream, "shard")
        self._held: dict[str, _Held] = {}
        self._seen: dict[str, _Seen] = {}
        self._seat: Claim | None = None
        self._token: Token | None = None  # of claims that were not answered

    # --- what is known ---

    def holds(self, shard: str) -> bool:
        """Whether it is ours for certain, at this moment."""
        held = self._held.get(shard)
        return held is not None and self._clock.steady() < held.until

    def look(self, shards: Sequence[str]) -> dict[str, str | None]:
        """How far each is done."""
        records = self._store.peek([self._key("shard", shard) for shard in shards])
        now = self._clock.utc()
        self._seen = {shard: _seen(record, now) for shard, record in zip(shards, records, strict=True)}
        return {shard: seen.position for shard, seen in self._seen.items()}

    def start(self, moment: int) -> int | None:
        """The moment at which the first worker of all began; None where another is about to say it."""
        key, token = self._key("start", ""), os.urandom(TOKEN_BYTES)
        (answer,) = self._store.claim([Want(key, _KEPT, refresh=True)], token, self._lease)
        if isinstance(answer, Won):
            (ours,) = self._store.commit([Finish(key, token, _KEPT, memo=str(moment).encode())])
            return moment if ours else None
        return int(answer.record.memo or b"0") if isinstance(answer, Done) else None

    def share(self, shards: int) -> int:
        """How many of so many shards are for this worker."""
        keys = [self._key("seat", str(number)) for number in range(min(shards, _SEATS))]
        now = self._clock.utc()
        free = [key for key, record in zip(keys, self._store.peek(keys), strict=True) if _seen(record, now).free]
        taken = len(keys) - len(free)
        if not self._sits(keys) and free:
            taken += self._sit(random.choice(free))  # noqa: S311  # so that workers do not all want the same one
        return 0 if self._seat is None else -(-shards // max(1, taken))

    def _sits(self, keys: Collection[Key]) -> bool:
        """Whether this worker has a seat; one that shards no longer stand for is given back."""
        if self._seat is not None and self._seat.key not in keys:
            self._store.release([Release(*self._seat, self._lease)])
            self._seat = None
        if self._seat is not None and not self._store.extend([self._seat], self._lease)[0]:
            self._seat = None
        return self._seat is not None

    def _sit(self, key: Key) -> bool:
        token = os.urandom(TOKEN_BYTES)
        (answer,) = self._store.claim([Want(key, self._lease)], token, self._lease)
        self._seat = Claim(key, token) if isinstance(answer, Won) else None
        return self._seat is not None

    # --- what is ours ---

    def take(self, shards: Iterable[str], room: int) -> dict[str, str | None]:
        """Take so many that are not ours, free ones first; the ones that were won, and how far each is done."""
        others = [shard for shard in shards if shard not in self._held]
        random.shuffle(others)
        # The store's clock may be another: one that looks taken may be free.
        wanted = sorted(others, key=lambda shard: not self._seen[shard].free)[: max(0, room)]
        won = self._claim({shard: self._seen[shard].version + 1 for shard in wanted})
        for shard, (token, until) in won.items():
            version, position, _ = self._seen[shard]
            self._held[shard] = _Held(version + 1, token, until, position)
        return {shard: self._seen[shard].position for shard in won}

    def keep(self, positions: Mapping[str, str | None], leaving: Collection[str]) -> set[str]:
        """Save how far each shard is done, and hold all but those that leave; the ones that are still ours."""
        self._save(positions)
        # What is not saved yet, because an earlier checkpoint had to go first, leaves another time.
        held = {shard: self._held[shard] for shard in leaving if shard in self._held}
        self._leave([shard for shard, each in held.items() if positions[shard] in (None, each.saved)])
        self._renew()
        self._extend()
        return set(self._held)

    def close(self, positions: Mapping[str, str | None]) -> None:
        """Save how far each shard is done, and give all of them back."""
        self._save(positions)
        self._leave(list(self._held))
        if self._seat is not None:
            self._store.release([Release(*self._seat, self._lease)])

    def _save(self, positions: Mapping[str, str | None]) -> None:
        for shard, position in positions.items():
            held = self._held.get(shard)
            if held is not None and not held.finish and not held.loose and position not in (None, held.saved):
                memo = str(position).encode()
                held.finish = Finish(self._key("shard", shard), held.token, _KEPT, held.version, memo)
        moved = [(shard, held, held.finish) for shard, held in self._held.items() if held.finish is not None]
        if not moved:
            return
        for (shard, held, finish), ours in zip(moved, self._store.commit([each[2] for each in moved]), strict=True):
            if not ours:
                del self._held[shard]
                continue
            held.finish, held.loose, held.saved = None, True, (finish.memo or b"").decode()
            held.version += 1

    def _leave(self, shards: Iterable[str]) -> None:
        leaving = {shard: self._held[shard] for shard in shards}
        claimed = [
            Release(self._key("shard", shard), held.token, _KEPT) for shard, held in leaving.items() if not held.loose
        ]
        if claimed:
            self._store.release(claimed)
        for shard in leaving:
            del self._held[shard]

    def _renew(self) -> None:
        """Claim again what a checkpoint has ended; where another was quicker, it is theirs."""
        loose = {shard: held for shard, held in self._held.items() if held.loose}
        won = self._claim({shard: held.version for shard, held in loose.items()})
        for shard, held in loose.items():
            if shard in won:
                held.token, held.until = won[shard]
                held.loose = False
            else:
                del self._held[shard]

    def _claim(self, versions: Mapping[str, int]) -> dict[str, tuple[Token, int]]:
        if not versions:
            return {}
        self._token = token = self._token or os.urandom(TOKEN_BYTES)
        wants = [Want(self._key("shard", shard), _KEPT, version) for shard, version in versions.items()]
        until = self._clock.steady() + self._lease
        answers = self._store.claim(wants, token, self._lease)
        self._token = None
        return {
            shard: (token, until) for shard, answer in zip(versions, answers, strict=True) if isinstance(answer, Won)
        }

    def _extend(self) -> None:
        held = list(self._held.items())
        until = self._clock.steady() + self._lease
        claims = [Claim(self._key("shard", shard), each.token) for shard, each in held]
        for (shard, each), ours in zip(held, self._store.extend(claims, self._lease) if held else (), strict=True):
            each.until = until
            if not ours:
                del self._held[shard]

    def _key(self, kind: str, name: str) -> Key:
        return self._digest([part(kind), part(name)], "")


def _seen(record: Record | None, now: int) -> _Seen:
    if record is None:
        return _Seen(0, None, free=True)
    memo = None if record.memo is None else record.memo.decode()
    return _Seen(record.version or 0, memo, free=not running(record, now))
