"""A pipeline file as a Lambda function: `eventonce.lambda_function.handler` needs no code.

It reads the file that `EVENTONCE_PIPELINE` names, by default `pipeline.toml` beside the function's code. What the
function is connected to is its source, so `source` is ignored, but for the signer of an `http://` one.
"""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventonce.environment import variable
from eventonce.errors import ConfigError, EventOnceError
from eventonce.settings import Settings, dead_letter_url, load_for_command
from eventonce.sinks import open_sink
from eventonce.stores import store_file
from eventonce.urls import file_name
from eventonce.wire import open_once

if TYPE_CHECKING:
    from eventonce.ports import Auth

    handler: Callable[..., Any]

PIPELINE = "pipeline.toml"
_MOUNTS = "/mnt/"  # below which Lambda mounts file systems, whose files outlive an instance
_log = logging.getLogger("eventonce")


def __getattr__(name: str) -> Any:
    """Open the pipeline when Lambda takes the handler, which is in the function's initialisation."""
    if name != "handler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        globals()["handler"] = open_handler(pipeline_file())
    except EventOnceError as error:  # whose sentence says all, and a traceback nothing more
        _log.error("%s", error)
        sys.exit(error.exit_code)
    return globals()["handler"]


def __dir__() -> list[str]:
    return [*globals(), "handler"]


def pipeline_file() -> Path:
    """Return the pipeline file of this function."""
    return Path(os.environ.get("LAMBDA_TASK_ROOT", ""), variable("pipeline") or PIPELINE)


def open_handler(file: Path) -> Callable[..., Any]:
    """Return the handler of a pipeline. No connection is made before the first event, and nothing unique is drawn."""
    settings = load_for_command(file)
    check_outlives(settings, str(file))
    sink = open_sink(settings.sink)
    return open_once(settings).aws_lambda(sink, dead_letters=_dead_letters(settings), auth=_auth(settings))


def check_outlives(settings: Settings, label: str) -> None:
    """Refuse a sink and dead letters that end with an instance of the function. Warn of such a store."""
    for name, url in (("sink", settings.sink), ("dead_letter", _dead_letters(settings))):
        if url is not None and not _outlives(file_name(url) or store_file(url)):
            raise ConfigError(
                f"{label}: {name}: {url!r} ends with the instance of a function; name a URL, or a file below {_MOUNTS}"
            )
    if settings.store == "memory:" or not _outlives(store_file(settings.store)):
        _log.warning("store: each instance of the function has its own, so copies that reach another one run again")


def _outlives(file: str | None) -> bool:
    return file is None or file.startswith(_MOUNTS)


def _dead_letters(settings: Settings) -> str | None:
    """Return the place of the dead letters, or None without one, so that the function's carrier decides."""
    return None if settings.dead_letter == Settings().dead_letter else dead_letter_url(settings)


def _auth(settings: Settings) -> "Auth | None":
    """Return the signer that the address of an `http://` source names."""
    if not settings.source.startswith("http://"):
        return None
    from eventonce.webhook.address import read_url

    return read_url(settings.source).auth
