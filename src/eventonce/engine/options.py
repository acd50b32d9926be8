"""Checks of what a user passes to `Once` and to `@once(key=...)`."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from eventonce.errors import ConfigError
from eventonce.text import unknown

P = ParamSpec("P")


def checks_names(initialize: Callable[P, None]) -> Callable[P, None]:
    """Decorate the `__init__` of `Once`: an unknown setting, or one too many without a name, is a `ConfigError`."""
    valid_names = ("store", *(initialize.__kwdefaults__ or ()))

    @wraps(initialize)
    def checked(*args: P.args, **settings: P.kwargs) -> None:
        if len(args) > 2:  # itself and the store
            raise ConfigError('Once: only the store goes without a name; name the others, such as consumer="billing"')
        for name in settings:
            if name not in valid_names:
                raise ConfigError(f"Once: {unknown(name, valid_names)}")
        initialize(*args, **settings)

    return checked


def at_least_one(setting: str, value: Any) -> int:
    """Return a whole number above 0. Raise `ConfigError` for anything else."""
    if type(value) is not int or value < 1:
        raise ConfigError(f"{setting}: {value!r} is not a whole number from 1 on")
    return value
