"""The plan of a deduplication: what is read, where it goes, and the folder beside the output for unfinished work.

The output folder is made under another name, and renamed when all of it is complete. What is finished in the work
folder is not done again by the next run of the same deduplication.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import msgspec

from eventonce.errors import ConfigError
from eventonce.rules import Rulebook
from eventonce.traffic.archive import Archive, Part, absolute, display_name
from eventonce.traffic.parquet import is_parquet
from eventonce.urls import file_name

Format = Literal["same", "jsonl", "gzip", "parquet"]
_GZIP = b"\x1f\x8b"
_SUFFIX = {"jsonl": "", "gzip": ".gz", "parquet": ".parquet"}
_LAYOUT = 1  # of the work folder


class Target(msgspec.Struct, frozen=True):
    """One file of the input, and the file that it becomes."""

    file: int
    path: str
    name: str  # of the output, below its folder
    form: str
    parts: tuple[Part, ...]
    file_stamp: tuple[int, int]  # size and time of change, when the deduplication started

    @property
    def size(self) -> int:
        return self.file_stamp[0]

    @property
    def absolute_path(self) -> str:
        return self.parts[0].absolute_path

    def check(self) -> None:
        """Raise `ConfigError` if the file has changed."""
        if _file_stamp(self.absolute_path) != self.file_stamp:
            raise ConfigError(f"{display_name(self.path)}: has changed since the run started; run it again")


class WorkFolder(NamedTuple):
    """Where files are in the work folder."""

    path: Path

    def keys(self, part: int) -> Path:
        """The keys of a part."""
        return self.path / "keys" / f"{part:08}.parquet"

    def header(self, part: int) -> Path:
        """The header of a part. It exists when the part is done."""
        return self.path / "keys" / f"{part:08}.json"

    def rejected(self, part: int) -> Path:
        """The dead letters of a part."""
        return self.path / "turned" / f"{part:08}.jsonl"

    def drop_list(self, file: int) -> Path:
        """The events of a file that are not copied as they are."""
        return self.path / "lists" / f"{file:08}"

    @property
    def dropped(self) -> Path:
        """The positions of all events that are dropped."""
        return self.path / "lost.parquet"

    @property
    def drop_counts(self) -> Path:
        """The counts of what is dropped. They exist when all drop lists do."""
        return self.path / "judged.json"

    @property
    def result(self) -> Path:
        return self.path / "result"

    def written(self, file: int) -> Path:
        """The counts of what was written of a file. They exist when the file is done."""
        return self.path / "lists" / f"{file:08}.json"

    @contextmanager
    def writing(self, file: Path) -> Iterator[Path]:
        """Yield a name to write a file under. The file gets its own name when it is complete, and is removed if not."""
        unfinished = self.path / "unfinished" / uuid4().hex
        try:
            yield unfinished
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.rename(file)
        finally:
            unfinished.unlink(missing_ok=True)

    def write_json(self, file: Path, value: Any) -> None:
        """Write a small file."""
        with self.writing(file) as unfinished:
            unfinished.write_bytes(msgspec.json.encode(value))


class DedupePlan:
    """A deduplication from files to a folder."""

    def __init__(self, archive: Archive, roots: Sequence[str], out: str, form: Format, rulebook: Rulebook) -> None:
        self.archive, self.rulebook = archive, rulebook
        if file_name(out) != out:
            raise ConfigError(f"{out}: is a URL, and the output is a folder; write ./{out} if it is one")
        self.out = Path(absolute(out))
        self.work = self.out.with_name(f"{self.out.name}.partial")
        self.work_folder = WorkFolder(self.work)
        self._roots, self._form = roots, form

    @cached_property
    def targets(self) -> list[Target]:
        """Each file of the input with its output."""
        parts: dict[int, list[Part]] = {}
        for part in self.archive.parts:
            parts.setdefault(part.file, []).append(part)
        targets = [self._target(number, file, parts[number]) for number, file in enumerate(self.archive.files)]
        self._check_names(targets)
        return targets

    def check(self, *, overwrite: bool) -> None:
        """Raise `ConfigError` if the output would destroy something, before anything is done."""
        if self.out.exists() and not overwrite:
            raise ConfigError(f"{self.out}: already exists; choose another folder, or use --overwrite")
        if not self.out.parent.is_dir():
            raise ConfigError(f"{self.out.parent}: no such folder; create it first")
        out = self.out.resolve()
        for root in map(Path, self._roots):
            if root.resolve() in (out, *out.parents) or out in root.resolve().parents:
                raise ConfigError(f"{self.out}: the input and the output are inside each other; name another folder")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make and lock the work folder, or resume with the one that an earlier run of the same plan has left."""
        fingerprint = self._fingerprint()
        for name in ("keys", "lists", "turned", "unfinished", "result/events", "result/rejected"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        with _locked(self.work / "lock"):
            self._compare(fingerprint)
            yield

    def _compare(self, fingerprint: str) -> None:
        file = self.work / "plan"
        if not file.exists():
            self.work_folder.write_json(file, fingerprint)
        elif file.read_bytes() != msgspec.json.encode(fingerprint):
            raise ConfigError(
                f"{self.work}: was left by another run, or its input or rules have changed since; "
                "remove it to start again"
            )

    def finish(self) -> None:
        """Move the complete output to its name."""
        old = self.out.with_name(f"{self.out.name}.old")
        if self.out.exists():
            self.out.rename(old)
        self.work_folder.result.rename(self.out)
        _sync(self.out.parent)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)

    def _target(self, number: int, file: str, parts: list[Part]) -> Target:
        own = _form_of(file)
        form = own if self._form == "same" else self._form
        name = self._relative(file)
        renamed = name if form == own else _with_suffix(name, form)
        return Target(number, file, renamed, form, tuple(parts), _file_stamp(file))

    def _relative(self, file: str) -> str:
        """Return the name below the root folder. If there are several roots, the name begins with that of the root."""
        for root in self._roots:
            if Path(root).is_dir() and Path(root) in Path(file).parents:
                inside = Path(file).relative_to(root)
                return str(inside if len(self._roots) == 1 else Path(Path(root).resolve().name) / inside)
        return Path(file).name

    def _check_names(self, targets: Sequence[Target]) -> None:
        paths: dict[str, str] = {}
        for target in targets:
            other = paths.setdefault(target.name, target.path)
            if other is not target.path:
                raise ConfigError(
                    f"{other} and {target.path} would both become {target.name}; deduplicate them one by one"
                )

    def _fingerprint(self) -> str:
        files = [(target.path, target.name, target.file_stamp) for target in self.targets]
        text = repr((_LAYOUT, files, self.rulebook.definition, self.archive.column)).encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with open(file, "wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{file.parent}: another run is using this folder; wait until it ends") from None
        yield


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _file_stamp(path: str) -> tuple[int, int]:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _form_of(path: str) -> str:
    if is_parquet(path):
        return "parquet"
    try:
        with open(path, "rb") as stream:
            return "gzip" if stream.read(2) == _GZIP else "jsonl"
    except (OSError, ValueError):
        return "jsonl"


def _with_suffix(name: str, form: str) -> str:
    bare = name.removesuffix(".gz").removesuffix(".parquet")
    if form != "parquet" and not Path(bare).suffix:
        bare += ".jsonl"
    return bare + _SUFFIX[form]
