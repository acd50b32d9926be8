"""One English: patterns that read translated stay out of the code, the tests and the README."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("src", "lab", "tests", "benchmarks", "examples", "tools")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md", "docs/extending.md")
# Each pattern, and what to write in its place.
PATTERNS = {
    r"(?<!here )\b(?:is|are|was|were) no (?!longer|shorter|more|less|such|need|way)\w": "is not a ...",
    r"\bmend(?:s|ed|ing)?\b|\brids\b|\bwhat not\b|\ban .?Once\b|\bfor ever\b|\bthe begin\b": "fix; remove",
    r"\bone behind the other\b": "one after another; concatenated",
    r"\b(?:is|are|was|were|be|been) told\b(?! apart| from)": "is reported; is shown",
    r"\bin (?:other |one's |our )?hands?\b": "in progress",
    r"\b(?:come|comes|came|coming) again\b": "is redelivered",
    r"\b(?:lease|window|time|timeout|login|outage|grace)s? (?:is|was|are|were) over\b": "expires",
    r"(?<!here )\b(?:is|are) none\b(?! of\b)|\bis not known\b": "unknown ...; is not a valid ...",
    r"\b(?:a|no) texts?\b(?! file)|\bways? (?:in|out)\b(?! of\b)": "a string; a source, a sink",
    r"\bst(?:ands?|ood) (?:in(?! for)|behind|above|at|beside|there|twice|between|inside|before|here|beyond)\b": "is in",
}
QUOTED = {Path(__file__).name}  # which has them all


def sentences(file: Path) -> Iterator[tuple[int, str]]:
    """Return the strings and comments of a Python file, and the lines of any other, each with its line number."""
    text = file.read_text()
    if file.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    wanted = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in wanted:
            yield token.start[0], " ".join(token.string.split())


@pytest.mark.parametrize("place", [*FOLDERS, *PAGES])
def test_what_reads_translated_is_written_in_plain_english(place: str) -> None:
    path = ROOT / place
    found = [
        f"{file.relative_to(ROOT)}:{line}: {match[0]!r}; write: {remedy}"
        for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))
        if file.name not in QUOTED
        for line, text in sentences(file)
        for pattern, remedy in PATTERNS.items()
        if (match := re.search(pattern, text))
    ]
    assert found == []


def test_a_public_class_name_stands_for_one_thing() -> None:
    names = Counter(
        node.name
        for folder in ("src", "lab")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
