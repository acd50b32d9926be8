"""A deduplicated copy: what is kept, what is set aside, and that there is all of it or nothing."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventonce.dead_letters.letter import read_letter
from eventonce.errors import ConfigError
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule
from eventonce.traffic import archive as parts
from eventonce.traffic import file_ranges as pieces
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import audit
from eventonce.traffic.dedupe import Copy, DedupeResult, OneMachine
from eventonce.traffic.dedupe_plan import DedupePlan, Format
from eventonce.traffic.recorded import Traffic

BOOK = Rulebook("c", [], identity("14d", "retry"))


def plan(
    *given: Path, out: Path, form: Format = "same", book: Rulebook = BOOK, column: str | None = None
) -> DedupePlan:
    names = [str(each) for each in given]
    return DedupePlan(Archive(names, column), names, str(out), form, book)


def copy(*given: Path, out: Path, **options: Any) -> DedupeResult:
    return Copy(plan(*given, out=out, **options), OneMachine(1)).run()


def lines(*ids: object) -> bytes:
    return b"".join(b'{"id": "%s"}\n' % str(each).encode() for each in ids)


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def given(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "01").mkdir(parents=True)
    (folder / "01" / "a.jsonl").write_bytes(lines(1, 2, 1))
    (folder / "02.jsonl.gz").write_bytes(gzip.compress(lines(2, 3)))
    return folder


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SIZE", 5_000)
    monkeypatch.setattr(parts, "SIZE", 20_000)


def test_the_first_copy_is_kept_where_it_was(given: Path, tmp_path: Path) -> None:
    copied = copy(given, out=tmp_path / "out")

    found = files(tmp_path / "out")
    assert found["events/01/a.jsonl"] == lines(1, 2)
    assert gzip.decompress(found["events/02.jsonl.gz"]) == lines(3)
    assert set(found) == {"events/01/a.jsonl", "events/02.jsonl.gz"}
    assert (copied.events, copied.kept, copied.duplicates, copied.good) == (5, 3, 2, True)
    assert not (tmp_path / "out.partial").exists()


def test_the_figures_of_the_audit(archive: Path, tmp_path: Path, small_parts: None) -> None:
    rules = [
        Rule(name="v", match={"source": ["s1", "s2"]}, key=["detail.order"], version="detail.version", window="2d"),
        Rule(name="c", key="content", ignore=["word"], refresh=True, window="1d"),
    ]
    book = Rulebook("c", rules, identity("3d", "retry"))
    told = audit(Traffic([str(archive)]), book).totals

    copied = copy(archive, out=tmp_path / "out", book=book)

    assert copied.kept == told.distinct + told.late
    assert (copied.duplicates, copied.stale, copied.rejected) == (told.duplicates, told.stale, told.rejected)
    assert told.stale > 10
    again = audit(Traffic([str(tmp_path / "out" / "events")]), book).totals
    assert (again.events, again.rejected) == (copied.kept, 0)


def test_bytes_are_kept_as_they_are_and_several_lines_become_one(tmp_path: Path) -> None:
    spelled = b'{"b":  1.0, "id" : "x", "a": "\\u00fc"}'
    (tmp_path / "in.json").write_bytes(spelled + b'\n{\n "id": "y",\n "n": 1e2\n}\n{"id": "z"}{"id": "x"}')

    copy(tmp_path / "in.json", out=tmp_path / "out")

    assert files(tmp_path / "out")["events/in.json"] == spelled + b'\n{"id":"y","n":1e2}\n{"id": "z"}\n'


def test_of_a_document_with_several_events_those_are_kept_that_are_new(tmp_path: Path) -> None:
    bodies = ['{"id": "1"}', '{"id": "2"}', "{broken", '{"id": "2"}']
    records = [{"messageId": str(at), "eventSource": "aws:sqs", "body": body} for at, body in enumerate(bodies)]
    alone = json.dumps({"Records": records[1:2]}).encode()
    (tmp_path / "in.jsonl").write_bytes(lines(1) + json.dumps({"Records": records}).encode() + b"\n" + alone + b"\n")
    (tmp_path / "other.jsonl").write_bytes(json.dumps({"Records": [{**records[0], "body": '{"id": "9"}'}]}).encode())

    copied = copy(tmp_path / "in.jsonl", tmp_path / "other.jsonl", out=tmp_path / "out")

    found = files(tmp_path / "out")
    assert found["events/in.jsonl"] == lines(1) + lines(2)
    assert b'"Records"' in found["events/other.jsonl"]  # it carries one event, and is copied as it is
    assert (copied.kept, copied.duplicates, copied.rejected) == (3, 3, 1)


def test_what_is_rejected_is_beside_it_as_dead_letters_are(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(1) + b'{"no": "id"}\n{cut off\n\xff\xfe\n{"no": "id"}\n')

    copied = copy(tmp_path / "in.jsonl", out=tmp_path / "out")

    letters = [read_letter(line) for line in files(tmp_path / "out")["rejected/in.jsonl.jsonl"].splitlines()]
    assert [letter.trouble for letter in letters] == [None] * 4
    assert [letter.body for letter in letters] == [b'{"no": "id"}', b"{cut off", b"\xff\xfe", b'{"no": "id"}']
    assert [letter.place for letter in letters] == [f"{tmp_path / 'in.jsonl'}:{line}" for line in (2, 3, 4, 5)]
    assert all("has no id" in letter.reason or "JSON" in letter.reason for letter in letters)
    assert (copied.kept, copied.rejected, copied.good) == (1, 4, False)


def test_what_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "cut.gz").write_bytes(gzip.compress(lines(*range(50)))[:-9])
    (folder / "empty.jsonl").touch()
    (folder / "half.jsonl").write_bytes(lines(100) + b'{"id": "10')
    (folder / "mixed").write_bytes(lines(101) + b"plain words\n[]\n" + lines(102))
    (folder / "no.parquet").write_bytes(b"PAR1")
    (folder / "utf16.json").write_bytes('{"id": "1"}'.encode("utf-16"))
    (folder / "gone.jsonl").symlink_to(folder / "nowhere")

    copied = copy(folder, out=tmp_path / "out")

    assert copied.empty == [str(folder / "empty.jsonl")]
    assert {Path(each.path).name for each in copied.unreadable} == {"no.parquet", "utf16.json"}
    assert copied.kept == 53
    found = files(tmp_path / "out")
    assert "gzip data is damaged" in read_letter(found["rejected/cut.gz.jsonl"]).reason
    assert found["events/mixed"] == lines(101, 102)
    assert "events/empty.jsonl" not in found


@pytest.mark.parametrize("form", ["jsonl", "gzip", "parquet"])
def test_forms(given: Path, tmp_path: Path, form: Format) -> None:
    pq.write_table(pa.table({"value": ['{"id": "9"}', '{"id": "1"}']}), given / "c.parquet")

    copy(given, out=tmp_path / "out", form=form)

    ending = {"jsonl": "", "gzip": ".gz", "parquet": ".parquet"}[form]
    stem = {"parquet": "c"}.get(form, "c.jsonl")
    places = {"01/a.jsonl": [1, 2], "02.jsonl": [3], stem: [9]}
    found = files(tmp_path / "out" / "events")
    assert set(found) == {f"{name}{ending}" for name in places}
    for name, ids in places.items():
        data = found[f"{name}{ending}"]
        if form == "parquet":
            read = pq.read_table(tmp_path / "out" / "events" / f"{name}{ending}")["value"].to_pylist()
            assert read == lines(*ids).decode().splitlines()
        else:
            assert (gzip.decompress(data) if form == "gzip" else data) == lines(*ids)


def test_parquet_keeps_its_other_columns(tmp_path: Path) -> None:
    several = json.dumps([{"messageId": "m", "eventSource": "aws:sqs", "body": f'{{"id": "{n}"}}'} for n in (1, 7, 8)])
    bodies = ['{"id": "1"}', '{"id": "1"}', several, "{broken", '{"id": "8"}', '{"id": "5"}']
    table = pa.table({"n": range(6), "other": ["x"] * 6, "body": bodies})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)

    copied = copy(tmp_path / "in.parquet", out=tmp_path / "out", column="body")

    read = pq.read_table(tmp_path / "out" / "events" / "in.parquet")
    assert read.schema == table.schema
    assert read["n"].to_pylist() == [0, 2, 2, 5]
    assert read["body"].to_pylist() == ['{"id": "1"}', '{"id": "7"}', '{"id": "8"}', '{"id": "5"}']
    assert (copied.kept, copied.rejected) == (4, 1)


# --- all of it or nothing ---


def test_an_output_that_is_there_is_refused_unless_told(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_bytes(b"old")

    with pytest.raises(ConfigError, match="is there already; name another folder, or say --overwrite"):
        plan(given, out=out).check(overwrite=False)
    plan(given, out=out).check(overwrite=True)
    copy(given, out=out)

    assert "old" not in files(out)
    assert "events/01/a.jsonl" in files(out)
    assert {each.name for each in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.parametrize("out", ["in", "in/out", "."])
def test_the_output_may_not_be_inside_the_input_or_around_it(given: Path, tmp_path: Path, out: str) -> None:
    with pytest.raises(ConfigError, match="inside each other"):
        plan(given, out=tmp_path / out).check(overwrite=True)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for name in ("a/x.jsonl", "b/x.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(lines(name))

    with pytest.raises(ConfigError, match=r"would both become x\.jsonl"):
        copy(tmp_path / "a" / "x.jsonl", tmp_path / "b" / "x.jsonl", out=tmp_path / "out")
    copied = copy(tmp_path / "a", tmp_path / "b", out=tmp_path / "out")

    assert set(files(tmp_path / "out")) == {"events/a/x.jsonl", "events/b/x.jsonl"}
    assert copied.kept == 2


class Stopped(Exception):
    """As if the process had been killed."""


class Stopping(OneMachine):
    """Is stopped after so many tasks."""

    def __init__(self, after: int) -> None:
        super().__init__(1)
        self._left = after

    def map(self, act: Callable[[Any, Rulebook], Any], tasks: Iterable[Any], book: Rulebook) -> Iterator[Any]:
        for result in super().map(act, tasks, book):
            if not self._left:
                raise Stopped
            self._left -= 1
            yield result


@pytest.mark.parametrize("share", [0, 0.2, 0.9, 1.1])
def test_a_copy_that_was_stopped_goes_on(archive: Path, tmp_path: Path, small_parts: None, share: float) -> None:
    copy(archive, out=tmp_path / "whole")
    after = round(len(Archive([str(archive)]).parts) * share)  # beyond 1 it is in the second pass
    with pytest.raises(Stopped):
        Copy(plan(archive, out=tmp_path / "out"), Stopping(after)).run()
    assert not (tmp_path / "out").exists()
    done = {each: each.stat().st_mtime_ns for each in (tmp_path / "out.partial" / "keys").glob("*.json")}
    going_on = plan(archive, out=tmp_path / "out")
    going_on.finish = lambda: None  # type: ignore[method-assign]  # so that the work folder can be looked at
    Copy(going_on, OneMachine(1)).run()

    assert len(done) >= min(after, len(going_on.archive.parts))
    assert done == {each: each.stat().st_mtime_ns for each in done}
    DedupePlan.finish(going_on)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_work_of_another_copy_is_not_taken_over(given: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        Copy(plan(given, out=tmp_path / "out"), Stopping(1)).run()
    by_content = Rulebook("c", [Rule(name="c", key="content")], identity("14d", "retry"))

    with pytest.raises(ConfigError, match=r"out\.partial: was left by another copy"):
        copy(given, out=tmp_path / "out", book=by_content)
    (given / "01" / "a.jsonl").write_bytes(lines(7))
    with pytest.raises(ConfigError, match=r"its input or rules have changed"):
        copy(given, out=tmp_path / "out")


def test_a_file_that_changes_between_the_passes_is_told(given: Path, tmp_path: Path) -> None:
    class Changing(OneMachine):
        def judge(self, plan: DedupePlan, headers: Any) -> Any:
            (given / "01" / "a.jsonl").write_bytes(lines(1, 2, 3, 4))
            return super().judge(plan, headers)

    with pytest.raises(ConfigError, match="has changed while it was copied"):
        Copy(plan(given, out=tmp_path / "out"), Changing(1)).run()
    assert not (tmp_path / "out").exists()


def test_two_at_once_are_refused(given: Path, tmp_path: Path) -> None:
    with (
        plan(given, out=tmp_path / "out").opened(),
        pytest.raises(ConfigError, match="another copy is at work there"),
    ):
        copy(given, out=tmp_path / "out")
