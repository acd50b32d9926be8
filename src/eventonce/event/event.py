"""An event, whatever envelope it came in, and a delivery of it."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal

import msgspec

if TYPE_CHECKING:
    from typing import Never

    from typing_extensions import TypeVar

    # `Event` alone has any data. Its parameter is not Any, which would make two overloads of `@once` fit a handler.
    Data_co = TypeVar("Data_co", covariant=True, default=Never)
else:
    from typing import TypeVar

    Data_co = TypeVar("Data_co", covariant=True)

Restore = Callable[[Any], Any]  # makes a value of the type that an annotation names of its spelling (see `values.py`)


class Event(msgspec.Struct, Generic[Data_co], frozen=True, kw_only=True):
    """One event. Its fields cannot be set. A handler gets one with `data` and `attributes` of its own.

    `data` is plain data, or with `event: Event[Order]` in the handler an `Order`.

    `id` and `source` are empty if the envelope has none. `attributes` are the envelope's other fields.

    `replay` is the name of the replay that this copy belongs to: the `replay-name` of EventBridge Classic, "REPLAY" on
    the new bus, which gives a replay no name, or `redrive:` and the id of a dead letter that is reprocessed.

    `raw` is the event's own bytes as they arrived. It is empty if the event arrived as an object, as in a direct
    invocation of a Lambda function. `line` gives bytes in any case.

    `named_by` names the carriers that gave the event its id, the outermost first. It is empty if the event has an id of
    its own.
    """

    data: Data_co | Any
    id: str = ""
    source: str = ""
    type: str = ""
    time: datetime | None = None
    attributes: Mapping[str, Any] = {}
    replay: str | None = None
    raw: bytes = b""
    named_by: tuple[str, ...] = ()
    form: Literal["eventbridge", "cloudevents", "plain"] = "plain"  # the envelope it came in
    tombstone: bool = False  # Kafka itself brought it, without a value
    plain_numbers: bool = False  # all its integers surely have 64 bits, and its other numbers are below 1e15

    if TYPE_CHECKING:
        # Plain data has no type to infer: `Event(data={})` would need an annotation.
        def __init__(
            self: "Event",
            *,
            data: Any,
            id: str = "",  # noqa: A002
            source: str = "",
            type: str = "",  # noqa: A002
            time: datetime | None = None,
            attributes: Mapping[str, Any] = ...,
            replay: str | None = None,
            raw: bytes = b"",
            named_by: tuple[str, ...] = (),
            form: Literal["eventbridge", "cloudevents", "plain"] = "plain",
            tombstone: bool = False,
            plain_numbers: bool = False,
        ) -> None: ...

    def document(self) -> dict[str, Any]:
        """Return the whole event in the shape of EventBridge, which key paths and patterns are read against."""
        document = dict(self.attributes)
        if self.id:
            document["id"] = self.id
        if self.source:
            document["source"] = self.source
        if self.type:
            document["detail-type"] = self.type
        if self.time is not None:
            document.setdefault("time", self.time.isoformat())
        document["detail"] = self.data
        return document

    def _cloudevent(self) -> dict[str, Any]:
        identity = {"id": self.id, "source": self.source, "type": self.type}
        return (
            {**self.attributes, **identity} if self.data is None else {**self.attributes, **identity, "data": self.data}
        )

    def _encodable(self) -> Any:
        if self.form == "cloudevents":
            return self._cloudevent()
        data: Any = self.data
        bare = self.form == "plain" and isinstance(data, Mapping) and self.attributes
        return data if bare and all(name in data for name in self.attributes) else self.document()

    def line(self) -> bytes:
        """Return the event as one line of JSON: its own bytes if they are one line, else encoded anew."""
        if not self.raw:
            return msgspec.json.encode(self._encodable(), enc_hook=_plain)
        return self.raw if b"\n" not in self.raw else msgspec.json.format(self.raw, indent=-1)


def _plain(value: Any) -> Any:
    """Return a model of pydantic, or a path, as JSON can say it. Only data of a typed handler has such values."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(value, "__fspath__"):
        return str(value)
    raise TypeError(f"objects of type {type(value).__name__} have no form in JSON")


class Delivery(msgspec.Struct):
    """One arrival of an event: its bytes, their origin, and how often they were received."""

    body: bytes
    origin: Mapping[str, Any] = {}  # such as {"source": "events.jsonl", "line": 7, "byte": 2048}
    receive_count: int = 1
    store_failures: int = 0  # how often the store did not answer for it
    unreadable: str | None = None  # the reason, if the source itself cannot read it
    event: Event | None = None  # set if it was one of several in a document, and has been read already
    group: str | None = None  # deliveries of one group run in order, and none after one that is not done
    message_id: str | None = None  # set if the carrier may send the message again after it was passed on
    handle: Any = None  # by which the source settles it

    @property
    def location(self) -> str:
        """Return the origin in short."""
        return ":".join(str(self.origin[name]) for name in ("source", "line", "message") if name in self.origin)
