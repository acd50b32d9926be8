"""The verbs of a store whose records can be read and written under one lock: memory, journal and SQLite.

They apply the functions of `claims/protocol.py` to one record after the other. SQLite answers most batches without
them, by the statements in `sqlite_rows.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from typing import TypeVar

from eventonce.claims import protocol
from eventonce.claims.protocol import Answer, Claim, ClaimRequest, Commit, Record, Release, Token
from eventonce.clock import Clock
from eventonce.event.keys import Key

Records = MutableMapping[Key, Record]
Result = TypeVar("Result")


class EmbeddedStore(ABC):
    """A store that applies the claim protocol to its records, to one batch at a time."""

    clock: Clock

    @abstractmethod
    def _change(self, keys: Sequence[Key], operation: Callable[[Records], Result]) -> Result:
        """Call a function with the records of these keys, and keep its changes unless it raises.

        This is not a context manager made of a generator, because an interrupt could leave one of those suspended
        with the lock held.
        """

    @abstractmethod
    def _read(self, keys: Sequence[Key]) -> Records:
        """Return the records of these keys, for reading only."""

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        def operation(records: Records) -> list[Answer]:
            return claim(records, wants, token, lease, self.clock.utc())

        return self._change([want.key for want in wants], operation)

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        def operation(records: Records) -> list[bool]:
            now = self.clock.utc()
            return [
                _update(records, claim.key, protocol.extend(records.get(claim.key), claim.token, lease, now))
                for claim in claims
            ]

        return self._change([claim.key for claim in claims], operation)

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        def operation(records: Records) -> list[bool]:
            return commit(records, finishes, self.clock.utc())

        return self._change([finish.key for finish in finishes], operation)

    def release(self, releases: Sequence[Release]) -> list[bool]:
        def operation(records: Records) -> list[bool]:
            now = self.clock.utc()
            return [_release(records, release, now) for release in releases]

        return self._change([release.key for release in releases], operation)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        now, records = self.clock.utc(), self._read(keys)
        return [protocol.live(records.get(key), now) for key in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        def operation(records: Records) -> list[bool]:
            now = self.clock.utc()
            existed = [protocol.live(records.get(key), now) is not None for key in keys]
            for key in keys:
                records.pop(key, None)
            return existed

        return self._change(keys, operation)


# Most events of a batch are new and have one rule. So a record is computed once for all keys with the same terms, and
# they share it. That saves time and, in memory, space.


def claim(records: Records, wants: Sequence[ClaimRequest], token: Token, lease: int, now: int) -> list[Answer]:
    """Apply the protocol to these claims."""
    answers: list[Answer] = []
    by_terms: dict[tuple[object, ...], tuple[Answer, Record | None]] = {}
    for want in wants:
        record = records.get(want.key)
        if record is not None:
            answer, updated = protocol.claim(record, want, token, lease, now)
        else:
            first_claim = by_terms.get(terms := want[1:])
            if first_claim is None:
                first_claim = by_terms[terms] = protocol.claim(None, want, token, lease, now)
            answer, updated = first_claim
        if updated is not None:
            records[want.key] = updated
        answers.append(answer)
    return answers


def commit(records: Records, finishes: Sequence[Commit], now: int) -> list[bool]:
    """Apply the protocol to these commits."""
    last_record, last_terms, updated = None, None, None
    answers = []
    for finish in finishes:
        record = records.get(finish.key)
        if record is not last_record or finish[1:] != last_terms:
            last_record, last_terms, updated = record, finish[1:], protocol.commit(record, finish, now)
        answers.append(_update(records, finish.key, updated))
    return answers


def _update(records: Records, key: Key, updated: Record | None) -> bool:
    if updated is None:
        return False
    records[key] = updated
    return True


def _release(records: Records, release: Release, now: int) -> bool:
    owned, updated = protocol.release(records.get(release.key), release, now)
    if owned and updated is None:
        del records[release.key]
    elif owned and updated is not None:
        records[release.key] = updated
    return owned
