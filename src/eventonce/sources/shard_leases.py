"""Which worker owns which shard, and how far each shard is done. Both are in the store, by its ordinary verbs.

A shard is a key, and its reader holds a claim on that key. A checkpoint is a commit whose memo is the sequence number
and whose version is one higher than the last. The commit ends the claim, so the owner claims the next version at once.
Another worker may claim in between, or after the lease expires. It requests the version after the one that it saw, so
it starts from all that was committed. From then on the old owner's token does not match, and its calls change nothing:
a checkpoint never goes back.

Workers count each other by seats, which are keys too. There are as many seats as shards, and each worker holds one. No
worker takes more than an equal share of the shards, and one that has more releases some.
"""

import os
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from eventonce.claims.protocol import TOKEN_BYTES, Claim, Done, Finish, Record, Release, Token, Want, Won, running
from eventonce.clock import Clock
from eventonce.event.keys import Digester, Key, part
from eventonce.ports import Store

_WINDOW = 366 * 86_400_000  # a stream keeps no record for longer than a year
_MAX_SEATS = 100  # a worker without one takes no shards


class _OwnedShard:
    """A shard that this worker owns."""

    __slots__ = ("commit", "saved", "token", "unclaimed", "until", "version")

    def __init__(self, version: int, token: Token, until: int, saved: str | None) -> None:
        self.version = version  # of the next checkpoint
        self.token = token
        self.until = until  # by the steady clock
        self.saved = saved  # the last checkpoint
        self.commit: Finish | None = None  # without an answer so far: it is repeated unchanged
        self.unclaimed = False  # whether a commit has ended the claim


class _ShardState(NamedTuple):
    version: int
    position: str | None
    free: bool


class ShardLeases:
    """The shards of one stream that this worker holds for its consumer. For one thread, except `holds`.

    Every call raises `StoreError` if the store does not answer. The next call continues where it stopped.
    """

    def __init__(self, store: Store, consumer: str, stream: str, lease: int, clock: Clock) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._digest = Digester(consumer, stream, "shard")
        self._owned: dict[str, _OwnedShard] = {}
        self._states: dict[str, _ShardState] = {}
        self._seat: Claim | None = None
        self._token: Token | None = None  # of claims without an answer so far

    # --- the state of all shards ---

    def holds(self, shard: str) -> bool:
        """Return whether this worker certainly owns a shard now."""
        owned = self._owned.get(shard)
        return owned is not None and self._clock.steady() < owned.until

    def look(self, shards: Sequence[str]) -> dict[str, str | None]:
        """Return how far each shard is done."""
        records = self._store.peek([self._key("shard", shard) for shard in shards])
        now = self._clock.utc()
        self._states = {shard: _shard_state(record, now) for shard, record in zip(shards, records, strict=True)}
        return {shard: state.position for shard, state in self._states.items()}

    def start(self, time: int) -> int | None:
        """Return the time at which the first worker of all started, or None if another is about to record it."""
        key, token = self._key("start", ""), os.urandom(TOKEN_BYTES)
        (answer,) = self._store.claim([Want(key, _WINDOW, refresh=True)], token, self._lease)
        if isinstance(answer, Won):
            (owned,) = self._store.commit([Finish(key, token, _WINDOW, memo=str(time).encode())])
            return time if owned else None
        return int(answer.record.memo or b"0") if isinstance(answer, Done) else None

    def share(self, shards: int) -> int:
        """Return how many of these shards are for this worker."""
        keys = [self._key("seat", str(number)) for number in range(min(shards, _MAX_SEATS))]
        now = self._clock.utc()
        free = [key for key, record in zip(keys, self._store.peek(keys), strict=True) if _shard_state(record, now).free]
        workers = len(keys) - len(free)
        if not self._has_seat(keys) and free:
            workers += self._take_seat(random.choice(free))  # noqa: S311  # so that workers do not all try the same one
        return 0 if self._seat is None else -(-shards // max(1, workers))

    def _has_seat(self, keys: Collection[Key]) -> bool:
        """Return whether this worker has a seat. Release one that there are no longer shards for."""
        if self._seat is not None and self._seat.key not in keys:
            self._store.release([Release(*self._seat, self._lease)])
            self._seat = None
        if self._seat is not None and not self._store.extend([self._seat], self._lease)[0]:
            self._seat = None
        return self._seat is not None

    def _take_seat(self, key: Key) -> bool:
        token = os.urandom(TOKEN_BYTES)
        (answer,) = self._store.claim([Want(key, self._lease)], token, self._lease)
        self._seat = Claim(key, token) if isinstance(answer, Won) else None
        return self._seat is not None

    # --- the shards of this worker ---

    def take(self, shards: Iterable[str], count: int) -> dict[str, str | None]:
        """Claim `count` more shards, free ones first. Return those that were won, and how far each is done."""
        others = [shard for shard in shards if shard not in self._owned]
        random.shuffle(others)
        # The store's clock may differ: a shard that looks claimed may be free.
        wanted = sorted(others, key=lambda shard: not self._states[shard].free)[: max(0, count)]
        won = self._claim({shard: self._states[shard].version + 1 for shard in wanted})
        for shard, (token, until) in won.items():
            version, position, _ = self._states[shard]
            self._owned[shard] = _OwnedShard(version + 1, token, until, position)
        return {shard: self._states[shard].position for shard in won}

    def keep(self, positions: Mapping[str, str | None], leaving: Collection[str]) -> set[str]:
        """Save how far each shard is done, and extend all but those that leave. Return the shards still owned."""
        self._save(positions)
        # A shard whose position is not saved yet, because an earlier checkpoint had to go first, leaves later.
        owned = {shard: self._owned[shard] for shard in leaving if shard in self._owned}
        self._release([shard for shard, state in owned.items() if positions[shard] in (None, state.saved)])
        self._claim_next()
        self._extend()
        return set(self._owned)

    def close(self, positions: Mapping[str, str | None]) -> None:
        """Save how far each shard is done, and release all of them."""
        self._save(positions)
        self._release(list(self._owned))
        if self._seat is not None:
            self._store.release([Release(*self._seat, self._lease)])

    def _save(self, positions: Mapping[str, str | None]) -> None:
        for shard, position in positions.items():
            owned = self._owned.get(shard)
            if owned is not None and not owned.commit and not owned.unclaimed and position not in (None, owned.saved):
                memo = str(position).encode()
                owned.commit = Finish(self._key("shard", shard), owned.token, _WINDOW, owned.version, memo)
        moved = [(shard, owned, owned.commit) for shard, owned in self._owned.items() if owned.commit is not None]
        if not moved:
            return
        results = self._store.commit([commit for _, _, commit in moved])
        for (shard, owned, commit), committed in zip(moved, results, strict=True):
            if not committed:
                del self._owned[shard]
                continue
            owned.commit, owned.unclaimed, owned.saved = None, True, (commit.memo or b"").decode()
            owned.version += 1

    def _release(self, shards: Iterable[str]) -> None:
        leaving = {shard: self._owned[shard] for shard in shards}
        releases = [
            Release(self._key("shard", shard), owned.token, _WINDOW)
            for shard, owned in leaving.items()
            if not owned.unclaimed
        ]
        if releases:
            self._store.release(releases)
        for shard in leaving:
            del self._owned[shard]

    def _claim_next(self) -> None:
        """Claim the next version of shards whose claim a checkpoint has ended, and drop those that another won."""
        unclaimed = {shard: owned for shard, owned in self._owned.items() if owned.unclaimed}
        won = self._claim({shard: owned.version for shard, owned in unclaimed.items()})
        for shard, owned in unclaimed.items():
            if shard in won:
                owned.token, owned.until = won[shard]
                owned.unclaimed = False
            else:
                del self._owned[shard]

    def _claim(self, versions: Mapping[str, int]) -> dict[str, tuple[Token, int]]:
        if not versions:
            return {}
        self._token = token = self._token or os.urandom(TOKEN_BYTES)
        requests = [Want(self._key("shard", shard), _WINDOW, version) for shard, version in versions.items()]
        until = self._clock.steady() + self._lease
        answers = self._store.claim(requests, token, self._lease)
        self._token = None
        return {
            shard: (token, until) for shard, answer in zip(versions, answers, strict=True) if isinstance(answer, Won)
        }

    def _extend(self) -> None:
        before = list(self._owned.items())
        until = self._clock.steady() + self._lease
        claims = [Claim(self._key("shard", shard), owned.token) for shard, owned in before]
        results = self._store.extend(claims, self._lease) if claims else ()
        for (shard, owned), extended in zip(before, results, strict=True):
            owned.until = until
            if not extended:
                del self._owned[shard]

    def _key(self, kind: str, name: str) -> Key:
        return self._digest([part(kind), part(name)], "")


def _shard_state(record: Record | None, now: int) -> _ShardState:
    if record is None:
        return _ShardState(0, None, free=True)
    memo = None if record.memo is None else record.memo.decode()
    return _ShardState(record.version or 0, memo, free=not running(record, now))
