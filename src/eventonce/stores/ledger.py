"""The verbs of a store over records that can be read and written under one lock: both embedded stores."""

from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager

from eventonce import claim as protocol
from eventonce.claim import Answer, Claim, Finish, Record, Release, Token, Want
from eventonce.clock import Clock
from eventonce.key import Key

Records = MutableMapping[Key, Record]


class Ledger(ABC):
    """A store that applies the claim protocol to its records, one batch at a time and nobody else meanwhile."""

    clock: Clock

    @abstractmethod
    def _change(self, keys: Sequence[Key]) -> AbstractContextManager[Records]:
        """The records of these keys; what is changed in them is kept when the block ends without an error."""

    @abstractmethod
    def _read(self, keys: Sequence[Key]) -> Records:
        """The records of these keys, to look at."""

    def claim(self, wants: Sequence[Want], token: Token, lease: int) -> list[Answer]:
        answers: list[Answer] = []
        with self._change([want.key for want in wants]) as records:
            now = self.clock.utc()
            for want in wants:
                answer, kept = protocol.claim(records.get(want.key), want, token, lease, now)
                if kept is not None:
                    records[want.key] = kept
                answers.append(answer)
        return answers

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        with self._change([claim.key for claim in claims]) as records:
            now = self.clock.utc()
            return [
                self._keep(records, claim.key, protocol.extend(records.get(claim.key), claim.token, lease, now))
                for claim in claims
            ]

    def commit(self, finishes: Sequence[Finish]) -> list[bool]:
        with self._change([finish.key for finish in finishes]) as records:
            now = self.clock.utc()
            return [
                self._keep(records, finish.key, protocol.commit(records.get(finish.key), finish, now))
                for finish in finishes
            ]

    def release(self, releases: Sequence[Release]) -> list[bool]:
        with self._change([given.key for given in releases]) as records:
            now = self.clock.utc()
            return [self._release(records, given, now) for given in releases]

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        now, records = self.clock.utc(), self._read(keys)
        return [protocol.live(records.get(key), now) for key in keys]

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        with self._change(keys) as records:
            now = self.clock.utc()
            known = [protocol.live(records.get(key), now) is not None for key in keys]
            for key in keys:
                records.pop(key, None)
            return known

    @staticmethod
    def _keep(records: Records, key: Key, kept: Record | None) -> bool:
        if kept is None:
            return False
        records[key] = kept
        return True

    @staticmethod
    def _release(records: Records, given: Release, now: int) -> bool:
        owned, kept = protocol.release(records.get(given.key), given, now)
        if not owned:
            return False
        if kept is None:
            del records[given.key]
        else:
            records[given.key] = kept
        return True
