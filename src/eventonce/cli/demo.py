"""`eventonce demo`: a tour on this machine."""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventonce.cli.tour import traffic as stream
from eventonce.cli.tour.tour import Charges, Tour

if TYPE_CHECKING:
    from eventonce.cli.tour.cloud import CloudTour


@click.command()
@click.option("--orders", default=300, show_default=True, type=click.IntRange(30, 100_000), help="Number of orders.")
@click.option("--aws", "on_aws", is_flag=True, help="Use EventBridge, SQS and DynamoDB in an emulator on this machine.")
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), help="New folder that keeps all files of the tour."
)
def demo(orders: int, keep: Path | None, *, on_aws: bool) -> None:
    """Show a tour of about ten seconds: duplicates in, one effect each out.

    The tour makes a stream of orders with copies of every kind, runs real worker processes on SQLite, kills one of
    them half-way, and counts the charges that were made. With --aws it runs on AWS and takes about a minute.

    \b
      eventonce demo
      eventonce demo --aws
      eventonce demo --orders 5000 --keep tour
    """
    if keep is not None and keep.exists():
        raise click.UsageError(f"--keep: {keep} exists; name a new folder")
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eventonce-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        traffic = stream.make_traffic(orders)
        _introduce(traffic)
        charges = _tour(_open_tour(folder, traffic, stack, on_aws=on_aws), orders)
    succeeded = _conclude(charges, traffic)
    if keep is not None:
        click.echo(f"\nLook around in {keep}: pipeline.toml, the orders, the workers' logs.")
    sys.exit(0 if succeeded else 1)


def _open_tour(folder: Path, traffic: stream.DemoTraffic, stack: ExitStack, *, on_aws: bool) -> "Tour | CloudTour":
    if not on_aws:
        return Tour(folder, traffic)
    from eventonce.cli.tour.cloud import CloudTour
    from eventonce.cli.tour.emulator import Emulator

    stack.enter_context(Emulator(folder))
    return CloudTour(folder, traffic)


def _tour(tour: "Tour | CloudTour", orders: int) -> Charges:
    if not sys.stderr.isatty():
        return tour.run(_print_line, lambda charged: None)
    with click.progressbar(length=orders, label="  charges", file=sys.stderr) as bar:

        def show(charged: int) -> None:
            bar.update(charged - bar.pos)

        def say(line: str) -> None:
            click.echo("\r\033[K", nl=False, err=True)
            _print_line(line)
            bar.render_progress()

        return tour.run(say, show)


def _print_line(line: str) -> None:
    click.echo(f"  {line}")


def _introduce(traffic: stream.DemoTraffic) -> None:
    click.echo("What comes in: orders to charge, as queues really deliver them\n")
    _row(traffic.orders, "orders placed")
    _row(traffic.same_id, "delivered a second time with the same id")
    _row(traffic.new_id, "published a second time by the producer, under a new id")
    _row(traffic.both, "delivered to both workers within milliseconds")
    _row(traffic.deliveries, "deliveries in all; without eventonce, as many charges\n")
    click.echo("What happens\n")


def _conclude(charges: Charges, traffic: stream.DemoTraffic) -> bool:
    missing = traffic.orders - charges.orders
    click.echo("\nWhat took effect: counted in the table of charges, not by eventonce\n")
    _row(charges.rows, "charges")
    _row(charges.orders, f"orders charged, of {traffic.orders:,}")
    _row(charges.twice, "orders charged twice")
    _row(missing, "orders never charged")
    succeeded = not missing and not charges.twice and charges.rows == traffic.orders
    conclusions: dict[bool, Any] = {
        True: click.style("Every order took effect once.", fg="green", bold=True),
        False: click.style("This is wrong: please report it.", fg="red", bold=True),
    }
    click.echo(f"\n{conclusions[succeeded]}")
    return succeeded


def _row(count: int, description: str) -> None:
    click.echo(f"  {count:>7,}  {description}")
