"""All benchmarks: they print one table and write it to RESULTS.md beside this file.

    python -m benchmarks [--quick] [SUBJECT ...]

With subjects, only those are run and nothing is written. Each has a process of its own. A quick run has too few keys
for the targets to apply: it prints ratios alone, and writes nothing.
"""

import argparse
import contextlib
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.harness import FULL, QUICK, Row, Scale, measure

HERE = Path(__file__).parent
SUBJECTS = {
    "keying": "keying", "memory": "store_memory", "redis": "store_redis", "postgres": "store_postgres",
    "sqlite": "store_sqlite", "dynamodb": "store_dynamodb", "start": "start", "workers": "workers",
}  # fmt: skip
PACKAGES = ("msgspec", "orjson", "aws-lambda-powertools", "redis", "hiredis", "psycopg", "boto3")
HEAD = ("subject", "what", "against", "target", "measured", "spread", "other clock", "ours", "theirs", "")


def run(subject: str, scale: Scale) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(SUBJECTS[subject], scale, theirs))
    process.start()
    theirs.close()
    rows: list[Row] = []
    with contextlib.suppress(EOFError):
        while True:
            rows.append(ours.recv())
            show(brief(rows[-1]) if scale.quick else cells(rows[-1]), scale)
    process.join()
    if process.exitcode:
        raise SystemExit(f"{subject} could not be measured to its end")
    return rows


# --- the table ---


def cells(row: Row) -> list[str]:
    result = {True: "holds", False: "MISSED", None: ""}[row.holds]
    other = "" if row.other is None else f"{row.other:.2f} {'wall' if row.by == 'cpu' else 'cpu'}"
    spread = "" if row.low == row.high else f"{row.low:.2f} to {row.high:.2f}"
    measured = f"{row.ratio:.2f} {row.by}"
    return [row.subject, row.what, row.against, row.target, measured, spread, other, row.ours, row.theirs, result]


def brief(row: Row) -> list[str]:
    return [row.subject, row.what, row.against, f"{row.ratio:.2f}", row.ours, row.theirs]


WIDTHS = (8, 38, 30, 13, 12, 16, 12, 18, 18, 6)
BRIEF_HEAD = ("subject", "what", "against", "ratio", "eventonce", "the other")
BRIEF_WIDTHS = (8, 38, 28, 7, 18, 18)


def show(words: Iterable[str], scale: Scale) -> None:
    widths = BRIEF_WIDTHS if scale.quick else WIDTHS
    print("  ".join(f"{word:{width}}" for word, width in zip(words, widths, strict=True)).rstrip(), flush=True)  # noqa: T201


def markdown(rows: list[Row], scale: Scale, seconds: float) -> str:
    lines = ["# What was measured last", "", *machine(scale, seconds), "", _line(HEAD), _line("---" for _ in HEAD)]
    return "\n".join([*lines, *(_line(cells(row)) for row in rows), ""])


def _line(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"


def machine(scale: Scale, seconds: float) -> list[str]:
    processor = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ": unknown")
    memory = int(next(iter(_lines("/proc/meminfo")), "x 0").split()[1]) // 2**20
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    system = f"{platform.system()} {platform.release()}"
    minutes = f"{seconds / 60:.0f} minutes"
    return [
        f"- {os.cpu_count()} cores of {processor.partition(': ')[2]}, {memory} GB, {system}; load at the end {load}",
        f"- Python {platform.python_version()}; {', '.join(map(_with_version, PACKAGES))}",
        f"- `make bench`: {scale.rounds} interleaved rounds, {scale.resident:,} keys resident, {minutes}",
        "- A ratio is best round to best round, the spread that of single rounds; cpu is what client and server spend.",
    ]


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines() if Path(file).exists() else []


def _with_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} missing"


def main() -> int:
    """Measure, print, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="under two minutes, with fewer keys and rounds")
    parser.add_argument("subject", nargs="*", choices=[[], *SUBJECTS], help=f"one of {', '.join(SUBJECTS)}")
    options = parser.parse_args()
    scale, start = QUICK if options.quick else FULL, time.perf_counter()
    show(BRIEF_HEAD if scale.quick else HEAD, scale)
    rows = [row for subject in options.subject or SUBJECTS for row in run(subject, scale)]
    if scale.quick:
        return 0
    if not options.subject:
        (HERE / "RESULTS.md").write_text(markdown(rows, scale, time.perf_counter() - start))
    missed = [row for row in rows if row.holds is False]
    print(f"\n{len(missed)} of {sum(row.holds is not None for row in rows)} targets missed")  # noqa: T201
    return 1 if missed else 0


if __name__ == "__main__":
    os.environ["PATH"] = f"{HERE.parent / '.servers' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    sys.exit(main())
