"""Dead letters: their form, and the files, queues and tables that hold them. Both sinks and boxes open by URL."""

from importlib import import_module
from typing import Any, cast

from eventonce.clients.drivers import from_extra
from eventonce.dead_letters.file import DeadFile, FileBox
from eventonce.dead_letters.letter import write_dead_letters
from eventonce.errors import ConfigError
from eventonce.ports import DeadLetterBox, DeadLetterSink
from eventonce.urls import file_name, read_scheme

__all__ = ["check_dead_letters", "driver_extra", "open_box", "open_dead_letters", "write_dead_letters"]

# By scheme: the module with its `open_url(url)` and `open_box(url)`, and the extra that installs its driver.
_MODULES = {
    "sqs": ("queue", "aws"),
    "sqlite": ("table", ""),
    "postgresql": ("table", "postgres"),
    "postgres": ("table", "postgres"),
}
_POSTGRES = "postgresql://HOST/DATABASE"
_FORMS = {"sqs": "sqs://QUEUE", "sqlite": "sqlite:///FILE", "postgresql": _POSTGRES, "postgres": _POSTGRES}


def open_dead_letters(url: str) -> DeadLetterSink:
    """Open a sink for dead letters: a file, `-` for standard output, a queue or a database table."""
    check_dead_letters(url)
    if (name := file_name(url)) is not None:
        return DeadFile(name)
    return cast(DeadLetterSink, _open("open_url", url, "dead_letter"))


def check_dead_letters(url: str, setting: str = "dead_letter") -> None:
    """Raise `ConfigError` if a URL names no place for dead letters. Open nothing."""
    read_scheme(url, _FORMS, setting)


def driver_extra(url: str) -> str:
    """Return the extra that installs the driver of dead letters, or an empty string."""
    return _MODULES.get(url.partition(":")[0], ("", ""))[1]


def open_box(url: str) -> DeadLetterBox:
    """Open a box for reading: what a pipeline names as `dead_letter`, or a queue with dead letters of AWS."""
    if url == "-":
        raise ConfigError("dead_letter: stdout cannot be read back; name the file they went to with --from FILE")
    check_dead_letters(url, "--from")
    if (name := file_name(url)) is not None:
        return FileBox(name)
    return cast(DeadLetterBox, _open("open_box", url, "--from"))


def _open(opener: str, url: str, setting: str) -> Any:
    scheme = url.partition(":")[0]
    module, extra = _MODULES[scheme]
    with from_extra(extra, f"{setting}: {scheme}"):
        return getattr(import_module(f"eventonce.dead_letters.{module}"), opener)(url)
