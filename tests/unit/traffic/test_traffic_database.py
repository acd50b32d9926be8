"""The audit of an archive of any size has exactly the figures of the audit in memory."""

import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventonce.errors import EventOnceError, MissingDriver
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule
from eventonce.traffic import archive as archives
from eventonce.traffic import file_ranges
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import audit as audit_in_memory
from eventonce.traffic.database_audit import audit
from eventonce.traffic.drivers import need
from eventonce.traffic.fold import EngineColumns, Fold
from eventonce.traffic.ledger import Decision
from tests.copied_traffic import BOOKS, COPIES, copy


def rulebook(rules: list[Rule]) -> Rulebook:
    return Rulebook("c", rules, identity("3d", "retry"))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut files into many parts, as only large ones are."""
    monkeypatch.setattr(file_ranges, "SIZE", 5_000)
    monkeypatch.setattr(archives, "PART_SIZE", 20_000)


@pytest.mark.parametrize("rules", BOOKS.values(), ids=BOOKS)
def test_the_same_report_as_in_memory(archive: Path, small_parts: None, rules: list[Rule]) -> None:
    expected = audit_in_memory(Archive([str(archive)]), rulebook(rules))
    recorded = Archive([str(archive)])
    report = audit(recorded, rulebook(rules), processes=1)

    assert len(recorded.parts) > 10
    assert expected.totals.duplicates > 300
    assert expected.totals.rejected > 10
    assert expected.totals.suspicious > 0
    assert msgspec.to_builtins(report) == msgspec.to_builtins(expected)


@pytest.mark.parametrize("rules", COPIES.values(), ids=COPIES)
def test_copies_that_a_query_decides_on_and_those_that_it_does_not(tmp_path: Path, rules: list[Rule]) -> None:
    """Copies with and without times, near and far, in order and not, equal and not, alone and among others."""
    chance = random.Random(len(rules) + sum(map(ord, str(rules))))
    for file in range(3):
        (tmp_path / f"{file}.jsonl").write_bytes(b"\n".join(copy(chance) for _ in range(400)))

    expected = audit_in_memory(Archive([str(tmp_path)]), rulebook(rules))
    report = audit(Archive([str(tmp_path)]), rulebook(rules), processes=1)

    assert expected.totals.duplicates > 100
    assert msgspec.to_builtins(report) == msgspec.to_builtins(expected)


def test_in_several_processes(archive: Path) -> None:
    rules = BOOKS["by a field"]
    steps: list[int] = []
    report = audit(Archive([str(archive)]), rulebook(rules), steps.append, processes=2)

    assert report == audit_in_memory(Archive([str(archive)]), rulebook(rules))
    assert sum(steps) == report.totals.events
    assert report.totals.new_id > report.totals.suspicious_new_id > 0


def test_copies_under_another_id_and_without_one(tmp_path: Path) -> None:
    ids = ("a", "a", "b", "", "b", "c")
    lines = [b'{"id": "%s", "source": "s", "detail-type": "t", "detail": {"n": 1}}\n' % name.encode() for name in ids]
    (tmp_path / "traffic.jsonl").write_bytes(b"".join(lines))
    rules = rulebook([Rule(name="n", key=["detail.n"])])

    reports = [engine(Archive([str(tmp_path)]), rules, processes=1) for engine in (audit_in_memory, audit)]

    assert [(each.totals.duplicates, each.totals.new_id) for each in reports] == [(5, 2), (5, 2)]


def test_more_sources_than_are_counted_apart(tmp_path: Path, small_parts: None) -> None:
    lines = [b'{"id": "%d", "source": "s%d", "detail-type": "t", "detail": {}}\n' % (n % 900, n) for n in range(1300)]
    (tmp_path / "traffic.jsonl").write_bytes(b"".join(lines))

    report = audit(Archive([str(tmp_path)]), rulebook([]), processes=1)

    assert len(report.groups) == 1001
    assert msgspec.to_builtins(report) == msgspec.to_builtins(audit_in_memory(Archive([str(tmp_path)]), rulebook([])))


def test_parquet_is_read_as_its_lines_are(tmp_path: Path) -> None:
    lines = ['{"id": "1"}', '{"id": "2"}', None, '{"id": "1"}', "{broken"]
    pq.write_table(pa.table({"n": range(5), "body": pa.array(lines)}), tmp_path / "a.parquet")

    in_memory, on_duckdb = (
        engine(Archive([str(tmp_path)]), rulebook([]), processes=1) for engine in (audit_in_memory, audit)
    )

    assert msgspec.to_builtins(in_memory) == msgspec.to_builtins(on_duckdb)
    assert (on_duckdb.totals.distinct, on_duckdb.totals.duplicates, on_duckdb.totals.rejected) == (2, 1, 2)
    assert on_duckdb.no_events[0].place == f"{tmp_path / 'a.parquet'}:3"


def test_suspicious_drops_after_a_parquet_file_are_compared_with_their_firsts(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ['{"id": "1"}', '{"id": "2"}']}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_bytes(b'{"id": "7", "n": 1}\n{"id": "8"}\n{"id": "7", "n": 2}\n')

    reports = [engine(Archive([str(tmp_path)]), rulebook([]), processes=1) for engine in (audit_in_memory, audit)]

    for report in reports:
        ((example,),) = [group.suspicious.examples for group in report.groups]
        assert (example.first, example.copy) == (f"{tmp_path / 'b.jsonl'}:1", f"{tmp_path / 'b.jsonl'}:3")
        assert example.fields == ["detail.n"]


@pytest.mark.parametrize(
    ("column", "message"),
    [(None, "which column holds the events is not clear; name one with --column"), ("x", "has no column 'x'")],
)
def test_a_column_that_is_not_clear(tmp_path: Path, column: str | None, message: str) -> None:
    pq.write_table(pa.table({"one": ["a"], "other": ["b"]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "c.jsonl").write_bytes(b'{"id": "1"}\n')

    report = audit(Archive([str(tmp_path)], column), rulebook([]), processes=1)

    reasons = {Path(each.path).name: each.reason for each in report.inputs.unreadable}
    assert message in reasons["a.parquet"]
    assert "is not a readable Parquet file" in reasons["b.parquet"]
    assert report.totals.distinct == 1


def test_an_archive_without_events(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()

    report = audit(Archive([str(tmp_path)]), rulebook([]), processes=1)

    assert (report.totals.events, report.inputs.files) == (0, 1)


def rows(*places: tuple[bytes, int]) -> EngineColumns:
    keys, orders = zip(*places, strict=True)
    nothing = [0] * len(keys)
    return EngineColumns(keys, orders, nothing, [None] * len(keys), nothing, nothing, orders)


def test_a_fold_resumes_where_a_batch_has_cut_a_key() -> None:
    fold = Fold(rulebook([]))
    first = fold.decide(rows((b"a", 1), (b"b", 1), (b"b", 2)))
    second = fold.decide(rows((b"b", 3), (b"c", 1)))

    assert [each.kind for each in first + second] == [
        Decision.NEW, Decision.NEW, Decision.DUPLICATE, Decision.DUPLICATE, Decision.NEW
    ]  # fmt: skip


@pytest.mark.parametrize("last", [(b"a", 2), (b"b", 1)])
def test_a_fold_refuses_what_is_out_of_order(last: tuple[bytes, int]) -> None:
    with pytest.raises(EventOnceError, match="out of order"):
        Fold(rulebook([])).decide(rows((b"a", 1), (b"b", 1), last))
    fold = Fold(rulebook([]))
    fold.decide(rows((b"a", 1), (b"b", 1)))
    with pytest.raises(EventOnceError, match="out of order"):
        fold.decide(rows(last))


def test_a_missing_engine_names_its_extra() -> None:
    with pytest.raises(MissingDriver, match=r'needs no_such_engine; pip install "eventonce\[duckdb\]"'):
        need("no_such_engine.part", "duckdb")
