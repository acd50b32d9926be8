"""The size of a function that `eventonce package` writes, and its cold start by parts.

    python -m benchmarks.function

The packages come from the index that pip uses. The quickest of several starts counts for each part, in processes that
have nothing but the package, and of what is installed here the AWS SDK, as the runtime has it. Without the compiled
modules of the package Python compiles each module at each start, since the folder of a function cannot be written.
"""

import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from zipfile import ZipFile

import boto3
import msgspec

from eventonce.aws_setup.package import ARCHITECTURES, write_function
from eventonce.settings import load

ROUNDS = 7
STORES = {
    "DynamoDB": "dynamodb://claims?region=eu-west-1",
    "Redis": "redis://localhost",
    "PostgreSQL": "postgresql://localhost/claims",
}
PARTS = ("Python itself", "import of eventonce", "the SDK and a client of it (DynamoDB)", "opening the pipeline")
_START = """
import sys, time
start = time.perf_counter()
import eventonce.lambda_function as function
imported = time.perf_counter()
if sys.argv[2] == "DynamoDB":
    sys.path.append(sys.argv[1])
    import boto3
    boto3.client("dynamodb", region_name="eu-west-1")
ready = time.perf_counter()
function.handler
done = time.perf_counter()
print([imported - start, ready - imported, done - ready])
"""


def packed(folder: Path, url: str, arch: str) -> Path:
    """Write the package of a pipeline on a store, print its size, and return its zip."""
    pipeline = folder / "pipeline.toml"
    pipeline.write_text(f'consumer = "billing"\nstore = "{url}"\nsink = "python:billing:charge"\n')
    (folder / "billing.py").write_text("def charge(event) -> None: ...\n")
    package = write_function(pipeline, load(pipeline), folder / f"{arch}.zip", arch=arch, sdk=False, include=())
    _print(f"  {arch:8} {package.size / 1e6:5.1f} MB, {package.unpacked / 1e6:5.1f} MB unpacked")
    return package.file


def cold_start(task: Path, store: str) -> list[float]:
    """Return the milliseconds of each part, of the quickest start."""
    rounds = []
    for _ in range(ROUNDS):
        environment = {"LAMBDA_TASK_ROOT": str(task), "PYTHONDONTWRITEBYTECODE": "1"}
        before = time.perf_counter()
        subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        bare = time.perf_counter() - before
        command = [sys.executable, "-S", "-c", _START, str(Path(boto3.__file__).parents[1]), store]
        done = subprocess.run(command, cwd=task, env=environment, capture_output=True, check=True)  # noqa: S603
        rounds.append([bare, *msgspec.json.decode(done.stdout.splitlines()[-1], type=list[float])])
    return [1000 * min(part) for part in zip(*rounds, strict=True)]


def main() -> None:
    """Print the sizes, then the parts."""
    machine = platform.machine()
    for store, url in STORES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _print(f"{store}: the package")
            packages = {wheels: packed(folder, url, arch) for arch, wheels in ARCHITECTURES.items()}
            task = folder / "task"
            with ZipFile(packages[machine]) as archive:
                archive.extractall(task)
            _print(f"{store}: the cold start in ms    " + ", ".join(PARTS))
            _report("compiled", cold_start(task, store))
            for cache in [*task.rglob("__pycache__")]:
                shutil.rmtree(cache)
            _report("without its compiled modules", cold_start(task, store))


def _report(label: str, parts: list[float]) -> None:
    _print(f"  {label:30} " + ", ".join(f"{part:.0f}" for part in parts))


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
