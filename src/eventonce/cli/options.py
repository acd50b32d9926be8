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
from eventonce.sources import open_source
from eventonce.stores import open_store
from eventonce.wire import Settings, load, open_once, remembered

Command = Callable[..., Any]
_BATCH = 500


def pipeline_options(command: Command) -> Command:
    """Where the store and the rules are: a pipeline file, or options in its place."""
    for option in (
        click.option("--key", type=click.Choice(["id", "content"]), help="Without rules: what two copies share."),
        click.option("--consumer", help="The scope of claims; two consumers both get every event."),
        click.option(
            "--store", help="A store's URL, such as sqlite:///FILE or redis://HOST.  [default: sqlite:///eventonce.db]"
        ),
        click.option("-c", "--config", type=click.Path(dir_okay=False), help="A pipeline file (TOML)."),
    ):
        command = option(command)
    return command


def read_settings(config: str | None, key: str | None = None, **given: Any) -> Settings:
    """The settings of a pipeline file and of options; options count more."""
    settings = load(config, **given)
    if key is None:
        return settings
    if settings.rule:
        raise ConfigError(f"--key: {config} has rules, and they say what makes two events the same; leave --key out")
    window, trouble = settings.window, settings.on_store_error
    rule = Rule(name=key, key=key, window=window, on_store_error=trouble, remember=remembered(settings))
    return msgspec.structs.replace(settings, rule=[rule])


def open_existing(settings: Settings) -> Once:
    """The engine of a pipeline whose store is there already: to look is not to make one."""
    existing_store(settings).close()
    return open_once(settings)


def existing_store(settings: Settings) -> Store:
    """The store of a pipeline, which is there already and answers."""
    store = open_store(settings.store, create=False)
    try:
        if isinstance(store, Checkable):
            store.check()
    except BaseException:
        store.close()
        raise
    return store


def keys_of(once: Once, keys: tuple[str, ...], events: str | None) -> Iterator[list[Key]]:
    """Keys given in hex, and the keys of events in a file or on stdin, in batches."""
    if keys:
        yield [parse_key(text) for text in keys]
    if events is None:
        return
    if "://" in events:
        raise ConfigError(f"--events: {events}: to look at events, give them in a file or on stdin")
    source = open_source(events)
    try:
        while deliveries := source.receive(_BATCH):
            yield [key for delivery in deliveries for key in _keys(once, delivery)]
    finally:
        source.close()


def _keys(once: Once, delivery: Delivery) -> Iterator[Key]:
    """The keys of all events that a document carries."""
    for part in split_events(delivery):
        try:
            if part.unreadable is not None:
                raise EventRejected(part.unreadable)
            yield once.key(part.event or part.body)
        except EventRejected as error:
            raise ConfigError(f"{part.location}: {error}") from None


def events_or_keys(keys: tuple[str, ...], events: str | None) -> str | None:
    """Where to read events from: as said, or stdin when something is piped into it."""
    if events is None and not keys:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("name keys, or give events on stdin or with --events FILE")
        return "-"
    return events


def parse_key(text: str) -> Key:
    """A key as it is written for people."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{text!r} is not a key; a key has {2 * KEY_BYTES} hexadecimal digits")
    return Key(key)
