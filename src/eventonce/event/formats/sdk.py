"""CloudEvents as objects of the official SDK: to their structured form, and from an event back."""

from typing import Any, Protocol, runtime_checkable

import msgspec

from eventonce.errors import EventRejected, MissingDriver, describe
from eventonce.event import Event
from eventonce.event.decoding import decode
from eventonce.event.stamp import FIELD


@runtime_checkable
class CloudEvent(Protocol):
    """The methods that every kind of CloudEvent of the SDK has."""

    def get_attributes(self) -> Any: ...
    def get_data(self) -> Any: ...


def structured(sdk_event: CloudEvent) -> bytes:
    """Return an object of the SDK in its structured form."""
    form = _json_format()
    try:
        raw: bytes = form.write(sdk_event)
    except (TypeError, ValueError, RecursionError) as error:
        raise EventRejected(f"cannot be written as JSON: {error}") from None
    return raw


def to_sdk(event: Event) -> Any:
    """Return the event as an object of the SDK, which checks it. Raise `EventRejected` if an attribute is wrong."""
    if event.form != "cloudevents":
        raise EventRejected("is not a CloudEvent")
    fields = {name: value for name, value in decode(event.line()).items() if name != FIELD}
    for name in ("id", "source", "type"):  # the SDK would invent an id, another one for each copy
        if not fields.get(name):
            raise EventRejected(f"invalid CloudEvent: {name} is missing")
    form = _json_format()
    try:
        sdk_event = form.read(None, msgspec.json.encode(fields))
    except Exception as error:  # an attribute may cause anything
        raise EventRejected(f"invalid CloudEvent: {_reason(error)}") from None
    if "time" not in fields:  # the SDK invents one
        sdk_event.get_attributes().pop("time", None)
    return sdk_event


def _reason(error: Exception) -> str:
    by_attribute: dict[str, list[Exception]] = getattr(error, "errors", {})
    return "; ".join(describe(each) for errors in by_attribute.values() for each in errors) or describe(error)


def _json_format() -> Any:
    try:
        from cloudevents.core.formats.json import JSONFormat
    except ModuleNotFoundError as error:
        raise MissingDriver(
            f"CloudEvents: needs the Python package {error.name}; install it with pip install 'eventonce[cloudevents]'"
        ) from error
    return JSONFormat()
