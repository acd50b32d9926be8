"""`FileSource`: events from a file or a pipe, plain or gzip."""

import gzip
import io
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventonce.errors import ConfigError, SourceError
from eventonce.event import Delivery
from eventonce.sources import open_source
from eventonce.sources.file import FileSource
from eventonce.testing import ManualClock

THREE = b'{"id":1}\n{"id":2}\n{"id":3}\n'


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[Callable[..., FileSource]]:
    """Makes a file of these bytes and opens it."""
    opened: list[FileSource] = []

    def make(data: bytes, name: str = "events.jsonl", **more: Any) -> FileSource:
        file = tmp_path / name
        file.write_bytes(data)
        opened.append(FileSource(str(file), **more))
        return opened[-1]

    yield make
    for source in opened:
        source.close()


def read_all(source: FileSource, limit: int = 100) -> list[Delivery]:
    received: list[Delivery] = []
    while deliveries := source.receive(limit):
        assert len(deliveries) <= limit
        received += deliveries
    return received


def bodies(source: FileSource) -> list[bytes]:
    return [delivery.body for delivery in read_all(source)]


# --- files ---


def test_a_file_gives_its_documents_and_where_they_stand(open_file: Callable[..., FileSource], tmp_path: Path) -> None:
    deliveries = read_all(open_file(THREE))

    name = str(tmp_path / "events.jsonl")
    assert [delivery.body for delivery in deliveries] == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    assert [delivery.origin for delivery in deliveries] == [
        {"source": name, "line": 1, "byte": 0},
        {"source": name, "line": 2, "byte": 9},
        {"source": name, "line": 3, "byte": 18},
    ]
    assert deliveries[1].location == f"{name}:2"
    assert [(delivery.receive_count, delivery.unreadable) for delivery in deliveries] == [(1, None)] * 3


def test_no_more_than_the_limit_at_a_time(open_file: Callable[..., FileSource]) -> None:
    source = open_file(THREE)

    assert [len(source.receive(2)) for _ in range(3)] == [2, 1, 0]


def test_a_file_fills_the_batch(open_file: Callable[..., FileSource]) -> None:
    # given documents that need many reads
    line = b'{"id":1,"text":"' + b"x" * 1000 + b'"}\n'

    assert len(open_file(line * 2000).receive(2000)) == 2000


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n  \n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_ends_at_once(open_file: Callable[..., FileSource], data: bytes) -> None:
    source = open_file(data)

    assert source.receive(10) == []
    assert source.receive(10) == []


@pytest.mark.parametrize("data", [b"{", b"{}", b"1", b"ab", b"{}\n"])
def test_a_file_of_very_few_bytes(open_file: Callable[..., FileSource], data: bytes) -> None:
    assert bodies(open_file(data)) == [data.strip()]


def test_a_bom_is_skipped(open_file: Callable[..., FileSource]) -> None:
    assert bodies(open_file(b"\xef\xbb\xbf" + THREE)) == [b'{"id":1}', b'{"id":2}', b'{"id":3}']


def test_size_and_position_show_the_progress(open_file: Callable[..., FileSource]) -> None:
    source = open_file(THREE)
    assert (source.size, source.position) == (len(THREE), 0)

    read_all(source)

    assert source.position == len(THREE)


def test_size_and_position_of_gzip_are_those_of_the_file(open_file: Callable[..., FileSource]) -> None:
    data = gzip.compress(THREE * 1000)
    source = open_file(data)
    assert source.size == len(data)

    read_all(source)

    assert source.position == len(data)


# --- gzip ---


def test_gzip_is_recognised_whatever_the_name(open_file: Callable[..., FileSource]) -> None:
    deliveries = read_all(open_file(gzip.compress(b"\xef\xbb\xbf" + THREE), name="events.jsonl"))

    assert [(delivery.body, delivery.origin["line"], delivery.origin["byte"]) for delivery in deliveries] == [
        (b'{"id":1}', 1, 3),
        (b'{"id":2}', 2, 12),
        (b'{"id":3}', 3, 21),
    ]


def test_gzip_of_several_members_is_read_to_its_end(open_file: Callable[..., FileSource]) -> None:
    # given members of which one ends within a document, as `cat a.gz b.gz` makes them
    data = gzip.compress(THREE) + gzip.compress(b"") + gzip.compress(b'{"id":') + gzip.compress(b"4}\n")

    assert bodies(open_file(data)) == [b'{"id":1}', b'{"id":2}', b'{"id":3}', b'{"id":4}']


def test_zeros_behind_gzip_are_padding(open_file: Callable[..., FileSource]) -> None:
    assert len(bodies(open_file(gzip.compress(THREE) + bytes(512)))) == 3


def incompressible(count: int) -> list[bytes]:
    return [b'{"id":"%s"}' % os.urandom(64).hex().encode() for _ in range(count)]


@pytest.mark.parametrize("count", [100, 20_000])
def test_truncated_gzip_gives_what_can_be_read_and_reports_the_rest(
    open_file: Callable[..., FileSource], count: int
) -> None:
    # given the first half of a compressed file
    lines = incompressible(count)
    data = gzip.compress(b"\n".join(lines))
    readable = gzip_readable(data[: len(data) // 2])

    deliveries = read_all(open_file(data[: len(data) // 2]))

    # then every line that could be unpacked is there, and one delivery tells of the rest
    whole = readable.count(b"\n")
    assert whole > count // 4
    assert [delivery.body for delivery in deliveries[:whole]] == lines[:whole]
    troubled = [delivery for delivery in deliveries if delivery.unreadable]
    assert troubled == deliveries[-1:]
    assert "gzip data is damaged" in str(troubled[0].unreadable)
    assert len(deliveries) <= whole + 2  # there may be half a line between


def gzip_readable(data: bytes) -> bytes:
    """Decompress as much as possible, byte by byte."""
    return zlib.decompressobj(wbits=31).decompress(data)


def test_damaged_gzip_gives_what_stands_before_the_damage(open_file: Callable[..., FileSource]) -> None:
    # given a good member, and one whose checksum is wrong
    data = bytearray(gzip.compress(THREE) + gzip.compress(b'{"id":4}\n'))
    data[-5] ^= 0xFF

    deliveries = read_all(open_file(bytes(data)))

    assert [delivery.body for delivery in deliveries[:3]] == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    assert [bool(delivery.unreadable) for delivery in deliveries][-1]
    assert sum(bool(delivery.unreadable) for delivery in deliveries) == 1


def test_junk_after_gzip_is_reported(open_file: Callable[..., FileSource]) -> None:
    deliveries = read_all(open_file(gzip.compress(THREE) + b"this is not gzip"))

    assert [delivery.body for delivery in deliveries[:3]] == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    assert [bool(delivery.unreadable) for delivery in deliveries] == [False, False, False, True]


def test_what_only_starts_like_gzip_is_reported(open_file: Callable[..., FileSource]) -> None:
    (delivery,) = read_all(open_file(b"\x1f\x8bnot really"))

    assert "gzip data is damaged" in str(delivery.unreadable)


# --- what cannot be read ---


def test_a_missing_file_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nothing\.jsonl: cannot be read: No such file or directory; check the name"):
        FileSource(str(tmp_path / "nothing.jsonl"))


def test_a_directory_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        FileSource(str(tmp_path))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_refused_with_the_remedy(open_file: Callable[..., FileSource], encoding: str) -> None:
    source = open_file(("\ufeff" + THREE.decode()).encode(encoding))

    with pytest.raises(SourceError, match="is UTF-16; convert it first, such as with iconv"):
        source.receive(1)


@pytest.mark.parametrize("url", ["sqs3://queue", "https://example.com/events", "kafka://stream"])
def test_an_unsupported_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=f"^source: {url.partition(':')[0]}:// is not supported; [ud]"):
        open_source(url)


# --- retries ---


def test_what_is_retried_is_offered_again_after_its_delay(open_file: Callable[..., FileSource]) -> None:
    clock = ManualClock()
    source = open_file(THREE, clock=clock)
    first, second, third = source.receive(10)
    started_at = clock.steady()

    source.retry(second, 300)
    source.retry(first, 200)
    source.ack([third])

    # then the one with the shorter delay comes first, and each counts its offers
    assert list(source.receive(10)) == [first]
    assert clock.steady() - started_at == 200
    assert list(source.receive(10)) == [second]
    assert clock.steady() - started_at == 300
    assert (first.receive_count, second.receive_count, third.receive_count) == (2, 2, 1)
    assert source.receive(10) == []


def test_a_retry_does_not_hold_up_what_is_new(open_file: Callable[..., FileSource]) -> None:
    clock = ManualClock()
    source = open_file(THREE, clock=clock)
    (first,) = source.receive(1)

    source.retry(first, 500)

    assert [delivery.body for delivery in source.receive(1)] == [b'{"id":2}']
    assert [delivery.body for delivery in source.receive(1)] == [b'{"id":3}']
    assert clock.steady() == 0
    assert list(source.receive(1)) == [first]


def test_what_is_due_comes_together_with_what_is_new(open_file: Callable[..., FileSource]) -> None:
    clock = ManualClock()
    source = open_file(THREE, clock=clock)
    (first,) = source.receive(1)
    source.retry(first, 100)

    clock.sleep(100)

    assert [delivery.body for delivery in source.receive(10)] == [b'{"id":1}', b'{"id":2}', b'{"id":3}']


def test_a_long_delay_is_shortened_because_a_file_has_no_receive_count(open_file: Callable[..., FileSource]) -> None:
    clock = ManualClock()
    source = open_file(b'{"id":1}', clock=clock)
    (only,) = source.receive(1)

    source.retry(only, 3_600_000)

    assert list(source.receive(1)) == [only]
    assert clock.steady() <= 1000


def test_retrying_again_and_again_ends_when_it_is_no_longer_retried(open_file: Callable[..., FileSource]) -> None:
    source = open_file(b'{"id":1}', clock=ManualClock())
    (only,) = source.receive(1)
    for _ in range(5):
        source.retry(only, 10)
        assert list(source.receive(1)) == [only]

    assert only.receive_count == 6
    assert source.receive(1) == []


# --- pipes ---


@pytest.fixture
def pipe() -> Iterator[tuple[FileSource, io.FileIO]]:
    """A source on the reading end of a pipe, and its writing end."""
    reading, writing = os.pipe()
    source = FileSource(f"/dev/fd/{reading}")
    end = io.FileIO(writing, "w")
    yield source, end
    source.close()
    end.close()
    os.close(reading)


def test_a_pipe_hands_over_what_is_there(pipe: tuple[FileSource, io.FileIO]) -> None:
    source, end = pipe

    # given less than a batch, and a writer that goes on living
    end.write(b'{"id":1}\n{"id":2}\n')
    assert [delivery.body for delivery in source.receive(100)] == [b'{"id":1}', b'{"id":2}']

    end.write(b'{"id":3}\n')
    assert [delivery.body for delivery in source.receive(100)] == [b'{"id":3}']

    end.close()
    assert source.receive(100) == []


def test_the_size_of_a_pipe_is_not_known(pipe: tuple[FileSource, io.FileIO]) -> None:
    assert (pipe[0].size, pipe[0].position) == (None, 0)


def test_a_pipe_that_is_quiet_does_not_hold_up_a_retry(pipe: tuple[FileSource, io.FileIO]) -> None:
    source, end = pipe
    end.write(b'{"id":1}\n')
    (first,) = source.receive(100)

    # when nothing more comes and the writer does not end
    source.retry(first, 20)

    assert list(source.receive(100)) == [first]


def test_half_a_document_in_a_pipe_waits_for_its_end(pipe: tuple[FileSource, io.FileIO]) -> None:
    source, end = pipe
    end.write(b'{"id":1}\n{"id"')
    assert [delivery.body for delivery in source.receive(100)] == [b'{"id":1}']

    end.write(b":2}\n")

    assert [delivery.body for delivery in source.receive(100)] == [b'{"id":2}']


def test_gzip_through_a_pipe(pipe: tuple[FileSource, io.FileIO]) -> None:
    source, end = pipe
    end.write(gzip.compress(THREE))
    end.close()

    assert bodies(source) == [b'{"id":1}', b'{"id":2}', b'{"id":3}']


SLOW_WRITER = """
import sys, time
for byte in sys.stdin.buffer.read():
    sys.stdout.buffer.write(bytes([byte]))
    sys.stdout.buffer.flush()
    time.sleep(0.001)
"""


@pytest.mark.parametrize("data", [gzip.compress(THREE), b"\xef\xbb\xbf" + THREE, THREE], ids=["gzip", "bom", "plain"])
def test_what_it_is_can_be_seen_even_when_it_comes_byte_by_byte(data: bytes) -> None:
    # given a writer that hands over single bytes
    reading, writing = os.pipe()
    writer = subprocess.Popen([sys.executable, "-c", SLOW_WRITER], stdin=subprocess.PIPE, stdout=writing)
    os.close(writing)
    assert writer.stdin is not None
    writer.stdin.write(data)
    writer.stdin.close()
    source = FileSource(f"/dev/fd/{reading}")
    os.close(reading)

    try:
        assert bodies(source) == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    finally:
        source.close()
        writer.wait()


def test_gzip_through_a_pipe_hands_over_what_is_there(pipe: tuple[FileSource, io.FileIO]) -> None:
    source, end = pipe
    packer = zlib.compressobj(wbits=31)
    unblock = threading.Timer(60, end.close)  # so that a reader that waits for more fails, and does not hang
    unblock.start()

    # given a writer that flushes after each line and goes on living
    end.write(packer.compress(b'{"id":1}\n') + packer.flush(zlib.Z_SYNC_FLUSH))
    first = [delivery.body for delivery in source.receive(100)]
    unblock.cancel()

    assert first == [b'{"id":1}']
    assert not end.closed
    end.write(packer.compress(b'{"id":2}\n') + packer.flush())
    end.close()
    assert [(delivery.body, delivery.unreadable) for delivery in read_all(source)] == [(b'{"id":2}', None)]
