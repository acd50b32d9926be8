"""`python -m lab simulate`: the real engine under thousands of bad days, each of them repeatable."""

import json
import sys
from collections import Counter

import click

from lab import simulation


@click.command()
@click.option("--schedules", type=click.IntRange(1), default=2000, show_default=True, help="How many to run.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first schedule.")
@click.option(
    "--effects",
    type=click.Choice(["plain", "transactional"]),
    default="plain",
    show_default=True,
    help="Outside the store, or in its own transactions.",
)
@click.option("--story", is_flag=True, help="Print what happened in the first schedule, step by step.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one line of JSON.")
def simulate(schedules: int, seed: int, effects: str, story: bool, as_json: bool) -> None:
    """Run the engine in virtual time while workers die, freeze, lose answers and meet copies.

    Every schedule is checked against a model of the claim protocol. The first that violates it is shrunk and printed,
    and the exit code is 1.

    \b
      python -m lab simulate --schedules 20000
      python -m lab simulate --seed 4711 --schedules 1 --story
    """
    setup = simulation.MEMORY if effects == "plain" else simulation.TRANSACTIONAL
    counts: Counter[str] = Counter()
    with click.progressbar(
        range(seed, seed + schedules), label="schedules", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as seeds:
        for number in seeds:
            result = simulation.simulate(number, setup)
            if result.violations:
                click.echo(f"\nseed {number}, shrunk:\n{simulation.shrunk(result, setup)}")
                sys.exit(1)
            if story and number == seed:
                click.echo(str(result))
            counts += result.counts
    summary = {"schedules": schedules, **counts, "violations": 0}
    click.echo(json.dumps(summary) if as_json else ", ".join(f"{count:,} {name}" for name, count in summary.items()))
