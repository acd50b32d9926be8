"""The report: what the history and the effects of a run show about the promise."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lab.torture.effects import RecordedEffect

Line = Mapping[str, Any]
Owner = tuple[str, str]  # an event and a token


class Lease(NamedTuple):
    """A claim that was won: when that was certain, and the soonest time at which its lease can expire."""

    won: int
    ends: int


class TortureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. `doubled` counts events with more than one effect. Each is explained, or a violation."""

    store: str
    effects_are: str  # transactional, or plain
    seconds: int
    events: int
    copies: int  # sent
    effects: int
    lost: int
    doubled: int
    fenced: int  # verbs of former owners
    dead_letters: int
    deaths: int  # of workers
    faults: dict[str, int]
    explained: list[str]
    violations: list[str]


class Checker:
    """Reads a history once, in order of time, and then checks the effects."""

    def __init__(
        self, history: Iterable[Line], keys: Mapping[str, str], dead: Iterable[str], *, one_clock: bool = True
    ) -> None:
        self.violations: list[str] = []
        self.explained: list[str] = []
        self.sent: Counter[str] = Counter()
        self.deaths: dict[int, int] = {}  # pid: time
        self.fenced = 0
        self.dead_letters = set(dead)
        self._event_of = {key: event for event, key in keys.items()}
        self._one_clock = one_clock  # otherwise a lease may end early because a worker's clock is wrong
        self._done: set[str] = set()  # by a commit, or by the answer to a claim
        self._committed: defaultdict[str, dict[str, int]] = defaultdict(dict)  # event, token: time
        self._leases: defaultdict[str, dict[str, Lease]] = defaultdict(dict)  # event, token
        self._released: dict[Owner, int] = {}
        self._troubled: set[Owner] = set()  # whose commit or heartbeat was fenced, or not answered
        for line in history:
            readers = {"sent": self._send, "killed": self._kill, "ack": self._ack, "claim": self._claim}
            readers |= {"extend": self._extend, "commit": self._commit, "release": self._release, "gives": self._give}
            if line["what"] in readers:
                readers[line["what"]](line)

    # --- what a line shows ---

    def _send(self, line: Line) -> None:
        self.sent.update(line["events"])

    def _kill(self, line: Line) -> None:
        self.deaths[line["worker"]] = line["at"]

    def _ack(self, line: Line) -> None:
        lost = [event for event in line["events"] if event not in self._done and event not in self.dead_letters]
        self.violations += [f"{event} was acked, and it was neither done nor kept" for event in lost]

    def _claim(self, line: Line) -> None:
        for event, token, answer in self._each(line):
            if answer == "Done":
                self._done.add(event)
            elif answer == "Won":
                self._won(event, token, line)

    def _won(self, event: str, token: str, line: Line) -> None:
        """Check a claim that was won. It took effect at some time between the start and the end of the call."""
        others = [lease for other, lease in self._leases[event].items() if other != token]
        if self._one_clock and any(lease.won < line["began"] and lease.ends > line["at"] for lease in others):
            self.violations.append(f"{event} was won while the lease of another lasted")
        if any(done < line["began"] for done in self._committed[event].values()):
            self.violations.append(f"{event} was won after it was done")
        self._leases[event][token] = Lease(line["at"], _ends(line))

    def _extend(self, line: Line) -> None:
        for event, token, answer in self._each(line):
            if answer != "True":
                self._note_trouble(event, token, answer)
            elif lease := self._leases[event].get(token):  # else it was released while the answer was on its way
                self._leases[event][token] = Lease(lease.won, max(lease.ends, _ends(line)))

    def _commit(self, line: Line) -> None:
        for event, token, answer in self._each(line):
            self._leases[event].pop(token, None)
            if answer != "True":
                self._note_trouble(event, token, answer)
                continue
            self._done.add(event)
            self._committed[event].setdefault(token, line["at"])
            if len(self._committed[event]) > 1:
                self.violations.append(f"{event} was committed by two owners")

    def _give(self, line: Line) -> None:
        """Note a release that is about to be sent. The key may be free from now on, even if its owner dies."""
        for key, token in line["owners"]:
            self._leases[self._event_of[key]].pop(token, None)

    def _release(self, line: Line) -> None:
        for event, token, answer in self._each(line):
            self.fenced += answer == "False"
            if answer == "True":
                self._released[event, token] = line["at"]

    def _note_trouble(self, event: str, token: str, answer: str | None) -> None:
        self.fenced += answer == "False"
        self._troubled.add((event, token))

    def _each(self, line: Line) -> Iterable[tuple[str, str, str | None]]:
        answers = line["answers"] or [None] * len(line["owners"])
        for (key, token), answer in zip(line["owners"], answers, strict=True):
            yield self._event_of[key], token, answer

    # --- what the effects show ---

    def judge(self, effects: Sequence[RecordedEffect], *, transactional: bool) -> tuple[list[str], list[str]]:
        """Return the events that were lost, and those that took effect twice. Note what the promise does not allow."""
        by_event: defaultdict[str, list[RecordedEffect]] = defaultdict(list)
        for effect in effects:
            by_event[effect.event].append(effect)
            if self._released.get((effect.event, effect.token), 0) > effect.at and not transactional:
                self.violations.append(f"{effect.event} was released after its effect")
        lost = [event for event in self.sent if event not in by_event and event not in self.dead_letters]
        doubled = [event for event, several in by_event.items() if len(several) > 1]
        self.violations += [f"{event} was lost" for event in lost]
        for event in doubled:
            self._judge(event, by_event[event], transactional=transactional)
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
        """Return why an effect was not recorded, so that another was allowed, or None without a reason."""
        if self.deaths.get(effect.pid, 0) > effect.at:
            return "a worker was killed between the effect and its commit"
        if (effect.event, effect.token) in self._troubled:
            return "a worker lost its lease or the store's answer between the effect and its commit"
        return None


def _ends(line: Line) -> int:
    ends: int = line["began"] + 1000 * line["lease"]
    return ends
