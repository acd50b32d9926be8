"""The plan of a copy: what is read, where it goes, and the folder beside the output where unfinished work waits.

Nothing is in the output folder before all of it is: it is made under another name, and renamed at the end. What is
finished in the work folder is not done again by the next run of the same copy.
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
from eventonce.traffic.archive import Archive, Part, absolute, printable
from eventonce.traffic.parquet import is_parquet

Format = Literal["same", "jsonl", "gzip", "parquet"]
_GZIP = b"\x1f\x8b"
_SUFFIX = {"jsonl": "", "gzip": ".gz", "parquet": ".parquet"}
_LAYOUT = 1  # of the work folder


class Target(msgspec.Struct, frozen=True):
    """One file of the input, and what becomes of it."""

    file: int
    path: str
    name: str  # of the output, below its folder
    form: str
    parts: tuple[Part, ...]
    mark: tuple[int, int]  # size and time of change, when the copy began

    @property
    def size(self) -> int:
        return self.mark[0]

    @property
    def place(self) -> str:
        return self.parts[0].place

    def check(self) -> None:
        """That it is still the file that was read first."""
        if _mark(self.place) != self.mark:
            raise ConfigError(f"{printable(self.path)}: has changed while it was copied; run the copy again")


class Places(NamedTuple):
    """Where things are in the work folder."""

    work: Path

    def keys(self, part: int) -> Path:
        """The keys of a part."""
        return self.work / "keys" / f"{part:08}.parquet"

    def header(self, part: int) -> Path:
        """What is known of a part; it is there when the part is done."""
        return self.work / "keys" / f"{part:08}.json"

    def turned(self, part: int) -> Path:
        """What of a part was rejected."""
        return self.work / "turned" / f"{part:08}.jsonl"

    def listed(self, file: int) -> Path:
        """The events of a file that are not copied as they are."""
        return self.work / "lists" / f"{file:08}"

    @property
    def lost(self) -> Path:
        """The places of all copies."""
        return self.work / "lost.parquet"

    @contextmanager
    def making(self, file: Path) -> Iterator[Path]:
        """A name to write a file under; it gets its own when it is whole, and else there is none."""
        unfinished = self.work / "unfinished" / uuid4().hex
        try:
            yield unfinished
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.rename(file)
        finally:
            unfinished.unlink(missing_ok=True)

    def publish(self, file: Path, told: Any) -> None:
        """Write a small file as JSON."""
        with self.making(file) as unfinished:
            unfinished.write_bytes(msgspec.json.encode(told))

    @property
    def judged(self) -> Path:
        """There when all lists are."""
        return self.work / "judged.json"

    @property
    def result(self) -> Path:
        return self.work / "result"

    def done(self, file: int) -> Path:
        """What was written of a file; it is there when the file is done."""
        return self.work / "lists" / f"{file:08}.json"


class DedupePlan:
    """A copy from files to a folder."""

    def __init__(self, archive: Archive, roots: Sequence[str], out: str, form: Format, book: Rulebook) -> None:
        self.archive, self.book = archive, book
        self.out = Path(absolute(out))
        self.work = self.out.with_name(f"{self.out.name}.partial")
        self.places = Places(self.work)
        self._roots, self._form = roots, form

    @cached_property
    def targets(self) -> list[Target]:
        """Each file of the input with its output."""
        parts: dict[int, list[Part]] = {}
        for part in self.archive.parts:
            parts.setdefault(part.file, []).append(part)
        found = [self._target(number, file, parts[number]) for number, file in enumerate(self.archive.names)]
        self._check_names(found)
        return found

    def check(self, *, overwrite: bool) -> None:
        """Refuse what would destroy something, before anything is done."""
        if self.out.exists() and not overwrite:
            raise ConfigError(f"{self.out}: is there already; name another folder, or say --overwrite")
        if not self.out.parent.is_dir():
            raise ConfigError(f"{self.out.parent}: is no folder; make it first")
        for root in self._roots:
            place = Path(root).resolve()
            if place in (self.out.resolve(), *self.out.resolve().parents) or self.out.resolve() in place.parents:
                raise ConfigError(f"{self.out}: the input and the output are inside each other; name another folder")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the work folder, or go on with the one that an earlier run of the same copy has left."""
        told = self._fingerprint()
        for name in ("keys", "lists", "turned", "unfinished", "result/events", "result/rejected"):
            (self.work / name).mkdir(parents=True, exist_ok=True)
        with _locked(self.work / "lock"):
            self._compare(told)
            yield

    def _compare(self, told: str) -> None:
        note = self.work / "plan"
        if not note.exists():
            self.places.publish(note, told)
        elif note.read_bytes() != msgspec.json.encode(told):
            raise ConfigError(
                f"{self.work}: was left by another copy, or its input or rules have changed since; "
                "remove it to begin anew"
            )

    def finish(self) -> None:
        """Put the output in its place, all of it at once."""
        old = self.out.with_name(f"{self.out.name}.old")
        if self.out.exists():
            self.out.rename(old)
        self.places.result.rename(self.out)
        _sync(self.out.parent)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)

    def _target(self, number: int, file: str, parts: list[Part]) -> Target:
        own = _form_of(file)
        form = own if self._form == "same" else self._form
        name = self._relative(file)
        return Target(number, file, name if form == own else _renamed(name, form), form, tuple(parts), _mark(file))

    def _relative(self, file: str) -> str:
        """The name below the folder that it was found in; below that folder's name where there are several."""
        for root in self._roots:
            if Path(root).is_dir() and Path(root) in Path(file).parents:
                inside = Path(file).relative_to(root)
                return str(inside if len(self._roots) == 1 else Path(Path(root).resolve().name) / inside)
        return Path(file).name

    def _check_names(self, targets: Sequence[Target]) -> None:
        met: dict[str, str] = {}
        for target in targets:
            other = met.setdefault(target.name, target.path)
            if other is not target.path:
                raise ConfigError(f"{other} and {target.path} would both become {target.name}; copy them one by one")

    def _fingerprint(self) -> str:
        files = [(target.path, target.name, target.mark) for target in self.targets]
        told = repr((_LAYOUT, files, self.book.definition, self.archive.column)).encode("utf-8", "surrogatepass")
        return hashlib.sha256(told).hexdigest()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with open(file, "wb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{file.parent}: another copy is at work there; wait for its end") from None
        yield


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _mark(path: str) -> tuple[int, int]:
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


def _renamed(name: str, form: str) -> str:
    """With the ending of another form."""
    bare = name.removesuffix(".gz").removesuffix(".parquet")
    if form != "parquet" and not Path(bare).suffix:
        bare += ".jsonl"
    return bare + _SUFFIX[form]
