"""The worker of a pipeline is chosen by its source, from Python as from the command line."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from eventonce.wire import Pipeline, settings
from eventonce.worker import Worker, WorkerPool, open_worker
from eventonce.worker.request_server import RequestServer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_has_a_worker_that_ends_with_it(folder: Path) -> None:
    (folder / "events.jsonl").write_text("".join(json.dumps({"id": name}) + "\n" for name in ("1", "2", "1")))
    chosen = settings({"source": "events.jsonl", "sink": "done.jsonl", "store": "memory:"}, "test")
    pipeline = Pipeline(chosen)

    worker = open_worker(pipeline, chosen)
    assert isinstance(worker, Worker)
    worker.run()
    pipeline.close()

    assert worker.tally.counts()["processed"] == 2
    assert worker.tally.counts()["duplicate"] == 1
    assert len((folder / "done.jsonl").read_text().splitlines()) == 2


def test_a_queue_has_a_pool_and_requests_have_a_server(folder: Path) -> None:
    chosen = settings({"source": "http://127.0.0.1:0/", "sink": "done.jsonl", "store": "memory:"}, "test")
    pipeline = Pipeline(chosen)

    server = open_worker(pipeline, chosen)
    assert isinstance(server, RequestServer)
    server.stop()
    assert server.run(0) == 0
    pipeline.source = cast(Any, object())  # neither a file nor requests
    assert isinstance(open_worker(pipeline, chosen), WorkerPool)
    pipeline.close()
