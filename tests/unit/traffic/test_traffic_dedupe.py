"""A deduplication: what is kept, what is set aside, and that the output is complete or missing."""

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
from eventonce.traffic import archive as archives
from eventonce.traffic import file_ranges
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import audit
from eventonce.traffic.dedupe import Dedupe, DedupeResult, OneMachine
from eventonce.traffic.dedupe_plan import DedupePlan, Format

RULES = Rulebook("c", [], identity("14d", "retry"))


def plan(
    *inputs: Path, out: Path, form: Format = "same", rules: Rulebook = RULES, column: str | None = None
) -> DedupePlan:
    names = [str(path) for path in inputs]
    return DedupePlan(Archive(names, column), names, str(out), form, rules)


def dedupe(*inputs: Path, out: Path, **options: Any) -> DedupeResult:
    return Dedupe(plan(*inputs, out=out, **options), OneMachine(1)).run()


def lines(*ids: object) -> bytes:
    return b"".join(b'{"id": "%s"}\n' % str(each).encode() for each in ids)


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "01").mkdir(parents=True)
    (folder / "01" / "a.jsonl").write_bytes(lines(1, 2, 1))
    (folder / "02.jsonl.gz").write_bytes(gzip.compress(lines(2, 3)))
    return folder


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ranges, "SIZE", 5_000)
    monkeypatch.setattr(archives, "PART_SIZE", 20_000)


def test_the_first_copy_is_kept_where_it_was(folder: Path, tmp_path: Path) -> None:
    result = dedupe(folder, out=tmp_path / "out")

    written = files(tmp_path / "out")
    assert written["events/01/a.jsonl"] == lines(1, 2)
    assert gzip.decompress(written["events/02.jsonl.gz"]) == lines(3)
    assert set(written) == {"events/01/a.jsonl", "events/02.jsonl.gz"}
    assert (result.events, result.kept, result.duplicates, result.complete) == (5, 3, 2, True)
    assert not (tmp_path / "out.partial").exists()


def test_the_figures_are_those_of_the_audit(archive: Path, tmp_path: Path, small_parts: None) -> None:
    rules = [
        Rule(name="v", match={"source": ["s1", "s2"]}, key=["detail.order"], version="detail.version", window="2d"),
        Rule(name="c", key="content", ignore=["detail.word"], refresh=True, window="1d"),
    ]
    rulebook = Rulebook("c", rules, identity("3d", "retry"))
    totals = audit(Archive([str(archive)]), rulebook).totals

    result = dedupe(archive, out=tmp_path / "out", rules=rulebook)

    assert result.kept == totals.distinct + totals.late
    assert (result.duplicates, result.stale, result.rejected) == (totals.duplicates, totals.stale, totals.rejected)
    assert totals.stale > 10
    second = audit(Archive([str(tmp_path / "out" / "events")]), rulebook).totals
    assert (second.events, second.rejected) == (result.kept, 0)


def test_bytes_are_kept_as_they_are_and_several_lines_become_one(tmp_path: Path) -> None:
    spelled = b'{"b":  1.0, "id" : "x", "a": "\\u00fc"}'
    (tmp_path / "in.json").write_bytes(spelled + b'\n{\n "id": "y",\n "n": 1e2\n}\n{"id": "z"}{"id": "x"}')

    dedupe(tmp_path / "in.json", out=tmp_path / "out")

    assert files(tmp_path / "out")["events/in.json"] == spelled + b'\n{"id":"y","n":1e2}\n{"id": "z"}\n'


def test_of_a_document_with_several_events_those_are_kept_that_are_new(tmp_path: Path) -> None:
    bodies = ['{"id": "1"}', '{"id": "2"}', "{broken", '{"id": "2"}']
    records = [{"messageId": str(at), "eventSource": "aws:sqs", "body": body} for at, body in enumerate(bodies)]
    alone = json.dumps({"Records": records[1:2]}).encode()
    (tmp_path / "in.jsonl").write_bytes(lines(1) + json.dumps({"Records": records}).encode() + b"\n" + alone + b"\n")
    (tmp_path / "other.jsonl").write_bytes(json.dumps({"Records": [{**records[0], "body": '{"id": "9"}'}]}).encode())

    result = dedupe(tmp_path / "in.jsonl", tmp_path / "other.jsonl", out=tmp_path / "out")

    written = files(tmp_path / "out")
    assert written["events/in.jsonl"] == lines(1) + lines(2)
    assert b'"Records"' in written["events/other.jsonl"]  # it carries one event, and is result as it is
    assert (result.kept, result.duplicates, result.rejected) == (3, 3, 1)


def test_what_is_rejected_is_beside_it_as_dead_letters_are(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(1) + b'{"no": "id"}\n{cut off\n\xff\xfe\n{"no": "id"}\n')

    result = dedupe(tmp_path / "in.jsonl", out=tmp_path / "out")

    letters = [read_letter(line) for line in files(tmp_path / "out")["rejected/in.jsonl.jsonl"].splitlines()]
    assert [letter.unreadable for letter in letters] == [None] * 4
    assert [letter.body for letter in letters] == [b'{"no": "id"}', b"{cut off", b"\xff\xfe", b'{"no": "id"}']
    assert [letter.location for letter in letters] == [f"{tmp_path / 'in.jsonl'}:{line}" for line in (2, 3, 4, 5)]
    assert all("has no id" in letter.reason or "JSON" in letter.reason for letter in letters)
    assert (result.kept, result.rejected, result.complete) == (1, 4, False)


def test_an_unreadable_file_is_named_and_the_others_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "cut.gz").write_bytes(gzip.compress(lines(*range(50)))[:-9])
    (folder / "empty.jsonl").touch()
    (folder / "half.jsonl").write_bytes(lines(100) + b'{"id": "10')
    (folder / "mixed").write_bytes(lines(101) + b"plain words\n[]\n" + lines(102))
    (folder / "no.parquet").write_bytes(b"PAR1")
    (folder / "utf16.json").write_bytes('{"id": "1"}'.encode("utf-16"))
    (folder / "gone.jsonl").symlink_to(folder / "nowhere")

    result = dedupe(folder, out=tmp_path / "out")

    assert result.empty == [str(folder / "empty.jsonl")]
    assert {Path(each.path).name for each in result.unreadable} == {"no.parquet", "utf16.json"}
    assert result.kept == 53
    written = files(tmp_path / "out")
    assert "gzip data is damaged" in read_letter(written["rejected/cut.gz.jsonl"]).reason
    assert written["events/mixed"] == lines(101, 102)
    assert "events/empty.jsonl" not in written


@pytest.mark.parametrize("form", ["jsonl", "gzip", "parquet"])
def test_forms(folder: Path, tmp_path: Path, form: Format) -> None:
    pq.write_table(pa.table({"value": ['{"id": "9"}', '{"id": "1"}']}), folder / "c.parquet")

    dedupe(folder, out=tmp_path / "out", form=form)

    ending = {"jsonl": "", "gzip": ".gz", "parquet": ".parquet"}[form]
    stem = {"parquet": "c"}.get(form, "c.jsonl")
    places = {"01/a.jsonl": [1, 2], "02.jsonl": [3], stem: [9]}
    written = files(tmp_path / "out" / "events")
    assert set(written) == {f"{name}{ending}" for name in places}
    for name, ids in places.items():
        data = written[f"{name}{ending}"]
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

    result = dedupe(tmp_path / "in.parquet", out=tmp_path / "out", column="body")

    read = pq.read_table(tmp_path / "out" / "events" / "in.parquet")
    assert read.schema == table.schema
    assert read["n"].to_pylist() == [0, 2, 2, 5]
    assert read["body"].to_pylist() == ['{"id": "1"}', '{"id": "7"}', '{"id": "8"}', '{"id": "5"}']
    assert (result.kept, result.rejected) == (4, 1)


# --- all of it or nothing ---


def test_an_existing_output_is_refused_without_overwrite(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_bytes(b"old")

    with pytest.raises(ConfigError, match="already exists; choose another folder, or use --overwrite"):
        plan(folder, out=out).check(overwrite=False)
    plan(folder, out=out).check(overwrite=True)
    dedupe(folder, out=out)

    assert "old" not in files(out)
    assert "events/01/a.jsonl" in files(out)
    assert {each.name for each in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.parametrize("out", ["in", "in/out", "."])
def test_the_output_may_not_be_inside_the_input_or_around_it(folder: Path, tmp_path: Path, out: str) -> None:
    with pytest.raises(ConfigError, match="inside each other"):
        plan(folder, out=tmp_path / out).check(overwrite=True)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for name in ("a/x.jsonl", "b/x.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(lines(name))

    with pytest.raises(ConfigError, match=r"would both become x\.jsonl"):
        dedupe(tmp_path / "a" / "x.jsonl", tmp_path / "b" / "x.jsonl", out=tmp_path / "out")
    result = dedupe(tmp_path / "a", tmp_path / "b", out=tmp_path / "out")

    assert set(files(tmp_path / "out")) == {"events/a/x.jsonl", "events/b/x.jsonl"}
    assert result.kept == 2


class Stopped(Exception):
    """Stands for the end of a process that was killed."""


class Stopping(OneMachine):
    """An engine that stops after some tasks."""

    def __init__(self, after: int) -> None:
        super().__init__(1)
        self._remaining = after

    def map(self, function: Callable[[Any, Rulebook], Any], tasks: Iterable[Any], rulebook: Rulebook) -> Iterator[Any]:
        for result in super().map(function, tasks, rulebook):
            if not self._remaining:
                raise Stopped
            self._remaining -= 1
            yield result


@pytest.mark.parametrize("share", [0, 0.2, 0.9, 1.1])
def test_a_run_that_was_stopped_is_resumed(archive: Path, tmp_path: Path, small_parts: None, share: float) -> None:
    dedupe(archive, out=tmp_path / "whole")
    after = round(len(Archive([str(archive)]).parts) * share)  # beyond 1 it is in the second pass
    with pytest.raises(Stopped):
        Dedupe(plan(archive, out=tmp_path / "out"), Stopping(after)).run()
    assert not (tmp_path / "out").exists()
    done = {each: each.stat().st_mtime_ns for each in (tmp_path / "out.partial" / "keys").glob("*.json")}
    resumed = plan(archive, out=tmp_path / "out")
    resumed.finish = lambda: None  # type: ignore[method-assign]  # so that the work folder can be looked at
    Dedupe(resumed, OneMachine(1)).run()

    assert len(done) >= min(after, len(resumed.archive.parts))
    assert done == {each: each.stat().st_mtime_ns for each in done}
    DedupePlan.finish(resumed)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_the_work_folder_of_another_plan_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        Dedupe(plan(folder, out=tmp_path / "out"), Stopping(1)).run()
    by_content = Rulebook("c", [Rule(name="c", key="content")], identity("14d", "retry"))

    with pytest.raises(ConfigError, match=r"out\.partial: was left by another run"):
        dedupe(folder, out=tmp_path / "out", rules=by_content)
    (folder / "01" / "a.jsonl").write_bytes(lines(7))
    with pytest.raises(ConfigError, match=r"its input or rules have changed"):
        dedupe(folder, out=tmp_path / "out")


def test_a_file_that_changes_between_the_passes_is_an_error(folder: Path, tmp_path: Path) -> None:
    class Changing(OneMachine):
        def find_drops(self, plan: DedupePlan, headers: Any) -> Any:
            (folder / "01" / "a.jsonl").write_bytes(lines(1, 2, 3, 4))
            return super().find_drops(plan, headers)

    with pytest.raises(ConfigError, match="has changed since the run started"):
        Dedupe(plan(folder, out=tmp_path / "out"), Changing(1)).run()
    assert not (tmp_path / "out").exists()


def test_a_second_run_at_the_same_time_is_refused(folder: Path, tmp_path: Path) -> None:
    with (
        plan(folder, out=tmp_path / "out").opened(),
        pytest.raises(ConfigError, match="another run is using this folder"),
    ):
        dedupe(folder, out=tmp_path / "out")
