"""The harness: all candidates in one run, their rounds interleaved, and the best round of each counts.

Machines are noisy and differ, so every figure is a ratio to a named baseline of the same run. The spread is that of the
ratios of single rounds. Two clocks run all the time: the wall's, and the CPU's, which is the time that this process and
its server have computed. A row says which of them its target is for. The other is shown beside it.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

By = Literal["wall", "cpu"]
Input = TypeVar("Input")
_SIZES = {1000: "1 KB", 500: "0.5 KB", 2000: "2 KB", 10_000: "10 KB"}


class Scale(NamedTuple):
    """The amounts of everything."""

    quick: bool
    rounds: int
    events: int  # in a round, at most
    resident: int  # keys that exist before
    many: int  # keys if their number is what is measured

    @property
    def sizes(self) -> dict[int, str]:
        """Return the bytes of events and their names. The targets are for the first."""
        return dict(list(_SIZES.items())[: 1 if self.quick else None])


QUICK = Scale(quick=True, rounds=4, events=500, resident=50_000, many=300_000)
FULL = Scale(quick=False, rounds=15, events=2000, resident=1_000_000, many=10_000_000)


class Row(NamedTuple):
    """One line of the table. A ratio of 2 is twice as fast, or twice as expensive, as its target says."""

    subject: str
    what: str
    against: str
    target: str  # "at least 3", "at most 2.5", or empty if the row has none
    ratio: float
    low: float
    high: float
    other: float | None = None  # the same ratio by the other clock
    by: str = "cpu"
    ours: str = ""
    theirs: str = ""

    @property
    def holds(self) -> bool | None:
        """Return whether the target is met."""
        if not self.target:
            return None
        bound, _, number = self.target.rpartition(" ")
        return self.ratio >= float(number) if bound == "at least" else self.ratio <= float(number)


class Spent(NamedTuple):
    """Seconds for each unit of work, in one round."""

    wall: float
    cpu: float


Rounds = dict[str, list[Spent]]


# --- measuring ---


def measure(module: str, scale: Scale, results: Connection) -> None:
    """Send all rows of a subject. It has a process of its own, since one subject's memory slows down the next."""
    with results:
        for row in importlib.import_module(f"benchmarks.{module}").rows(scale):
            results.send(row)


def compare(
    candidates: Mapping[str, Callable[[list[Input]], object]],
    work: Callable[[], list[Input]],
    rounds: int,
    *,
    repeated: bool = False,
    servers: Sequence[int] = (),
    fewer: Mapping[str, int] | None = None,
) -> Rounds:
    """Return what each candidate spends on work that is new in every round, or with `repeated` on work done before.

    `fewer` limits the work of slow candidates.
    """
    spent: Rounds = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in sorted(candidates, key=lambda _: random.random()) if turn else candidates:  # noqa: S311
            inputs = work()[: (fewer or {}).get(name)]
            if repeated:
                candidates[name](inputs)
            spent[name].append(_measure_once(candidates[name], inputs, servers))
    return spent


def copies(
    candidate: Callable[[list[Input]], object],
    work: Callable[[], list[Input]],
    rounds: int,
    servers: Sequence[int] = (),
) -> Rounds:
    """Return what a candidate spends on events, and then on their copies."""
    spent: Rounds = {"unique events": [], "duplicates": []}
    for _ in range(rounds):
        inputs = work()
        for times in spent.values():
            times.append(_measure_once(candidate, inputs, servers))
    return spent


def _measure_once(candidate: Callable[[list[Input]], object], inputs: list[Input], servers: Sequence[int]) -> Spent:
    gc.collect()
    start = _clocks(servers)
    candidate(inputs)
    end = _clocks(servers)
    return Spent((end.wall - start.wall) / len(inputs), (end.cpu - start.cpu) / len(inputs))


def _clocks(servers: Sequence[int]) -> Spent:
    return Spent(time.perf_counter(), time.process_time() + sum(map(computed, servers)))


def computed(pid: int) -> float:
    """Return the seconds of CPU that a process and its children have had in all of their threads."""
    total, open_pids = 0, [pid]
    while open_pids:
        with contextlib.suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{open_pids.pop()}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
                open_pids += map(int, (task / "children").read_text().split())
    return total / 1e9


def best(spent: list[Spent], by: By) -> float:
    return min(float(getattr(one_round, by)) for one_round in spent)


# --- rows ---


def faster(subject: str, what: str, target: str, spent: Rounds, ours: str, theirs: str, by: By = "cpu") -> Row:
    """Return a row that says how many times as fast ours is as theirs."""
    return _row(subject, what, target, spent, (ours, theirs), (theirs, ours), by, _rate)


def costs(subject: str, what: str, target: str, spent: Rounds, ours: str, theirs: str, by: By = "cpu") -> Row:
    """Return a row that says how many times as much ours costs as theirs."""
    return _row(subject, what, target, spent, (ours, theirs), (ours, theirs), by, _micros)


def _row(
    subject: str,
    what: str,
    target: str,
    spent: Rounds,
    names: tuple[str, str],
    over: tuple[str, str],
    by: By,
    describe: Callable[[float], str],
) -> Row:
    top, bottom = spent[over[0]], spent[over[1]]
    ratios = sorted(getattr(above, by) / getattr(below, by) for above, below in zip(top, bottom, strict=True))
    other: By = "wall" if by == "cpu" else "cpu"
    return Row(
        subject=subject,
        what=what,
        against=names[1],
        target=target,
        ratio=best(top, by) / best(bottom, by),
        low=ratios[0],
        high=ratios[-1],
        other=best(top, other) / best(bottom, other),
        by=by,
        ours=describe(best(spent[names[0]], by)),
        theirs=describe(best(spent[names[1]], by)),
    )


def counted(subject: str, what: str, against: str, target: str, ours: float, theirs: float, unit: str) -> Row:
    """Return a row with a figure that is counted, and so has no spread."""
    ratio = ours / theirs
    return Row(
        subject,
        what,
        against,
        target,
        ratio,
        ratio,
        ratio,
        None,
        "count",
        f"{ours:,.1f} {unit}",
        f"{theirs:,.1f} {unit}",
    )


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f}/s"


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"


# --- inputs ---


class Traffic:
    """New EventBridge events of about this size, each with its own content."""

    def __init__(self, size: int = 1000) -> None:
        self._number = random.getrandbits(40)
        self._pieces = _template(size).split(b"00000000")

    def events(self, count: int) -> list[bytes]:
        numbers = range(self._number, self._number + count)
        self._number += count
        return [(b"%08x" % (number & 0xFFFFFFFF)).join(self._pieces) for number in numbers]


def _template(size: int) -> bytes:
    items: list[dict[str, Any]] = []
    detail = {"orderId": "o-00000000", "at": "2026-01-05T09:00:00.123Z", "total": 59.97, "currency": "EUR"}
    body = {
        "version": "0",
        "id": "00000000-0000-4000-8000-000000000000",
        "detail-type": "Order Placed",
        "source": "com.example.shop",
        "account": "111122223333",
        "time": "2026-01-05T09:00:00Z",
        "region": "eu-west-1",
        "resources": ["arn:aws:ecs:eu-west-1:111122223333:task/example"],
        "detail": {**detail, "meta": {"id": "m-00000000", "by": "checkout"}, "items": items},
    }
    while len(json.dumps(body)) < size:
        items.append({"sku": f"sku-{len(items)}", "quantity": 3, "cents": 1999, "gift": False})
    return json.dumps(body).encode().replace(b"-000000000000", b"-0123456789ab")


IGNORED = ("detail.at", "detail.meta.id")


def keys(count: int) -> list[Any]:
    """Return random keys."""
    data = os.urandom(16 * count)
    return [data[offset : offset + 16] for offset in range(0, len(data), 16)]


def spread_keys(count: int) -> Iterator[bytes]:
    """Return this many keys in order, evenly spread over all possible keys. A table fills with these fastest."""
    step = 2**128 // count
    return ((number * step + random.getrandbits(64)).to_bytes(16, "big") for number in range(count))


def batches(items: Sequence[Input], size: int = 100) -> Iterator[Sequence[Input]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
