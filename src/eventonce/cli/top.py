"""`eventonce top`: a running worker, live in the terminal."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from eventonce.claims.outcome import OutcomeKind
from eventonce.errors import ConfigError, SourceError
from eventonce.observe.status import Snapshot
from eventonce.text import one_line, safe_json

if TYPE_CHECKING:
    from urllib.error import HTTPError

_EVERY = 1.0  # seconds
_PATIENCE = 5.0
_MAX_PORT = 65_535
_MAX_BYTES = 1_000_000
_MAX_EXCERPT = 300  # bytes of a refusal
_REDRAW = "\033[H\033[J"  # go to the top, and clear what is below
_HEAD = "rule, per second"
Counts = dict[str, dict[str, int]]


@click.command()
@click.argument("worker", default="9090")
@click.option("--once", is_flag=True, help="Print the numbers once, as one JSON line.")
def top(worker: str, *, once: bool) -> None:
    """Show the activity of a running worker: rates by outcome and rule, events in flight, store errors and lag.

    WORKER is its listen address: a port of this machine, HOST:PORT or a URL. Ctrl-C ends the display.

    \b
      eventonce top 9090
      eventonce top worker-7:9090 --once
    """
    url = address(worker)
    if once:
        click.echo(safe_json(msgspec.json.encode(_fetch(url)).decode()))
        return
    try:
        _follow(url)
    except KeyboardInterrupt:
        click.echo()


def address(worker: str) -> str:
    """Return the URL of a worker's numbers."""
    if worker.startswith(("http://", "https://")):
        return worker.rstrip("/") + ("" if worker.endswith("/status.json") else "/status.json")
    host_port = worker if ":" in worker.strip(":") else f"127.0.0.1:{worker.strip(':')}"
    port = host_port.rpartition(":")[2]
    if port.isdecimal() and not 1 <= int(port[:6]) <= _MAX_PORT:
        raise ConfigError(f"{worker!r}: {port:.20} is not a port; use a number from 1 to {_MAX_PORT}")
    if not port.isdecimal():
        raise ConfigError(f"{worker!r} is not a worker address; use the port, HOST:PORT or URL it listens on")
    return f"http://{host_port}/status.json"


def _follow(url: str) -> None:
    before: Snapshot | None = None
    redraw = _REDRAW if sys.stdout.isatty() else ""
    now = _fetch(url)
    while True:
        if before is not None and before.uptime_seconds > now.uptime_seconds:
            before = None  # the worker has been restarted
        click.echo(f"{redraw}{table(now, before)}")
        before = now
        now = _next(url, redraw)


def _next(url: str, redraw: str) -> Snapshot:
    """Return the next snapshot, from a restarted worker if it stopped answering."""
    while True:
        time.sleep(_EVERY)
        try:
            return _fetch(url)
        except SourceError as error:
            click.echo(f"{redraw}{one_line(str(error))}\nwaiting for the worker; Ctrl-C ends the display\n")


def _fetch(url: str) -> Snapshot:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(
            url, timeout=_PATIENCE
        ) as response:  # without a proxy: a worker is near
            return msgspec.json.decode(response.read(_MAX_BYTES), type=Snapshot)
    except msgspec.DecodeError:
        raise SourceError(f"{url}: does not answer like an eventonce worker; check the address") from None
    except HTTPError as error:
        with error:
            raise SourceError(f"{url}: answered {error.code}: {_excerpt(error)}") from None
    except (OSError, HTTPException) as error:
        raise SourceError(f"{url}: {_reason(error)}; check that a worker runs with --listen") from None


def _excerpt(response: "HTTPError") -> str:
    return one_line(response.read(_MAX_EXCERPT).decode("utf-8", "replace"))


def _reason(error: Exception) -> str:
    """Return why a worker did not answer, in the words of the system where it has some."""
    error = getattr(error, "reason", error)  # of a URLError
    return getattr(error, "strerror", None) or str(error) or "no answer"


def table(now: Snapshot, before: Snapshot | None) -> str:
    """Return all numbers of a worker as text. Rates are since the previous snapshot, or since its start."""
    seconds = max(0.001, now.uptime_seconds - (before.uptime_seconds if before else 0))
    lag = "unknown" if now.lag_seconds is None else f"{now.lag_seconds:,.1f} s"
    mean = f"{1000 * now.handler_seconds / now.runs:,.1f} ms" if now.runs else "not run yet"
    calls, errors = sum(now.store_calls.values()), sum(now.store_errors.values())
    return "\n".join(
        [
            f"consumer {one_line(now.consumer)}   up {now.uptime_seconds:,.0f} s   in flight {now.in_flight:,}",
            f"lag {lag}   handler {mean}   dead letters {now.dead_letters:,}   leases lost {now.lease_lost:,}",
            f"store calls {calls:,}   errors {errors:,}   {one_line(now.last_store_error or 'it answers')}",
            "",
            *_rates(now.outcomes, before.outcomes if before else {}, seconds),
            "",
        ]
    )


def _rates(now: Counts, before: Counts, seconds: float) -> Iterator[str]:
    kinds = [kind for kind in OutcomeKind if any(kind in counts for counts in now.values())]
    width = max([len(_HEAD), *map(len, now)])
    yield _HEAD.ljust(width) + "".join(f"{kind:>12}" for kind in kinds)
    for rule, counts in sorted(now.items()):
        previous = before.get(rule, {})
        rates = ((counts.get(kind, 0) - previous.get(kind, 0)) / seconds for kind in kinds)
        yield one_line(rule).ljust(width) + "".join(f"{rate:>12,.1f}" for rate in rates)
