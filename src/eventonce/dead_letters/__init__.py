"""Dead letters: their form, and the files, queues and tables that hold them. Both sinks and boxes open by URL."""

from importlib import import_module
from typing import Any, cast

from eventonce.clients.drivers import from_extra
from eventonce.dead_letters.file import DeadFile, FileBox
from eventonce.dead_letters.letter import write_dead_letters
from eventonce.errors import ConfigError
from eventonce.ports import DeadLetterBox, DeadLetters

__all__ = ["open_box", "open_dead_letters", "write_dead_letters"]

# By scheme: the module with its `open_url(url)` and `open_box(url)`, and the extra that installs its driver.
_MODULES = {
    "sqs": ("queue", "aws"),
    "sqlite": ("table", ""),
    "postgresql": ("table", "postgres"),
}
_FORMS = "a file, - for stdout, sqs://QUEUE, sqlite:///FILE, postgresql://HOST/DATABASE, or store for a table of it"
_BOX_FORMS = "a file, sqs://QUEUE, sqlite:///FILE or postgresql://HOST/DATABASE"


def open_dead_letters(url: str) -> DeadLetters:
    """Open a sink for dead letters: a file, `-` for standard output, a queue or a database table."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return DeadFile(url)
    if scheme not in _MODULES:
        raise ConfigError(f"dead_letter: {scheme}:// is not supported; use {_FORMS}")
    return cast(DeadLetters, _open("open_url", url, "dead_letter"))


def open_box(url: str) -> DeadLetterBox:
    """Open a box for reading: what a pipeline names as `dead_letter`, or a queue with dead letters of AWS."""
    if url == "-":
        raise ConfigError("dead_letter: stdout cannot be read back; name the file they went to with --from FILE")
    scheme, separator, _ = url.partition("://")
    if not separator:
        return FileBox(url)
    if scheme not in _MODULES:
        raise ConfigError(f"--from: {scheme}:// is not supported; use {_BOX_FORMS}")
    return cast(DeadLetterBox, _open("open_box", url, "--from"))


def _open(opener: str, url: str, setting: str) -> Any:
    scheme = url.partition(":")[0]
    module, extra = _MODULES[scheme]
    with from_extra(extra, f"{setting}: {scheme}"):
        return getattr(import_module(f"eventonce.dead_letters.{module}"), opener)(url)
