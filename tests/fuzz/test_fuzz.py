"""A little fuzzing in every test run, without atheris: mutated examples, and every case that was ever found.

`make fuzz` looks for more, guided by coverage.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

CASES = [file for file in Path(__file__).with_name("cases").glob("*/*") if file.is_file()]


@st.composite
def mutated(draw: st.DrawFn, target: str) -> bytes:
    """An example of what the target reads, with some pieces cut out, repeated or replaced."""
    data = draw(st.sampled_from(seeds(target)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 40)))
        data = data[:at] + draw(st.one_of(st.binary(max_size=12), st.just(data[at:end] * 2))) + data[end:]
    return data


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_mutated_examples(target: str) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(mutated(target) | st.binary(max_size=200))
    def check(data: bytes) -> None:
        TARGETS[target](data)

    check()


@pytest.mark.parametrize("target", TARGETS)
def test_the_examples_themselves(target: str) -> None:
    for seed in seeds(target):
        TARGETS[target](seed)


@pytest.mark.parametrize("case", CASES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_a_case_that_was_found(case: Path) -> None:
    TARGETS[case.parent.name](case.read_bytes())
