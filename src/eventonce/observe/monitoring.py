"""What a worker reports of itself: its log, its metrics and spans, and its health over HTTP."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from eventonce.errors import MissingDriver, StoreError
from eventonce.event.keys import KEY_BYTES, Key
from eventonce.observe.health import Health, listen_address
from eventonce.observe.log import LogHook
from eventonce.observe.status import Status
from eventonce.ports import Hook

if TYPE_CHECKING:
    from eventonce.observe.prometheus import PrometheusHook

_UNUSED_KEY = Key(bytes(KEY_BYTES))  # looked up to see whether the store answers


class Monitoring:
    """The hooks of one worker, and its health page.

    Pass `hooks` to the engine, and call `start` when there is one. `store` is the URL of its store.
    """

    def __init__(self, consumer: str, store: str, *, listening: bool, log_events: bool, tracing: bool) -> None:
        self._status = Status(consumer)
        self._metrics = _metrics(store) if listening else None
        self.hooks: list[Hook] = [LogHook()] if log_events else []
        if listening:
            self.hooks.append(self._status)
        if self._metrics is not None:
            self.hooks.append(self._metrics)
        self._peek: Callable[[Sequence[Key]], object] | None = None
        if tracing:
            from eventonce.observe.opentelemetry import OpenTelemetryHook

            self.hooks.append(OpenTelemetryHook())

    def start(self, peek: Callable[[Sequence[Key]], object]) -> None:
        """Probe the store with `peek` from now on."""
        self._peek = peek

    def stop(self) -> None:
        """Probe the store no more."""
        self._peek = None

    def health(self, address: str, allowed: Sequence[str] = ()) -> Health:
        """Serve `/healthz`, `/readyz`, `/status.json` and, if the Prometheus client is installed, `/metrics`.

        `allowed` are further names by which clients may reach it.
        """
        host, port = listen_address(address)
        render = None if self._metrics is None else self._metrics.render
        return Health(self._status, self._probe, host=host, port=port, metrics=render, allowed=allowed)

    def _probe(self) -> object:
        if (peek := self._peek) is None:
            raise StoreError("it has not started yet")
        return peek([_UNUSED_KEY])


def _metrics(store: str) -> "PrometheusHook | None":
    try:
        from eventonce.observe.prometheus import DYNAMODB_WRITE, PrometheusHook
    except MissingDriver:
        return None
    return PrometheusHook(write_price=DYNAMODB_WRITE if store.startswith("dynamodb:") else 0.0)
