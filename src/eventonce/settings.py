"""The settings of a pipeline: a TOML file, or options, as typed values that were checked. It knows no adapter."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from eventonce.claims.lease import read_lease
from eventonce.clock import duration
from eventonce.environment import PREFIX, unknown_variables, variables, with_password
from eventonce.errors import ConfigError
from eventonce.rules import Rulebook, identity, read_all
from eventonce.rules.files import check_names, explain, read_toml
from eventonce.rules.references import References
from eventonce.rules.rule import DEFAULT_WINDOW, OnStoreError, Remember, Rule

if TYPE_CHECKING:
    from eventonce.clock import Duration
else:
    Duration = Any  # msgspec has no union of a string and a timedelta; `duration` checks the value
from eventonce.text import unknown, without_hidden

_BUS = re.compile(r"[/.\-_A-Za-z0-9]{1,256}")
_RULE = re.compile(r"[.\-_A-Za-z0-9]{1,64}")
_FUNCTION = re.compile(r"[-_A-Za-z0-9]{1,64}")
_MIN_MEMORY, _MAX_MEMORY = 128, 10_240  # MB: the limits of Lambda
_NUMBERS = ("batch", "threads", "max_attempts")
_OPTIONS = ("listen", "allow_host", "grace", "log_format", "log_level", "opentelemetry", "json")  # of `eventonce run`
TEST_NAMES = ("name", "same", "different")
_log = logging.getLogger("eventonce")
FROM_ENVIRONMENT = (  # settings that a command also takes from variables, such as EVENTONCE_STORE
    "consumer", "store", "store_password", "source", "sink", "dead_letter", "window", "lease", "busy_wait",
    "max_attempts", "on_store_error", "remember", "batch", "threads",
)  # fmt: skip


class AwsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[aws]`: the rule of EventBridge that feeds a queue or a function, for `eventonce setup` and `template`."""

    bus: str = "default"
    rule: str | None = None  # its name; by default the consumer's
    pattern: Mapping[str, Any] | None = None  # of the events it takes; by default all that the rules match

    def __post_init__(self) -> None:
        if not _BUS.fullmatch(self.bus):
            raise ConfigError(f"aws: bus: {self.bus!r} is not a valid bus name; use letters, digits and . - _ /")
        if self.rule is not None and not _RULE.fullmatch(self.rule):
            raise ConfigError(
                f"aws: rule: {self.rule!r} is not a valid rule name; use up to 64 letters, digits and . - _"
            )
        if self.pattern is not None:
            self._check(self.pattern)

    def _check(self, pattern: Mapping[str, Any]) -> None:
        from eventonce.rules.pattern import Pattern, PatternError  # only if there is one: its imports take time

        try:
            Pattern(pattern)
        except PatternError as error:
            raise ConfigError(f"aws: pattern: {error}") from None


class FunctionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[function]`: the Lambda function that runs the pipeline, for `eventonce setup` and `eventonce template`."""

    name: str | None = None  # by default the consumer's
    code: str = "function.zip"  # or s3://BUCKET/KEY
    handler: str = "eventonce.lambda_function.handler"
    architecture: Literal["x86_64", "arm64"] = "x86_64"
    memory: int = 512  # MB

    def __post_init__(self) -> None:
        if self.name is not None and not _FUNCTION.fullmatch(self.name):
            raise ConfigError(
                f"function: name: {self.name!r} is not a valid function name; use up to 64 letters, digits and - _"
            )
        if not self.code or (self.code.startswith("s3://") and not all(self.s3 or ())):
            raise ConfigError(f"function: code: {self.code!r} names no file; use a zip file or s3://BUCKET/KEY")
        if not _MIN_MEMORY <= self.memory <= _MAX_MEMORY:
            raise ConfigError(f"function: memory: {self.memory} is not between {_MIN_MEMORY} and {_MAX_MEMORY} MB")

    @property
    def s3(self) -> tuple[str, str] | None:
        """The bucket and the key of the code, if it is in S3."""
        if not self.code.startswith("s3://"):
            return None
        bucket, _, key = self.code.removeprefix("s3://").partition("/")
        return bucket, key


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a pipeline file."""

    consumer: str = "default"
    store: str = "sqlite:///eventonce.db"
    store_password: str | None = None  # if it is not in the URL of the store
    source: str = "-"
    sink: str = "-"
    dead_letter: str = "eventonce-dead.jsonl"
    window: Duration = DEFAULT_WINDOW
    lease: Duration = "60s"
    busy_wait: Duration = "0s"
    max_attempts: int = 5
    on_store_error: OnStoreError = "retry"
    remember: Remember | None = None  # by default `seen`, or `note` for requests that no rule matches
    batch: int | None = None  # events claimed together; by default 100 from a file, 10 from a queue
    threads: int | None = None  # of a queue; a file has one, which preserves its order
    use: list[str] = []  # presets
    rule: list[Rule] = []  # its own rules and those of the presets
    test: list[dict[str, Any]] = []  # pairs of events for `eventonce check`
    aws: AwsSettings | None = None  # where the events of an SQS source or of a function come from
    function: FunctionSettings | None = None  # if the pipeline runs in Lambda

    def __post_init__(self) -> None:
        self._check_urls()
        if self.batch is not None and not 1 <= self.batch <= 10_000:
            raise ConfigError(f"batch: {self.batch} is not between 1 and 10,000")
        if self.threads is not None and not 1 <= self.threads <= 256:
            raise ConfigError(f"threads: {self.threads} is not between 1 and 256")
        for name in ("window", "busy_wait"):
            duration(getattr(self, name), name)
        if not duration(self.window, "window"):
            raise ConfigError("window: 0 remembers nothing; write it like 24h or 14d")
        read_lease(self.lease)
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts: {self.max_attempts} is below 1")
        for number, table in enumerate(self.test, 1):
            read_test(table, number)
        if not self.consumer:
            raise ConfigError("consumer: is empty; name the consumer (each consumer receives every event)")

    def _check_urls(self) -> None:
        for name in ("store", "source", "sink", "dead_letter"):
            if not getattr(self, name) and name != "store":
                raise ConfigError(f"{name}: is empty; name a file or URL, or leave it out")
            if "\0" in getattr(self, name):
                raise ConfigError(f"{name}: holds a NUL character; remove it")


def load(file: str | Path | None = None, **options: Any) -> Settings:
    """Read a pipeline file. Options override it."""
    return _load(file, {}, options)


def load_for_command(file: str | Path | None = None, **options: Any) -> Settings:
    """Read a pipeline file for the command line: options override it, and it overrides environment variables."""
    for warning in unknown_variables(FROM_ENVIRONMENT):
        _log.warning("%s", warning)
    return _load(file, variables(FROM_ENVIRONMENT), options)


def _load(file: str | Path | None, defaults: Mapping[str, str], options: Mapping[str, Any]) -> Settings:
    written = {} if file is None else read_toml(file)
    references = References(written)
    references.check(str(file))
    table = with_numbers({**defaults, **references.table}, written)
    table.update((name, value) for name, value in options.items() if value is not None)
    for name, text in defaults.items():
        if name not in references.table and options.get(name) is None:
            check_variable(name, text)
    try:
        return settings(table, "options" if file is None else str(file))
    except ConfigError as error:
        raise ConfigError(without_hidden(str(error))) from None


def check_variable(name: str, text: str) -> None:
    """Raise `ConfigError` if the environment variable of a setting has a wrong value."""
    label = f"{PREFIX}{name.upper()}"
    if name in _NUMBERS and not text.isdecimal():
        raise ConfigError(f"{label}: {text!r} is not a whole number")
    try:
        msgspec.convert(with_numbers({name: text}, {}), Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{label}: {explain(error).removeprefix(f'{name}: ')}") from None
    except ConfigError as error:
        raise ConfigError(f"{label}: {str(error).removeprefix(f'{name}: ')}") from None


def with_numbers(table: dict[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Make numbers of digits that come from outside the file, which are always text there."""
    for name in _NUMBERS:
        value = table.get(name)
        if isinstance(value, str) and value != written.get(name) and value.isdecimal():
            table[name] = int(value)
    return table


def settings(table: Mapping[str, Any], label: str) -> Settings:
    """Return the settings in a table, checked."""
    for name in table:
        if name not in Settings.__struct_fields__:
            raise ConfigError(f"{label}: {unknown_setting(name)}")
    if isinstance(aws := table.get("aws"), Mapping):
        check_names(aws, AwsSettings.__struct_fields__, f"{label}: aws")
    rules = read_all(table, label)
    try:
        plain = msgspec.convert({name: value for name, value in table.items() if name != "rule"}, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{label}: {explain(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from None
    try:
        store = with_password(plain.store, plain.store_password)
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from None
    return msgspec.structs.replace(plain, rule=rules, store=store, store_password=None)


def unknown_setting(name: str) -> str:
    """Return the error for a name that is not a setting, with where it belongs."""
    if name in _OPTIONS:
        return f"unknown setting {name!r}; it is an option: eventonce run --{name.replace('_', '-')}"
    if name in Rule.__struct_fields__:
        return f"unknown setting {name!r}; it belongs in a [[rule]]"
    return unknown(name, Settings.__struct_fields__)


def read_test(table: Mapping[str, Any], number: int) -> tuple[str, bool, list[Any]]:
    """Return the name of a `[[test]]`, whether its events are the same, and the events."""
    name = str(table.get("name", f"test {number}"))
    check_names(table, TEST_NAMES, f"test {name!r}")
    entries = [entry for entry in ("same", "different") if entry in table]
    events = table.get(entries[0]) if len(entries) == 1 else None
    if not isinstance(events, list) or len(events) < 2:
        raise ConfigError(f"test {name!r}: use either same or different, with a list of two events or more")
    return name, entries[0] == "same", events


def rulebook(settings: Settings) -> Rulebook:
    """Return the rulebook of a pipeline, for keys without a store."""
    unmatched = identity(settings.window, settings.on_store_error, remembered(settings))
    return Rulebook(settings.consumer, settings.rule, unmatched)


def remembered(settings: Settings) -> Remember:
    """Return what is remembered of an event that no rule matches.

    A request may have an Idempotency-Key. If it is repeated with another body, the response must say so.
    """
    return settings.remember or ("note" if settings.source.startswith("http://") else "seen")


def dead_letter_url(settings: Settings) -> str:
    """Return the URL of the dead letters. `store` means a table beside the claims."""
    if settings.dead_letter != "store":
        check_store_name(settings.dead_letter)
        return settings.dead_letter
    if not settings.store.startswith(("sqlite:", "postgresql:", "postgres:")):
        raise ConfigError(
            f"dead_letter: {settings.store.partition(':')[0]}: has no table of dead letters, only SQLite and "
            "PostgreSQL have one; use a file or sqs://QUEUE"
        )
    return settings.store


def check_store_name(dead_letter: str) -> None:
    """Raise `ConfigError` for a misspelt `store`."""
    from difflib import get_close_matches

    if dead_letter.isidentifier() and get_close_matches(dead_letter, ["store"]):
        remedy = f"did you mean 'store', a table beside the claims, or file:{dead_letter} for a file?"
        raise ConfigError(f"dead_letter: {dead_letter!r} is neither a URL nor like a file; {remedy}")
