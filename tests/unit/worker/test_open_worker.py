"""The worker is chosen by its source, from Python as from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from eventonce import Once
from eventonce.dead_letters import open_dead_letters
from eventonce.ports import DeadLetterSink
from eventonce.sources import open_source
from eventonce.worker import Worker, WorkerPool, open_worker
from eventonce.worker.request_server import RequestServer


@pytest.fixture
def dead_letters(tmp_path: Path) -> Iterator[DeadLetterSink]:
    sink = open_dead_letters(str(tmp_path / "dead.jsonl"))
    yield sink
    sink.close()


def test_a_file_has_a_worker_that_ends_with_it(tmp_path: Path, dead_letters: DeadLetterSink) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps({"id": name}) + "\n" for name in ("1", "2", "1")))
    ran: list[str] = []
    source = open_source(str(file))

    worker = open_worker(Once("memory:"), source, lambda event: ran.append(event.id), dead_letters)
    assert isinstance(worker, Worker)
    worker.run()
    source.close()

    assert ran == ["1", "2"]
    assert (worker.counts.as_dict()["processed"], worker.counts.as_dict()["duplicate"]) == (2, 1)


def test_requests_have_a_server(dead_letters: DeadLetterSink) -> None:
    server = open_worker(Once("memory:"), open_source("http://127.0.0.1:0/"), print, dead_letters)
    assert isinstance(server, RequestServer)
    assert server.address.port > 0
    server.stop()
    assert server.run(0) == 0


def test_any_other_source_has_a_pool(dead_letters: DeadLetterSink) -> None:
    queue = cast(Any, object())
    assert isinstance(open_worker(Once("memory:"), queue, print, dead_letters), WorkerPool)
