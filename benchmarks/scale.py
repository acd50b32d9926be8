"""The cost of an archive past one process: CPU seconds of the whole process tree, beside the key function alone.

    python -m benchmarks.scale [--events N] [--gzip] [--rule id|field|content] [--spark PYTHON]

Each candidate is a process of its own over the same files, in the same run. What it starts is counted with it, and so
is the memory of all of them together. With `--spark`, a Python that has PySpark also does it on `local[2]`.
"""

import argparse
import ctypes
import gzip
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

RULES = {
    "id": "",
    "field": '[[rule]]\nname = "r"\nkey = ["detail.orderId"]\n',
    "content": '[[rule]]\nname = "r"\nkey = "content"\nignore = ["detail.at", "detail.meta.id"]\n',
}
KEYING = """
import sys
from pathlib import Path
from eventonce.settings import load, rulebook
from eventonce.traffic import keys_arrow
from eventonce.traffic.archive import Archive
book = rulebook(load(sys.argv[1]))
for part in Archive([sys.argv[2]]).parts:
    batch = []
    for delivery in part.deliveries():
        batch.append(delivery.body)
        if len(batch) == 2000:
            keys_arrow(batch, book)
            batch = []
    keys_arrow(batch, book)
"""
_SUBREAPER = 36  # what a process leaves behind becomes our child, and its time is counted when it ends


_ITEMS = b", ".join(b'{"sku": "sku-%d", "quantity": 3, "cents": 1999, "gift": false}' % at for at in range(5))
_FORM = (
    b'{"version": "0", "id": "%(id)08d-0000-4000-8000-000000000000", "detail-type": "Order Placed %(kind)d", '
    b'"source": "com.example.shop%(kind)d", "account": "111122223333", "time": "2026-01-05T09:00:00Z", '
    b'"region": "eu-west-1", "resources": [], "detail": {"orderId": "o-%(id)d", '
    b'"at": "2026-01-05T09:00:%(at)02dZ", "items": [' + _ITEMS + b"]}}\n"
)


def line(number: int) -> bytes:
    """An event of EventBridge, of one of a hundred kinds."""
    return _FORM % {b"id": number, b"at": number % 60, b"kind": number % 100}


def make(folder: Path, events: int, files: int, *, packed: bool) -> int:
    """Write an archive in which every sixth event is a copy. Return its size in bytes before packing."""
    size = 0
    for number in range(files):
        own = range(number * events // files, (number + 1) * events // files)
        lines = b"".join(line(each % (events * 5 // 6)) for each in own)
        size += len(lines)
        if packed:
            (folder / f"{number:03}.jsonl.gz").write_bytes(gzip.compress(lines, 1))
        else:
            (folder / f"{number:03}.jsonl").write_bytes(lines)
    return size


class Watch(threading.Thread):
    """Watches what all processes under this one use: their memory together, and the CPU time of each to its end.

    The times of ended children that the system hands on would leave out the workers of Spark, whose parent ends first.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.memory = 0
        self._cpu: dict[int, float] = {}
        self._ended = threading.Event()

    @property
    def cpu(self) -> float:
        return sum(self._cpu.values())

    def run(self) -> None:
        while not self._ended.wait(0.1):
            below = _below(os.getpid())
            self._cpu |= {pid: used for pid in below if (used := _seconds(pid)) is not None}
            self.memory = max(self.memory, sum(map(_pss, below)))

    def end(self) -> None:
        self._ended.set()
        self.join()


def _seconds(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _below(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    pids = [pid]
    for each in pids:
        pids += [child for child, parent in parents.items() if parent == each]
    return pids[1:]


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


def measure(command: list[str]) -> tuple[float, float, int]:
    """CPU seconds of all processes, seconds that passed, and the most memory at one time."""
    watch = Watch()
    watch.start()
    before, start = _cpu(), time.monotonic()
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  # our own
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    _reap()
    passed = time.monotonic() - start
    watch.end()
    return max(_cpu() - before, watch.cpu), passed, watch.memory


def _reap() -> None:
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=600_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--rule", choices=RULES, default="content")
    parser.add_argument("--spark", metavar="PYTHON")
    parser.add_argument("--work", help="where to put the archive")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        folder = Path(work) / "archive"
        folder.mkdir()
        size = make(folder, options.events, options.files, packed=options.gzip)
        print(f"{options.events:,} events, {size / 1e9:.2f} GB, {options.rule}{', gzip' if options.gzip else ''}")  # noqa: T201
        _table(options, Path(work), folder)


def _table(options: argparse.Namespace, work: Path, folder: Path) -> None:
    rules, out = work / "pipeline.toml", work / "out"
    rules.write_text(RULES[options.rule])
    engines = {"duckdb": sys.executable} | ({"local[2]": options.spark} if options.spark else {})
    candidates = {"keys alone": [sys.executable, "-c", KEYING, str(rules), str(folder)]}
    for engine, python in engines.items():
        command = [python, "-m", "eventonce", "{}", "-p", str(rules), "--engine", engine, str(folder)]
        candidates[f"{engine} audit"] = [each.format("audit") for each in command]
        candidates[f"{engine} copy"] = [each.format("dedupe") for each in command] + [str(out)]
    alone = 0.0
    for name, command in candidates.items():
        cpu, passed, memory = measure(command)
        alone = alone or cpu
        shutil.rmtree(out, ignore_errors=True)
        print(  # noqa: T201
            f"  {name:16} {cpu / options.events * 1e6:6.1f} us CPU/event  {cpu / alone:5.2f} x keys"
            f"  {passed:7.1f} s  {memory / 2**20:7.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
