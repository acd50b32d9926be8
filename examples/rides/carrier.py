"""A substitute for bus, topic and queues: it passes on the lines of a file, at least once.

    python carrier.py bus.jsonl | eventonce run billing.toml --source -

It is worse than the real ones: every third event is repeated, every fourth is delayed past later ones, and each start
begins at the first line. It follows the file until it is stopped. With --once it ends with the file.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

DELAY = 7  # lines


def lines(file: Path, *, follow: bool) -> Iterator[str]:
    """Yield whole lines. A killed writer may leave half a line, which is written again."""
    file.touch()
    with file.open() as stream:
        while True:
            offset, line = stream.tell(), stream.readline()
            if line.endswith("\n"):
                yield line
                continue
            stream.seek(offset)
            if not follow:
                return
            yield ""  # no line yet
            time.sleep(0.05)


def unreliably(incoming: Iterator[str]) -> Iterator[str]:
    """Yield the lines, some of them twice and some late."""
    delayed: list[tuple[int, str]] = []  # the line number at which it is due, and the line
    number = 0
    for line in incoming:
        if line:
            number += 1
            if number % 4 == 0:
                delayed.append((number + DELAY, line))
            else:
                yield line
            if number % 3 == 0:
                yield line
        while delayed and (delayed[0][0] <= number or not line):
            yield delayed.pop(0)[1]
    yield from (line for _, line in delayed)


if __name__ == "__main__":
    for delivered in unreliably(lines(Path(sys.argv[1]), follow="--once" not in sys.argv)):
        sys.stdout.write(delivered)
        sys.stdout.flush()
