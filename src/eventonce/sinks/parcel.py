"""A parcel: one event on its way into a call that takes several, and what becomes of it."""

from typing import Any, NamedTuple

from eventonce.errors import EventRejected, SinkError
from eventonce.event import Event


class Entry(NamedTuple):
    """One event as an API takes it."""

    body: dict[str, Any]
    size: int  # as the service counts it
    group: str | None = None  # entries of one group keep their order


class Limits(NamedTuple):
    """What a call can hold."""

    entries: int
    together: int  # bytes
    alone: int  # bytes of an entry that is larger than that and goes by itself; the service may refuse it all the same


class Taken(NamedTuple):
    """A service has the event."""

    id: str | None  # as the service names it
    repeated: bool = False  # it had the event already, and says so


class Refusal(NamedTuple):
    """Why a service did not take an entry, or a whole call."""

    code: str
    said: str

    @property
    def plain(self) -> str:
        """The code without what differs between services: the part before a dot, the ending, capital letters."""
        return self.code.rpartition(".")[2].removesuffix("Exception").lower()


NO_ANSWER = Refusal("NoAnswer", "nothing was said of it")


def in_place(said: list[dict[str, Any]], count: int, name: str) -> list[Taken | Refusal]:
    """What was said of each, by its place; one that is not spoken of was not taken."""
    found: list[Taken | Refusal] = [
        Refusal(each["ErrorCode"], each.get("ErrorMessage", ""))
        if each.get("ErrorCode")
        else Taken(each.get(name), each.get("SuccessCode") == "DEDUPLICATED")
        for each in said[:count]
    ]
    return found + [NO_ANSWER] * (count - len(found))


class Parcel:
    """One event, and how its sending goes."""

    __slots__ = ("_key", "answer", "attempts", "entry", "event", "group", "trouble")

    def __init__(self, event: Event, key: str = "", group: str | None = None) -> None:
        self.event = event
        self._key = key
        self.group = group  # where the caller names it; else the carrier finds it in the event
        self.entry = Entry({}, 0)
        self.attempts = 0
        self.trouble: EventRejected | SinkError | None = None  # of the last attempt
        self.answer: Taken | EventRejected | SinkError | None = None  # None as long as it may be sent

    @property
    def key(self) -> str:
        """What a carrier may tell copies by: the same at every attempt."""
        return self._key

    def written(self) -> Event:
        """The event as the next attempt carries it."""
        return self.event
