"""Health over HTTP: the liveness of a worker, the readiness of its store, and its numbers."""

import logging
import re
import socket
import sys
import threading
from collections.abc import Callable, Container, Sequence
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from socketserver import ThreadingTCPServer
from typing import Any

import msgspec

from eventonce.closing import Closing
from eventonce.errors import ConfigError, describe
from eventonce.observe.status import Status
from eventonce.text import one_line

LOOPBACK = "127.0.0.1"
_RECENT = 10_000  # milliseconds
_PATIENCE = 5  # seconds for a client to send its request
_MAX_NAME = 100
_PORT = re.compile(r":\d*$")
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_log = logging.getLogger("eventonce")
Page = tuple[int, str, bytes]


def listen_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, or a port on this machine alone."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"listen: {text!r} is not an address; use HOST:PORT, such as 127.0.0.1:9090, or :9090 for this machine"
        )
    return host.strip("[]") or LOOPBACK, int(port)


class Health(Closing):
    """A small server on a thread: `/healthz`, `/readyz`, `/status.json` and, if there are any, `/metrics`.

    The worker is ready if the store answered recently. Without a recent call, `probe` makes one. A client must reach
    it by an IP address, as localhost, as `host` or by a name in `allowed`: a web page whose own name resolves to this
    address (DNS rebinding) must not read the numbers through a browser.
    """

    def __init__(
        self,
        status: Status,
        probe: Callable[[], object],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        metrics: Callable[[], bytes] | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self._status = status
        self._probe = probe
        self._metrics = metrics
        self._probing = threading.Lock()
        self._pages: dict[str, Callable[[], Page]] = {
            "/healthz": lambda: (200, _TEXT, b"alive\n"),
            "/readyz": self._readyz,
            "/status.json": lambda: (200, _JSON, msgspec.json.encode(status.snapshot())),
            "/metrics": self._rendered,
        }
        self._server = _server(host, port, self._pages, frozenset(map(_bare, ("localhost", host, *allowed))))
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="eventonce-health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _readyz(self) -> Page:
        problem = None if self._status.answered_within(_RECENT) else self._problem()
        if problem is None:
            return 200, _TEXT, b"ready\n"
        return 503, _TEXT, f"not ready: {problem}\n".encode()

    def _problem(self) -> str | None:
        """Probe the store, unless a probe is in progress. Return what is wrong with it, if anything."""
        if not self._probing.acquire(blocking=False):
            return "the store has not answered yet"
        try:
            self._probe()
        except Exception as error:
            return one_line(describe(error))
        finally:
            self._probing.release()
        return None

    def _rendered(self) -> Page:
        if self._metrics is None:
            return 404, _TEXT, b'no metrics; pip install "eventonce[prometheus]"\n'
        return 200, _METRICS, self._metrics()


class _Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # clients may disconnect
            _log.exception("a request about health could not be answered")


def _is_allowed(host: str, names: Container[str]) -> bool:
    """Return whether a `Host` header is an IP address or one of the names, whatever its port."""
    name = _bare(_PORT.sub("", host.strip()))
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name in names or name.endswith(".localhost")
    return True


def _bare(name: str) -> str:
    return name.lower().removesuffix(".")


def _refused(host: str) -> Page:
    text = (
        f"the name {one_line(host)[:_MAX_NAME]!r} is not allowed; use the IP address, or start with --allow-host NAME"
    )
    return 403, _TEXT, f"{text}\n".encode()


def _server(host: str, port: int, pages: dict[str, Callable[[], Page]], names: Container[str]) -> _Server:
    class Request(BaseHTTPRequestHandler):
        timeout = _PATIENCE
        server_version, sys_version = "eventonce", ""

        def do_GET(self) -> None:
            status, kind, body = self._page()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _page(self) -> Page:
            for name in self.headers.get_all("Host", []):
                if not _is_allowed(name, names):
                    return _refused(name)
            page = pages.get(self.path.partition("?")[0])
            return page() if page else (404, _TEXT, f"{', '.join(pages)}\n".encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as it is named there
            """Log nothing: probes arrive every few seconds."""

    try:
        return _Server(host, port, Request)
    except OSError as error:
        raise ConfigError(f"listen: {host}:{port}: {error.strerror}; choose another address or port") from None
