"""Line numbers in a TOML file, which tomllib does not report."""

import re

_HEADER = re.compile(r"^\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_ENTRY = re.compile(r"""^\s*([A-Za-z0-9_-]+|"[^"]*"|'[^']*')\s*(?:\.|=)""")
_TOKEN = re.compile(r'"""|\'\'\'|"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*|[\[\]{}]')


class LineIndex:
    """The line of each table and entry of a file, by table name, table number and entry."""

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
        """Return the line of an entry. If it is unknown, return that of its table, or 1."""
        positions = [(table, number, entry), (table, number, ""), ("", 0, table or entry)]
        return next((self._lines[position] for position in positions if position in self._lines), 1)


def _after(line: str, depth: int, block: str) -> tuple[int, str]:
    """Return how many brackets are open after a line, and the quotes of the long string that is open, if any."""
    offset = 0
    while offset < len(line):
        if block:
            end = line.find(block, offset)
            if end < 0:
                return depth, block
            offset, block = end + 3, ""
            continue
        token = _TOKEN.search(line, offset)
        if token is None:
            break
        offset = token.end()
        if token[0] in ('"""', "'''"):
            block = token[0]
        elif token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth = max(0, depth - 1)
    return depth, block
