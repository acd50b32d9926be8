"""The tables of an outbox: the steps that make them, and the statements that use them."""

from pathlib import Path

from eventonce.errors import StoreUnusable

HERE = Path(__file__).parent
VERSIONS = "eventonce_outbox_schema"
_MAKE_VERSIONS = f"CREATE TABLE IF NOT EXISTS {VERSIONS} (version integer PRIMARY KEY)"


class Schema:
    """The SQL of one kind of database, in a folder beside this file."""

    def __init__(self, folder: str) -> None:
        self._folder = HERE / folder

    def statement(self, name: str) -> str:
        """A statement, without its comments."""
        return " ".join(_statements((self._folder / f"{name}.sql").read_text()))

    def steps(self) -> list[list[str]]:
        """The statements of each version, from the first on."""
        return [_statements(file.read_text()) for file in sorted(self._folder.glob("[0-9]*.sql"))]

    def missing(self, version: int) -> list[str]:
        """What is to be done where this version is there."""
        made = [_MAKE_VERSIONS] if version == 0 else []
        for number, step in enumerate(self.steps()[version:], version + 1):
            made += [*step, f"INSERT INTO {VERSIONS} VALUES ({number})"]
        return made

    def check(self, version: int, name: str) -> None:
        """Raise unless this is the version that is needed."""
        known = len(self.steps())
        if version > known:
            raise StoreUnusable(f"{name}: its outbox is of a newer eventonce (schema {version}); upgrade eventonce")
        if 0 < version < known:
            raise StoreUnusable(f"{name}: its outbox is of an older eventonce; mend that with outbox.create()")
        if not version:
            raise StoreUnusable(absent(name))


def absent(name: str) -> str:
    """What to do where there are no tables."""
    return f"{name}: has no outbox; make it with outbox.create() or eventonce relay --create"


def _statements(text: str) -> list[str]:
    bare = (line.partition("--")[0].strip() for line in text.splitlines())
    return [each.strip() for each in " ".join(line for line in bare if line).split(";") if each.strip()]
