"""All rules of a consumer, compiled: which rule an event falls under, and its key."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from eventonce.clock import duration
from eventonce.errors import ConfigError, EventRejected
from eventonce.event import Event
from eventonce.key import Ignored, Key, Part, canonical, digester, part, path, value_at
from eventonce.rule import Rule, version_number
from eventonce.rules.pattern import Pattern, PatternError

# Left out of content keys at the top of the data: what tracing adds on the way and what thus differs per copy.
VOLATILE = ("_datadog", "traceparent", "tracestate", "_X_AMZN_TRACE_ID")
_CACHED = 4096  # pairs of source and type


class Keyed(NamedTuple):
    """The rule an event falls under, its key and its version."""

    rule: "CompiledRule"
    key: Key
    version: int | None


class CompiledRule:
    """A rule made ready: durations read, paths parsed, the digest prepared."""

    def __init__(self, consumer: str, rule: Rule) -> None:
        self.name = rule.name
        self.refresh = rule.refresh
        self.remember = rule.remember
        self.store_trouble = rule.store_trouble
        self.window = duration(rule.window)
        self.max_age = None if rule.max_age is None else duration(rule.max_age)
        self.pattern = _pattern(rule)
        self._reprocess = rule.replay == "reprocess"
        self._version = None if rule.version is None else (rule.version, path(rule.version))
        self._ignored = Ignored([(name,) for name in VOLATILE] + [path(text) for text in rule.ignore])
        self._parts = self._choose(rule.key)
        # With its paths, so that a rule whose key was changed does not meet the keys it made before.
        kind = rule.key if isinstance(rule.key, str) else "fields " + canonical(list(rule.key)).decode()
        self._digest = digester(consumer, rule.name, kind)

    def key(self, event: Event) -> Keyed:
        """The event's key, or `EventRejected` where a part of it is missing."""
        replay = event.replay if event.replay and self._reprocess else ""
        return Keyed(self, self._digest(self._parts(event), replay), self._version_of(event))

    def content(self, event: Event) -> bytes:
        """The canonical form of what the event says, without what is ignored."""
        return canonical(self._ignored.strip(event.data))

    def _choose(self, key: str | Sequence[str]) -> Callable[[Event], Iterable[Part]]:
        if key == "id":
            return _identity
        if key == "content":
            return lambda event: (part(event.source), part(event.type), (b"j", self.content(event)))
        paths = [(text, path(text)) for text in key]
        return lambda event: self._fields(event, paths)

    def _fields(self, event: Event, paths: Sequence[tuple[str, tuple[str, ...]]]) -> list[Part]:
        document = event.document()
        return [part(self._present(document, text, steps)) for text, steps in paths]

    def _present(self, document: dict[str, Any], text: str, steps: tuple[str, ...]) -> Any:
        value = value_at(document, steps)
        if value is None:
            raise EventRejected(f"has no {text}, which is in the key of rule {self.name!r}")
        return value

    def _version_of(self, event: Event) -> int | None:
        if self._version is None:
            return None
        return version_number(self._present(event.document(), *self._version), self._version[0])


def _identity(event: Event) -> tuple[Part, ...]:
    if not event.id:
        raise EventRejected('has no id; give its rule another key, such as key = "content"')
    if event.form == "eventbridge":
        return (part(event.id),)
    if event.form == "cloudevents":  # unique by source and id together only
        return part(event.source), part(event.id)
    given = event.attributes.get("id", event.id)  # 7 and "7" may be two things
    if isinstance(given, dict | list):
        raise EventRejected('has an id that is no text or number; give its rule another key, such as key = "content"')
    return part(event.source), part(event.type), part(given)


def _pattern(rule: Rule) -> Pattern | None:
    try:
        return None if rule.match is None else Pattern(rule.match)
    except PatternError as error:
        raise ConfigError(f"rule {rule.name!r}: match: {error}") from None


class Rulebook:
    """The rules of one consumer; the first that matches an event wins, and `identity` where none does."""

    def __init__(self, consumer: str, rules: Sequence[Rule], identity: Rule) -> None:
        names = [rule.name for rule in rules]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"rule {name!r} is there twice; give each rule a name of its own")
        self._rules = [CompiledRule(consumer, rule) for rule in rules]
        self._identity = CompiledRule(consumer, identity)
        self._candidates: dict[tuple[str, str], list[CompiledRule]] = {}

    def key(self, event: Event) -> Keyed:
        """The event's rule and key."""
        return self.find(event).key(event)

    def find(self, event: Event) -> CompiledRule:
        """The rule the event falls under."""
        document: dict[str, Any] | None = None
        for rule in self._possible(event.source, event.type):
            if rule.pattern is None:
                return rule
            if document is None:
                document = event.document()
            if rule.pattern.matches(document):
                return rule
        return self._identity

    def _possible(self, source: str, kind: str) -> list[CompiledRule]:
        # Most patterns name their sources and types, so what they name decides without looking at each rule.
        found = self._candidates.get((source, kind))
        if found is None:
            if len(self._candidates) >= _CACHED:
                self._candidates.clear()
            found = [rule for rule in self._rules if _could_match(rule.pattern, source, kind)]
            self._candidates[source, kind] = found
        return found


def _could_match(pattern: Pattern | None, source: str, kind: str) -> bool:
    if pattern is None:
        return True
    sources, kinds = pattern.exact("source"), pattern.exact("detail-type")
    return (sources is None or source in sources) and (kinds is None or kind in kinds)
