"""The benchmarks still run. What they measure is not tested."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Ministack

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_benchmark_of_the_sqs_worker(ministack: Ministack) -> None:
    program = [sys.executable, "-m", "benchmarks.sqs", "ratio", "memory", "--quick"]
    done = subprocess.run(program, cwd=ROOT, check=False, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sum("us CPU per message" in line for line in lines) == 4
    assert sum(" MB" in line for line in lines) == 10
