"""Streams: exact after SIGKILL, and no late row is dropped in silence."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

from eventonce.rules import Rulebook, identity
from eventonce.traffic.spark.stream import LateRows, dedup_stream, watch

pytestmark = pytest.mark.filterwarnings("ignore")
JOB = Path(__file__).with_name("job.py")
FILES = 12


def committed(out: Path) -> list[str]:
    """Return the lines of the files that the sink has committed, without a file that the job left incomplete."""
    paths: set[str] = set()
    for log in (out / "_spark_metadata").glob("[0-9]*"):
        paths.update(json.loads(line)["path"].removeprefix("file://") for line in log.read_text().splitlines()[1:])
    return [line for path in paths for line in Path(path).read_text().splitlines()]


def batches(out: Path) -> int:
    return len(list((out / "_spark_metadata").glob("[0-9]*")))


def test_a_killed_stream_resumes_where_it_was(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(FILES):  # half of each file was in the one before; and some have no key
        ids = range(number * 50, number * 50 + 100)
        broken = f"{{broken {number}\n" * 2
        (folder / f"{number:02}").write_text("".join(f'{{"id": "{each}"}}\n' for each in ids) + broken)
        os.utime(folder / f"{number:02}", (number + 1, number + 1))
    command = [sys.executable, str(JOB), str(folder), str(out), str(tmp_path / "checkpoint")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}

    killed_at = []
    for wanted in (2, 6):
        with subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE) as running:
            deadline = time.monotonic() + 120
            while batches(out) < wanted and running.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            os.killpg(running.pid, signal.SIGKILL)
        killed_at.append(batches(out))
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)

    assert 2 <= killed_at[0] <= killed_at[1] < FILES, killed_at
    assert done.returncode == 0, done.stderr
    lines = Counter(committed(out))
    once = {f'{{"id": "{each}"}}': 1 for each in range((FILES - 1) * 50 + 100)}
    assert lines == {**once, **{f"{{broken {number}": 2 for number in range(FILES)}}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    for name, value in {
        "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
    }.items():  # fmt: skip
        builder = builder.config(name, value)
    session = builder.master("local[2]").getOrCreate()
    yield session
    session.stop()


def late_query(spark: SparkSession, folder: Path) -> Any:
    """Start a stream whose third file has an old arrival time. Its only row is unique."""
    (folder / "in").mkdir()
    for number, day in enumerate((20, 21, 1, 22)):
        file = folder / "in" / str(number)
        file.write_text(f'{{"id": "{number}", "at": "2026-01-{day:02}T00:00:00Z"}}\n')
        os.utime(file, (number + 1, number + 1))
    frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    arrived = frame.withColumn("arrived", functions.to_timestamp(functions.get_json_object("value", "$.at")))
    unique = dedup_stream(arrived, Rulebook("c", [], identity("1d", "retry")), arrival="arrived")
    writer = unique.select("value").writeStream.format("text").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start(str(folder / "out"))


def test_late_rows_stop_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    query = late_query(spark, tmp_path)

    with pytest.raises(LateRows, match=r"dropped 1 row of batch 2 as late, which may be unique"):
        watch(query)
    assert not query.isActive


def test_late_rows_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    watch(late_query(spark, tmp_path), late="aside", aside=tmp_path / "late.jsonl")

    (late,) = [json.loads(line) for line in (tmp_path / "late.jsonl").read_text().splitlines()]
    assert (late["batch"], late["rows"]) == (2, 1)
    assert late["from"] != late["to"]
    assert {json.loads(line)["id"] for line in committed(tmp_path / "out")} == {"0", "1", "3"}


def test_the_example_in_the_docs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    example = page.split("```py\n")[2].split("```")[0]
    (tmp_path / "arriving").mkdir()
    (tmp_path / "arriving" / "a").write_text('{"id": "1"}\n{"id": "1"}\n{"id": "2"}\n')
    (tmp_path / "pipeline.toml").write_text('consumer = "docs"\n')
    for name in ("arriving/", "checkpoint/", "unique/", "pipeline.toml"):  # the Java machine was started elsewhere
        example = example.replace(f'"{name}"', repr(str(tmp_path / name)))

    exec(compile(example, "docs/scale.md", "exec"), {"spark": spark})

    assert sorted(committed(tmp_path / "unique")) == ['{"id": "1"}', '{"id": "2"}']
