"""The rules of a consumer, compiled. They find an event's rule and its key."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.clock import Duration, duration
from eventonce.errors import ConfigError, EventRejected
from eventonce.event import Event
from eventonce.event.formats.records import without_id
from eventonce.event.keys import (
    Digester,
    Key,
    Part,
    canonical,
    canonical_parsed,
    carrier_part,
    is_empty,
    part,
    powertools_key,
)
from eventonce.event.paths import ALIASES, Getter, getter, plain, unread_times, value_at, with_aliases
from eventonce.event.stamp import identity_of
from eventonce.rules.ignored import VOLATILE, WATCHED, IgnoredFields, UnusedPaths
from eventonce.rules.rule import CLOCKS_DIFFER, OnStoreError, Remember, Rule, Version, read_version
from eventonce.text import counted

if TYPE_CHECKING:
    from eventonce.rules.pattern import Pattern

_MAX_CACHED = 4096  # pairs of source and type
_LONGEST_CACHED = 1000  # characters of a pair


def identity(window: Duration, on_store_error: OnStoreError, remember: Remember = "seen") -> Rule:
    """Return the rule of an event that no other rule matches. Its key is its own id."""
    return Rule(name="id", window=window, on_store_error=on_store_error, remember=remember)


class Keyed(msgspec.Struct, frozen=True):
    """An event's rule, its key, its version, and its key under the rule that this one replaces."""

    rule: "CompiledRule"
    key: Key
    version: int | None = None
    old_key: Key | None = None
    since: int | None = None  # the earliest time at which a clock can have given this version

    @property
    def keys(self) -> tuple[Key, ...]:
        """Return all keys that the event is claimed under."""
        return (self.key,) if self.old_key is None else (self.key, self.old_key)

    def same_as(self, other: "Keyed") -> bool:
        """Return whether two events are copies of each other. Two versions of a thing are two events."""
        return not set(self.keys).isdisjoint(other.keys) and self.version == other.version


class CompiledRule:
    """A rule ready for use: durations read, paths parsed, the digest prepared."""

    def __init__(self, consumer: str, rule: Rule) -> None:
        self.rule = rule
        self.number = -1  # its index in a rulebook
        self.remedy = _OTHER_KEY
        self.name = rule.name
        self.refresh = rule.refresh
        self.remember = rule.remember
        self.on_store_error = rule.on_store_error
        self.window = duration(rule.window)
        self.max_age = None if rule.max_age is None else duration(rule.max_age)
        self.pattern = _pattern(rule)
        self.reads_aliases = _reads_aliases(rule.match)
        ahead = rule.version_ahead
        self.ahead_of_last = ahead if isinstance(ahead, int) else None
        self.ahead_of_clock = CLOCKS_DIFFER if ahead is None or isinstance(ahead, int) else duration(ahead)
        self._reprocess = rule.replay == "reprocess"
        self._version = None if rule.version is None else getter(rule.version)
        self._strip = IgnoredFields(rule.ignore, VOLATILE).strip
        self._paths = () if isinstance(rule.key, str) else tuple((text, getter(text)) for text in rule.key)
        # The digest includes the paths, so that a rule with a changed key does not meet the keys it had before.
        kind = rule.key if isinstance(rule.key, str) else "fields " + canonical(list(rule.key)).decode()
        self._digest = Digester(consumer, rule.name, kind)
        self._digest_otherwise = Digester(consumer, rule.name, f"otherwise {rule.otherwise}")
        self._key: Callable[[Event], Key] = (
            self._by_paths if self._paths else self._by_content if rule.key == "content" else self._by_id
        )
        replaced = rule.replaced()
        self._old = None if replaced is None else CompiledRule(consumer, replaced)
        self.end_watch: Callable[[], None] = lambda: None  # warns of paths that have left nothing out

    def key(self, event: Event) -> Keyed:
        """Return the event's key. Raise `EventRejected` if a part of it is missing."""
        # First the key: a missing part of it says more than a missing version. A Kafka tombstone without any field
        # that the rule reads is an event as well, since nothing of its partition runs before it is done.
        key = self._by_id(event) if event.tombstone and self._lacks_fields(event) else self._key(event)
        if self._version is None and self._old is None:
            return Keyed(self, key)
        old_key = None if self._old is None else self._old.key_if_any(event)
        if self._version is None or (event.tombstone and self._lacks_fields(event)):
            return Keyed(self, key, None, old_key)
        version = self._version_of(event, self._version)
        return Keyed(self, key, version.number, old_key, version.since)

    def key_if_any(self, event: Event) -> Key | None:
        """Return the event's key, if it has all parts of one."""
        try:
            return self._by_id(event) if event.tombstone and self._lacks_fields(event) else self._key(event)
        except EventRejected:
            return None

    def watch_ignored(self, warn: Callable[[str], None]) -> None:
        """Warn once of ignored paths that leave nothing out of the rule's first events. Later events cost nothing."""
        key, unused = self._key, UnusedPaths(self.rule.ignore)

        def report(texts: Sequence[str], events: str) -> None:
            self._key = key
            for text in texts:
                warn(f"rule {self.name}: ignore: {text} leaves nothing out of its {events}; check the path")

        def watching(event: Event) -> Key:
            texts = unused.watch(event)
            if texts is not None:
                report(texts, f"first {WATCHED} events")
            return key(event)

        def end() -> None:
            if unused.watched and self._key is watching:
                report(unused.texts(), counted(unused.watched, "event"))

        if self.rule.ignore:
            self._key = watching
            self.end_watch = end

    def content(self, event: Event) -> bytes:
        """Return the canonical form of the event's data, without what is ignored."""
        stripped = self._strip(event)
        return canonical_parsed(stripped, plain=event.plain_numbers) if event.raw else canonical(stripped)

    def stripped(self, event: Event) -> Any:
        """Return the event's data, without what is ignored."""
        return self._strip(event)

    def parts(self, event: Event) -> dict[str, Any]:
        """Return the parts of the key by name, for people."""
        by_id = event.tombstone and self._lacks_fields(event)
        if self._paths and not by_id:
            document = event.document()
            by_path = {text: get(document) for text, get in self._paths}
            if not any(map(is_empty, by_path.values())):
                return by_path | self._namer(event, by_path)
        if (self.rule.otherwise if self._paths else self.rule.key) == "content" and not by_id:
            return {"source": event.source, "type": event.type, "content": self.stripped(event)}
        stamp_id = identity_of(event)
        if event.named_by and not stamp_id:
            return {"source": event.source, "type": event.type, "id": event.id, "named by": _namers(event)}
        identity = {"source": event.source, "type": event.type, "id": stamp_id or event.attributes.get("id", event.id)}
        return {name: identity[name] for name in _IDENTITY[_PUBLISHED[event.form] if stamp_id else event.form]}

    def _lacks_fields(self, event: Event) -> bool:
        """Return whether a Kafka tombstone lacks what the rule reads. As a CloudEvent it may have that."""
        if event.named_by or not self._paths:
            return True
        try:
            document = event.document()
            if any(is_empty(get(document)) for _, get in self._paths):
                return True
            if self._version is not None:
                self._version_of(event, self._version)
        except EventRejected:
            return True
        return False

    def _by_content(self, event: Event) -> Key:
        return self._digest.content(event.source, event.type, self.content(event), self._replay(event))

    def _by_id(self, event: Event) -> Key:
        return self._digest(_identity(event, self.remedy), self._replay(event))

    def _by_paths(self, event: Event) -> Key:
        document, replay = event.document(), self._replay(event)
        if event.named_by and self.rule.digest == "powertools":
            document = _without_name(event)  # Powertools knows no name but the event's own
        values = [get(document) for _, get in self._paths]
        if not any(map(is_empty, values)):
            if self.rule.digest == "powertools":
                return powertools_key(values, replay)
            return self._digest(self._carrier_parts(event, values) if event.named_by else map(part, values), replay)
        if self.rule.otherwise is not None:
            return self._otherwise(event, replay)
        missing = next(text for (text, _), value in zip(self._paths, values, strict=True) if is_empty(value))
        raise _missing_error(missing, document, f"which is in the key of rule {self.name!r}")

    def _carrier_parts(self, event: Event, values: Sequence[Any]) -> list[Part]:
        """Return the parts of a key by paths if a carrier gave the id. Parts that use the id are the carrier's."""
        document = _without_name(event)
        own_values = [get(document) for _, get in self._paths]
        triples = zip(map(part, values), values, own_values, strict=True)
        return [
            plain if not is_empty(own) and part(own) == plain else carrier_part(event.named_by, value)
            for plain, value, own in triples
        ]

    def _namer(self, event: Event, by_path: dict[str, Any]) -> dict[str, str]:
        values = list(by_path.values())
        if not event.named_by or self._carrier_parts(event, values) == list(map(part, values)):
            return {}
        return {"named by": _namers(event)}

    def _replay(self, event: Event) -> str:
        """Return the replay that is part of the key, if each replay may run an event once more."""
        return event.replay if self._reprocess and event.replay else ""

    def _otherwise(self, event: Event, replay: str) -> Key:
        if self.rule.otherwise == "content":
            return self._digest_otherwise.content(event.source, event.type, self.content(event), replay)
        return self._digest_otherwise(_identity(event, self.remedy), replay)

    def _version_of(self, event: Event, get: Getter) -> Version:
        document, text = event.document(), str(self.rule.version)
        value = get(document)
        if value is None:
            raise _missing_error(text, document, f"which is the version of rule {self.name!r}")
        return read_version(value, text, self.rule.version_ahead)


def _missing_error(text: str, document: dict[str, Any], purpose: str) -> EventRejected:
    """Return the error for a path that leads nowhere, or to a value that cannot be read as a time."""
    if unread := unread_times(text, document):
        return EventRejected(f"has no readable time: cannot read {unread[0]!r:.60} as a time in {text}, {purpose}")
    return EventRejected(f"has no {text}, {purpose}{_elsewhere(text, document)}")


def _elsewhere(text: str, document: dict[str, Any]) -> str:
    """Return the remedy for a path that leads somewhere only if it starts at the data."""
    steps = plain(text)
    if steps is None or steps[0] in document or value_at(document["detail"], steps) is None:
        return ""
    return f"; its data has one, so write detail.{text}"


# The identity of an event of each form. CloudEvents are unique by source and id together only.
_IDENTITY = {"eventbridge": ("id",), "cloudevents": ("source", "id"), "plain": ("source", "type", "id")}


# The same for a stamped event: a bus gives every copy that its producer sends a new id.
_PUBLISHED = {"eventbridge": "plain", "cloudevents": "cloudevents", "plain": "plain"}


# What to do if an event has no identity: its rule has to say more, or there is none.
_OTHER_KEY = 'give its rule another key, such as key = "content"'
_NO_RULE = (
    'name what identifies it, such as key = ["detail.orderId"] or key = "content", in a [[rule]] of the pipeline or as '
    "a setting of Once"
)
_NO_MATCH = 'no rule matches it, so add one with a key, such as key = "content"'


def _identity(event: Event, remedy: str) -> tuple[Part, ...]:
    if stamp_id := identity_of(event):
        identity = {"source": event.source, "type": event.type, "id": stamp_id}
        return tuple(part(identity[name]) for name in _IDENTITY[_PUBLISHED[event.form]])
    if is_empty(event.id):
        raise EventRejected(without_id(event, remedy))
    if event.named_by:
        return part(event.source), part(event.type), carrier_part(event.named_by, event.id)
    if event.form == "eventbridge":
        return (part(event.id),)
    if event.form == "cloudevents":
        return part(event.source), part(event.id)
    event_id = event.attributes.get("id", event.id)  # 7 and "7" may be two things
    if isinstance(event_id, dict | list):
        raise EventRejected(f"has an id that is not a string or number; {remedy}")
    return part(event.source), part(event.type), part(event_id)


def _without_name(event: Event) -> dict[str, Any]:
    """Return the event's document without the id that a carrier gave it."""
    return {name: value for name, value in event.document().items() if name != "id"}


def _namers(event: Event) -> str:
    """Return the carriers that gave the event its id, for people."""
    return " > ".join(event.named_by)


def _pattern(rule: Rule) -> "Pattern | None":
    if rule.match is None:
        return None
    from eventonce.rules.pattern import Pattern, PatternError  # only if a rule has one: its imports take time

    try:
        return Pattern(rule.match)
    except PatternError as error:
        raise ConfigError(f"rule {rule.name!r}: match: {error}") from None


def _reads_aliases(match: Mapping[str, Any] | None) -> bool:
    """Return whether a pattern names `type` or `data` at the top of the event."""
    branches = (match or {}).get("$or", ())
    return not ALIASES.keys().isdisjoint(match or ()) or any(map(_reads_aliases, branches))


class Rulebook:
    """The rules of one consumer. The first that matches an event wins, and `identity` if none does."""

    def __init__(self, consumer: str, rules: Sequence[Rule], identity: Rule) -> None:
        names = [rule.name for rule in rules]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"rule {name!r} exists twice; give each rule a name of its own")
        if problem := shared_keys(rules):
            raise ConfigError(problem)
        self.definition = (consumer, tuple(rules), identity)  # from which another process makes the same rulebook
        self._rules = [CompiledRule(consumer, rule) for rule in rules]
        self._identity = CompiledRule(consumer, identity)
        self._identity.remedy = _NO_MATCH if rules else _NO_RULE
        self.all = [*self._rules, self._identity]
        for number, rule in enumerate(self.all):
            rule.number = number
        self._candidates: dict[tuple[str, str], list[tuple[CompiledRule, bool]]] = {}

    def watch_ignored(self, warn: Callable[[str], None]) -> None:
        """Warn once of each ignored path that leaves nothing out of the first events of its rule."""
        for rule in self._rules:
            rule.watch_ignored(warn)

    def end_watch(self) -> None:
        """Warn of each ignored path that has left nothing out, if its rule had few events."""
        for rule in self._rules:
            rule.end_watch()

    def key(self, event: Event) -> Keyed:
        """Return the event's rule and key."""
        return self.find(event).key(event)

    def find(self, event: Event) -> CompiledRule:
        """Return the event's rule."""
        document: dict[str, Any] | None = None
        possible = self._candidates.get((event.source, event.type))
        for rule, certain in self._possible(event.source, event.type) if possible is None else possible:
            if certain or rule.pattern is None:
                return rule
            if document is None:
                document = event.document()
            if rule.pattern.matches(with_aliases(document) if rule.reads_aliases else document):
                return rule
        return self._identity

    def _possible(self, source: str, kind: str) -> list[tuple[CompiledRule, bool]]:
        """Return the rules that may match an event with this source and type, and whether each surely does."""
        # Most patterns name their sources and types, so these decide without a test of each rule.
        if len(self._candidates) >= _MAX_CACHED:
            self._candidates.clear()
        possible = [rule for rule in self._rules if _could_match(rule.pattern, source, kind)]
        candidates = [(rule, _must_match(rule.pattern, source, kind)) for rule in possible]
        if len(source) + len(kind) <= _LONGEST_CACHED:
            self._candidates[source, kind] = candidates
        return candidates


def shared_keys(rules: Sequence[Rule]) -> str | None:
    """Return why two of these rules would share keys, or None. The keys of Powertools do not contain a rule's name."""
    names = [
        rule.name
        for rule in rules
        if any(each is not None and each.digest == "powertools" for each in (rule, rule.replaced()))
    ]
    if len(names) < 2:
        return None
    return (
        f"rules {names[0]!r} and {names[1]!r} both have keys of Powertools, which name no rule, so that equal values "
        "of two kinds would be one event; give each a consumer and a function= of its own"
    )


def _could_match(pattern: "Pattern | None", source: str, kind: str) -> bool:
    if pattern is None:
        return True
    sources, kinds = pattern.exact("source"), pattern.exact("detail-type")
    return (sources is None or source in sources) and (kinds is None or kind in kinds)


def _must_match(pattern: "Pattern | None", source: str, kind: str) -> bool:
    """Return whether a pattern that could match surely does: it has no other fields, and the event has both."""
    return pattern is None or bool(source and kind and pattern.fields <= {"source", "detail-type"})
