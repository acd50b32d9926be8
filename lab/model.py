"""The claim protocol as a small model of its own, which follows each call of a store as it takes effect.

It has no records or notes. Of each key it has the owner with the end of the lease in true time, and the version that is
done with the end of its window. An answer that this does not allow is a violation, as is a run without a lease or a
commit before its effect.

    free --- Won ---> owned --- commit ---> done --- window expires ---> free
                      owned --- release, or the lease expires ---> free
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from eventonce.claims.protocol import Answer, Busy, Claim, ClaimRequest, Commit, Done, Release, Stale, Token, Won
from eventonce.event.keys import Key

_SOON = 1000  # milliseconds within which an effect is committed
Owner = tuple[Key, Token]


class Owned:
    """A claim that was won: by whom, for what, and until when in true time."""

    def __init__(self, token: Token, want: ClaimRequest, until: int) -> None:
        self.token = token
        self.want = want
        self.until = until


class EndedClaim(NamedTuple):
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
    """What must be true of each key, and every violation of it."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.effects: list[SimulatedEffect] = []
        self.fenced = 0
        self.overtaken: set[Owner] = set()  # claims whose lease had expired when another was won
        self.slow: set[Owner] = set()  # claims whose effect was committed late
        self.ran_out: set[Owner] = set()  # commits whose window had expired when the key was won again
        self._ends: list[tuple[Key, int, int]] = []  # each key done, its version or 0, after how many effects
        self._done: dict[Key, EndedClaim] = {}
        self._owned: dict[Key, Owned] = {}
        self._last: dict[Key, Token] = {}  # of the owner that won it last
        self._released: set[Owner] = set()
        self._committed: set[Owner] = set()
        self._returned: dict[Owner, int] = {}  # the time at which its handler returned
        self._died: set[Owner] = set()
        self._suspect: set[Owner] = set()  # claims of several keys that overtook another's
        self._blamed: defaultdict[Key, set[Token]] = defaultdict(set)  # attempts that count against its event

    # --- what a store did ---

    def claimed(
        self, wants: Sequence[ClaimRequest], token: Token, lease: int, answers: Sequence[Answer], now: int
    ) -> None:
        for want, answer in zip(wants, answers, strict=True):
            self._claimed(want, token, answer, now)
            if isinstance(answer, Won):
                self._won(want, token, now)
                self._owned[want.key] = Owned(token, want, now + lease)
            elif isinstance(answer, Done) and want.refresh and want.key in self._done:
                ended = self._done[want.key]
                self._done[want.key] = ended._replace(until=max(ended.until, now + want.window))

    def extended(self, claims: Sequence[Claim], lease: int, answers: Sequence[bool], now: int) -> None:
        for claim, accepted in zip(claims, answers, strict=True):
            owned = self._owner(claim)
            self._fence("extend", claim.key, accepted, owned is not None)
            if owned is not None:
                owned.until = now + lease

    def committed(self, finishes: Sequence[Commit], answers: Sequence[bool], now: int) -> None:
        for finish, accepted in zip(finishes, answers, strict=True):
            ended, last = self._done.get(finish.key), self._last.get(finish.key)
            repeated = ended is not None and ended.token == finish.token == last and ended.until > now
            self._fence("commit", finish.key, accepted, repeated or self._owner(finish) is not None)
            if accepted and not repeated:
                self._commit(finish, now)

    def released(self, releases: Sequence[Release], answers: Sequence[bool]) -> None:
        for release, accepted in zip(releases, answers, strict=True):
            if (release.key, release.token) in self._released:  # repeated: either answer is right
                continue
            self._fence("release", release.key, accepted, self._owner(release) is not None)
            if accepted:
                self._release(release)

    # --- what happened elsewhere ---

    def started(self, claim: Claim, now: int) -> None:
        """Note that a handler starts to run under this claim."""
        owned = self._owner(claim)
        if owned is None or owned.until <= now:
            self._violated(claim.key, "was run by a worker whose lease had expired")
        if (claim.key, claim.token) in self._suspect:
            self._violated(claim.key, "was run together with others though its last owner did not come back")

    def took_effect(self, event: str, keys: Sequence[Key], token: Token, now: int) -> None:
        self.effects.append(SimulatedEffect(event, keys, token, now))

    def returned(self, keys: Sequence[Key], token: Token, now: int) -> None:
        """Note that a handler returned, so that its effect can be committed."""
        self._returned.update({(key, token): now for key in keys})

    def failed(self, claim: Claim) -> None:
        """Note that a handler raised."""
        self._blamed[claim.key].add(claim.token)

    def died(self, tokens: set[Token]) -> None:
        """Note that these owners died. What they did not commit may be done again."""
        owners = {(key, each.token) for each in self.effects for key in each.keys if each.token in tokens}
        self._died |= owners - self._committed

    def done_after(self, keys: Collection[Key], version: int | None) -> int | None:
        """Return after how many effects one of these keys was first done in this version or a higher one, if ever."""
        return next((count for key, done, count in self._ends if key in keys and done >= (version or 0)), None)

    def attempts(self, keys: Collection[Key]) -> int:
        """Return how many attempts count against an event with these keys."""
        return len(set().union(*(self._blamed[key] for key in keys)))

    def explains(self, effect: SimulatedEffect) -> bool:
        """Return whether the promise allows a second one: its owner died or lost its lease before the commit."""
        owners = {(key, effect.token) for key in effect.keys}
        running = any(self._owned[key].token == effect.token for key in effect.keys if key in self._owned)
        lost = bool(owners & (self.overtaken | self._died) - self._committed)
        return running or lost or self.window_expired(effect)

    def window_expired(self, effect: SimulatedEffect) -> bool:
        """Return whether it was remembered for all of its window."""
        return any((key, effect.token) in self.ran_out for key in effect.keys)

    # --- the rules ---

    def _claimed(self, want: ClaimRequest, token: Token, answer: Answer, now: int) -> None:
        owned, ended = self._owned.get(want.key), self._done.get(want.key)
        own = owned is not None and owned.token == token
        live = owned is not None and not own and owned.until > now
        expected = _answer(ended, want.version) if ended is not None and ended.until > now else None
        if isinstance(answer, Done | Stale) and type(answer) is not expected:
            self._violated(want.key, f"was answered {type(answer).__name__.lower()}, and it was not")
        elif isinstance(answer, Busy) and not live:
            self._violated(want.key, "was answered busy, and nobody else owned it")
        elif isinstance(answer, Won) and (live or (expected is not None and not own)):
            self._violated(want.key, "was won while " + ("another owned it" if live else "it was done"))

    def _won(self, want: ClaimRequest, token: Token, now: int) -> None:
        key, owned, ended = want.key, self._owned.get(want.key), self._done.get(want.key)
        if owned is not None and owned.token != token:
            self.overtaken.add((key, owned.token))
            self._blamed[key] |= set() if owned.want.shared else {owned.token}
            newer = want.version is not None and want.version > (owned.want.version or 0)
            self._suspect |= {(key, token)} if want.shared and not newer else set()
        elif owned is not None:  # repeated, and the second answer shows nothing of the owners before
            self._suspect.discard((key, token))
        if ended is not None and ended.until <= now:
            self.ran_out |= {owner for owner in self._committed if owner[0] == key}
        self._last[key] = token

    def _commit(self, finish: Commit, now: int) -> None:
        key, token = owner = finish.key, finish.token
        if not self._effects_of(owner):
            self._violated(key, "was marked done before its effect")
        if now - self._returned.get(owner, now) > _SOON:
            self.slow.add(owner)
        self._done[key] = EndedClaim(token, finish.version, now + finish.window)
        self._ends.append((key, finish.version or 0, len(self.effects)))
        self._committed.add(owner)
        self._owned.pop(key, None)

    def _effects_of(self, owner: Owner) -> list[SimulatedEffect]:
        return [each for each in self.effects if owner[0] in each.keys and owner[1] == each.token]

    def _owner(self, request: Claim | Commit | Release) -> Owned | None:
        owned = self._owned.get(request.key)
        return owned if owned is not None and owned.token == request.token else None

    def _fence(self, verb: str, key: Key, accepted: bool, owned: bool) -> None:
        if accepted and not owned:
            self._violated(key, f"let a stale owner {verb}")
        elif owned and not accepted:
            self._violated(key, f"fenced its owner's {verb}")
        self.fenced += not accepted

    def _release(self, release: Release) -> None:
        owner = release.key, release.token
        keys = {key for each in self._effects_of(owner) for key in each.keys}
        if keys and not any((key, release.token) in self._committed for key in keys):
            self._violated(release.key, "was released after its effect")
        self._released.add(owner)
        if self._owner(release):
            del self._owned[release.key]

    def _violated(self, key: Key, text: str) -> None:
        self.violations.append(f"key {key.hex()[:6]} {text}")


def _answer(ended: EndedClaim, version: int | None) -> type[Done] | type[Stale] | None:
    """Return the answer to a claim while this is remembered, or None if it may be won."""
    if version is None or ended.version is None or version == ended.version:
        return Done
    return Stale if version < ended.version else None
