"""CloudEvents as objects of the official SDK: into their structured form, and from an event back."""

from typing import Any, Protocol, runtime_checkable

import msgspec

from eventonce.errors import EventRejected, MissingDriver, describe
from eventonce.event import Event
from eventonce.event.decoding import decode
from eventonce.event.stamp import FIELD


@runtime_checkable
class CloudEvent(Protocol):
    """What every kind of CloudEvent of the SDK can do."""

    def get_attributes(self) -> Any: ...
    def get_data(self) -> Any: ...


def structured(given: CloudEvent) -> bytes:
    """An object of the SDK in its structured form."""
    form = _json_format()
    try:
        written: bytes = form.write(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise EventRejected(f"cannot be written as JSON: {error}") from None
    return written


def to_sdk(event: Event) -> Any:
    """The event as an object of the SDK, whose attributes it checks; `EventRejected` where one of them is wrong."""
    if event.form != "cloudevents":
        raise EventRejected("is no CloudEvent")
    given = {name: value for name, value in decode(event.line()).items() if name != FIELD}
    for name in ("id", "source", "type"):  # the SDK would make an id up, another one for each copy
        if not given.get(name):
            raise EventRejected(f"is no valid CloudEvent: it has no {name}")
    form = _json_format()
    try:
        made = form.read(None, msgspec.json.encode(given))
    except Exception as error:  # whatever an attribute does to it
        raise EventRejected(f"is no valid CloudEvent: {_why(error)}") from None
    if "time" not in given:  # it makes one up
        made.get_attributes().pop("time", None)
    return made


def _why(error: Exception) -> str:
    found: dict[str, list[Exception]] = getattr(error, "errors", {})  # of all attributes that are wrong
    return "; ".join(describe(each) for wrong in found.values() for each in wrong) or describe(error)


def _json_format() -> Any:
    try:
        from cloudevents.core.formats.json import JSONFormat
    except ModuleNotFoundError as error:
        raise MissingDriver(
            f"CloudEvents: needs the Python package {error.name}; install it with pip install 'eventonce[cloudevents]'"
        ) from error
    return JSONFormat()
