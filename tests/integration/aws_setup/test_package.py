"""`eventonce package`: one command writes a function that runs, and the same input the same bytes."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from eventonce.aws_setup.package import LEFT_OUT
from tests.unit.house.test_architecture import files, imports
from tests.wheels import empty, repacked

Command = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.long  # each packs a function with pip

_VERSION = f"cp{sys.version_info.major}{sys.version_info.minor}"
_HERE = f"{_VERSION}-{_VERSION}-manylinux2014_{platform.machine()}"
_ARM = f"{_VERSION}-{_VERSION}-manylinux2014_aarch64"
PIPELINE = """
consumer = "billing"
store    = "dynamodb://claims"
sink     = "python:billing:charge"
"""
BILLING = """
import eventonce, sys


def charge(event) -> dict:
    return {"eventonce": eventonce.__file__, "id": event.id, "click": "click" in sys.modules}
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Return the folder of an index with nothing but what a test puts into it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    empty("jmespath", "1.1.0", folder, "py3-none-any")
    return folder


@pytest.fixture
def package(tmp_path: Path, wheels: Path) -> Command:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    (tmp_path / "billing.py").write_text(BILLING)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_CACHE_DIR": "1"}
        command = [sys.executable, "-m", "eventonce", "package", "pipeline.toml", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, timeout=120, check=False
        )

    return run


def names(file: Path) -> set[str]:
    with ZipFile(file) as archive:
        return set(archive.namelist())


def test_a_package_runs_by_itself_and_is_the_same_each_time(package: Command, tmp_path: Path, wheels: Path) -> None:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("Lambda has no such machines")
    repacked("msgspec", wheels, _HERE)
    arch = "arm64" if platform.machine() == "aarch64" else "x86_64"
    (tmp_path / "pipeline.toml").write_text(PIPELINE.replace("dynamodb://claims", "memory:"))
    done = package("--arch", arch)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("function.zip: ")
    assert f"for python{sys.version_info.major}.{sys.version_info.minor} on {arch}" in done.stdout
    first = (tmp_path / "function.zip").read_bytes()
    assert package("--arch", arch, "--out", "again.zip").returncode == 0
    assert (tmp_path / "again.zip").read_bytes() == first

    task = tmp_path / "task"
    with ZipFile(tmp_path / "function.zip") as archive:
        archive.extractall(task)
    call = (
        "import importlib, json; module = importlib.import_module('eventonce.lambda_function'); "
        "print(json.dumps(module.handler({'id': '1', 'source': 's', 'detail-type': 't', 'detail': {}}, None)))"
    )
    ran = subprocess.run(  # without anything that is installed here
        [sys.executable, "-S", "-c", call], cwd=task, env={"LAMBDA_TASK_ROOT": str(task)}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result == {"eventonce": str(task / "eventonce" / "__init__.py"), "id": "1", "click": False}


def test_a_package_has_what_the_pipeline_needs_and_nothing_that_the_runtime_has(
    package: Command, tmp_path: Path, wheels: Path
) -> None:
    for name, version in (("redis", "6.0.0"), ("hiredis", "3.0.0"), ("boto3", "1.40.0"), ("click", "8.2.0")):
        empty(name, version, wheels, "py3-none-any")
    empty("msgspec", "0.21.0", wheels, _ARM)
    (tmp_path / "pipeline.toml").write_text(PIPELINE.replace("dynamodb://claims", "redis://cache"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "prices.py").write_text("")
    (tmp_path / "shared" / ".secret").write_text("")
    done = package("--arch", "arm64", "--include", "shared", "--out", "arm.zip")
    assert done.returncode == 0, done.stderr
    inside = names(tmp_path / "arm.zip")
    assert {"pipeline.toml", "billing.py", "shared/prices.py", "redis.py", "msgspec.py", "jmespath.py"} <= inside
    assert not {"boto3.py", "click.py", "shared/.secret"} & inside
    assert {"eventonce/lambda_function.py", "eventonce/rules/presets/genesys.toml"} <= inside
    assert not [name for name in inside if name.split("/")[1:2] == ["cli"] or name.endswith("RECORD")]
    assert [name for name in inside if name.startswith("eventonce/__pycache__/lambda_function.")]
    assert not [name for name in inside if name.startswith("__pycache__/billing.")]
    assert package("--arch", "arm64", "--boto3").returncode == 0
    assert "boto3.py" in names(tmp_path / "function.zip")


def test_a_layer_has_the_libraries_alone(package: Command, tmp_path: Path, wheels: Path) -> None:
    empty("msgspec", "0.21.0", wheels, _ARM)
    assert package("--layer", "--arch", "arm64").returncode == 0
    inside = names(tmp_path / "layer.zip")
    assert "python/eventonce/lambda_function.py" in inside
    assert {name.partition("/")[0] for name in inside} == {"python"}
    assert not {"python/pipeline.toml", "python/billing.py"} & inside


@pytest.mark.parametrize(
    ("arguments", "pipeline", "sentence"),
    [
        (["--arch", "arm64"], PIPELINE, "No matching distribution found for msgspec"),
        ([], PIPELINE.replace("billing:charge", "charges:charge"), "neither charges.py nor a folder charges"),
        ([], PIPELINE.replace("python:billing:charge", "-"), "ends with the instance of a function"),
        (["--layer", "--include", "billing.py"], PIPELINE, "a layer has the libraries alone"),
        (["--include", "absent.py"], PIPELINE, "absent.py: no such file or folder"),
        (["--include", "billing.py"], PIPELINE, "the package has a billing.py already"),
    ],
)
def test_what_cannot_be_packaged_is_said_in_a_sentence(
    package: Command, tmp_path: Path, wheels: Path, arguments: list[str], pipeline: str, sentence: str
) -> None:
    if "arm64" not in arguments:
        for machine in ("x86_64", "aarch64"):
            empty("msgspec", "0.21.0", wheels, f"{_VERSION}-{_VERSION}-manylinux2014_{machine}")
    (tmp_path / "pipeline.toml").write_text(pipeline)
    done = package(*arguments)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "function.zip").exists()


def test_no_module_of_a_package_imports_one_that_is_left_out() -> None:
    inside = {file: room for file, room in files().items() if room not in (*LEFT_OUT, "__init__")}
    assert [f"{file} imports {room}" for file in inside for room in imports(file) & set(LEFT_OUT)] == []
