"""Drivers that are installed with an extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from eventonce.errors import MissingDriver


@contextmanager
def from_extra(extra: str, label: str) -> Iterator[None]:
    """Raise `MissingDriver`, which names the extra to install, if an import in this block fails."""
    try:
        yield
    except ImportError as error:
        if not extra or (error.name or "").startswith("eventonce"):
            raise
        missing = isinstance(error, ModuleNotFoundError)  # if not, the package lacks something, such as libpq
        needs = (
            f"the Python package {error.name}" if missing else f"its driver whole ({str(error).partition(chr(10))[0]})"
        )
        raise MissingDriver(f"{label}: needs {needs}; install it with pip install 'eventonce[{extra}]'") from error
