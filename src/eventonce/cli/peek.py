"""`eventonce peek`: the records of keys."""

import json
from typing import Any

import click

from eventonce.claims.protocol import Record, running
from eventonce.cli.options import (
    complete_files,
    events_or_keys,
    keys_of,
    open_existing,
    pipeline_options,
    read_settings,
    takes_pipeline,
)
from eventonce.clock import SystemClock, to_datetime
from eventonce.event.keys import Key


@click.command()
@takes_pipeline("keys")
@click.argument("keys", nargs=-1)
@click.option("--events", shell_complete=complete_files, help="A file of events to look up, or - for stdin.")
@pipeline_options
def peek(keys: tuple[str, ...], events: str | None, pipeline: str | None, **options: Any) -> None:
    """Show the records of keys or of events, one JSON line each.

    \b
      eventonce peek --store sqlite:///x.db 3f9c2b6c0d4f4b0f9d6a4c1f2e7a8b90
      eventonce peek pipeline.toml < event.json
    """
    events = events_or_keys(keys, events)
    with open_existing(read_settings(pipeline, **options)) as once:
        for batch in keys_of(once, keys, events):
            for key, record in zip(batch, once.peek(batch), strict=True):
                click.echo(json.dumps(describe_record(key, record)))


def describe_record(key: Key, record: Record | None) -> dict[str, Any]:
    """Return a record as it is printed."""
    if record is None:
        return {"key": key.hex(), "state": "unknown"}
    fields = {
        "key": key.hex(),
        "state": _state(record),
        "attempts": record.tries or record.attempts,
        "done_at": _time(record.done_at),
        "remembered_until": _time(record.expires),
        "lease_until": _time(record.lease),
        "version": record.version,
        "last_error": record.error,
        "note": json.loads(record.memo) if record.memo else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _state(record: Record) -> str:
    if record.lease:
        return "running" if running(record, SystemClock().utc()) else "abandoned"
    return "failed" if record.tries else "done"


def _time(millis: int) -> str | None:
    return to_datetime(millis).isoformat() if millis else None
