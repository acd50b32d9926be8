"""Where things stand in a TOML file: tomllib tells what a file says, but not where."""

import re

_HEADER = re.compile(r"^\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_ENTRY = re.compile(r"""^\s*([A-Za-z0-9_-]+|"[^"]*"|'[^']*')\s*(?:\.|=)""")
_QUOTES = re.compile(r'"""|\'\'\'|"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*|[\[\]{}]')


class LineIndex:
    """The line of each table and entry of a file, by table name, number of the table, and entry."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, int, str], int] = {}
        table, counts, depth, block = ("", 0), dict[str, int](), 0, ""
        for number, line in enumerate(text.split("\n"), 1):
            if not depth and not block:
                if header := _HEADER.match(line):
                    counts[header[2]] = counts.get(header[2], 0) + 1
                    table = (header[2], counts[header[2]])
                    self._lines.setdefault((*table, ""), number)
                    outer, _, entry = header[2].partition(".")
                    self._lines.setdefault((outer, counts.get(outer, 0), entry), number)  # [rule.match] is an entry too
                    continue
                if entry := _ENTRY.match(line):
                    self._lines.setdefault((*table, entry[1].strip("\"'")), number)
            depth, block = _after(line, depth, block)

    def find(self, table: str = "", number: int = 0, entry: str = "") -> int:
        """The line of an entry; of its table where that is not known; 1 at the last."""
        places = [(table, number, entry), (table, number, ""), ("", 0, table or entry)]
        return next((self._lines[place] for place in places if place in self._lines), 1)


def _after(line: str, depth: int, block: str) -> tuple[int, str]:
    """How many brackets are open, and in which kind of long string we are, after a line."""
    at = 0
    while at < len(line):
        if block:
            end = line.find(block, at)
            if end < 0:
                return depth, block
            at, block = end + 3, ""
            continue
        mark = _QUOTES.search(line, at)
        if mark is None:
            break
        at = mark.end()
        if mark[0] in ('"""', "'''"):
            block = mark[0]
        elif mark[0] in "[{":
            depth += 1
        elif mark[0] in "]}":
            depth = max(0, depth - 1)
    return depth, block
