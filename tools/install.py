"""Install the packages of one make target into a virtual environment.

    python tools/install.py --into .venv --extras aws --groups test      this project, editable, with extras and groups
    python tools/install.py --into .servers/ministack ministack==1.5.33  other packages

It prints in one line what it installs, and returns at once if that is already installed. An interrupted install starts
again from the beginning. A failure ends in one sentence with the remedy. The full output is in install.log in the
environment.
"""

import argparse
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIN_FREE = 10  # megabytes: with less, nothing can be installed
UNREACHABLE = re.compile(
    r"name resolution|failed to establish a new connection|network is unreachable|connection (refused|reset|timed out)"
    r"|read timed out|connecttimeout|proxyerror|max retries exceeded|sslerror|connection aborted|from versions: none",
    re.IGNORECASE,
)


class InstallFailed(Exception):
    """The install failed. The message is the sentence for the user."""


class Environment:
    """A virtual environment, with a record of each complete install."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._python = folder / "bin" / "python"
        self._log = folder / "install.log"
        self._unfinished = folder / "unfinished"  # exists from before the first file until the last
        self._records = folder / "installed"
        self._origin = self._records / "origin"

    def holds(self, request: str) -> bool:
        """Return whether this was installed here completely."""
        return self._usable() and self._record(request).is_file()

    def install(self, request: str, arguments: list[str], *, newest_pip: bool) -> None:
        """Install, into a new environment if the present one is incomplete, was moved or has another Python."""
        if not self._usable():
            self._create()
        self._unfinished.touch()
        if newest_pip:  # the pip of a plain Python 3.11 does not know dependency groups
            self._run(str(self._python), *PIP, "--upgrade", "pip>=25.1")
        self._run(str(self._python), *PIP, *arguments)
        self._records.mkdir(exist_ok=True)
        self._origin.write_text(self._expected_origin())
        self._record(request).touch()
        self._unfinished.unlink()

    def _usable(self) -> bool:
        """Return whether the environment can be used as it is. One without a record of its origin is not ours."""
        if self._unfinished.exists() or not self._python.exists():
            return False
        return not self._origin.exists() or self._origin.read_text() == self._expected_origin()

    def _expected_origin(self) -> str:
        return f"{self.folder} {sys.version}"

    def _record(self, request: str) -> Path:
        return self._records / hashlib.sha256(request.encode()).hexdigest()[:16]

    def _create(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        self._unfinished.touch()
        self._run(sys.executable, "-m", "venv", str(self.folder))

    def _run(self, *command: str) -> None:
        process = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT, check=False
        )
        printed = process.stdout.decode(errors="replace")
        with contextlib.suppress(OSError):  # a full disk has no room for it
            self._log.write_text(printed)
        if process.returncode:
            raise InstallFailed(reason(printed, self.folder))


PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input")


def reason(printed: str, folder: Path) -> str:
    """Return why an install failed, and the remedy."""
    free = shutil.disk_usage(folder.parent).free // 2**20
    if os.strerror(errno.ENOSPC) in printed or free < MIN_FREE:
        return f"no room is left on the disk ({free} MB free at {folder.parent}); free some, and run the same again"
    if "ensurepip is not available" in printed:
        return "this Python cannot make virtual environments; install its venv module (Debian: python3-venv)"
    if UNREACHABLE.search(printed):
        return "the package index does not answer; check the network or pip's settings, and run the same again"
    errors = [line.strip() for line in printed.splitlines() if line.strip().startswith("ERROR:")]
    last = (errors or printed.strip().splitlines() or ["it printed nothing"])[-1]
    return f"pip failed: {last.removeprefix('ERROR: ')}; {folder / 'install.log'} has the full output"


def requirements() -> str:
    """Return the requirements in pyproject.toml as a string, to see when they change."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [project["build-system"], project["project"], project.get("dependency-groups")]
    return json.dumps(parts, sort_keys=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the packages of a make target into a virtual environment.")
    parser.add_argument("--into", type=Path, required=True, help="the environment's folder")
    parser.add_argument("--extras", default="", help="extras of this project, separated by commas")
    parser.add_argument("--groups", default="", help="its dependency groups, separated by commas")
    parser.add_argument("package", nargs="*", help="other packages, instead of this project")
    options = parser.parse_args()
    extras = f"[{options.extras}]" if options.extras else ""
    groups = [group for group in options.groups.split(",") if group]
    if options.package:
        description, request, arguments = " ".join(options.package), " ".join(options.package), options.package
    else:
        description = " and ".join(
            [f"eventonce{extras} with its dependencies", *(f"the group {group}" for group in groups)]
        )
        request = f"{description} {requirements()}"
        arguments = ["--editable", f".{extras}", *(word for group in groups for word in ("--group", group))]
    environment = Environment((ROOT / options.into).absolute())
    if environment.holds(request):
        return 0
    print(f"Installing {description} into {options.into} ...", end="", flush=True)
    started_at = time.monotonic()
    try:
        environment.install(request, arguments, newest_pip=bool(groups))
    except InstallFailed as error:
        print(f" failed.\n{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(" interrupted; the next run starts again from the beginning.", file=sys.stderr)
        return 130
    except OSError as error:
        print(f" failed.\n{reason(str(error), environment.folder)}", file=sys.stderr)
        return 2
    print(f" done in {time.monotonic() - started_at:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
