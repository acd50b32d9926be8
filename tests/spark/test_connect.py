"""The whole Spark batch adapter against a real Spark Connect server that needs no Java machine (Sail)."""

import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventonce.errors import ConfigError
from eventonce.event.formats import read_event
from eventonce.rules import Rulebook, identity
from eventonce.rules.rule import Rule
from eventonce.traffic import recipe
from eventonce.traffic import spark as on_spark
from eventonce.traffic.archive import Archive
from eventonce.traffic.audit import audit
from eventonce.traffic.recipe import Recipe, check_workers
from eventonce.traffic.report import AuditReport
from eventonce.traffic.spark.stream import dedup_stream, watch
from tests.copied_traffic import COPIES, copy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
RULES = Rulebook(
    "c",
    [
        Rule(name="v", match={"source": ["s1", "s2"]}, key=["detail.order"], version="detail.version", window="2d"),
        Rule(name="c", key="content", ignore=["detail.word"], refresh=True, window="1d"),
    ],
    identity("3d", "retry"),
)
BY_ID = Rulebook("c", [], identity("14d", "retry"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server in a process of its own, as a cluster is."""
    code = (
        "import sys, time; from pysail.spark import SparkConnectServer; server = SparkConnectServer(port=0); "
        "server.start(background=True); print(server.listening_address[1], flush=True); sys.stdin.read()"
    )
    quiet = {**os.environ, "RUST_LOG": "error"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet
    ) as running:
        assert running.stdout is not None
        yield f"sc://127.0.0.1:{running.stdout.readline().strip()}"
        running.kill()


@pytest.fixture(scope="module")
def spark(server: str) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        main = sys.modules["__main__"]
        if not hasattr(main, "__file__"):  # as under xdist: PySpark then takes itself to be in its own doctests
            patch.setattr(main, "__file__", "pytest", raising=False)  # not for good: other tests spawn processes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pyspark.sql import SparkSession

            session = SparkSession.builder.remote(server).getOrCreate()
        yield session
        session.stop()


def eventonce(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "eventonce", *args]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)


def figures(report: AuditReport) -> dict[tuple[str, str], Any]:
    """All of an audit but the pairs it shows: a frame cannot be read again for those."""
    return {(each.source, each.type): (each.counts, each.between, each.rules) for each in report.groups}


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        'consumer = "c"\nwindow = "3d"\n'
        '[[rule]]\nname = "v"\nmatch = { source = ["s1", "s2"] }\nkey = ["detail.order"]\nversion = "detail.version"\n'
        '[[rule]]\nname = "c"\nkey = "content"\nignore = ["detail.word"]\nrefresh = true\nwindow = "1d"\n'
    )
    return str(file)


def test_the_output_is_the_same_to_the_byte(server: str, archive: Path, pipeline: str, tmp_path: Path) -> None:
    here = eventonce("dedupe", pipeline, "--json", str(archive), str(tmp_path / "here"))
    there = eventonce("dedupe", pipeline, "--json", "--engine", server, str(archive), str(tmp_path / "there"))

    assert (here.returncode, there.returncode) == (1, 1), there.stderr  # some lines are rejected
    assert here.stdout == there.stdout
    assert len(files(tmp_path / "there")) > 8
    assert files(tmp_path / "here") == files(tmp_path / "there")


def test_an_audit_is_the_same(server: str, archive: Path, pipeline: str) -> None:
    here, there = (
        eventonce("audit", pipeline, "--json", "--engine", engine, str(archive)) for engine in ("memory", server)
    )

    assert json.loads(here.stdout)["totals"]["suspicious"] > 0
    assert here.stdout == there.stdout, there.stderr


@pytest.mark.parametrize("engine", ["sc://127.0.0.1:1", "sc://127.0.0.1:many"])
def test_an_unreachable_server_is_an_error_at_once(archive: Path, engine: str) -> None:
    done = eventonce("audit", "--engine", engine, str(archive))
    assert done.returncode == 2
    assert f"--engine: {engine}: cannot be reached: " in done.stderr
    assert "check that the server is running" in done.stderr


def test_a_spark_without_java_names_the_remedy(monkeypatch: pytest.MonkeyPatch, archive: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    done = eventonce("audit", "--engine", "local[1]", str(archive))
    assert done.returncode == 2
    assert "--engine: local[1]: cannot open a session: " in done.stderr
    assert "install Java 17" in done.stderr


def test_an_existing_output_is_refused_before_a_session_is_opened(tmp_path: Path, archive: Path) -> None:
    done = eventonce("dedupe", "--engine", "sc://127.0.0.1:1", str(archive), str(tmp_path))

    assert done.returncode == 2
    assert "already exists" in done.stderr


# --- DataFrames ---


def documents(folder: Path) -> list[str]:
    """The documents of the archive, in its order."""
    return [delivery.body.decode() for _, delivery, position in Archive([str(folder)]) if not position & 0xFFFFFF]


def test_with_key_has_the_same_keys_as_everywhere_else(spark: Any) -> None:
    lines = [
        '{"id": "1"}', '{"id": "2", "n": 9007199254740993}', '{"id": "3", "n": 1e2}', '{"id": "4", "n": -0.0}',
    ]  # fmt: skip
    frame = spark.createDataFrame([(number, line) for number, line in enumerate(lines)], "n int, value string")
    content = Rulebook("c", [Rule(name="all", key="content", window="1d")], identity("1d", "retry"))

    rows = on_spark.with_key(frame, content).orderBy("n").collect()

    assert [bytes(row.key) for row in rows] == [content.key(read_event(line)).key for line in lines]
    assert {row.rule for row in rows} == {"all"}
    assert [row.value for row in rows] == lines


def test_malformed_lines_do_not_share_a_key(spark: Any) -> None:
    lines = ["{broken", "{broken too", None, '{"id": "1"}', '{"id": "1"}']
    frame = spark.createDataFrame([(line,) for line in lines], "value string")

    keyed = on_spark.with_key(frame, BY_ID)
    result = on_spark.dedupe(frame, BY_ID)

    assert keyed.where("NOT ok").count() == 3
    assert keyed.where("NOT ok AND reason IS NOT NULL AND key IS NULL").count() == 3
    assert [row.value for row in result.kept.collect()] == ['{"id": "1"}']
    assert sorted(str(row.value) for row in result.rejected.collect()) == ["None", "{broken", "{broken too"]


def test_of_several_copies_the_first_by_the_order_is_kept(spark: Any) -> None:
    rows = [
        (5, "late", '{"id": "1"}'),
        (3, "first", '{"id": "1"}'),
        (4, "other", '{"id": "2"}'),
        (4, "x", '{"id": "1"}'),
    ]
    frame = spark.createDataFrame(rows, "n long, name string, body string").repartition(3)

    first = on_spark.dedupe(frame, BY_ID, column="body", order="n").kept

    assert {row.name for row in first.collect()} == {"first", "other"}
    assert first.columns == ["n", "name", "body"]


def test_a_line_with_several_events_is_split_if_needed(spark: Any) -> None:
    records = [{"messageId": "m", "eventSource": "aws:sqs", "body": f'{{"id": "{number}"}}'} for number in (1, 2, 2)]
    frame = spark.createDataFrame([(json.dumps({"Records": records}),), ('{"id": "1"}',)], "value string")

    assert sorted(row.value for row in on_spark.dedupe(frame, BY_ID).kept.collect()) == ['{"id": "1"}', '{"id": "2"}']


def test_an_audit_of_a_frame_has_the_figures_of_the_files(spark: Any, archive: Path) -> None:
    lines = documents(archive)
    frame = spark.createDataFrame(list(enumerate(lines)), "n long, value string").repartition(4)

    report = on_spark.audit(frame, RULES, order="n")

    expected = audit(Archive([str(archive)]), RULES)
    assert expected.totals.late > 100
    assert report.totals == expected.totals
    assert figures(report) == figures(expected)


@pytest.mark.parametrize("rules", COPIES.values(), ids=COPIES)
def test_an_audit_decides_on_all_copies_as_one_machine_does(spark: Any, tmp_path: Path, rules: list[Rule]) -> None:
    chance, rulebook = random.Random(str(rules)), Rulebook("c", rules, identity("3d", "retry"))
    lines = [copy(chance) for _ in range(1200)]
    (tmp_path / "traffic.jsonl").write_bytes(b"\n".join(lines))
    frame = spark.createDataFrame([(n, line.decode()) for n, line in enumerate(lines)], "n long, value string")

    report = on_spark.audit(frame.repartition(3), rulebook, order="n")

    expected = audit(Archive([str(tmp_path)]), rulebook)
    assert expected.totals.duplicates > 100
    assert report.totals == expected.totals
    assert figures(report) == figures(expected)


@pytest.mark.parametrize(
    ("column", "order", "message"),
    [("body", None, "has no column 'body'; it has value"), ("value", "n", "no column 'n'")],
)
def test_a_missing_column(spark: Any, column: str, order: str | None, message: str) -> None:
    frame = spark.createDataFrame([("{}",)], "value string")

    with pytest.raises(ConfigError, match=message):
        on_spark.dedupe(frame, BY_ID, column=column, order=order)


def test_a_column_that_exists_already(spark: Any) -> None:
    with pytest.raises(ConfigError, match="has a column 'key' already"):
        on_spark.with_key(spark.createDataFrame([("{}", "k")], "value string, key string"), BY_ID)


def test_the_example_in_the_docs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    example = page.split("```py\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text('consumer = "docs"\n')
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "a.jsonl").write_text('{"id": "1"}\n{"id": "1"}\n{broken\n')
    absolute = example.replace('"archive/"', repr(str(tmp_path / "archive")))  # the server was started elsewhere
    names: dict[str, Any] = {"spark": spark}

    exec(compile(absolute, "docs/scale.md", "exec"), names)

    assert names["keyed"].count() == 3
    assert (names["report"].totals.duplicates, names["report"].totals.rejected) == (1, 1)
    assert (names["kept"].count(), names["rejected"].count()) == (1, 1)


# --- workers ---


def test_workers_that_can_make_keys_are_accepted(spark: Any) -> None:
    check_workers(spark)


def test_a_worker_that_makes_other_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Recipe.of(BY_ID)
    assert made.rulebook().definition == BY_ID.definition
    monkeypatch.setattr(recipe, "_LINES", (b'{"id": "another library"}',))

    with pytest.raises(ConfigError, match=r"makes other keys than the driver: it has eventonce .* and msgspec"):
        made.rulebook()


def test_the_keys_that_workers_must_make_are_pinned() -> None:
    assert recipe.golden() == "39809431239ec356cb838948d1b538b02aca88e76ff1942b9ca106a9c4d8f71f"


# --- streams: what is refused before a stream begins ---


def test_a_stream_refuses_the_events_own_time_without_event_time(spark: Any) -> None:
    frame = spark.createDataFrame([("{}",)], "value string")

    with pytest.raises(ConfigError, match="is the event's own time: an event that is sent late would be dropped"):
        dedup_stream(frame, BY_ID, arrival="time")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule(name="r", key=["detail.n"], version="detail.v"), "has neither versions nor sliding windows"),
        (Rule(name="r", refresh=True), "has neither versions nor sliding windows"),
        (Rule(name="r", window="1h"), "the rules have several windows, and a stream has one"),
    ],
)
def test_a_stream_refuses_rules_that_it_cannot_apply(spark: Any, rule: Rule, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dedup_stream(spark.createDataFrame([("{}",)], "value string"), Rulebook("c", [rule], identity("1d", "retry")))


def test_a_watch_needs_a_file_for_late_rows() -> None:
    with pytest.raises(ConfigError, match='late = "aside" needs a file'):
        watch(None, late="aside")
