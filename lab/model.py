"""The claim protocol as a small model of its own: it is told each call of a store as it took effect, and the answer.

It knows nothing of records or notes. Of each key it knows who owns it and until when in true time, and which version is
done until when; an answer that this does not allow is a violation, as is a run without a lease or a commit before its
effect.

    free --- Won ---> owned --- commit ---> done --- window over ---> free
                      owned --- release, or the lease is over ---> free
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from eventonce.claims.protocol import Answer, Busy, Claim, Done, Finish, Release, Stale, Token, Want, Won
from eventonce.event.keys import Key

_SOON = 1000  # milliseconds in which an effect is committed
Owner = tuple[Key, Token]


class Owned:
    """A claim that was won: by whom, for what, and until when in true time."""

    def __init__(self, token: Token, want: Want, until: int) -> None:
        self.token = token
        self.want = want
        self.until = until


class Ended(NamedTuple):
    """A key that is done: by whom, in which version, and until when that is remembered."""

    token: Token
    version: int | None
    until: int


class SimulatedEffect(NamedTuple):
    """An effect of an event, under the claim of its keys."""

    event: str
    keys: Sequence[Key]
    token: Token
    at: int


class Model:
    """What must be true of each key, and everything that was not."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.effects: list[SimulatedEffect] = []
        self.fenced = 0
        self.overtaken: set[Owner] = set()  # claims whose lease was over when another was won
        self.slow: set[Owner] = set()  # whose effect was committed late
        self.ran_out: set[Owner] = set()  # commits whose window was over when the key was won again
        self._ends: list[tuple[Key, int, int]] = []  # each key done, its version or 0, after how many effects
        self._done: dict[Key, Ended] = {}
        self._owned: dict[Key, Owned] = {}
        self._last: dict[Key, Token] = {}  # who won it last
        self._released: set[Owner] = set()
        self._committed: set[Owner] = set()
        self._returned: dict[Owner, int] = {}  # when its handler did
        self._died: set[Owner] = set()
        self._suspect: set[Owner] = set()  # claims of several keys that overtook another's
        self._blamed: defaultdict[Key, set[Token]] = defaultdict(set)  # attempts that count against its event

    # --- what a store did ---

    def claimed(self, wants: Sequence[Want], token: Token, lease: int, answers: Sequence[Answer], now: int) -> None:
        for want, answer in zip(wants, answers, strict=True):
            self._claimed(want, token, answer, now)
            if isinstance(answer, Won):
                self._won(want, token, now)
                self._owned[want.key] = Owned(token, want, now + lease)
            elif isinstance(answer, Done) and want.refresh and want.key in self._done:
                ended = self._done[want.key]
                self._done[want.key] = ended._replace(until=max(ended.until, now + want.window))

    def extended(self, claims: Sequence[Claim], lease: int, answers: Sequence[bool], now: int) -> None:
        for claim, held in zip(claims, answers, strict=True):
            owned = self._owner(claim)
            self._fence("extend", claim.key, held, owned is not None)
            if owned is not None:
                owned.until = now + lease

    def committed(self, finishes: Sequence[Finish], answers: Sequence[bool], now: int) -> None:
        for finish, held in zip(finishes, answers, strict=True):
            ended = self._done.get(finish.key)
            again = ended is not None and ended.token == finish.token == self._last[finish.key] and ended.until > now
            self._fence("commit", finish.key, held, again or self._owner(finish) is not None)
            if held and not again:
                self._committed_now(finish, now)

    def released(self, releases: Sequence[Release], answers: Sequence[bool]) -> None:
        for given, held in zip(releases, answers, strict=True):
            if (given.key, given.token) in self._released:  # said again: either answer will do
                continue
            self._fence("release", given.key, held, self._owner(given) is not None)
            if held:
                self._given_back(given)

    # --- what happened elsewhere ---

    def began(self, claim: Claim, now: int) -> None:
        """A handler begins to run under this claim."""
        owned = self._owner(claim)
        if owned is None or owned.until <= now:
            self._wrong(claim.key, "was run by a worker whose lease was over")
        if (claim.key, claim.token) in self._suspect:
            self._wrong(claim.key, "was run together with others though its last owner did not come back")

    def took_effect(self, event: str, keys: Sequence[Key], token: Token, now: int) -> None:
        self.effects.append(SimulatedEffect(event, keys, token, now))

    def returned(self, keys: Sequence[Key], token: Token, now: int) -> None:
        """A handler returned, so that its effect can be committed."""
        self._returned.update({(key, token): now for key in keys})

    def failed(self, claim: Claim) -> None:
        """A handler raised."""
        self._blamed[claim.key].add(claim.token)

    def died(self, tokens: set[Token]) -> None:
        """These owners are gone; what they did not commit may be done again."""
        gone = {(key, each.token) for each in self.effects for key in each.keys if each.token in tokens}
        self._died |= gone - self._committed

    def done_after(self, keys: Collection[Key], version: int | None) -> int | None:
        """After how many effects one of these was first done in this version or a higher one, if ever."""
        return next((at for key, done, at in self._ends if key in keys and done >= (version or 0)), None)

    def attempts(self, keys: Collection[Key]) -> int:
        """How many attempts count against an event with these keys."""
        return len(set().union(*(self._blamed[key] for key in keys)))

    def explains(self, effect: SimulatedEffect) -> bool:
        """Whether the promise allows another one beside it: its owner died or lost its lease before the commit."""
        owners = {(key, effect.token) for key in effect.keys}
        running = any(self._owned[key].token == effect.token for key in effect.keys if key in self._owned)
        return running or bool(owners & (self.overtaken | self._died) - self._committed) or self.over(effect)

    def over(self, effect: SimulatedEffect) -> bool:
        """Whether it was remembered for all of its window."""
        return any((key, effect.token) in self.ran_out for key in effect.keys)

    # --- the rules ---

    def _claimed(self, want: Want, token: Token, answer: Answer, now: int) -> None:
        owned, ended = self._owned.get(want.key), self._done.get(want.key)
        own = owned is not None and owned.token == token
        live = owned is not None and not own and owned.until > now
        seen = _seen(ended, want.version) if ended is not None and ended.until > now else None
        if isinstance(answer, Done | Stale) and type(answer) is not seen:
            self._wrong(want.key, f"was said to be {type(answer).__name__.lower()}, and it was not")
        elif isinstance(answer, Busy) and not live:
            self._wrong(want.key, "was said to be busy, and nobody else owned it")
        elif isinstance(answer, Won) and (live or (seen is not None and not own)):
            self._wrong(want.key, "was won while " + ("another owned it" if live else "it was done"))

    def _won(self, want: Want, token: Token, now: int) -> None:
        key, owned, ended = want.key, self._owned.get(want.key), self._done.get(want.key)
        if owned is not None and owned.token != token:
            self.overtaken.add((key, owned.token))
            self._blamed[key] |= set() if owned.want.shared else {owned.token}
            newer = want.version is not None and want.version > (owned.want.version or 0)
            self._suspect |= {(key, token)} if want.shared and not newer else set()
        elif owned is not None:  # asked again, and the second answer does not tell of those before
            self._suspect.discard((key, token))
        if ended is not None and ended.until <= now:
            self.ran_out |= {owner for owner in self._committed if owner[0] == key}
        self._last[key] = token

    def _committed_now(self, finish: Finish, now: int) -> None:
        key, token = owner = finish.key, finish.token
        if not self._effects_of(owner):
            self._wrong(key, "was marked done before its effect")
        if now - self._returned.get(owner, now) > _SOON:
            self.slow.add(owner)
        self._done[key] = Ended(token, finish.version, now + finish.window)
        self._ends.append((key, finish.version or 0, len(self.effects)))
        self._committed.add(owner)
        self._owned.pop(key, None)

    def _effects_of(self, owner: Owner) -> list[SimulatedEffect]:
        return [each for each in self.effects if owner[0] in each.keys and owner[1] == each.token]

    def _owner(self, asks: Claim | Finish | Release) -> Owned | None:
        owned = self._owned.get(asks.key)
        return owned if owned is not None and owned.token == asks.token else None

    def _fence(self, verb: str, key: Key, held: bool, owned: bool) -> None:
        if held and not owned:
            self._wrong(key, f"let a stale owner {verb}")
        elif owned and not held:
            self._wrong(key, f"fenced its owner's {verb}")
        self.fenced += not held

    def _given_back(self, given: Release) -> None:
        keys = {key for each in self._effects_of((given.key, given.token)) for key in each.keys}
        if keys and not any((key, given.token) in self._committed for key in keys):
            self._wrong(given.key, "was given back after its effect")
        self._released.add((given.key, given.token))
        if self._owner(given):
            del self._owned[given.key]

    def _wrong(self, key: Key, what: str) -> None:
        self.violations.append(f"key {key.hex()[:6]} {what}")


def _seen(ended: Ended, version: int | None) -> type[Done] | type[Stale] | None:
    """What a claim is answered while this is remembered; None where it may be won."""
    if version is None or ended.version is None or version == ended.version:
        return Done
    return Stale if version < ended.version else None
