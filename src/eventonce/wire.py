"""A pipeline: one TOML file becomes typed settings, and those become a wired engine, source and sink."""

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from eventonce.clock import duration
from eventonce.dead_letters import open_dead_letters
from eventonce.engine import Once
from eventonce.engine.once import lease_of
from eventonce.errors import ConfigError, StoreError
from eventonce.ports import Hook, Sink
from eventonce.rules import Rulebook, identity, read_all
from eventonce.rules.files import check_names, explain, read_toml
from eventonce.rules.rule import DEFAULT_WINDOW, OnStoreError, Remember, Rule
from eventonce.sinks import open_sink
from eventonce.sources import open_source
from eventonce.stores import open_store, store_file

_log = logging.getLogger("eventonce")
_BUS = re.compile(r"[/.\-_A-Za-z0-9]{1,256}")
_RULE = re.compile(r"[.\-_A-Za-z0-9]{1,64}")


class AwsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[aws]`: the rule of EventBridge that fills an SQS source, for `eventonce setup` and `eventonce template`."""

    bus: str = "default"
    rule: str | None = None  # its name; without one, that of the consumer
    pattern: Mapping[str, Any] | None = None  # which events it takes; without one, all that the rules match

    def __post_init__(self) -> None:
        if not _BUS.fullmatch(self.bus):
            raise ConfigError(f"aws: bus: {self.bus!r} is no name of a bus; use letters, digits and . - _ /")
        if self.rule is not None and not _RULE.fullmatch(self.rule):
            raise ConfigError(f"aws: rule: {self.rule!r} is no name of a rule; use up to 64 letters, digits and . - _")
        if self.pattern is not None:
            self._check(self.pattern)

    def _check(self, pattern: Mapping[str, Any]) -> None:
        from eventonce.rules.pattern import Pattern, PatternError  # only where there is one: its imports cost

        try:
            Pattern(pattern)
        except PatternError as error:
            raise ConfigError(f"aws: pattern: {error}") from None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a pipeline file says above its rules."""

    consumer: str = "default"
    store: str = "sqlite:///eventonce.db"
    source: str = "-"
    sink: str = "-"
    dead_letter: str = "eventonce-dead.jsonl"
    window: str | float = DEFAULT_WINDOW
    lease: str | float = "60s"
    busy_wait: str | float = 0
    max_attempts: int = 5
    on_store_error: OnStoreError = "retry"
    remember: Remember | None = None  # without one, `seen`; of requests that no rule matches, `note`
    batch: int | None = None  # events claimed together; 100 of a file, 10 of a queue
    threads: int | None = None  # that work on a queue; a file has one, which keeps its order
    use: list[str] = []  # presets
    rule: list[Rule] = []  # its own rules and those of the presets
    test: list[dict[str, Any]] = []  # pairs of events for `eventonce check`
    aws: AwsSettings | None = None  # where the events of an SQS source come from

    def __post_init__(self) -> None:
        self._check_places()
        if self.batch is not None and not 1 <= self.batch <= 10_000:
            raise ConfigError(f"batch: {self.batch} is not between 1 and 10,000")
        if self.threads is not None and not 1 <= self.threads <= 256:
            raise ConfigError(f"threads: {self.threads} is not between 1 and 256")
        for name in ("window", "busy_wait"):
            duration(getattr(self, name), name)
        if not duration(self.window, "window"):
            raise ConfigError("window: 0 remembers nothing; write it like 24h or 14d")
        lease_of(self.lease)
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts: {self.max_attempts} is below 1")
        if not self.consumer:
            raise ConfigError("consumer: name the consumer; two consumers both get every event")

    def _check_places(self) -> None:
        for name in ("store", "source", "sink", "dead_letter"):
            if "\0" in getattr(self, name):
                raise ConfigError(f"{name}: holds a NUL character, which no name of a file or place can have")


def load(file: str | Path | None = None, **given: Any) -> Settings:
    """Read a pipeline file; what is given beside it counts more than what it says."""
    where = "options" if file is None else str(file)
    table: dict[str, Any] = {} if file is None else read_toml(file)
    table.update((name, value) for name, value in given.items() if value is not None)
    return settings(table, where)


def settings(table: Mapping[str, Any], where: str) -> Settings:
    """The settings in a table, checked."""
    check_names(table, Settings.__struct_fields__, where)
    rules = read_all(table, where)
    try:
        plain = msgspec.convert({name: value for name, value in table.items() if name != "rule"}, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {explain(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return msgspec.structs.replace(plain, rule=rules)


def rulebook(settings: Settings) -> Rulebook:
    """The rules of a pipeline, to look at keys without a store."""
    own = identity(settings.window, settings.on_store_error, remembered(settings))
    return Rulebook(settings.consumer, settings.rule, own)


def remembered(settings: Settings) -> Remember:
    """What is remembered of an event that no rule matches.

    A request may name itself with an Idempotency-Key, and one that comes back with another body is to be told so.
    """
    return settings.remember or ("note" if settings.source.startswith("http://") else "seen")


def open_once(settings: Settings, hooks: Sequence[Hook] = ()) -> Once:
    """The engine of a pipeline."""
    return Once(
        settings.store,
        consumer=settings.consumer,
        rules=settings.rule,
        window=settings.window,
        on_store_error=settings.on_store_error,
        remember=remembered(settings),
        lease=settings.lease,
        busy_wait=settings.busy_wait,
        max_attempts=settings.max_attempts,
        hooks=hooks,
    )


def dead_letter_url(settings: Settings) -> str:
    """Where the dead letters go; `store` is a table beside the claims."""
    if settings.dead_letter != "store":
        return settings.dead_letter
    if not settings.store.startswith(("sqlite:", "postgresql:")):
        raise ConfigError(
            f"dead_letter: {settings.store.partition(':')[0]}: holds no table of dead letters, only SQLite and "
            "PostgreSQL do; use a file or sqs://QUEUE"
        )
    return settings.store


def check_places(settings: Settings) -> None:
    """Refuse a pipeline that would read what it writes, or write one thing over another."""
    if settings.sink == "-" and settings.dead_letter == "-":
        raise ConfigError("sink and dead_letter are both stdout; send one of them to a file")
    named = {"store": store_file(settings.store) or "-"}
    named |= {"source": settings.source, "sink": settings.sink, "dead_letter": dead_letter_url(settings)}
    files = [(name, Path(place).resolve()) for name, place in named.items() if place != "-" and ":" not in place]
    for at, (name, file) in enumerate(files):
        for other, same in files[:at]:
            if file == same and not file.is_char_device():
                raise ConfigError(f"{other} and {name} are both {named[name]}; give each a file of its own")


class Pipeline:
    """The wired parts of a pipeline."""

    def __init__(self, settings: Settings, hooks: Sequence[Hook] = ()) -> None:
        check_places(settings)
        with ExitStack() as opened:  # what is open is closed again if another part cannot be
            self.handler = open_sink(settings.sink)
            if isinstance(self.handler, Sink):
                opened.callback(self.handler.close)
            self.dead_letters = open_dead_letters(dead_letter_url(settings))
            opened.callback(self.dead_letters.close)
            self.source = open_source(
                settings.source, store=lambda: open_store(settings.store), consumer=settings.consumer
            )
            opened.callback(self.source.close)
            self.once = open_once(settings, hooks)
            opened.callback(self.once.close)
            for warning in self._warnings(settings):
                _log.warning("%s", warning)
            self._opened = opened.pop_all()

    def _warnings(self, settings: Settings) -> list[str]:
        """What to warn of in the store; that it does not answer, where events are to run all the same."""
        try:
            return self.once.check()
        except StoreError as error:
            if settings.on_store_error == "process" and error.retryable:
                return [str(error)]
            raise

    def close(self) -> None:
        """Close every part."""
        self._opened.close()
