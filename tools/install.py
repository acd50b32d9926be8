"""Make a virtual environment hold what one make target needs, and nothing else.

    python tools/install.py --into .venv --extras aws --groups test      this project, editable, with extras and groups
    python tools/install.py --into .servers/ministack ministack==1.5.33  other packages

It says in one line what it installs, and returns at once where that is there already. An install that was interrupted
is begun anew. Whatever goes wrong ends in one sentence with the remedy; the rest is in install.log in the environment.
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
LITTLE = 10  # megabytes: with less, nothing can be installed
UNREACHABLE = re.compile(
    r"name resolution|failed to establish a new connection|network is unreachable|connection (refused|reset|timed out)"
    r"|read timed out|connecttimeout|proxyerror|max retries exceeded|sslerror|connection aborted|from versions: none",
    re.IGNORECASE,
)


class Hopeless(Exception):
    """The install cannot be done; the message is the sentence for the user."""


class Environment:
    """A virtual environment, with a record of each install that came to its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._python = folder / "bin" / "python"
        self._log = folder / "install.log"
        self._unfinished = folder / "unfinished"  # there from before the first file until the last
        self._records = folder / "installed"
        self._origin = self._records / "origin"

    def holds(self, wish: str) -> bool:
        """Return whether this was installed here, and to its end."""
        return self._usable() and self._record(wish).is_file()

    def install(self, wish: str, arguments: list[str], *, newest_pip: bool) -> None:
        """Install, into a new environment where the present one is half-made, was moved or is of another Python."""
        if not self._usable():
            self._make()
        self._unfinished.touch()
        if newest_pip:  # the pip of a plain Python 3.11 does not know dependency groups
            self._run(str(self._python), *PIP, "--upgrade", "pip>=25.1")
        self._run(str(self._python), *PIP, *arguments)
        self._records.mkdir(exist_ok=True)
        self._origin.write_text(self._expected_origin())
        self._record(wish).touch()
        self._unfinished.unlink()

    def _usable(self) -> bool:
        """One that somebody else made is used as it is, so nothing of theirs is removed."""
        if self._unfinished.exists() or not self._python.exists():
            return False
        return not self._origin.exists() or self._origin.read_text() == self._expected_origin()

    def _expected_origin(self) -> str:
        return f"{self.folder} {sys.version}"

    def _record(self, wish: str) -> Path:
        return self._records / hashlib.sha256(wish.encode()).hexdigest()[:16]

    def _make(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        self._unfinished.touch()
        self._run(sys.executable, "-m", "venv", str(self.folder))

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT, check=False
        )
        printed = done.stdout.decode(errors="replace")
        with contextlib.suppress(OSError):  # a full disk has no room for it
            self._log.write_text(printed)
        if done.returncode:
            raise Hopeless(reason(printed, self.folder))


PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input")


def reason(printed: str, folder: Path) -> str:
    """Return why an install failed, and what helps."""
    free = shutil.disk_usage(folder.parent).free // 2**20
    if os.strerror(errno.ENOSPC) in printed or free < LITTLE:
        return f"no room is left on the disk ({free} MB free at {folder.parent}); free some, and run the same again"
    if "ensurepip is not available" in printed:
        return "this Python cannot make virtual environments; install its venv module (Debian: python3-venv)"
    if UNREACHABLE.search(printed):
        return "the package index does not answer; check the network or pip's settings, and run the same again"
    errors = [line.strip() for line in printed.splitlines() if line.strip().startswith("ERROR:")]
    last = (errors or printed.strip().splitlines() or ["it printed nothing"])[-1]
    return f"pip failed: {last.removeprefix('ERROR: ')}; {folder / 'install.log'} has the whole of it"


def requirements() -> str:
    """Return what pyproject.toml asks for, as text that changes when that does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [project["build-system"], project["project"], project.get("dependency-groups")]
    return json.dumps(parts, sort_keys=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a virtual environment hold what a make target needs.")
    parser.add_argument("--into", type=Path, required=True, help="the environment's folder")
    parser.add_argument("--extras", default="", help="extras of this project, with commas between")
    parser.add_argument("--groups", default="", help="its dependency groups, with commas between")
    parser.add_argument("package", nargs="*", help="other packages, in place of this project")
    options = parser.parse_args()
    extras = f"[{options.extras}]" if options.extras else ""
    groups = [group for group in options.groups.split(",") if group]
    if options.package:
        what, wish, arguments = " ".join(options.package), " ".join(options.package), options.package
    else:
        what = " and ".join([f"eventonce{extras} with its dependencies", *(f"the group {each}" for each in groups)])
        wish = f"{what} {requirements()}"
        arguments = ["--editable", f".{extras}", *(word for each in groups for word in ("--group", each))]
    environment = Environment((ROOT / options.into).absolute())
    if environment.holds(wish):
        return 0
    print(f"Installing {what} into {options.into} ...", end="", flush=True)
    begin = time.monotonic()
    try:
        environment.install(wish, arguments, newest_pip=bool(groups))
    except Hopeless as error:
        print(f" failed.\n{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(" interrupted; the next run begins it anew.", file=sys.stderr)
        return 130
    except OSError as error:
        print(f" failed.\n{reason(str(error), environment.folder)}", file=sys.stderr)
        return 2
    print(f" done in {time.monotonic() - begin:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
