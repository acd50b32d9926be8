"""`eventonce top`: a running worker, live in the terminal."""

import sys
import time
from collections.abc import Iterator

import click
import msgspec

from eventonce.claims.outcome import OutcomeKind
from eventonce.errors import ConfigError, SourceError
from eventonce.observe.status import Snapshot
from eventonce.text import one_line

_EVERY = 1.0  # seconds
_PATIENCE = 5.0
_MAX_BYTES = 1_000_000
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
        click.echo(msgspec.json.encode(_fetch(url)))
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
    if not host_port.rpartition(":")[2].isdigit():
        raise ConfigError(f"{worker!r} is not a worker address; use the port, HOST:PORT or URL it listens on")
    return f"http://{host_port}/status.json"


def _follow(url: str) -> None:
    before: Snapshot | None = None
    while True:
        now = _fetch(url)
        if before is not None and before.uptime_seconds > now.uptime_seconds:
            before = None  # the worker has been restarted
        click.echo(f"{_REDRAW if sys.stdout.isatty() else ''}{table(now, before)}")
        before = now
        time.sleep(_EVERY)


def _fetch(url: str) -> Snapshot:
    from http.client import HTTPException
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(
            url, timeout=_PATIENCE
        ) as response:  # without a proxy: a worker is near
            return msgspec.json.decode(response.read(_MAX_BYTES), type=Snapshot)
    except msgspec.DecodeError:
        raise SourceError(f"{url}: does not answer like an eventonce worker; check the address") from None
    except (OSError, HTTPException) as error:
        raise SourceError(f"{url}: {error}; check that a worker runs with --listen") from None


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
