"""The verdict: what the history and the effects of a run say about the promise."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lab.torture.effects import RecordedEffect

Line = Mapping[str, Any]
Owner = tuple[str, str]  # an event and a token


class Lease(NamedTuple):
    """A claim that was won: when that was certain, and the soonest time at which its lease can be over."""

    won: int
    ends: int


class TortureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. `doubled` are events with more than one effect; each is explained, or a violation."""

    store: str
    effects_are: str  # transactional, or plain
    seconds: int
    events: int
    copies: int  # sent
    effects: int
    lost: int
    doubled: int
    fenced: int  # verbs of owners that were none any more
    dead_letters: int
    deaths: int  # of workers
    faults: dict[str, int]
    explained: list[str]
    violations: list[str]


class Checker:
    """Reads a history once, in order of time, and then judges the effects."""

    def __init__(
        self, history: Iterable[Line], keys: Mapping[str, str], dead: Iterable[str], *, one_clock: bool = True
    ) -> None:
        self.violations: list[str] = []
        self.explained: list[str] = []
        self.sent: Counter[str] = Counter()
        self.deaths: dict[int, int] = {}  # pid: when
        self.fenced = 0
        self.kept = set(dead)
        self._event_of = {key: event for event, key in keys.items()}
        self._one_clock = one_clock  # or a lease may end early because somebody's clock is wrong
        self._done: set[str] = set()  # what a worker told the store, or was told by it, to be done
        self._committed: defaultdict[str, dict[str, int]] = defaultdict(dict)  # event, token: when
        self._leases: defaultdict[str, dict[str, Lease]] = defaultdict(dict)  # event, token
        self._released: dict[Owner, int] = {}
        self._troubled: set[Owner] = set()  # whose commit or heartbeat was fenced, or not answered
        for line in history:
            read = {"sent": self._send, "killed": self._kill, "ack": self._ack, "claim": self._claim}
            read |= {"extend": self._extend, "commit": self._commit, "release": self._release, "gives": self._give}
            if line["what"] in read:
                read[line["what"]](line)

    # --- what a line tells ---

    def _send(self, line: Line) -> None:
        self.sent.update(line["events"])

    def _kill(self, line: Line) -> None:
        self.deaths[line["worker"]] = line["at"]

    def _ack(self, line: Line) -> None:
        wrong = [event for event in line["events"] if event not in self._done and event not in self.kept]
        self.violations += [f"{event} was acked, and it was neither done nor kept" for event in wrong]

    def _claim(self, line: Line) -> None:
        for event, token, answer in self._each(line):
            if answer == "Done":
                self._done.add(event)
            elif answer == "Won":
                self._won(event, token, line)

    def _won(self, event: str, token: str, line: Line) -> None:
        """A call takes effect somewhere between its beginning and its end: only what no such time allows is wrong."""
        others = [lease for other, lease in self._leases[event].items() if other != token]
        if self._one_clock and any(lease.won < line["began"] and lease.ends > line["at"] for lease in others):
            self.violations.append(f"{event} was won while the lease of another lasted")
        if any(done < line["began"] for done in self._committed[event].values()):
            self.violations.append(f"{event} was won after it was done")
        self._leases[event][token] = Lease(line["at"], _ends(line))

    def _extend(self, line: Line) -> None:
        for event, token, answer in self._each(line):
            if answer != "True":
                self._trouble(event, token, answer)
            elif lease := self._leases[event].get(token):  # else it was given back while the answer was on its way
                self._leases[event][token] = Lease(lease.won, max(lease.ends, _ends(line)))

    def _commit(self, line: Line) -> None:
        for event, token, answer in self._each(line):
            self._leases[event].pop(token, None)
            if answer != "True":
                self._trouble(event, token, answer)
                continue
            self._done.add(event)
            self._committed[event].setdefault(token, line["at"])
            if len(self._committed[event]) > 1:
                self.violations.append(f"{event} was committed by two owners")

    def _give(self, line: Line) -> None:
        """About to be given back: from now on it may be free, whether or not its owner lives to hear the answer."""
        for key, token in line["owners"]:
            self._leases[self._event_of[key]].pop(token, None)

    def _release(self, line: Line) -> None:
        for event, token, answer in self._each(line):
            self.fenced += answer == "False"
            if answer == "True":
                self._released[event, token] = line["at"]

    def _trouble(self, event: str, token: str, answer: str | None) -> None:
        self.fenced += answer == "False"
        self._troubled.add((event, token))

    def _each(self, line: Line) -> Iterable[tuple[str, str, str | None]]:
        answers = line["answers"] or [None] * len(line["owners"])
        for (key, token), answer in zip(line["owners"], answers, strict=True):
            yield self._event_of[key], token, answer

    # --- what the effects tell ---

    def judge(self, effects: Sequence[RecordedEffect], *, transactional: bool) -> tuple[list[str], list[str]]:
        """Which events were lost, and which took effect twice; what the promise does not allow is a violation."""
        found: defaultdict[str, list[RecordedEffect]] = defaultdict(list)
        for effect in effects:
            found[effect.event].append(effect)
            if self._released.get((effect.event, effect.token), 0) > effect.at and not transactional:
                self.violations.append(f"{effect.event} was given back after its effect")
        lost = [event for event in self.sent if event not in found and event not in self.kept]
        doubled = [event for event, several in found.items() if len(several) > 1]
        self.violations += [f"{event} was lost" for event in lost]
        for event in doubled:
            self._judge(event, found[event], transactional=transactional)
        return lost, doubled

    def _judge(self, event: str, several: Sequence[RecordedEffect], *, transactional: bool) -> None:
        if transactional:
            self.violations.append(f"{event} took effect {len(several)} times in transactions")
            return
        reasons = [self._reason(effect) for effect in several if effect.token not in self._committed[event]]
        if len(reasons) < len(several) - 1 or not all(reasons):
            self.violations.append(f"{event} took effect {len(several)} times, and nothing explains it")
        else:
            self.explained.append(f"{event} took effect {len(several)} times: {'; '.join(map(str, reasons))}")

    def _reason(self, effect: RecordedEffect) -> str | None:
        """Why an effect was not recorded, so that another was allowed."""
        if self.deaths.get(effect.pid, 0) > effect.at:
            return "a worker was killed between the effect and its commit"
        if (effect.event, effect.token) in self._troubled:
            return "a worker lost its lease or the store's answer between the effect and its commit"
        return None


def _ends(line: Line) -> int:
    ends: int = line["began"] + 1000 * line["lease"]
    return ends
