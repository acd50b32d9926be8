"""Groups: which events keep their order among themselves."""

import hashlib
import re
from typing import Any

from eventonce.clients.aws import AwsUrl
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.keys import canonical
from eventonce.event.paths import getter

_PLAIN = re.compile(r"[!-~]{1,128}")  # what AWS takes: letters, digits and punctuation


class Group:
    """Events for which a path leads to the same value; without a path, events of one source."""

    def __init__(self, place: AwsUrl) -> None:
        self._path = place.options.get("group", "source || 'eventonce'")
        self._get = getter(self._path, f"{place.label}: group")

    def of(self, event: Event) -> str:
        """The group of an event."""
        value = self._get(event.document())
        if value is None:
            raise EventRejected(f"has nothing at {self._path}, which names its group in the sink")
        return group_name(value)


def group_name(value: Any) -> str:
    """A value as the name of a group, in letters that AWS takes."""
    text = value if isinstance(value, str) else canonical(value).decode()
    return text if _PLAIN.fullmatch(text) else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
