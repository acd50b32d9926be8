"""Stands in for bus, topic and queues where there are none: hands on the lines of a file, at least once.

    python carrier.py bus.jsonl | eventonce run billing.toml --source -

It is worse than the real ones: every third event comes twice, every fourth comes late, behind what came after it, and
each start begins at the first line. It follows the file until it is stopped; with --once it ends with it.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

LATE = 7  # lines


def lines(file: Path, *, follow: bool) -> Iterator[str]:
    """Whole lines; what a killed writer left half-written is not one, and is written again."""
    file.touch()
    with file.open() as stream:
        while True:
            at, line = stream.tell(), stream.readline()
            if line.endswith("\n"):
                yield line
                continue
            stream.seek(at)
            if not follow:
                return
            yield ""  # nothing for now
            time.sleep(0.05)


def unreliably(found: Iterator[str]) -> Iterator[str]:
    held: list[tuple[int, str]] = []  # until which line, and what
    number = 0
    for line in found:
        if line:
            number += 1
            if number % 4 == 0:
                held.append((number + LATE, line))
            else:
                yield line
            if number % 3 == 0:
                yield line
        while held and (held[0][0] <= number or not line):
            yield held.pop(0)[1]
    yield from (line for _, line in held)


if __name__ == "__main__":
    for each in unreliably(lines(Path(sys.argv[1]), follow="--once" not in sys.argv)):
        sys.stdout.write(each)
        sys.stdout.flush()
