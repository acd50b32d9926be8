"""Options and arguments that several verbs share."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from eventonce.cli import stderr
from eventonce.engine import Once
from eventonce.errors import ConfigError, EventRejected, StoreUnusable
from eventonce.event import Delivery
from eventonce.event.keys import KEY_BYTES, Key
from eventonce.event.reading import split_events
from eventonce.ports import Checkable, Store
from eventonce.rules.rule import Rule
from eventonce.settings import Settings, load_for_command, remembered
from eventonce.sources import FileSource
from eventonce.stores import open_store
from eventonce.stores.url import redact_url
from eventonce.urls import file_name
from eventonce.wire import open_once

Command = Callable[..., Any]
_BATCH = 500
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?")
_FILE = click.Path(readable=False)  # any text: the file is checked when it is read


def complete_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a value that may be a file or folder."""
    return [CompletionItem(incomplete, type="file")]


def takes_pipeline(rest: str | None = None, *, required: bool = False) -> Callable[[Command], Command]:
    """Add a pipeline file, as the first argument or as an option.

    `rest` names the arguments that follow it. With these, only a file that ends in .toml is a pipeline.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_pipeline(*, first: str | None, pipeline: str | None, **values: Any) -> Any:
            if first is not None and rest is not None and not first.endswith(".toml"):
                values[rest], first = (first, *values[rest]), None
            if misplaced := [value for value in values[rest] if value.endswith(".toml")] if rest else []:
                raise click.UsageError(f"{misplaced[0]}: name one pipeline, before the other arguments")
            if first and pipeline:
                raise click.UsageError("name the pipeline once, as PIPELINE or with --pipeline")
            if required and not (first or pipeline):
                raise click.UsageError("name the pipeline, as PIPELINE or with --pipeline")
            return command(pipeline=first or pipeline, **values)

        metavar = "PIPELINE" if required else "[PIPELINE]"
        text = "in place of PIPELINE" if rest is None else "which PIPELINE takes if its name ends in .toml"
        option = click.option("-p", "--pipeline", type=_FILE, help=f"A pipeline file (TOML), {text}.")
        argument = click.argument("first", metavar=metavar, required=False, type=_FILE)
        return argument(option(with_pipeline))

    return decorate


def pipeline_options(command: Command) -> Command:
    """Add the options for the store and the rules. They stand in for a pipeline file, or override it."""
    for option in (
        click.option("--key", type=click.Choice(["id", "content"]), help="Key for events when no rules are given."),
        click.option(
            "--consumer", help="Scope of claims: two consumers both get every event.  [env: EVENTONCE_CONSUMER]"
        ),
        click.option(
            "--store",
            help="A store's URL, such as sqlite:///FILE or redis://HOST.  [env: EVENTONCE_STORE, and its password "
            "EVENTONCE_STORE_PASSWORD; default: sqlite:///eventonce.db]",
        ),
    ):
        command = option(command)
    return command


def allow_host_option(command: Command) -> Command:
    """Add the option for names under which `--listen` may be reached."""

    @wraps(command)
    def with_names(*, allow_host: tuple[str, ...], listen: str | None, **values: Any) -> Any:
        if allow_host and listen is None:
            raise click.UsageError("--allow-host is for --listen; add --listen, or leave it out")
        for name in allow_host:
            if not _HOST.fullmatch(name):
                raise click.UsageError(f"--allow-host: {name!r} is not a host name; write it like worker.example.com")
        return command(allow_host=allow_host, listen=listen, **values)

    text = "A further name by which clients may reach --listen. Repeatable."
    return click.option("--allow-host", multiple=True, metavar="NAME", help=text)(with_names)


def display_url(url: str) -> str:
    """Return the URL of a source, a sink or a store without what may be secret in it."""
    if url == "-":
        return url
    return redact_url(url).partition("#")[0] if url.startswith(("http://", "https://")) else redact_url(url)


def read_settings(pipeline: str | None, key: str | None = None, **options: Any) -> Settings:
    """Return the settings of a pipeline file and of options. Options override the file."""
    settings = load_for_command(pipeline, **options)
    if key is None:
        return settings
    if settings.rule:
        raise ConfigError(f"--key: {pipeline} has rules, which define the key; leave --key out")
    window, on_store_error = settings.window, settings.on_store_error
    rule = Rule(name=key, key=key, window=window, on_store_error=on_store_error, remember=remembered(settings))
    return msgspec.structs.replace(settings, rule=[rule])


@contextmanager
def open_existing(settings: Settings) -> Iterator[Once]:
    """Open the engine of a pipeline. Its store must exist.

    What the store's check warns of concerns workers, and is left to them and to `eventonce check`.
    """
    store = existing_store(settings)
    try:
        with open_once(settings, store=store) as once:
            yield once
    finally:
        store.close()


def existing_store(settings: Settings) -> Store:
    """Return the store of a pipeline, which must exist and answer."""
    if settings.store.startswith("memory:"):
        stderr.warn("store: memory: is always empty here: it ends with its process; name the store of the worker")
    try:
        store = open_store(settings.store, create=False)
    except StoreUnusable as error:
        if settings.store != Settings().store:
            raise
        raise StoreUnusable(f"{error}, or name another store with --store or a pipeline") from None
    try:
        if isinstance(store, Checkable):
            store.check()
    except BaseException:
        store.close()
        raise
    return store


def keys_of(once: Once, keys: tuple[str, ...], events: str | None) -> Iterator[list[Key]]:
    """Yield batches of keys: those in hex, then those of the events in a file or on stdin."""
    if keys:
        yield [_argument_key(text) for text in keys]
    if events is not None:
        for deliveries in read_file(events):
            yield [key for delivery in deliveries for key in _keys(once, delivery)]


def read_file(name: str) -> Iterator[Sequence[Delivery]]:
    """Yield batches of what is in a file or on stdin. Raise `ConfigError` if there is nothing."""
    source, empty = open_events(name), True
    try:
        while deliveries := source.receive(_BATCH):
            empty = False
            yield deliveries
    finally:
        source.close()
    if empty:
        raise ConfigError(f"{'stdin' if name == '-' else name}: has no event; name a file with events, or pipe them in")


def _argument_key(text: str) -> Key:
    try:
        return parse_key(text)
    except ConfigError as error:
        raise ConfigError(f"{error} (a pipeline ends in .toml, and events are read with --events)") from None


def open_events(url: str, label: str = "") -> FileSource:
    """Open a file of events, or stdin as `-`."""
    name = file_name(url)
    if name is None:
        raise ConfigError(f"{label}{url}: is not a file; read events from a file or stdin (a colon needs file:NAME)")
    return FileSource(name)


def _keys(once: Once, delivery: Delivery) -> Iterator[Key]:
    """Yield the keys of all events in a document."""
    for part in split_events(delivery):
        try:
            if part.unreadable is not None:
                raise EventRejected(part.unreadable)
            yield from once.keys(part.event or part.body)
        except EventRejected as error:
            raise ConfigError(f"{part.location}: {error}") from None


def events_or_keys(keys: tuple[str, ...], events: str | None) -> str | None:
    """Return the file to read events from: the named one, or stdin if something is piped into it."""
    for text in keys:
        _argument_key(text)  # before a store is opened
    if events is None and not keys:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("name keys, or pass events on stdin or with --events FILE")
        return "-"
    return events


def traffic_paths(paths: Sequence[str]) -> Sequence[str]:
    """Return the files and folders to read events from, or - for stdin if none is named."""
    if not paths and sys.stdin is not None and sys.stdin.isatty():
        raise click.UsageError("name files or folders of events, or pass them on stdin")
    paths = paths or ("-",)
    if "-" in paths and sys.stdin is None:
        raise ConfigError("stdin: is closed; pass events on stdin, or name a file")
    return paths


@contextmanager
def for_option(option: str, *settings: str) -> Iterator[None]:
    """Let an error name the option that a user wrote, in place of these settings."""
    try:
        yield
    except ConfigError as error:
        setting, _, reason = str(error).partition(": ")
        raise ConfigError(f"{option}: {reason if setting in settings else error}") from error


def parse_key(text: str) -> Key:
    """Read a key in hex."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{text!r} is not a key; use {2 * KEY_BYTES} hexadecimal digits")
    return Key(key)
