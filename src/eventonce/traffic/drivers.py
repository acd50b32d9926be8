"""The engines, imported on use; where one is missing, which extra brings it."""

from importlib import import_module
from typing import Any

from eventonce.errors import MissingDriver


def need(name: str, extra: str) -> Any:
    """A module that an extra brings."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDriver(f'this needs {name.partition(".")[0]}; pip install "eventonce[{extra}]"') from error
