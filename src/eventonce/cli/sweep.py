"""`eventonce sweep`: remove expired records."""

import json
from typing import Any

import click

from eventonce.cli.options import existing_store, pipeline_options, read_settings, takes_pipeline

_STEP = 10_000


@click.command()
@takes_pipeline()
@pipeline_options
def sweep(pipeline: str | None, **options: Any) -> None:
    """Remove expired records, in small steps that do not delay workers. Workers also do this themselves.

    \b
      eventonce sweep --store sqlite:///billing.db
    """
    store = existing_store(read_settings(pipeline, **options))
    removed = 0
    cursor: bytes | None = b""
    try:
        while cursor is not None:
            swept = store.sweep(_STEP, cursor)
            removed, cursor = removed + swept.removed, swept.cursor
    finally:
        store.close()
    click.echo(json.dumps({"removed": removed}))
