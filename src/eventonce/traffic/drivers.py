"""The engines, imported on use."""

from importlib import import_module
from typing import Any

from eventonce.errors import MissingDriver


def need(name: str, extra: str) -> Any:
    """Import a module of an extra. Raise `MissingDriver` with the name of the extra if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDriver(f'this needs {name.partition(".")[0]}; pip install "eventonce[{extra}]"') from error
