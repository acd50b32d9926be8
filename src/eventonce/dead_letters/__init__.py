"""Dead letters: what one is, and the places that write and read them."""

from importlib import import_module
from typing import cast

from eventonce.clients.drivers import from_extra
from eventonce.dead_letters.file_sink import DeadFile
from eventonce.dead_letters.writing import keep
from eventonce.errors import ConfigError
from eventonce.ports import DeadLetters

__all__ = ["keep", "open_dead_letters"]

# The module of each scheme, whose `open_url(url)` opens the place; and the extra that brings its driver.
_MODULES = {
    "sqs": ("queue_sink", "aws"),
    "sqlite": ("table_sink", ""),
    "postgresql": ("table_sink", "postgres"),
}
_FORMS = "a file, - for stdout, sqs://QUEUE, sqlite:///FILE, postgresql://HOST/DATABASE, or store for a table of it"


def open_dead_letters(url: str) -> DeadLetters:
    """Open a place for dead letters: a file, `-` for standard output, a queue or a table of a database."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return DeadFile(url)
    if scheme not in _MODULES:
        raise ConfigError(f"dead_letter: {scheme}:// is not a known way out; use {_FORMS}")
    module, extra = _MODULES[scheme]
    with from_extra(extra, f"dead_letter: {scheme}"):
        return cast(DeadLetters, import_module(f"eventonce.dead_letters.{module}").open_url(url))
