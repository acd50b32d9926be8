"""`eventonce forget`: delete records by hand."""

import json
from typing import Any

import click

from eventonce.cli.options import (
    complete_files,
    events_or_keys,
    keys_of,
    open_existing,
    pipeline_options,
    read_settings,
    takes_pipeline,
)


@click.command()
@takes_pipeline("keys")
@click.argument("keys", nargs=-1)
@click.option("--events", shell_complete=complete_files, help="A file of events to forget, or - for stdin.")
@pipeline_options
def forget(keys: tuple[str, ...], events: str | None, pipeline: str | None, **options: Any) -> None:
    """Forget keys or events, so that their next copy runs again. Print for each, as a JSON line, whether it was known.

    A running key loses its claim: its run can no longer be recorded and will happen again.

    \b
      eventonce forget --store sqlite:///x.db 3f9c2b6c0d4f4b0f9d6a4c1f2e7a8b90
      eventonce forget pipeline.toml < event.json
    """
    events = events_or_keys(keys, events)
    with open_existing(read_settings(pipeline, **options)) as once:
        for batch in keys_of(once, keys, events):
            for key, existed in zip(batch, once.forget(batch), strict=True):
                click.echo(json.dumps({"key": key.hex(), "forgotten": existed}))
