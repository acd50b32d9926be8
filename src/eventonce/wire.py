"""The wiring of a pipeline: its settings become an engine, a source, a sink and dead letters."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

from eventonce.dead_letters import open_dead_letters
from eventonce.engine import Once
from eventonce.environment import is_disabled
from eventonce.errors import ConfigError, StoreError
from eventonce.ports import Hook, Sink, Store
from eventonce.settings import Settings, dead_letter_url, remembered
from eventonce.sinks import open_sink
from eventonce.sources import open_source
from eventonce.stores import open_store, store_file
from eventonce.urls import file_name, read_options

_KINDS = {"sqs": "queue", "kinesis": "stream"}
_log = logging.getLogger("eventonce")


def open_once(settings: Settings, hooks: Sequence[Hook] = (), store: Store | None = None) -> Once:
    """Open the engine of a pipeline, with its own store or this one."""
    if is_disabled():
        raise ConfigError("EVENTONCE_DISABLED is set, which is for tests: every copy would run; unset it")
    return Once(
        store or settings.store,
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


def check_places(settings: Settings) -> None:
    """Refuse a pipeline that would read its own output, or write two outputs to one place."""
    for _, reason in conflicts(settings):
        raise ConfigError(reason)


def conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each setting that names the place of another one, with the error."""
    if settings.sink == "-" and settings.dead_letter == "-":
        yield "dead_letter", "sink and dead_letter are both stdout; send one of them to a file"
    urls = {"store": store_file(settings.store) or "-"}
    urls |= {"source": settings.source, "sink": settings.sink, "dead_letter": dead_letter_url(settings)}
    names = {name: file_name(url) for name, url in urls.items()}
    files = [(name, Path(file).resolve()) for name, file in names.items() if file not in (None, "-")]
    for index, (name, file) in enumerate(files):
        for other, other_file in files[:index]:
            if file == other_file and not file.is_char_device():
                yield name, f"{other} and {name} are both {urls[name]}; give each a file of its own"
    places = {name: _aws_place(urls[name]) for name in ("source", "sink", "dead_letter")}
    for other, name in combinations(places, 2):
        if places[name] is not None and places[name] == places[other]:
            kind = urls[name].partition(":")[0]
            yield name, f"{other} and {name} are both {urls[name].partition('?')[0]}; give each its own {_KINDS[kind]}"


def _aws_place(url: str) -> tuple[str, str | None, str | None] | None:
    """Return what identifies the queue, topic, bus or stream of a URL, or None if it names none."""
    if url.partition("://")[0] not in _KINDS:
        return None
    bare, _, query = url.partition("?")
    options = read_options(query, bare)
    return bare.rstrip("/"), options.get("region"), options.get("endpoint")


class Pipeline:
    """The wired parts of a pipeline."""

    def __init__(self, settings: Settings, hooks: Sequence[Hook] = ()) -> None:
        check_places(settings)
        with ExitStack() as opened:  # open parts are closed again if another one cannot be opened
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
        """Return warnings about the store, also that it does not answer if events run all the same."""
        try:
            return self.once.check()
        except StoreError as error:
            if settings.on_store_error == "process" and error.retryable:
                return [str(error)]
            raise

    def close(self) -> None:
        """Close every part."""
        self._opened.close()
