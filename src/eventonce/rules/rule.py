"""A rule: what makes two events the same, for how long, and what is remembered."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import structs

from eventonce.clock import duration
from eventonce.errors import ConfigError, EventRejected
from eventonce.event.paths import getter, read_time
from eventonce.rules.ignored import check_ignored
from eventonce.text import unknown

if TYPE_CHECKING:
    from eventonce.clock import Duration
else:
    Duration = Any  # msgspec has no union of a string and a timedelta; `duration` checks the value

DEFAULT_WINDOW = "14d"  # how long SQS can hold a message, dead-letter queue included
MAX_VERSION = 2**63 - 1
CLOCKS_DIFFER = 86_400_000  # a day: a clock may be wrong, and a local time may be read as UTC
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 60  # characters
_MILLI = 10**6  # nanoseconds
_UNITS = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3))  # seconds, milli- and microseconds end after the year 5000


Remember = Literal[
    "seen",  # that it ran, and when
    "note",  # and the first copy's id, time and fingerprint
    "result",  # and what the handler returned
]
Replay = Literal[
    "dedupe",  # a replayed event is a copy like any other
    "reprocess",  # each named replay may run each event once more, where `Event.replay` is the name
]
OnStoreError = Literal[
    "retry",  # try again later
    "process",  # run it now, at the risk of running it twice
]
Digest = Literal[
    "eventonce",  # over consumer, rule and typed parts
    "powertools",  # as Powertools for AWS Lambda (Python) makes it, so that both meet in one table
]


class _NamedSettings(msgspec.StructMeta):
    """The class of `Rule`: an unknown setting, or one without a name, is a `ConfigError`."""

    if not TYPE_CHECKING:  # which sees the settings themselves

        def __call__(cls, *unnamed, **settings):  # noqa: N805
            if unnamed:
                raise ConfigError('Rule: name each setting, such as Rule(name="orders", key=["detail.orderId"])')
            for name in settings:
                if name not in cls.__struct_fields__:
                    raise ConfigError(f"Rule: {unknown(name, cls.__struct_fields__)}")
            return super().__call__(**settings)


class Rule(msgspec.Struct, frozen=True, kw_only=True, metaclass=_NamedSettings):
    """What makes two events of a kind the same.

    `name` is part of its keys, and shown wherever the rule is. A rule without one is called `id`, `content` or `paths`
    after its key. `key` is "id", "content" or a list of paths. `otherwise` is the key to use if one of the paths leads
    nowhere. `window` and `max_age` are durations ("14d", or a timedelta). `version_ahead` bounds versions. "1d" means
    that they are times, at most that far ahead of the clock. A whole number means that they are counts, at most that
    far ahead of the last one done. `replaces` names the rule that this one replaces, or is a table of its name and what
    was different about it, so that what it remembers still counts.
    """

    name: str = ""
    match: Mapping[str, Any] | None = None
    key: str | Sequence[str] = "id"
    otherwise: Literal["content", "id"] | None = None
    ignore: Sequence[str] = ()
    version: str | None = None
    version_ahead: Duration | int | None = None
    window: Duration = DEFAULT_WINDOW
    refresh: bool = False
    max_age: Duration | None = None
    replay: Replay = "dedupe"
    remember: Remember = "seen"
    on_store_error: OnStoreError = "retry"
    digest: Digest = "eventonce"
    replaces: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError(f"a rule has the name {self.name!r}, which is not a string")
        if not self.name:
            structs.force_setattr(self, "name", default_name(self.key))
        label = f"rule {self.name!r}"
        self._check_types(label)
        for field, kind in _CHOICES:
            if getattr(self, field) not in get_args(kind):
                choices = ", ".join(get_args(kind))
                raise ConfigError(f"{label}: {field}: {getattr(self, field)!r} is not one of {choices}")
        self._check_key(label)
        if duration(self.window, f"{label}: window") == 0:
            raise ConfigError(f"{label}: a window of 0 remembers nothing; leave the rule out instead")
        if self.max_age is not None:
            duration(self.max_age, f"{label}: max_age")
        self.replaced()

    def replaced(self) -> "Rule | None":
        """Return the rule that this one replaces, if any."""
        if self.replaces is None:
            return None
        changed = dict(self.replaces) if isinstance(self.replaces, Mapping) else {"name": self.replaces}
        unknown = set(changed) - {"name", "key", "otherwise", "ignore", "digest"}
        if unknown or not changed.get("name"):
            raise ConfigError(
                f"rule {self.name!r}: replaces: use the old name, or a table of name, key, otherwise, ignore and digest"
            )
        if "key" in changed:  # then the table describes all of the old key
            changed = {"otherwise": None, "ignore": (), **changed}
        try:
            old: Rule = structs.replace(self, replaces=None, **changed)
        except ConfigError as error:
            raise ConfigError(f"rule {self.name!r}: replaces: {error}") from None
        return old

    def _check_types(self, label: str) -> None:
        """Check what may be written in Python: a string in place of a list would be read letter by letter."""
        lists = [("ignore", self.ignore)] + ([] if isinstance(self.key, str) else [("key", self.key)])
        for field, value in lists:
            if (
                isinstance(value, str)
                or not isinstance(value, Sequence)
                or not all(isinstance(item, str) for item in value)
            ):
                raise ConfigError(f"{label}: {field}: {value!r} is not a list of paths")
        if not isinstance(self.version, str | None):
            raise ConfigError(f"{label}: version: {self.version!r} is not a path; use a string such as detail.version")
        if not isinstance(self.refresh, bool):
            raise ConfigError(f"{label}: refresh: {self.refresh!r} is neither True nor False")

    def _check_key(self, label: str) -> None:
        self._check_kind(label)
        for text in () if isinstance(self.key, str) else self.key:
            getter(text, f"{label}: key")
        for text in self.ignore:
            check_ignored(text, f"{label}: ignore")
        if self.version is not None:
            getter(self.version, f"{label}: version")
        self._check_ahead(label)

    def _check_ahead(self, label: str) -> None:
        ahead = self.version_ahead
        if ahead is not None and self.version is None:
            raise ConfigError(f"{label}: version_ahead only means something with a version")
        if isinstance(ahead, str | timedelta):
            duration(ahead, f"{label}: version_ahead")
        elif ahead is not None and (type(ahead) is not int or not 0 < ahead <= MAX_VERSION):
            raise ConfigError(f'{label}: version_ahead: {ahead!r} is neither a duration like "1d" nor a count above 0')

    def _check_kind(self, label: str) -> None:
        if isinstance(self.key, str) and self.key not in ("id", "content"):
            raise ConfigError(f'{label}: key: unknown key {self.key!r}; use "id", "content" or a list of paths')
        if not self.key:
            raise ConfigError(f'{label}: key: name at least one path, or use "id" or "content"')
        if self.ignore and "content" not in (self.key, self.otherwise):
            raise ConfigError(f'{label}: ignore only means something with key = "content"')
        if self.otherwise not in (None, "content", "id"):
            raise ConfigError(f'{label}: otherwise: unknown key {self.otherwise!r}; use "content" or "id"')
        if self.otherwise is not None and isinstance(self.key, str):
            raise ConfigError(f"{label}: otherwise only means something with a key of paths")
        if self.digest == "powertools" and (isinstance(self.key, str) or self.otherwise is not None):
            raise ConfigError(f'{label}: digest = "powertools" needs a key of paths, and no otherwise')


_CHOICES = (("replay", Replay), ("remember", Remember), ("on_store_error", OnStoreError), ("digest", Digest))


def default_name(key: object) -> str:
    """Return the name of a rule that has none: its key, or what its key consists of."""
    return key if isinstance(key, str) else "paths"


class Version(NamedTuple):
    """A version as one whole number, and the earliest time (milliseconds) at which a clock can have given it."""

    number: int
    since: int | None  # None for a count


def read_version(value: Any, path: str, ahead: Duration | int | None = None) -> Version:
    """Read a version: an integer, digits, or a time in nanoseconds. `ahead` is the rule's `version_ahead`."""
    is_time = ahead is not None and not isinstance(ahead, int)
    is_short = not isinstance(value, str) or len(value) <= _LONGEST
    number = None if not is_short else _nanoseconds(value) if is_time else _whole(value)
    time = read_time(value) if is_short and number is None else None
    if time is not None:  # nanoseconds end in 1677 and 2262
        number = max(-MAX_VERSION, min((time - _EPOCH) // timedelta(microseconds=1) * 1000, MAX_VERSION))
    if number is None or not -MAX_VERSION <= number <= MAX_VERSION:
        raise EventRejected(
            f"{path} is {str(value)[:_LONGEST]!r}, which is not a version; "
            "use a whole number below 2^63 or a time such as 2026-01-31T12:00:00Z"
        )
    # No unit of time in use is smaller than nanoseconds, so a number below the present one proves nothing. A string in
    # ISO 8601 is a time even if others are counts.
    return Version(number, None if isinstance(ahead, int) and time is None else number // _MILLI)


def _whole(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _nanoseconds(value: Any) -> int | None:
    """Read a number as a time since 1970, whose unit its size shows."""
    number = value if isinstance(value, float) and math.isfinite(value) else _whole(value)
    if number is None:
        return None
    factor = next((factor for below, factor in _UNITS if abs(number) < below), 1)
    return int(number * factor)
