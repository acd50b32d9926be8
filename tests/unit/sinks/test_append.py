"""`AppendFile`, `FileSink` and `DeadFile`: lines are added whole, and nothing written is lost."""

import json
import os
import subprocess
import sys
import threading
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.dead_letters import open_box, open_dead_letters
from eventonce.dead_letters.file import DeadFile
from eventonce.dead_letters.letter import letter_fields
from eventonce.errors import ConfigError, EventRejected, SinkError
from eventonce.event import Delivery, Event
from eventonce.event.formats import read_event
from eventonce.event.keys import Key
from eventonce.outbox import Outbox
from eventonce.sinks import open_sink
from eventonce.sinks.append import AppendFile
from eventonce.sinks.file import FileSink
from eventonce.sources import open_source
from eventonce.stores import open_store

NOW = 1_767_225_600_000  # 2026-01-01


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def append(file: Path, *lines: bytes) -> None:
    appending = AppendFile(str(file))
    appending.check()
    appending.write(lines)
    appending.close()


# --- lines ---


def test_a_file_that_was_moved_or_deleted_is_started_anew(file: Path) -> None:
    appending = AppendFile(str(file))
    appending.write([b'{"a":1}'])
    file.rename(file.with_name("yesterday.jsonl"))
    appending.write([b'{"b":2}'])
    assert file.read_bytes() == b'{"b":2}\n'
    file.unlink()
    appending.write([b'{"c":3}'])
    assert file.read_bytes() == b'{"c":3}\n'
    appending.close()
    assert file.with_name("yesterday.jsonl").read_bytes() == b'{"a":1}\n'


def test_lines_are_added(file: Path) -> None:
    append(file, b'{"a":1}', b'{"b":2}')
    append(file, b'{"c":3}')

    assert file.read_bytes() == b'{"a":1}\n{"b":2}\n{"c":3}\n'


def test_a_line_that_was_written_can_be_read_while_the_writer_lives(file: Path) -> None:
    appending = AppendFile(str(file))
    appending.write([b'{"a":1}'])

    assert file.read_bytes() == b'{"a":1}\n'
    appending.close()


def test_the_file_is_made_with_the_first_line_only(file: Path) -> None:
    appending = AppendFile(str(file))
    appending.check()
    assert not file.exists()

    appending.write([b"{}"])

    assert file.exists()
    appending.close()


def test_what_was_there_stays(file: Path) -> None:
    file.write_bytes(b'{"old":1}\n')

    append(file, b'{"new":1}')

    assert file.read_bytes() == b'{"old":1}\n{"new":1}\n'


def test_lines_longer_than_a_block_are_added_whole(file: Path) -> None:
    long = b'{"a":"' + b"x" * 3_000_000 + b'"}'

    append(file, long, b"{}")
    append(file, long)

    assert file.read_bytes().split(b"\n") == [long, b"{}", long, b""]


# --- what a killed writer left behind ---


@pytest.mark.parametrize(
    "torn",
    [
        b"{",
        b'{"id"',
        b'{"id":"1","text":"half of',
        b'{"id":"1","text":"ends like this }',
        b'{"id":"1","detail":{"inner":"object"}',
        b'{"id":"1","detail":[{"inner":{}}',
        b'{"id":"1","text":"\xc3',
        b'{"id":"' + b"x" * 200_000,
        b'{"id":"' + b"x" * 200_000 + b'","detail":{}',
    ],
    ids=lambda torn: torn[-24:].decode(errors="replace"),
)
@pytest.mark.parametrize("before", [b"", b'{"id":"0"}\n', b"\n"], ids=["alone", "after a line", "after a blank line"])
def test_half_a_line_is_cut_off(file: Path, before: bytes, torn: bytes) -> None:
    file.write_bytes(before + torn)

    append(file, b'{"id":"1"}')

    assert file.read_bytes() == before + b'{"id":"1"}\n'


@pytest.mark.parametrize("last", [b'{"id":"0"}', b'{"a":{"b":"}{"}}', b"{}", b'{"a":"' + b"x" * 200_000 + b'"}'])
def test_a_whole_last_line_without_newline_is_kept_and_ended(file: Path, last: bytes) -> None:
    file.write_bytes(b'{"first":1}\n' + last)

    append(file, b'{"id":"1"}')

    assert file.read_bytes() == b'{"first":1}\n' + last + b'\n{"id":"1"}\n'


@pytest.mark.parametrize(
    "text", [b"notes of mine", b"a,b,c", b"[1, 2", b'"text', b"# {", b"x" * 200_000, b"\xff\xfe", b"  indented"]
)
def test_text_that_is_not_ours_is_never_deleted(file: Path, text: bytes) -> None:
    # given someone else's file, named as a sink by mistake
    file.write_bytes(b"first line\n" + text)

    append(file, b'{"id":"1"}')

    assert file.read_bytes() == b"first line\n" + text + b'\n{"id":"1"}\n'


def test_a_line_torn_while_the_file_is_open_is_cut_off_too(file: Path) -> None:
    # given a writer that lives on while another one is killed
    appending = AppendFile(str(file))
    appending.write([b'{"a":1}'])
    with open(file, "ab") as other:
        other.write(b'{"torn":')

    appending.write([b'{"b":2}'])

    assert file.read_bytes() == b'{"a":1}\n{"b":2}\n'
    appending.close()


# --- several writers ---

WRITER = """
import sys
from eventonce.sinks.append import AppendFile
name, who, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
file = AppendFile(name)
file.check()
for number in range(count):
    numbers = range(number * 3, number * 3 + 3)
    file.write(b'{"who":"%s","number":%d,"filler":"%s"}' % (who.encode(), each, b"x" * size) for each in numbers)
print("done", flush=True)
"""


@pytest.mark.parametrize("size", [10, 20_000])
def test_several_processes_never_tear_a_line_nor_lose_one(file: Path, size: int) -> None:
    # given writers that all begin at the same moment, on a file that is not there yet
    command = [sys.executable, "-c", WRITER, str(file)]
    writers = [
        subprocess.Popen(
            [*command, str(who), "40", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for who in range(6)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.communicate()[0] for writer in writers] == ["done\n"] * 6

    # then every line of each is there once, in order
    events = [json.loads(line) for line in file.read_bytes().splitlines()]
    for who in range(6):
        assert [each["number"] for each in events if each["who"] == str(who)] == list(range(120))


def test_checking_never_takes_away_what_another_worker_has_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given two workers that start together on a file that is not there yet
    first, second = AppendFile(str(file)), AppendFile(str(file))
    real_exists = Path.exists

    def exists_and_then_the_other_writes(path: Path, *more: Any, **named: Any) -> bool:
        answer = real_exists(path, *more, **named)
        monkeypatch.setattr(Path, "exists", real_exists)
        second.check()
        second.write([b'{"id":"2"}'])
        return answer

    monkeypatch.setattr(Path, "exists", exists_and_then_the_other_writes)

    # when one writes while the other still looks whether it could
    first.check()
    monkeypatch.undo()
    first.write([b'{"id":"1"}'])
    second.write([b'{"id":"3"}'])

    # then all lines are there
    wanted = [b'{"id":"1"}', b'{"id":"3"}']
    lines = file.read_bytes().splitlines()
    first.close()
    second.close()
    assert [line for line in lines if line in wanted] == wanted
    assert len(lines) in (2, 3)  # three, if the other one had its turn in between


def test_workers_that_start_together_on_a_new_file_lose_nothing(tmp_path: Path) -> None:
    for turn in range(50):
        file, start = tmp_path / f"out-{turn}.jsonl", threading.Barrier(8)

        def work(number: int, file: Path = file, start: threading.Barrier = start) -> None:
            start.wait()
            append(file, b'{"number":%d}' % number)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

        assert sorted(json.loads(line)["number"] for line in file.read_bytes().splitlines()) == list(range(8))


# --- what cannot be written ---


def test_a_full_disk_is_reported_with_the_remedy() -> None:
    full = AppendFile("/dev/full")

    with pytest.raises(SinkError, match=r"^/dev/full: cannot be written: No space left on device; .*no event was lost"):
        full.write([b"{}"])
    full.close()


def test_a_missing_folder_is_reported_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"no-such-folder/out\.jsonl: cannot be written: No such file or directory"):
        FileSink(str(tmp_path / "no-such-folder" / "out.jsonl"))
    with pytest.raises(SinkError, match=r"no-such-folder/out\.jsonl: cannot be written: No such file or directory"):
        DeadFile(str(tmp_path / "no-such-folder" / "out.jsonl"))


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="cannot be written: Is a directory"):
        FileSink(str(tmp_path))


GROWS = """
import resource, sys
from eventonce.errors import SinkError
from eventonce.sinks.append import AppendFile
file = AppendFile(sys.argv[1])
file.write([b'{"id":"0"}'])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try:
    file.write([b'{"id":"1"}', b'{"id":"2","filler":"' + b"x" * 1000 + b'"}'])
except SinkError as error:
    print(error)
"""


def test_a_write_that_fails_half_way_leaves_no_half_line_to_the_next_one(file: Path) -> None:
    fields = subprocess.run([sys.executable, "-c", GROWS, str(file)], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large" in fields.stdout

    append(file, b'{"id":"1"}', b'{"id":"2"}')

    events = [json.loads(line)["id"] for line in file.read_bytes().splitlines()]
    assert events[0] == "0"
    assert events[-2:] == ["1", "2"]


def test_pipes_and_devices_can_be_written(tmp_path: Path) -> None:
    append(Path("/dev/null"), b"{}")

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    append(fifo, b'{"a":1}', b'{"b":2}')

    assert os.read(reader, 100) == b'{"a":1}\n{"b":2}\n'
    assert fifo.is_fifo()
    os.close(reader)


# --- the sink of events ---


def send(file: Path, *events: Event) -> list[bytes]:
    sink = FileSink(str(file))
    assert list(sink.send(events, [str(number) for number in range(len(events))])) == [None] * len(events)
    sink.close()
    return file.read_bytes().splitlines()


def test_events_leave_with_their_own_bytes(file: Path) -> None:
    raw = b'{"b": 1.0,  "a": "\\u00e4\xc3\xa4"}'

    assert send(file, Event(data={}, raw=raw)) == [raw]


def test_an_event_over_several_lines_becomes_one(file: Path) -> None:
    raw = json.dumps({"id": "1", "detail": {"n": 12345678901234567890}}, indent=2).encode()

    (line,) = send(file, Event(data={}, raw=raw))

    assert json.loads(line) == {"id": "1", "detail": {"n": 12345678901234567890}}


def test_an_event_without_bytes_is_written_as_a_document(file: Path) -> None:
    (line,) = send(file, Event(id="1", source="shop", type="Order", data={"n": 1}))

    assert json.loads(line) == {"id": "1", "source": "shop", "detail-type": "Order", "detail": {"n": 1}}


def test_a_plain_object_without_bytes_is_written_as_it_came(file: Path) -> None:
    (line,) = send(file, read_event({"id": "1", "n": 1}))

    assert json.loads(line) == {"id": "1", "n": 1}


@pytest.mark.parametrize("url", ["pyton:billing:charge", "sqs:/orders", "sqs:orders", "orders"])
def test_a_mistyped_url_is_not_a_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for open_url in (open_sink, open_dead_letters, open_source, open_box, Outbox, open_store):
        with pytest.raises(ConfigError, match=r"; (did you mean|use) "):
            open_url(url)
    assert not list(tmp_path.iterdir())


def test_a_file_may_be_named_with_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, name in (("file:sqs:orders", "sqs:orders"), ("file:orders", "orders"), ("./a:b", "a:b")):
        sink = open_sink(url)
        assert isinstance(sink, FileSink)
        sink.send([read_event({"id": "1"})], ["key"])
        sink.close()
        source = open_source(url)
        assert len(source.receive(10)) == 1
        source.close()
        assert (tmp_path / name).exists()


def test_an_unsupported_url_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^sink: ftp:// is not supported; use a file"):
        open_sink("ftp://example.com")
    with pytest.raises(ConfigError, match=r"^dead_letter: sns:// is not supported; did you mean sqs://QUEUE"):
        open_dead_letters("sns://dead")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("python:", "names no function; write python:package.module:function"),
        ("python:json", "names no function; write python:package.module:function"),
        ("python:no_such_module:function", "module 'no_such_module' cannot be imported: ModuleNotFoundError"),
        ("python:json:no_such_function", "module 'json' has no function 'no_such_function'"),
        ("python:json:__name__", "module 'json' has no function '__name__'"),
    ],
)
def test_a_missing_function_is_reported(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_sink(url)


# --- dead letters ---


def outcome(error: BaseException, **more: Any) -> Outcome:
    return Outcome(kind=OutcomeKind.REJECTED, error=error, **more)


def test_a_dead_letter_has_reason_history_place_and_body(file: Path) -> None:
    letters = DeadFile(str(file))
    delivery = Delivery(b'{"id":"1"}', {"source": "in.jsonl", "line": 7, "byte": 123})
    failed = Outcome(
        kind=OutcomeKind.FAILED, error=ValueError("no money"), key=Key(bytes(16)), rule="orders", attempt=5, final=True
    )

    letters.write([(delivery, failed)], NOW)
    letters.close()

    (line,) = file.read_bytes().splitlines()
    assert json.loads(line) == {
        "outcome": "failed",
        "reason": "no money",
        "error": "ValueError",
        "attempts": 5,
        "rule": "orders",
        "key": "00" * 16,
        "time": "2026-01-01T00:00:00+00:00",
        "source": "in.jsonl",
        "line": 7,
        "byte": 123,
        "body": '{"id":"1"}',
    }


def test_a_dead_letter_of_what_has_no_key() -> None:
    fields = letter_fields(
        Delivery(b"junk", {"source": "-", "line": 1, "byte": 0}), outcome(EventRejected("is not JSON")), NOW
    )

    assert (fields["outcome"], fields["reason"], fields["error"]) == ("rejected", "is not JSON", "EventRejected")
    assert (fields["key"], fields["rule"], fields["attempts"]) == (None, None, 0)


@pytest.mark.parametrize("body", [b'{"a":"\xff"}', b"\xfe\xff\x00", b'{"a":"\xed\xa0\x80"}', b"\xc3"])
def test_what_is_not_utf_8_is_kept_in_base64(file: Path, body: bytes) -> None:
    letters = DeadFile(str(file))
    letters.write([(Delivery(body), outcome(EventRejected("is not UTF-8")))], NOW)
    letters.close()

    fields = json.loads(file.read_bytes())
    assert b64decode(fields["body_base64"]) == body
    assert "body" not in fields


@pytest.mark.parametrize("body", [b'{"a":"\xc3\xa4"}', b'a "quoted" \\ \x00 \x1f line', b"", b'{\n "a": 1'])
def test_what_is_utf_8_is_kept_as_it_is(file: Path, body: bytes) -> None:
    letters = DeadFile(str(file))
    letters.write([(Delivery(body), outcome(EventRejected("is not JSON")))], NOW)
    letters.close()

    (line,) = file.read_bytes().splitlines()
    assert json.loads(line)["body"].encode() == body


def test_half_a_surrogate_pair_in_a_reason_or_a_file_name_does_not_lose_the_letter(file: Path) -> None:
    # given an error and a file name with bytes that are not UTF-8, as Python decodes them
    letters = DeadFile(str(file))
    delivery = Delivery(b'{"id":"1"}', {"source": "caf\udce9.jsonl", "line": 1, "byte": 0})
    letters.write([(delivery, outcome(ValueError("cannot open caf\udce9.txt")))], NOW)
    letters.close()

    fields = json.loads(file.read_bytes())
    assert fields["body"] == '{"id":"1"}'
    assert fields["reason"].startswith("cannot open caf")
    assert fields["source"].startswith("caf")


def test_an_error_that_cannot_be_described_does_not_lose_the_letter(file: Path) -> None:
    class Untold(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    letters = DeadFile(str(file))
    letters.write([(Delivery(b'{"id":"1"}'), outcome(Untold()))], NOW)
    letters.close()

    fields = json.loads(file.read_bytes())
    assert (fields["body"], fields["error"]) == ('{"id":"1"}', "Untold")


def test_an_error_without_words_still_gives_a_reason(file: Path) -> None:
    letters = DeadFile(str(file))
    letters.write([(Delivery(b'{"id":"1"}'), outcome(KeyError()))], NOW)
    letters.close()

    assert json.loads(file.read_bytes())["error"] == "KeyError"


def test_nothing_dead_makes_no_file(file: Path) -> None:
    letters = DeadFile(str(file))
    letters.write([], NOW)
    letters.close()

    assert not file.exists()


def test_threads_share_a_file(file: Path) -> None:
    sink = FileSink(str(file))
    threads = [
        threading.Thread(target=lambda: [sink.send([Event(data={}, raw=b'{"n": 1}')], ["k"]) for _ in range(100)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert file.read_bytes() == b'{"n": 1}\n' * 800
