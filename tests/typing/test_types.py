"""What type checkers see: mypy and pyright, both strict, over the pages beside this one, and pyright over the API."""

import importlib
import inspect
import json
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.missing import need
from tools import api_page

HERE = Path(__file__).parent
PAGES = ("right.py", "wrong.py", "limits.py")
UNTYPED = "eventonce.traffic"  # takes and returns tables of pyarrow and PySpark, which have no types
Errors = dict[tuple[str, int], set[str]]  # the codes of errors by page and line


def run(*command: str) -> str:
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def mypy() -> Errors:
    cache = HERE.parents[1] / ".mypy_cache" / "typing"  # with other options than that of make lint
    options = ("--strict", "--config-file=", "--cache-dir", str(cache), "--no-pretty")
    output = run(sys.executable, "-m", "mypy", *options, *PAGES)
    errors: Errors = defaultdict(set)
    for page, line, code in re.findall(r"^(.+\.py):(\d+): error: .*\[([a-z-]+)\]$", output, re.MULTILINE):
        errors[page, int(line)].add(code)
    assert f"checked {len(PAGES)} source files" in output, output
    return errors


@pytest.fixture(scope="module")
def pyright(tmp_path_factory: pytest.TempPathFactory) -> Errors:
    need("pyright")
    page = tmp_path_factory.mktemp("typing") / "public.py"
    page.write_text(public_page())
    report = json.loads(run("pyright", "--pythonpath", sys.executable, "--outputjson", *PAGES, str(page)))
    assert report["summary"]["filesAnalyzed"] == len(PAGES) + 1
    errors: Errors = defaultdict(set)
    for error in report["generalDiagnostics"]:
        code = error.get("rule", error["message"])
        errors[Path(error["file"]).name, error["range"]["start"]["line"] + 1].add(code)
    return errors


def public_page() -> str:
    """Return a page that uses all that is public, and each attribute of what is a class."""
    lines: list[str] = []
    for module in map(importlib.import_module, api_page.PUBLIC):
        for name in () if module.__name__.startswith(UNTYPED) else api_page.public_names(module):
            value = getattr(module, name)
            alias = f"{module.__name__}.{name}".replace(".", "_")
            lines += [f"from {module.__name__} import {name} as {alias}", f"print({alias})"]
            attributes = [each for each in vars(value) if each[0] != "_"] if inspect.isclass(value) else []
            if attributes:
                lines.append(f"def use_{alias}(one: {alias}) -> None:")
                lines += [f"    print(one.{each})" for each in attributes]
    return "\n".join([*lines, ""])


def marks(number: int) -> dict[tuple[str, int], str]:
    """Return what must be reported by page and line: the first code of a mark, or the second."""
    return {
        (page, line): codes[number]
        for page in PAGES
        for line, text in enumerate((HERE / page).read_text().splitlines(), 1)
        if (codes := text.partition("  # E: ")[2].split()) and codes[number] != "-"
    }


@pytest.mark.parametrize(("number", "checker"), [(0, "mypy"), (1, "pyright")])
def test_a_checker_reports_what_is_marked_and_nothing_else(
    number: int, checker: str, request: pytest.FixtureRequest
) -> None:
    reported: Errors = request.getfixturevalue(checker)
    expected = marks(number)
    assert {place: codes for place, codes in reported.items() if place not in expected} == {}
    assert {place: code for place, code in expected.items() if code not in reported.get(place, ())} == {}


def test_what_is_right_runs() -> None:
    runpy.run_path(str(HERE / "right.py"))
