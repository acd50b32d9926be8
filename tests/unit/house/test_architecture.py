"""The house: imports only go down the stairs, the front door is what it says, and the core is light."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import eventonce

SRC = Path(eventonce.__file__).parent
# From the ground up. A room may import rooms below it, and inside itself; rooms of one floor do not know each other.
FLOORS = [
    {"errors", "forks", "backoff", "closing", "text"},
    {"clock", "environment", "files", "urls"},
    {"event", "clients"},
    {"rules"},
    {"claims"},
    {"ports", "requests", "settings"},
    {"auth", "observe"},
    {"stores", "sources", "sinks"},
    {"dead_letters"},
    {"aws_lambda"},
    {"engine"},
    {"wire", "webhook", "outbox", "testing"},
    {"lint", "aws_setup", "worker", "redrive"},
    {"traffic", "lambda_function"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}


def room(module: str) -> str:
    """`eventonce.stores.sqlite` is in the room `stores`."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(file: Path) -> set[str]:
    """Every room a file imports from, wherever the import stands and for whatever purpose."""
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "eventonce":
            names = [node.module] if "." in node.module else [f"eventonce.{alias.name}" for alias in node.names]
            rooms.update(room(name) for name in names)
        elif isinstance(node, ast.Import):
            rooms.update(room(alias.name) for alias in node.names if alias.name.split(".")[0] == "eventonce")
    return rooms


def files() -> dict[Path, str]:
    return {
        file: room(".".join(("eventonce", *file.relative_to(SRC).with_suffix("").parts))) for file in SRC.rglob("*.py")
    }


def test_every_room_has_its_floor() -> None:
    assert set(files().values()) - {"__init__"} == set(FLOOR)


def test_the_picture_of_the_house_shows_every_room() -> None:
    page = (SRC.parents[1] / "docs" / "architecture.md").read_text().partition("## The house")[2]
    rooms = {
        name for line in re.findall(r"^        (\w+(?: ~~~ \w+)*)$", page, re.MULTILINE) for name in line.split(" ~~~ ")
    }
    assert rooms | {"testing", "__main__"} == set(FLOOR)  # what is shipped for tests is beside the house


def test_tests_stand_in_rooms_of_the_same_names() -> None:
    beside = {"house", "examples", "lab"}  # what tests the repository as a whole, or what is not in the package
    for kind in ("unit", "integration"):
        rooms = {file.parent.name for file in (SRC.parents[1] / "tests" / kind).rglob("test_*.py")}
        assert rooms <= set(FLOOR) | beside, kind


def test_imports_only_go_down() -> None:
    upward = [
        f"{file.relative_to(SRC)} imports {other}"
        for file, own in files().items()
        for other in imports(file)
        if own != "__init__" and other not in (own, "__init__") and FLOOR[other] >= FLOOR[own]
    ]
    assert upward == []


def test_only_the_top_knows_the_front_door() -> None:
    assert [
        str(file) for file, own in files().items() if "__init__" in imports(file) and own not in ("__init__", "cli")
    ] == []


def test_there_are_no_circles() -> None:
    graph: dict[str, set[str]] = {}
    for file in SRC.rglob("*.py"):
        parts = file.relative_to(SRC).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        graph[name] = modules(file) - {name}
    done: set[str] = set()
    while graph:
        free = [name for name, needs in graph.items() if needs <= done]
        assert free, f"a circle among {sorted(graph)}"
        done.update(free)
        for name in free:
            del graph[name]


def modules(file: Path) -> set[str]:
    """The modules of ours that a file imports by name."""
    own_modules = {
        ".".join(part for part in each.relative_to(SRC).with_suffix("").parts if part != "__init__")
        for each in SRC.rglob("*.py")
    }
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "eventonce":
            base = node.module.removeprefix("eventonce").lstrip(".")
            inner = {f"{base}.{alias.name}".lstrip(".") for alias in node.names} & own_modules
            names |= inner or {base}
    return names


# Contracts between the parts of one room, and what the ground needs. What others may write is in ports.py.
INTERNAL = {
    "ChangeListener", "Clock", "Closing", "CloudEvent", "DedupeEngine", "Documents", "EmbeddedStore", "EventPublisher",
    "Forkable", "MayReturn", "Output", "OutboxFeed", "OutboxTable", "Registers", "Returns", "Step", "Stream",
    "TransactionOwner",
}  # fmt: skip


def test_all_contracts_that_others_may_write_are_on_one_page() -> None:
    elsewhere = {
        node.name
        for file, own in files().items()
        if own not in ("ports", "testing")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and {"Protocol", "ABC"} & {ast.unparse(base) for base in node.bases}
    }
    assert elsewhere == INTERNAL


def test_the_front_door_is_what_it_says() -> None:
    assert sorted(eventonce.__all__) == sorted(set(dir(eventonce)) - {"__version__"})
    assert len(eventonce.__all__) <= 20


def test_the_front_door_gives_what_type_checkers_see() -> None:
    imported = {
        alias.name: node.module
        for node in ast.walk(ast.parse((SRC / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("eventonce.")
        for alias in node.names
    }
    assert sorted(imported) == sorted(eventonce.__all__)
    for name, module in imported.items():
        assert getattr(eventonce, name) is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'Onze'"):
        eventonce.Onze  # noqa: B018


HEAVY = ["asyncio", "boto3", "botocore", "redis", "psycopg", "click", "sqlite3", "pytest", "http", "ssl", "tomllib"]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_core_imports_without_any_driver_and_pulls_in_none() -> None:
    block = (
        "import sys; sys.modules.update(dict.fromkeys(['boto3', 'botocore', 'redis', 'psycopg', 'click', 'pytest']))"
    )
    use = "import eventonce; print(eventonce.Once('memory:').run([{'id': '1'}], lambda event: None)[0].kind)"
    assert run(f"{block}; {use}") == "processed"
    loaded = "from eventonce import *; import sys; print([name for name in %r if name in sys.modules])" % HEAVY  # noqa: UP031
    assert run(loaded) == "[]"


def test_the_help_of_the_command_line_loads_no_verb_and_no_engine() -> None:
    loaded = "import eventonce.cli, sys; print(sorted(name for name in sys.modules if name.startswith('eventonce')))"
    assert run(loaded).split("'")[1::2] == [
        "eventonce", "eventonce.cli", "eventonce.cli.main", "eventonce.cli.stderr", "eventonce.errors",
        "eventonce.observe", "eventonce.observe.lines", "eventonce.text",
    ]  # fmt: skip


def test_what_follows_an_effect_imports_nothing(tmp_path: Path) -> None:
    """An import can fail, as where no file can be opened any more: then an event that ran would run again."""
    output = run(f"""
import sys
from eventonce import Once, Rule

class Refuse:
    def find_spec(self, name, path=None, target=None):
        raise OSError(24, "Too many open files: " + name)

def handle(event):
    sys.meta_path.insert(0, Refuse())
    return {{"b": b"x", "n": 1}}

with Once("sqlite:///{tmp_path}/claims.db", rules=Rule(name="r", remember="result")) as once:
    print([each.kind.value for each in once.run([{{"id": "1"}}], handle) + once.run([{{"id": "1"}}], handle)])
""")
    assert output == "['processed', 'duplicate']"
