"""The zip of a Lambda function that runs a pipeline, or the layer with its libraries.

The libraries are eventonce and the drivers that the pipeline needs, compiled, since a function cannot keep what it
compiles itself. The same input gives the same bytes.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from eventonce import dead_letters, sinks, stores
from eventonce.errors import ConfigError
from eventonce.settings import Settings, dead_letter_url

ARCHITECTURES = {"x86_64": "x86_64", "arm64": "aarch64"}  # as Lambda and as wheels call them
HANDLER = "eventonce.lambda_function.handler"
LEFT_OUT = ("__main__", "aws_setup", "cli", "lint", "redrive", "testing", "traffic")  # of our own rooms
_OF_COMMANDS = "click"
_SDK = "boto3"  # which the runtime has
_GLIBC = {(3, 11): 26}  # of the runtime of this Python; later ones have the default
_NEWEST_GLIBC = 34
_OLDEST_GLIBC = 17
_OF_PIP = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")  # which differ from one installation to the next
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra == ['"]([\w-]+)['"]""")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip can hold


class Package(NamedTuple):
    """A zip that was written, and its size in bytes, packed and unpacked."""

    file: Path
    size: int
    unpacked: int


def write_function(
    pipeline: Path, settings: Settings, out: Path, *, arch: str, sdk: bool, include: Sequence[Path]
) -> Package:
    """Write the zip of a function: the libraries, the pipeline file, the module of its sink and what is included."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        own = [*_sink_module(settings, pipeline.parent), *include]
        _add_libraries(root, settings, arch=arch, sdk=sdk)
        _compile(root, "/var/task")
        for path in own:  # not compiled: what is changed in the console must count
            _copy(path, root / path.resolve().name)
        shutil.copyfile(pipeline, root / "pipeline.toml")
        return _zip(root, out)


def write_layer(settings: Settings, out: Path, *, arch: str, sdk: bool) -> Package:
    """Write a layer with the libraries alone, for functions that hold a pipeline file and their own modules."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        _add_libraries(root / "python", settings, arch=arch, sdk=sdk)
        _compile(root, "/opt")
        return _zip(root, out)


# --- the libraries ---


def requirements(settings: Settings, *, sdk: bool) -> list[str]:
    """Return what a function of this pipeline needs beside eventonce and what the runtime has."""
    letters = dead_letter_url(settings)
    extras = {
        stores.driver_extra(settings.store), sinks.driver_extra(settings.sink), dead_letters.driver_extra(letters)
    }  # fmt: skip
    if settings.source.startswith("http://") and "auth=sns" in settings.source:
        extras.add("webhook")  # for cryptography, with which signatures of SNS are checked
    wanted = {"": {"msgspec", "jmespath"}, "webhook": {"cryptography"}}
    needed = []
    for line in _own_requirements():
        text, _, marker = line.partition(";")
        extra = match[1] if (match := _EXTRA.search(marker)) else ""
        name = _NAME.match(text)
        if name is None or (extra and extra not in extras) or name[0] not in wanted.get(extra, {name[0]}):
            continue
        if name[0] != _SDK:
            needed.append(text.strip())
    return [*needed, *([_SDK] if sdk else [])]


def _own_requirements() -> list[str]:
    try:
        return metadata.requires("eventonce") or []
    except metadata.PackageNotFoundError:
        raise ConfigError("package: eventonce is not installed here; install it with pip and run again") from None


def _add_libraries(root: Path, settings: Settings, *, arch: str, sdk: bool) -> None:
    _install(root, requirements(settings, sdk=sdk), arch)
    ours = Path(__file__).parents[1]
    left_out = {ours / name for room in LEFT_OUT for name in (room, f"{room}.py")}

    def skipped(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "__pycache__" or Path(folder, name) in left_out]

    shutil.copytree(ours, root / "eventonce", ignore=skipped)


def _install(root: Path, needed: Sequence[str], arch: str) -> None:
    """Install wheels of the function's platform with pip."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    newest = _GLIBC.get(sys.version_info[:2], _NEWEST_GLIBC)
    machine = ARCHITECTURES[arch]
    platforms = [f"manylinux_2_{glibc}_{machine}" for glibc in range(newest, _OLDEST_GLIBC - 1, -1)]
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
        "--target", str(root), "--only-binary=:all:", "--implementation", "cp", "--python-version", version,
        *(word for name in (*platforms, f"manylinux2014_{machine}") for word in ("--platform", name)), *needed,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"exit code {done.returncode}"
        raise ConfigError(
            f"package: pip cannot install {', '.join(needed)} for Python {version} on {arch}: {reason}; check that pip "
            "reaches an index with such wheels, and run this with the Python version of the function's runtime"
        )
    shutil.rmtree(root / "bin", ignore_errors=True)
    for info in root.glob("*.dist-info"):
        for name in _OF_PIP:
            (info / name).unlink(missing_ok=True)


def _compile(root: Path, deployed: str) -> None:
    command = [sys.executable, "-m", "compileall", "-q", "-s", str(root), "-p", deployed]
    command += ["--invalidation-mode", "unchecked-hash", str(root)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    # A file that cannot be compiled stays as it is: it may be a template, or for another Python.
    subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603


# --- the team's own files ---


def _sink_module(settings: Settings, folder: Path) -> list[Path]:
    """Return the file or folder of the module that is the sink, from the current folder or the pipeline's."""
    if not settings.sink.startswith("python:"):
        return []
    name = settings.sink.removeprefix("python:").partition(":")[0].partition(".")[0]
    for place in (Path.cwd(), folder):
        for path in (place / name, place / f"{name}.py"):
            if path.is_file() or (path.is_dir() and any(path.glob("*.py"))):
                return [path]
    raise ConfigError(
        f"sink: {settings.sink}: there is neither {name}.py nor a folder {name} here or beside the pipeline; run where "
        "it is"
    )


def _copy(path: Path, target: Path) -> None:
    if not path.exists():
        raise ConfigError(f"--include: {path}: no such file or folder; check the path")
    if target.exists() or target.name == "pipeline.toml":
        raise ConfigError(f"--include: {path}: the package has a {target.name} already; rename one of the two")
    if path.is_dir():
        shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"))
    else:
        shutil.copyfile(path, target)


# --- the zip ---


def _zip(root: Path, out: Path) -> Package:
    unpacked = 0
    with ZipFile(out, "w", ZIP_DEFLATED, compresslevel=9) as package:
        for name, file in _files(root):
            info = ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, whose permissions these are
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.compress_type = ZIP_DEFLATED
            content = file.read_bytes()
            unpacked += len(content)
            package.writestr(info, content)
    return Package(out, out.stat().st_size, unpacked)


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    named = {file.relative_to(root).as_posix(): file for file in root.rglob("*") if file.is_file()}
    yield from sorted(named.items())
