"""The claim protocol as a small model of its own: it is told each call of a store as it took effect, and the answer.

It knows nothing of records, attempts or notes. Of each key it knows who owns it and until when in true time, and
whether it is done; an answer that this does not allow is a violation, as is a commit before its effect.

    free --- Won ---> owned --- commit ---> done          owned --- release, or the lease is over ---> free
"""

from collections import Counter
from collections.abc import Sequence

from eventonce.claim import Answer, Busy, Claim, Done, Finish, Release, Token, Want, Won
from eventonce.key import Key


class Owned:
    """A claim that was won: by whom, and until when in true time."""

    def __init__(self, token: Token, until: int) -> None:
        self.token = token
        self.until = until


class Model:
    """What must be true of each key, and everything that was not."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.done: dict[Key, Token] = {}
        self.effects: list[tuple[Key, Token]] = []
        self.fenced = 0
        self.won: Counter[Key] = Counter()
        self._owned: dict[Key, Owned] = {}
        self._released: set[tuple[Key, Token]] = set()
        self._overtaken: set[tuple[Key, Token]] = set()  # claims whose lease was over when another was won

    # --- what a store did ---

    def claimed(self, wants: Sequence[Want], token: Token, lease: int, answers: Sequence[Answer], now: int) -> None:
        for want, answer in zip(wants, answers, strict=True):
            self._claimed(want.key, token, answer, now)
            if isinstance(answer, Won):
                self.won[want.key] += 1
                self._owned[want.key] = Owned(token, now + lease)

    def extended(self, claims: Sequence[Claim], lease: int, answers: Sequence[bool], now: int) -> None:
        for claim, held in zip(claims, answers, strict=True):
            owned = self._fence("extend", claim.key, claim.token, held, self._owns(claim.key, claim.token))
            if owned is not None:
                owned.until = now + lease

    def committed(self, finishes: Sequence[Finish], answers: Sequence[bool]) -> None:
        for finish, held in zip(finishes, answers, strict=True):
            again = self.done.get(finish.key) == finish.token
            self._fence("commit", finish.key, finish.token, held, again or self._owns(finish.key, finish.token))
            if not held:
                continue
            if (finish.key, finish.token) not in self.effects:
                self._wrong(finish.key, "was marked done before its effect")
            self.done[finish.key] = finish.token
            self._owned.pop(finish.key, None)

    def released(self, releases: Sequence[Release], answers: Sequence[bool]) -> None:
        for given, held in zip(releases, answers, strict=True):
            again = (given.key, given.token) in self._released
            if not again:
                self._fence("release", given.key, given.token, held, self._owns(given.key, given.token))
            if held and not again:
                self._given_back(given.key, given.token)

    # --- what happened elsewhere ---

    def took_effect(self, key: Key, token: Token) -> None:
        self.effects.append((key, token))

    def died(self, token_of_process: set[Token]) -> None:
        """These owners are gone; what they did and did not commit may be done again."""
        self._overtaken |= {(key, token) for key, token in self.effects if token in token_of_process}

    def explains(self, key: Key, token: Token) -> bool:
        """Whether the promise allows that this effect was not the only one: its owner died or lost its lease."""
        owned = self._owned.get(key)
        return (key, token) in self._overtaken or (owned is not None and owned.token == token)

    def _claimed(self, key: Key, token: Token, answer: Answer, now: int) -> None:
        owned = self._owned.get(key)
        other = owned is not None and owned.token != token
        live = other and owned is not None and owned.until > now
        if isinstance(answer, Done) and key not in self.done:
            self._wrong(key, "was said to be done, and nobody did it")
        elif isinstance(answer, Busy) and not live:
            self._wrong(key, "was said to be busy, and nobody owned it")
        elif isinstance(answer, Won) and (live or key in self.done):
            self._wrong(key, "was won while " + ("another owned it" if live else "it was done"))
        elif isinstance(answer, Won) and other and owned is not None:
            self._overtaken.add((key, owned.token))

    def _owns(self, key: Key, token: Token) -> Owned | None:
        owned = self._owned.get(key)
        return owned if owned is not None and owned.token == token else None

    def _fence(self, verb: str, key: Key, token: Token, held: bool, owned: "Owned | bool | None") -> Owned | None:
        if held and not owned:
            self._wrong(key, f"let a stale owner {verb}")
        elif owned and not held:
            self._wrong(key, f"fenced its owner's {verb}")
        self.fenced += not held
        return owned if isinstance(owned, Owned) else None

    def _given_back(self, key: Key, token: Token) -> None:
        if (key, token) in self.effects:
            self._wrong(key, "was given back after its effect")
        self._released.add((key, token))
        if self._owns(key, token):
            del self._owned[key]

    def _wrong(self, key: Key, what: str) -> None:
        self.violations.append(f"key {key.hex()[:6]} {what}")
