"""The audit of dependencies is part of every test run. It says so if no service answers."""

import os
import subprocess
import sys
from pathlib import Path

from tests.audit_dependencies import report

TESTS = Path(__file__).resolve().parents[2]


def test_no_installed_package_has_a_known_vulnerability() -> None:
    path = f"{TESTS.parent / '.servers' / 'bin'}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        [sys.executable, str(TESTS / "audit_dependencies.py")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )

    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("audit: ")


def test_a_known_vulnerability_fails_the_audit() -> None:
    fine: dict[str, object] = {"name": "good", "version": "1", "vulns": []}

    assert report([fine]) == 0
    assert report([fine, {"name": "bad", "version": "1", "vulns": [{"id": "PYSEC-1"}]}]) == 1
    assert report([{"name": "unknown", "skip_reason": "not found"}]) == 0
