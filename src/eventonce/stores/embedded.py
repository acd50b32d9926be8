"""The verbs of a store over records that can be read and written under one lock: both embedded stores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from typing import TypeVar

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Claim, Finish, Record, Release, Token, Want
from eventonce.clock import Clock
from eventonce.event.keys import Key

Records = MutableMapping[Key, Record]
Result = TypeVar("Result")


class EmbeddedStore(ABC):
    """A store that applies the claim protocol to its records, one batch at a time and nobody else meanwhile."""

    clock: Clock

    @abstractmethod
    def _change(self, keys: Sequence[Key], act: Callable[[Records], Result]) -> Result:
        """Let a function act on the records of these keys; what it changes is kept unless it raises.

        A function, not a context manager made of a generator: an interrupt could leave one of those suspended
        with the lock held.
        """

    @abstractmethod
    def _read(self, keys: Sequence[Key]) -> Records:
        """The records of these keys, to look at."""

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        def act(records: Records) -> list[Answer]:
            return claim(records, wants, token, lease, self.clock.utc())

        return self._change([want.key for want in wants], act)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        def act(records: Records) -> list[bool]:
            now = self.clock.utc()
            return [
                _keep(records, claim.key, protocol.extend(records.get(claim.key), claim.token, lease, now))
                for claim in claims
            ]

        return self._change([claim.key for claim in claims], act)

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        def act(records: Records) -> list[bool]:
            return commit(records, finishes, self.clock.utc())

        return self._change([finish.key for finish in finishes], act)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        def act(records: Records) -> list[bool]:
            now = self.clock.utc()
            return [_release(records, given, now) for given in releases]

        return self._change([given.key for given in releases], act)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        now, records = self.clock.utc(), self._read(keys)
        return [protocol.live(records.get(key), now) for key in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        def act(records: Records) -> list[bool]:
            now = self.clock.utc()
            known = [protocol.live(records.get(key), now) is not None for key in keys]
            for key in keys:
                records.pop(key, None)
            return known

        return self._change(keys, act)


# What is the same for many keys of a batch is worked out once, and they share one record: most events of a batch are
# new and of one rule. It is a matter of speed and, in memory, of size.


def claim(records: Records, wants: Sequence[Want], token: Token, lease: int, now: int) -> list[Answer]:
    """Apply the protocol to these claims."""
    answers: list[Answer] = []
    new: dict[tuple[object, ...], tuple[Answer, Record | None]] = {}
    for want in wants:
        record = records.get(want.key)
        if record is not None:
            answer, kept = protocol.claim(record, want, token, lease, now)
        else:
            decided = new.get(asked := want[1:])
            if decided is None:
                decided = new[asked] = protocol.claim(None, want, token, lease, now)
            answer, kept = decided
        if kept is not None:
            records[want.key] = kept
        answers.append(answer)
    return answers


def commit(records: Records, finishes: Sequence[Finish], now: int) -> list[bool]:
    """Apply the protocol to these commits."""
    held, asked, kept = None, None, None
    answers = []
    for finish in finishes:
        record = records.get(finish.key)
        if record is not held or finish[1:] != asked:
            held, asked, kept = record, finish[1:], protocol.commit(record, finish, now)
        answers.append(_keep(records, finish.key, kept))
    return answers


def _keep(records: Records, key: Key, kept: Record | None) -> bool:
    if kept is None:
        return False
    records[key] = kept
    return True


def _release(records: Records, given: Release, now: int) -> bool:
    owned, kept = protocol.release(records.get(given.key), given, now)
    if owned and kept is None:
        del records[given.key]
    elif owned and kept is not None:
        records[given.key] = kept
    return owned
