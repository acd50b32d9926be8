"""The tour that newcomers see first."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from eventonce.cli.tour import traffic as stream
from tests.servers import Ministack


def demo(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "eventonce", "demo", *options], capture_output=True, text=True, timeout=240, check=False
    )


def test_the_tour_ends_well_and_leaves_what_it_counted(tmp_path: Path) -> None:
    done = demo("--orders", "90", "--keep", str(tmp_path / "tour"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed with SIGKILL" in done.stdout
    assert "Every order took effect once." in done.stdout
    connection = sqlite3.connect(tmp_path / "tour" / "shop.db")
    counts = connection.execute("SELECT count(*), count(DISTINCT order_id) FROM charges").fetchone()
    connection.close()
    assert counts == (90, 90)
    assert demo("--keep", str(tmp_path / "tour")).returncode == 2


def test_the_tour_notices_what_is_wrong(tmp_path: Path) -> None:
    """Its verdict comes from the table of charges: a charge too many must turn it."""
    from eventonce.cli.demo import _conclude
    from eventonce.cli.tour.tour import Charges

    made = stream.make_traffic(30)
    assert _conclude(Charges(orders=30, twice=0, rows=30), made)
    assert not _conclude(Charges(orders=30, twice=1, rows=31), made)
    assert not _conclude(Charges(orders=29, twice=0, rows=29), made)


def test_the_stream_has_every_kind_of_copy() -> None:
    made = stream.make_traffic(300)
    assert made.deliveries == 600
    assert (made.same_id, made.new_id, made.both) == (100, 100, 100)
    assert len(set(made.first) & set(made.second)) >= 100


@pytest.mark.long
def test_the_tour_on_aws(ministack: Ministack) -> None:
    # It starts a server of its own; the fixture sees to it that the program is here.
    done = demo("--aws", "--orders", "90")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed with SIGKILL" in done.stdout
    assert "Every order took effect once." in done.stdout
