"""The tables of an outbox: the steps that create them, and the statements that use them."""

from pathlib import Path

from eventonce.errors import StoreUnusable

HERE = Path(__file__).parent
VERSIONS = "eventonce_outbox_schema"
_CREATE_VERSIONS = f"CREATE TABLE IF NOT EXISTS {VERSIONS} (version integer PRIMARY KEY)"


class Schema:
    """The SQL of one kind of database, in a folder beside this file."""

    def __init__(self, folder: str) -> None:
        self._folder = HERE / folder

    def statement(self, name: str) -> str:
        """Return a statement without its comments."""
        return " ".join(_statements((self._folder / f"{name}.sql").read_text()))

    def steps(self) -> list[list[str]]:
        """Return the statements of each version, the first version first."""
        return [_statements(file.read_text()) for file in sorted(self._folder.glob("[0-9]*.sql"))]

    def missing(self, version: int) -> list[str]:
        """Return the statements that upgrade this version to the latest."""
        statements = [_CREATE_VERSIONS] if version == 0 else []
        for number, step in enumerate(self.steps()[version:], version + 1):
            statements += [*step, f"INSERT INTO {VERSIONS} VALUES ({number})"]
        return statements

    def check(self, version: int, name: str) -> None:
        """Raise `StoreUnusable` unless this is the latest version."""
        latest = len(self.steps())
        if version > latest:
            raise StoreUnusable(f"{name}: its outbox is of a newer eventonce (schema {version}); upgrade eventonce")
        if 0 < version < latest:
            raise StoreUnusable(f"{name}: its outbox is of an older eventonce; upgrade it with outbox.create()")
        if not version:
            raise StoreUnusable(absent(name))


def absent(name: str) -> str:
    """Return the message for a database without the tables."""
    return f"{name}: has no outbox; create it with outbox.create() or eventonce relay --create"


def _statements(text: str) -> list[str]:
    bare = (line.partition("--")[0].strip() for line in text.splitlines())
    parts = " ".join(line for line in bare if line).split(";")
    return [statement.strip() for statement in parts if statement.strip()]
