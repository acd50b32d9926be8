"""Checking a pipeline file: all mistakes at once, each with its line."""

import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from eventonce.clients.aws import NoRegion, has_region
from eventonce.clock import duration, format_duration
from eventonce.dead_letters import check_dead_letters
from eventonce.environment import unknown_variables, variables, with_password
from eventonce.errors import ConfigError, EventRejected, SinkUnusable, StoreError
from eventonce.event import Event
from eventonce.event.keys import canonical
from eventonce.event.paths import ENVELOPE, Wildcard, constant, ignored_path, plain, quoted, roots
from eventonce.ports import Checkable
from eventonce.rules import CompiledRule, Rulebook, identity
from eventonce.rules.files import explain, toml_text
from eventonce.rules.ignored import IgnoredFields
from eventonce.rules.line_index import LineIndex
from eventonce.rules.preset import rules_of
from eventonce.rules.references import LITERAL, REFERENCE, References
from eventonce.rules.rule import DEFAULT_WINDOW, Rule, default_name
from eventonce.rules.rulebook import shared_keys
from eventonce.settings import (
    FROM_ENVIRONMENT,
    TEST_NAMES,
    AwsSettings,
    Settings,
    check_store_name,
    check_variable,
    read_test,
    settings,
    unknown_setting,
    with_numbers,
)
from eventonce.sinks import check_sink, open_sink
from eventonce.sources import check_source
from eventonce.stores import check_url, has_server, open_store, store_file
from eventonce.text import counted, unknown, without_hidden
from eventonce.urls import file_name
from eventonce.wire import conflicts

_DEFAULTS = ("window", "on_store_error", "remember")  # rules inherit these from the settings above them
_CROSS = ("name", "key", "otherwise", "version")  # other fields of a rule depend on these
# Fields and those that they depend on: if the key is wrong, they would only repeat its error.
_NEEDS = {**dict.fromkeys(("otherwise", "ignore", "digest", "replaces"), _CROSS[:3]), "version_ahead": ("version",)}
_AWS_NAMES = AwsSettings.__struct_fields__
_AWS = ("sqs://", "sns://", "events://", "kinesis://", "dynamodbstreams://")
_DAY = 86_400_000  # milliseconds
_TYPICAL = ("source", "detail-type", "detail")  # a match with one of them is for events with an envelope


class Finding(NamedTuple):
    """An error to fix, or a warning to consider."""

    line: int
    level: str  # "error" or "warning"
    text: str


class RulePosition(NamedTuple):
    """A rule, and the lines of it and its window. For a rule of a preset both are the line of `use`."""

    line: int
    window: int
    compiled: CompiledRule


class Case(NamedTuple):
    """A `[[test]]`: events that must be copies of each other, or must not."""

    line: int
    name: str
    same: bool
    events: list[Any]


class Lint:
    """The findings in a pipeline file, and its rules as far as they can be read."""

    def __init__(self, file: str) -> None:
        self.findings: list[Finding] = []
        self.rules: list[RulePosition] = []
        self.table: Mapping[str, Any] = {}
        self._defaults: dict[str, Any] = {}  # what rules inherit, as far as it can be read
        self._lines = LineIndex("")
        self._references = References({})
        text = toml_text(file)
        try:
            written = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self._error(_toml_line(error), f"is not TOML: {error}")
            return
        except RecursionError:
            self._error(1, "is nested too deep")
            return
        self._lines = LineIndex(text)
        self._references = References(written)
        self._file = file
        self.table = with_numbers({**self._variables(), **self._references.table}, written)
        self._missing()
        if not written:
            self._warn(1, "sets nothing, so every setting has its default; name the file of the pipeline")
        self._settings()
        self._own_rules()
        self._presets()
        self._names_twice()
        self._shared_keys()
        self._unreachable()
        self._windows()
        self._conflicts()

    @property
    def errors(self) -> int:
        return sum(finding.level == "error" for finding in self.findings)

    def rulebook(self) -> Rulebook:
        """Return the rules that could be read."""
        consumer = self.table.get("consumer", "default")
        rules = [position.compiled.rule for position in self.rules]
        return Rulebook(consumer if isinstance(consumer, str) and consumer else "default", rules, self._identity())

    def check_samples(self, samples: Sequence[Event]) -> None:
        """Check recorded events too: for ignored paths that no event has, and for missing or equal keys."""
        rulebook = self.rulebook()
        by_rule: dict[str, list[Event]] = {}
        for event in samples:
            by_rule.setdefault(rulebook.find(event).name, []).append(event)
        for number, rule in enumerate(self._tables("rule"), 1):
            self._check_ignored(number, rule, by_rule.get(_name(rule), []), len(samples))
        for line, _, compiled in self.rules:
            self._check_keys(line, compiled, by_rule.get(compiled.name, []))

    def _check_ignored(self, number: int, rule: Mapping[str, Any], events: Sequence[Event], samples: int) -> None:
        line, ignored = self._lines.find("rule", number, "ignore"), list(_strings(rule.get("ignore")))
        if ignored and not events:
            text = f"it matches 0 of {counted(samples, 'sample')}, so its ignored paths were not checked"
            self._warn(line, f"rule {_name(rule)!r}: {text}")
        for text in ignored:
            if events and not any(_occurs(text, event) for event in events):
                reason = f"{text} is in 0 of {counted(len(events), 'sample')}"
                self._warn(line, f"rule {_name(rule)!r}: ignore: {reason}")

    def _check_keys(self, line: int, rule: CompiledRule, events: Sequence[Event]) -> None:
        reasons = [reason for event in events if (reason := _rejection(rule, event))]
        if reasons:
            text = f"{len(reasons)} of {counted(len(events), 'sample')} would be rejected; the first {reasons[0]}"
            self._warn(line, f"rule {rule.name!r}: {text}")
        elif _share_a_key(rule, events):
            text = f"all {len(events)} samples have the same key, and they differ; use what identifies each of them"
            self._warn(line, f"rule {rule.name!r}: key: {text}")

    def read_source(
        self, scheme: str, read: Callable[[str], Any], cautions: Callable[[Any, Sequence[Rule]], Sequence[str]]
    ) -> None:
        """Read a source URL of this scheme by the door that will serve it. The door may warn about these rules."""
        url, line = self.table.get("source"), self._lines.find(entry="source")
        if not isinstance(url, str) or not url.startswith(scheme):
            return
        source = self._try(line, read, url)
        for caution in () if source is None else cautions(source, [position.compiled.rule for position in self.rules]):
            self._warn(line, f"source: {caution}")

    def check_store(self) -> None:
        """Check a store that has a server. Only warn if it cannot be reached from here."""
        url, line = self.table.get("store"), self._lines.find(entry="store")
        if not isinstance(url, str) or not has_server(url):
            return
        url = self._try(line, with_password, url, self.table.get("store_password"))
        store = None if url is None else self._try(line, partial(open_store, create=False), url)
        if not isinstance(store, Checkable):
            return
        try:
            for warning in store.check():
                self._warn(line, f"store: {warning}")
        except StoreError as error:
            self._warn(line, f"store: {'cannot be checked: ' if error.retryable else ''}{error}")
        finally:
            store.close()

    def check_regions(self) -> None:
        """Warn of an AWS URL without a region. Workers may run with other settings than this process."""
        for name in ("source", "sink", "dead_letter"):
            url = str(self.table.get(name, ""))
            if url.startswith(_AWS) and not has_region(url):
                self._warn(self._lines.find(entry=name), str(NoRegion(f"{name}: {url.partition('?')[0]}")))

    def cases(self) -> Iterator[Case]:
        """Yield the `[[test]]` tables. A mistake in them becomes a finding."""
        for number, table in enumerate(self._tables("test"), 1):
            line = self._lines.find("test", number)
            line = next((self._lines.find("test", number, entry) for entry in table if entry not in TEST_NAMES), line)
            if (case := self._try(line, read_test, table, number)) is not None:
                yield Case(self._lines.find("test", number), *case)

    # --- settings ---

    def _missing(self) -> None:
        """Report values that are neither in the environment nor in a file."""
        for missing in self._references.missing:
            first, *rest = missing.position
            number = rest[0] if rest and isinstance(rest[0], int) else 1
            entry = next((part for part in rest if isinstance(part, str)), "")
            line = self._lines.find(str(first), number, entry) if entry else self._lines.find(entry=str(first))
            self._error(line, str(missing))

    def _settings(self) -> None:
        for name, value in self.table.items():
            self._setting(name, value)
        for name, check in _URLS.items():
            if isinstance(value := self.table.get(name), str):
                self._try(self._lines.find(entry=name), check, value)
        store = self.table.get("store", Settings().store)
        if isinstance(store, str):
            password = self.table.get("store_password")
            self._try(self._lines.find(entry="store_password"), with_password, store, password)
        self._files()
        self._circle()
        self._aws_pattern()

    def _aws_pattern(self) -> None:
        aws = self.table.get("aws")
        pattern = aws.get("pattern") if isinstance(aws, dict) else None
        if not isinstance(pattern, dict):
            return
        line = self._lines.find("aws", 1, "pattern")
        self._warn_of_reference(line, "aws: pattern", pattern)
        if misspelt := _misspelt_field(pattern):
            self._warn(line, f"aws: pattern: {misspelt}")

    def _warn_of_reference(self, line: int, setting: str, value: Any) -> None:
        """Warn of a reference where none is replaced."""
        if reference := _reference(value):
            self._warn(line, f"{setting}: {reference} stays as it is written here; write the value itself")

    def _setting(self, name: str, value: Any) -> None:
        line = self._lines.find("aws", 1) if name == "aws" else self._lines.find(entry=name)
        unknown_names = value.keys() - set(_AWS_NAMES) if name == "aws" and isinstance(value, Mapping) else set()
        for entry in sorted(unknown_names):
            self._error(self._lines.find("aws", 1, entry), f"aws: {unknown(entry, _AWS_NAMES)}")
        if name not in Settings.__struct_fields__:
            self._error(line, unknown_setting(name))
        elif name not in ("rule", "test", "use") and not unknown_names:
            converted = self._try(line, msgspec.convert, {name: value}, Settings)
            if converted and name in _DEFAULTS:
                self._defaults[name] = value

    def _variables(self) -> dict[str, str]:
        """Return the settings that the file leaves to the environment, as a command reads them."""
        for warning in unknown_variables(FROM_ENVIRONMENT):
            self._warn(1, warning)
        written = self._try(1, variables, FROM_ENVIRONMENT) or {}
        open_ones = {name: text for name, text in written.items() if name not in self._references.table}
        for name, text in open_ones.items():
            self._try(1, check_variable, name, text)
        return open_ones if not self.errors else {}

    def _conflicts(self) -> None:
        """Report what only the settings together show, once each of them is valid."""
        if self.errors:
            return
        table = {name: value for name, value in self.table.items() if name != "test"}
        pipeline = self._try(1, settings, table, self._file)
        line = self._lines.find(entry="dead_letter")  # whose error may be that the store has no table
        for name, reason in self._try(line, lambda: list(conflicts(pipeline))) or () if pipeline else ():
            self._error(self._lines.find(entry=name), reason)

    def _circle(self) -> None:
        """Warn of a sink on the bus that feeds the pipeline: it returns every event under a new id."""
        aws, sink = self.table.get("aws"), str(self.table.get("sink", ""))
        bus = aws.get("bus", "default") if isinstance(aws, dict) else None
        if bus is not None and sink.partition("?")[0].removeprefix("events://") == bus and sink.startswith("events://"):
            text = f"sink: {sink} is the bus that feeds this pipeline, so its events may come back; use another bus"
            self._warn(self._lines.find(entry="sink"), text)

    def _files(self) -> None:
        """Warn of missing files. They may belong to another folder or machine, or be created later."""
        for name in ("source", "sink", "dead_letter", "store"):
            url = self.table.get(name)
            try:
                named = store_file if name == "store" else file_name
                file = named(url) if isinstance(url, str) else None
            except ConfigError:  # which the check of the URL reports
                continue
            if file in (None, "-") or url == "store":
                continue
            path = Path(file) if name == "source" else Path(file).parent
            kind = "file" if name == "source" else "folder"
            if not os.access(path, os.F_OK) or path.is_dir() != (kind == "folder"):
                text = f"{name}: no such {kind} {str(path)!r}; create it, or run in another folder"
                self._warn(self._lines.find(entry=name), text)

    def _identity(self) -> Rule:
        return identity(self._defaults.get("window", DEFAULT_WINDOW), "retry")

    # --- rules ---

    def _tables(self, name: str) -> list[Mapping[str, Any]]:
        tables = self.table.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._error(self._lines.find(entry=name), f"{name}: write each one as [[{name}]], with two brackets")
            return []
        return tables

    def _own_rules(self) -> None:
        for number, table in enumerate(self._tables("rule"), 1):
            errors_before = self.errors
            self._fields(number, table)
            line = self._lines.find("rule", number)
            if self.errors == errors_before:
                rule = self._try(line, msgspec.convert, {**self._defaults, **table}, Rule)
                self._compile(self._lines.find("rule", number, "match"), line, self._window_line(number, table), rule)
                self._check_intent(number, rule)

    def _window_line(self, number: int, table: Mapping[str, Any]) -> int:
        inherited = "window" in self.table and "window" not in table
        return self._lines.find(entry="window") if inherited else self._lines.find("rule", number, "window")

    def _check_intent(self, number: int, rule: Rule | None) -> None:
        """Warn of settings that are valid and hardly intended."""
        if rule is None:
            return
        warnings: dict[str, str] = {}
        if not isinstance(rule.key, str) and all(map(constant, rule.key)):
            warnings["key"] = "it is equal for all events, so all but the first are dropped; name a field of the event"
        if misspelt := _misspelt_field(rule.match or {}):
            warnings["match"] = misspelt
        if rule.max_age is not None and not duration(rule.max_age):
            warnings["max_age"] = "0 drops every event as too old; leave it out, or write it like 15m"
        if rule.replaced() == msgspec.structs.replace(rule, replaces=None):
            warnings["replaces"] = (
                "it names the rule itself as it is now; use the old name or the old key, or leave it out"
            )
        for entry, text in [*warnings.items(), *_misplaced(rule)]:
            self._warn(self._lines.find("rule", number, entry), f"rule {rule.name!r}: {entry}: {text}")

    def _fields(self, number: int, table: Mapping[str, Any]) -> None:
        """Check each field by itself, so that a mistake has its own line and does not hide others."""
        valid: dict[str, Any] = {"name": _name(table)}  # the valid ones among the fields that others depend on
        for name in sorted(table, key=_rank):
            line, value = self._lines.find("rule", number, name), table[name]
            if name in LITERAL:
                self._warn_of_reference(line, f"rule {_name(table)!r}: {name}", value)
            if name not in Rule.__struct_fields__:
                self._error(line, f"rule {number}: {unknown(name, Rule.__struct_fields__)}")
            elif all(need in valid for need in _NEEDS.get(name, ()) if need in table and need != name):
                rule = self._try(line, msgspec.convert, {**valid, name: value}, Rule)
                if rule is not None and name in _CROSS:
                    valid[name] = value
                elif rule is not None and name == "match":
                    self._try(line, CompiledRule, "check", rule)

    def _compile(self, match_line: int, line: int, window_line: int, rule: Rule | None) -> None:
        compiled = None if rule is None else self._try(match_line, CompiledRule, "check", rule)
        if compiled is not None:
            self.rules.append(RulePosition(line, window_line, compiled))

    def _presets(self) -> None:
        presets = self.table.get("use", [])
        line = self._lines.find(entry="use")
        if not isinstance(presets, list) or not all(isinstance(name, str) for name in presets):
            self._error(line, 'use: write the names of presets in a list, such as use = ["genesys"]')
            return
        for name, count in Counter(presets).items():
            if count > 1:
                self._warn(line, f"use: {name!r} is listed {count} times; once is enough")
            for rule in self._try(line, rules_of, [name]) or ():
                self._compile(line, line, line, rule)

    def _names_twice(self) -> None:
        names: set[str] = set()
        for line, _, compiled in self.rules:
            if compiled.name in names:
                self._error(line, f"rule {compiled.name!r} exists twice; give each rule a name of its own")
            names.add(compiled.name)

    def _shared_keys(self) -> None:
        rules: list[Rule] = []
        for line, _, compiled in self.rules:
            rules.append(compiled.rule)
            if problem := shared_keys(rules):
                self._error(line, problem)
                return

    def _unreachable(self) -> None:
        for index, (line, _, later) in enumerate(self.rules):
            for _, _, earlier in self.rules[:index]:
                if covers(earlier.rule.match, later.rule.match):
                    text = "has no match and takes every event" if earlier.rule.match is None else "matches all it does"
                    self._warn(
                        line, f"rule {later.name!r} can never be reached: rule {earlier.name!r} before it {text}"
                    )
                    break

    def _windows(self) -> None:
        queued = str(self.table.get("source", "")).startswith("sqs://")
        for _, line, compiled in self.rules:
            if short := shortfall(compiled, horizon(compiled.rule, queued=queued)):
                self._warn(line, f"rule {compiled.name!r}: {short}")
        unmatched = not self.errors and all(position.compiled.rule.match is not None for position in self.rules)
        if queued and unmatched and (short := shortfall(CompiledRule("check", self._identity()), _QUEUE)):
            self._warn(self._lines.find(entry="window"), f"for events that no rule matches: {short}")
        for number, table in enumerate(self._tables("rule"), 1):
            if table.get("replay") == "dedupe":
                line = self._lines.find("rule", number, "replay")
                window = table.get("window", self.table.get("window", DEFAULT_WINDOW))
                text = f"an archive replays events of any age, and those done longer than {window} ago run again"
                self._warn(line, f"rule {_name(table)!r}: replay: {text}")

    # --- findings ---

    def _try(self, line: int, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except msgspec.ValidationError as error:
            self._error(line, explain(error))
        except ConfigError as error:
            self._error(line, " ".join(str(error).split()))
        return None

    def _error(self, line: int, text: str) -> None:
        finding = Finding(line, "error", without_hidden(text))
        if finding not in self.findings:  # a table that is checked for several reasons is reported once
            self.findings.append(finding)

    def _warn(self, line: int, text: str) -> None:
        self.findings.append(Finding(line, "warning", without_hidden(text)))


def _toml_line(error: Exception) -> int:
    digits = str(error).rpartition("line ")[2].split(",")[0]
    return int(digits) if digits.isdecimal() else 1


def _rank(name: str) -> int:
    """Sort key for the fields of a rule: unknown names first, then those that other fields depend on."""
    if name in _CROSS:
        return _CROSS.index(name)
    return len(_CROSS) if name in Rule.__struct_fields__ else -1


def _sink(url: str) -> None:
    sink = open_sink(url) if check_sink(url) else None
    if isinstance(sink, Checkable):
        try:
            sink.check()
        except SinkUnusable as error:
            raise ConfigError(f"sink: {error}") from None


def _dead_letter(url: str) -> None:
    if url != "store":
        check_store_name(url)
        check_dead_letters(url)


_URLS: dict[str, Callable[[str], Any]] = {
    "store": check_url,
    "source": check_source,
    "sink": _sink,
    "dead_letter": _dead_letter,
}


def _name(table: Mapping[str, Any]) -> str:
    return str(table.get("name") or default_name(table.get("key", "id")))


def _strings(value: Any) -> Iterator[str]:
    return (text for text in value if isinstance(text, str)) if isinstance(value, list) else iter(())


def _rejection(rule: CompiledRule, event: Event) -> str | None:
    try:
        rule.key(event)
    except EventRejected as error:
        return str(error)
    return None


def _share_a_key(rule: CompiledRule, events: Sequence[Event]) -> bool:
    """Return whether events that differ all have one key, most likely by mistake. Versions of a thing may share it."""
    keyed = [rule.key(event) for event in events]
    if len({(each.key, each.version) for each in keyed}) != 1:
        return False
    return len({rule.content(event) for event in events}) > 1


def _occurs(text: str, event: Event) -> bool:
    return bool(IgnoredFields([text]).strip(event) != event.data)


def _misspelt_field(pattern: Mapping[str, Any]) -> str | None:
    """Return what to write if a pattern names a field that is nearly one of an envelope."""
    for name in sorted(_names(pattern) - ENVELOPE):
        if near := get_close_matches(name, _TYPICAL, n=1, cutoff=0.8):
            return f"unknown envelope field {name!r}; did you mean {near[0]!r}?"
    return None


def _reference(value: Any) -> str | None:
    """Return the first reference, such as `${NAME}`, anywhere in a value."""
    if isinstance(value, str):
        match = REFERENCE.search(value)
        return match and match[0]
    items = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next(filter(None, map(_reference, items)), None)


# --- paths that start at the wrong place ---


def _misplaced(rule: Rule) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the paths of a rule for events with an envelope, each with its setting.

    A rule is for them if its match names `source`, `detail-type` or `detail`, and no field that envelopes lack.
    """
    names = _names(rule.match or {})
    if names.isdisjoint(_TYPICAL) or not names <= ENVELOPE:
        return
    paths = [("key", text) for text in (() if isinstance(rule.key, str) else rule.key)]
    for entry, text in [*paths, *([("version", rule.version)] if rule.version else [])]:
        for name in sorted(roots(text) - ENVELOPE):
            path = text if plain(text) else quoted(name)
            yield entry, f"{text}: an envelope has no field {name!r}; write detail.{path} for one of the data"
    for text in rule.ignore:
        name = ignored_path(text)[0]
        if not isinstance(name, Wildcard) and name not in ENVELOPE:
            yield "ignore", f"{text}: an envelope has no field {name!r}; write detail.{text} for one of the data"
        elif name in ENVELOPE - {"detail", "data"}:
            yield (
                "ignore",
                f"{text}: only the data counts as content; write detail.{text} for a field of it, or leave this out",
            )


def _names(match: Mapping[str, Any]) -> set[str]:
    """Return the fields of the event that a pattern names."""
    branches = match.get("$or")
    inside = (
        [_names(branch) for branch in branches if isinstance(branch, Mapping)] if isinstance(branches, list) else []
    )
    return (match.keys() - {"$or"}).union(*inside)


# --- rules that hide later ones ---


def covers(earlier: Any, later: Any) -> bool:
    """Return whether a pattern surely matches all that another does. It may return False where it does."""
    if earlier is None:
        return True
    if later is None or not isinstance(earlier, Mapping) or not isinstance(later, Mapping):
        return False
    return all(name != "$or" and name in later and _wider(earlier[name], later[name]) for name in earlier)


def _wider(earlier: Any, later: Any) -> bool:
    if isinstance(earlier, list) and isinstance(later, list):
        values = {canonical(value) for value in earlier}
        return all(canonical(value) in values or _has_prefix_of(earlier, value) for value in later)
    return isinstance(earlier, Mapping) and covers(earlier, later)


def _has_prefix_of(earlier: list[Any], value: Any) -> bool:
    operators = [operator for operator in earlier if isinstance(operator, Mapping)]
    prefixes = [operator["prefix"] for operator in operators if isinstance(operator.get("prefix"), str)]
    text = value.get("prefix") if isinstance(value, Mapping) else value
    return isinstance(text, str) and any(text.startswith(prefix) for prefix in prefixes)


# --- windows, and how late a copy can come ---


class Horizon(NamedTuple):
    """How long after the first delivery a copy can still come, and the reason."""

    millis: int
    reason: str


_GENESYS = Horizon(5 * _DAY, "4d of Genesys's own retries + 24h of the EventBridge rule's = 5d")
_QUEUE = Horizon(14 * _DAY, "SQS keeps messages, dead letters that are redriven too, for up to 14d")
_EVENTBRIDGE = Horizon(_DAY, "an EventBridge rule retries its target for up to 24h")


def horizon(rule: Rule, *, queued: bool = False) -> Horizon | None:
    """Return how late a copy of a rule's event can come, as far as the rule and the source show it."""
    if queued:
        return _QUEUE
    if rule.match is None:
        return None
    sources = canonical(rule.match.get("source", [])).decode()
    if "genesys.com" in sources:
        return _GENESYS
    return _EVENTBRIDGE if rule.match.keys() & {"source", "detail-type", "type"} else None


def shortfall(compiled: CompiledRule, latest: Horizon | None) -> str | None:
    """Return why a window is too short, if it is."""
    if latest is None or compiled.window >= latest.millis:
        return None
    missing = format_duration(latest.millis - compiled.window)
    return (
        f"window: {compiled.rule.window} misses the last {missing} in which copies can come ({latest.reason}); "
        f"write window = {format_duration(latest.millis)!r} or more"
    )
