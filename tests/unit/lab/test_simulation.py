"""The real engine in simulated bad days: nothing lost, nothing doubled without a reason, planted bugs found."""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

from eventonce.claims.outcome import Outcome
from eventonce.event import Delivery
from eventonce.ports import Store
from eventonce.stores import open_store
from eventonce.worker import Worker
from lab.choices import Choices, shrink
from lab.mutants import MUTANTS
from lab.scheduler import SimulatedProcess, World
from lab.simulate import simulate as simulate_command
from lab.simulation import MEMORY, TRANSACTIONAL, Setup, StoreClock, shrunk, simulate

PARTS = 8
BUDGET = 20_000  # schedules, in which each planted bug must be found
PLAIN, IN_TRANSACTIONS, ON_SQLITE = 14_400, 5_600, 160


def run_schedules(seeds: range, setup: Setup) -> Counter[str]:
    """Run these schedules. The first that violates something fails the test with its shrunk story."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        run = simulate(seed, setup)
        assert not run.violations, f"seed {seed}\n{shrunk(run, setup)}"
        counts += run.counts
    return counts


def part(number: int, total: int) -> range:
    return range(number * total // PARTS, (number + 1) * total // PARTS)


IN_PARTS = pytest.mark.parametrize(
    "number", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, PARTS))]
)


@IN_PARTS
def test_plain_effects(number: int) -> None:
    counts = run_schedules(part(number, PLAIN), MEMORY)

    assert counts["doubled"] < counts["deaths"] + counts["fenced"]  # only where an owner died or lost its lease
    assert min(counts["deaths"], counts["fenced"], counts["dead letters"], counts["doubled"]) > 10  # bad days indeed
    assert counts["windows expired"] > 10


@IN_PARTS
def test_transactional_effects(number: int) -> None:
    counts = run_schedules(part(number, IN_TRANSACTIONS), TRANSACTIONAL)

    assert counts["doubled"] == 0
    assert min(counts["deaths"], counts["fenced"], counts["dead letters"]) > 10


@pytest.mark.long
def test_on_a_real_file(tmp_path: Path) -> None:
    numbers = count()

    def sqlite(world: World) -> Store:
        return open_store(f"sqlite:///{tmp_path}/{next(numbers)}.db", StoreClock(world))

    counts = run_schedules(range(ON_SQLITE), Setup(sqlite))

    assert counts["effects"] > ON_SQLITE


def test_a_task_that_ends_wakes_no_other() -> None:
    world, woken = World(Choices(0), faults=0), []
    process = SimulatedProcess("worker")

    def starts_another() -> None:
        started_at = world.now
        world.start(process, lambda: world.sleep(10))
        world.sleep(1000)
        woken.append(world.now - started_at)

    world.start(process, starts_another)
    world.run()

    assert woken == [1000]


def test_a_seed_is_one_run_to_the_last_step() -> None:
    first, again, other = simulate(7), simulate(7), simulate(8)

    assert first == again
    assert first.story != other.story


def test_a_run_can_be_repeated_from_its_choices() -> None:
    run = simulate(7)

    assert simulate(7, recorded=run.made).story == run.story


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    setup = MUTANTS[name]

    violated = next((run for run in (simulate(seed, setup) for seed in range(BUDGET)) if run.violations), None)

    assert violated is not None, f"{name}: not found in {BUDGET:,} schedules"
    short = shrunk(violated, setup)
    assert short.violations
    assert sum(each > 0 for each in short.made) <= sum(each > 0 for each in violated.made)
    assert simulate(violated.seed, setup, short.made).story == short.story


class Breaking(Worker):
    def work(self, received: Sequence[Delivery]) -> list[Outcome]:
        raise ZeroDivisionError("one over nothing")


def test_a_worker_that_breaks_is_a_violation() -> None:
    assert simulate(7, Setup(worker=Breaking)).violations == [
        "a worker ended with ZeroDivisionError('one over nothing')"
    ]


def test_shrinking_keeps_what_matters() -> None:
    made = Choices(3)
    for _ in range(60):
        made.below(50)

    short = shrink(made.made, lambda values: sum(value > 20 for value in values) >= 2)

    assert [value for value in short if value] == [21, 21]


def test_the_command_says_what_was_run() -> None:
    result = CliRunner().invoke(simulate_command, ["--schedules", "30", "--json"])

    assert result.exit_code == 0
    assert '"schedules": 30' in result.output
    assert '"violations": 0' in result.output


def test_the_command_tells_the_story_of_a_seed() -> None:
    result = CliRunner().invoke(simulate_command, ["--schedules", "1", "--seed", "7", "--story"])

    assert "claim: Won" in result.output
    assert "violated: nothing" in result.output


def test_the_command_fails_with_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.simulation.MEMORY", MUTANTS["mark before effect"])

    result = CliRunner().invoke(simulate_command, [])

    assert result.exit_code == 1
    assert "was lost" in result.output
