"""What is public is listed, and the list is true."""

import importlib
import importlib.util
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from tools import api_page

ROOT = Path(__file__).resolve().parents[3]


def public() -> list[tuple[str, Any]]:
    modules = [importlib.import_module(name) for name in api_page.PUBLIC]
    return [
        (f"{module.__name__}.{name}", getattr(module, name))
        for module in modules
        for name in api_page.public_names(module)
    ]


def functions(value: Any) -> list[Any]:
    """Return a public function, or the public methods of a public class."""
    if inspect.isfunction(value):
        return [value]
    if not inspect.isclass(value) or not value.__module__.startswith("eventonce"):
        return []
    return [each for name, each in vars(value).items() if inspect.isfunction(each) and not name.startswith("_")]


def test_the_page_of_the_api_is_fresh() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), "run `make docs`"


@pytest.mark.parametrize(("name", "value"), public(), ids=[name for name, _ in public()])
def test_the_types_of_what_is_public_can_be_read(name: str, value: Any) -> None:
    for function in functions(value):
        typing.get_type_hints(function)


def test_what_the_docs_import_is_public() -> None:
    listed = {name for name, _ in public()} | set(api_page.PUBLIC)
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for module, names in re.findall(r"^ *from (eventonce[\w.]*) import ([\w, ]+)$", page.read_text(), re.MULTILINE):
            for name in names.split(", "):
                assert f"{module}.{name.partition(' as ')[0]}" in listed, f"{page.name}: {module}.{name}"


def test_every_name_in_the_docs_exists() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for path in re.findall(r"(?<!logger )`(eventonce(?:\.\w+)+)", page.read_text()):
            module, _, name = path.rpartition(".")
            try:
                assert importlib.util.find_spec(path) or name in dir(importlib.import_module(module))
            except ModuleNotFoundError:
                assert name in dir(importlib.import_module(module)), f"{page.name}: {path}"
