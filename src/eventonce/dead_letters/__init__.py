"""Dead letters: what one is, and the files, queues and tables that they are written to and read from."""

from importlib import import_module
from typing import Any, cast

from eventonce.clients.drivers import from_extra
from eventonce.dead_letters.file import DeadFile, FileBox
from eventonce.dead_letters.letter import keep
from eventonce.errors import ConfigError
from eventonce.ports import DeadLetterBox, DeadLetters

__all__ = ["keep", "open_box", "open_dead_letters"]

# The module of each scheme, with `open_url(url)` and `open_box(url)`; and the extra that brings its driver.
_MODULES = {
    "sqs": ("queue", "aws"),
    "sqlite": ("table", ""),
    "postgresql": ("table", "postgres"),
}
_FORMS = "a file, - for stdout, sqs://QUEUE, sqlite:///FILE, postgresql://HOST/DATABASE, or store for a table of it"
_BOX_FORMS = "a file, sqs://QUEUE, sqlite:///FILE or postgresql://HOST/DATABASE"


def open_dead_letters(url: str) -> DeadLetters:
    """Open a sink for dead letters: a file, `-` for standard output, a queue or a table of a database."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return DeadFile(url)
    if scheme not in _MODULES:
        raise ConfigError(f"dead_letter: {scheme}:// is not a known way out; use {_FORMS}")
    return cast(DeadLetters, _open("open_url", url, "dead_letter"))


def open_box(url: str) -> DeadLetterBox:
    """Open what `dead_letter` of a pipeline names, or a queue with the dead letters of others, for reading."""
    if url == "-":
        raise ConfigError("dead_letter: stdout cannot be read back; name the file they went to with --from FILE")
    scheme, separator, _ = url.partition("://")
    if not separator:
        return FileBox(url)
    if scheme not in _MODULES:
        raise ConfigError(f"--from: {scheme}:// holds no dead letters; use {_BOX_FORMS}")
    return cast(DeadLetterBox, _open("open_box", url, "--from"))


def _open(opener: str, url: str, setting: str) -> Any:
    scheme = url.partition(":")[0]
    module, extra = _MODULES[scheme]
    with from_extra(extra, f"{setting}: {scheme}"):
        return getattr(import_module(f"eventonce.dead_letters.{module}"), opener)(url)
