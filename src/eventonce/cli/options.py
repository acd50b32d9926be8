"""Options and arguments that several verbs share."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from eventonce.engine import Once
from eventonce.errors import ConfigError, EventRejected
from eventonce.event import Delivery
from eventonce.event.keys import KEY_BYTES, Key
from eventonce.event.reading import split_events
from eventonce.ports import Checkable, Store
from eventonce.rules.rule import Rule
from eventonce.settings import Settings, load, remembered
from eventonce.sources import FileSource
from eventonce.stores import open_store
from eventonce.urls import file_name
from eventonce.wire import open_once

Command = Callable[..., Any]
_BATCH = 500


def pipeline_options(command: Command) -> Command:
    """Add the options for the store and the rules: a pipeline file, or options in its place."""
    for option in (
        click.option("--key", type=click.Choice(["id", "content"]), help="Key for events when no rules are given."),
        click.option("--consumer", help="Scope of claims: two consumers both get every event."),
        click.option(
            "--store", help="A store's URL, such as sqlite:///FILE or redis://HOST.  [default: sqlite:///eventonce.db]"
        ),
        click.option("-c", "--config", type=click.Path(dir_okay=False), help="A pipeline file (TOML)."),
    ):
        command = option(command)
    return command


def read_settings(config: str | None, key: str | None = None, **options: Any) -> Settings:
    """Return the settings of a pipeline file and of options. Options override the file."""
    settings = load(config, **options)
    if key is None:
        return settings
    if settings.rule:
        raise ConfigError(f"--key: {config} has rules, which define the key; leave --key out")
    window, on_store_error = settings.window, settings.on_store_error
    rule = Rule(name=key, key=key, window=window, on_store_error=on_store_error, remember=remembered(settings))
    return msgspec.structs.replace(settings, rule=[rule])


def open_existing(settings: Settings) -> Once:
    """Return the engine of a pipeline. Its store must exist."""
    existing_store(settings).close()
    return open_once(settings)


def existing_store(settings: Settings) -> Store:
    """Return the store of a pipeline, which must exist and answer."""
    store = open_store(settings.store, create=False)
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
        yield [parse_key(text) for text in keys]
    if events is None:
        return
    source = open_events(events, "--events: ")
    try:
        while deliveries := source.receive(_BATCH):
            yield [key for delivery in deliveries for key in _keys(once, delivery)]
    finally:
        source.close()


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
            yield once.key(part.event or part.body)
        except EventRejected as error:
            raise ConfigError(f"{part.location}: {error}") from None


def events_or_keys(keys: tuple[str, ...], events: str | None) -> str | None:
    """Return the file to read events from: the named one, or stdin if something is piped into it."""
    if events is None and not keys:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("name keys, or pass events on stdin or with --events FILE")
        return "-"
    return events


def parse_key(text: str) -> Key:
    """Read a key in hex."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{text!r} is not a key; a key has {2 * KEY_BYTES} hexadecimal digits")
    return Key(key)
