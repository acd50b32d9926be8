"""What a rule leaves out of the content of events, in whichever envelope they come.

Ignored paths start at the event, as all paths do, and only the data is content. So they are turned into paths of the
data, once for events with an envelope and once for plain objects, whose own fields are the data.
"""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from eventonce.errors import ConfigError
from eventonce.event import Event
from eventonce.event.paths import ALIASES, ENVELOPE, Ignored, Steps, ignored_path
from eventonce.event.stamp import FIELD

# Left out of content keys at the top of the data: tracing and publishers add these, so they differ between copies.
VOLATILE = ("_datadog", "traceparent", "tracestate", "_X_AMZN_TRACE_ID", FIELD)
WATCHED = 100  # events of a rule after which an ignored path that left nothing out is suspect
_DATA = ("detail", "data")


def check_ignored(text: str, setting: str) -> None:
    """Raise ConfigError if this is not a path, or one that cannot be left out of a content key."""
    name, *more = ignored_path(text, setting)
    if more or name not in {*_DATA, "source", *ALIASES, *ALIASES.values()}:
        return
    if name in _DATA:
        raise ConfigError(f"{setting}: {text!r} is all of the data; name the fields in it, such as {name}.sentAt")
    raise ConfigError(
        f"{setting}: {text!r} is always part of a content key; use a key of paths, or write detail.{text} for a field "
        "of the data"
    )


class IgnoredFields:
    """The fields of an event's data that a rule leaves out of its content."""

    def __init__(self, texts: Sequence[str], always: Iterable[str] = ()) -> None:
        paths, names = [ignored_path(text) for text in texts], [(name,) for name in always]
        below = [steps for path in paths if (steps := _below_envelope(path))]
        self._strip_enveloped = Ignored([*below, *names]).strip
        # Of plain objects, by whether they have a field of their own that is called data.
        self._strip_plain = [
            Ignored([*(_of_plain(path, has_data=has_data) for path in paths), *names]).strip
            for has_data in (False, True)
        ]
        self._same_for_all = not any(path[0] in ENVELOPE for path in paths)

    def strip(self, event: Event) -> Any:
        """Return the event's data, without what is ignored."""
        if self._same_for_all or event.form != "plain" or not is_plain_object(event):
            return self._strip_enveloped(event.data)
        return self._strip_plain["data" in event.data](event.data)


def is_plain_object(event: Event) -> bool:
    """Return whether an event has no envelope, so that the fields of its data are its own."""
    if event.form != "plain" or not isinstance(event.data, dict):
        return False
    # A carrier may have given it another id.
    return event.attributes is event.data or event.data.keys() - event.attributes.keys() <= {"id"}


def _below_envelope(path: Steps) -> Steps | None:
    """Return a path of the data, or None for a field of the envelope. Other names are those of the data."""
    if path[0] in _DATA:
        return path[1:]
    return None if path[0] in ENVELOPE else path


def _of_plain(path: Steps, *, has_data: bool) -> Steps:
    """Return a path of a plain object's own fields, all of which are its data."""
    return path[1:] if path[0] == "detail" or (path[0] == "data" and not has_data) else path


class UnusedPaths:
    """The ignored paths of a rule that leave nothing out of its first events, most likely by mistake."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._unused = {text: IgnoredFields([text]) for text in texts}
        self._numbers = count(1)  # threads share it
        self.watched = 0

    def watch(self, event: Event) -> list[str] | None:
        """Look at one more event. Return the unused paths if it was the last one, which one thread gets."""
        for text, fields in list(self._unused.items()):
            if fields.strip(event) != event.data:
                self._unused.pop(text, None)
        self.watched = next(self._numbers)
        return self.texts() if self.watched == WATCHED else None

    def texts(self) -> list[str]:
        """Return the paths that have left nothing out yet."""
        return list(self._unused)
