"""The arithmetic of the benchmarks: a table that says the wrong thing is worse than none."""

import os
from pathlib import Path

import pytest

from benchmarks import harness


def test_a_ratio_is_that_of_the_best_rounds_and_its_spread_that_of_single_ones() -> None:
    spent = {
        "ours": [harness.Spent(wall=9, cpu=2), harness.Spent(wall=6, cpu=4)],
        "theirs": [harness.Spent(wall=6, cpu=8), harness.Spent(wall=30, cpu=10)],
    }
    row = harness.faster("s", "w", "at least 4", spent, "ours", "theirs")
    assert (row.ratio, row.low, row.high, row.other) == (4, 2.5, 4, 1)
    assert row.holds is True
    cost = harness.costs("s", "w", "at most 0.2", spent, "ours", "theirs")
    assert (cost.ratio, cost.holds) == (0.25, False)
    assert harness.faster("s", "w", "", spent, "ours", "theirs").holds is None


def test_every_candidate_gets_new_work_in_every_round() -> None:
    traffic = harness.Traffic()
    seen: list[bytes] = []
    candidates = {"one": seen.extend, "few": seen.extend}
    spent = harness.compare(candidates, lambda: traffic.events(10), 3, fewer={"few": 2})
    assert len(seen) == len(set(seen)) == 3 * (10 + 2)
    assert [len(rounds) for rounds in spent.values()] == [3, 3]


def test_events_are_as_large_as_their_name_says() -> None:
    for size in (500, 1000, 2000, 10_000):
        (event,) = harness.Traffic(size).events(1)
        assert size <= len(event) < size + 100


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc here")
def test_what_a_process_has_computed_only_grows() -> None:
    before = harness.computed(os.getpid())
    sum(range(100_000))
    assert 0 < before <= harness.computed(os.getpid())
