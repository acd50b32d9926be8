"""The file of the journal store: what it survives, what it refuses, and who may open it."""

import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventonce import Once, OutcomeKind, StoreError, open_store
from eventonce.claims.protocol import FAILURES_FOR, Claim, ClaimRequest, Commit, Done, Record, Release, Won
from eventonce.errors import StoreUnusable
from eventonce.event.keys import Key
from eventonce.ports import Transactional
from eventonce.stores import journal as module
from eventonce.stores.journal import Journal, JournalStore
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock

HOUR = 3_600_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.journal"


@pytest.fixture
def store(file: Path) -> Iterator[JournalStore]:
    store = JournalStore(file)
    yield store
    store.close()


def keys(batch: int, count: int = 3) -> list[Key]:
    return [Key(bytes([batch] * 15 + [number])) for number in range(count)]


def claim(store: JournalStore, batch: int, token: bytes = b"token--1") -> list[Any]:
    return store.claim([ClaimRequest(key, HOUR) for key in keys(batch)], token, HOUR)


def finish(store: JournalStore, batch: int, token: bytes = b"token--1", memo: bytes | None = None) -> list[bool]:
    return store.commit([Commit(key, token, HOUR, None, memo) for key in keys(batch)])


def end(store: JournalStore) -> int:
    """Return the end of the last frame."""
    assert store._journal is not None
    return store._journal._end


def known(store: JournalStore) -> set[Key]:
    return set(store._records)


def three_claims(file: Path) -> tuple[bytes, list[int]]:
    """Return a file of three frames, and the offsets of their ends."""
    store = JournalStore(file)
    ends = [end(store)]
    for batch in range(3):
        claim(store, batch)
        ends.append(end(store))
    store.close()
    return file.read_bytes()[: ends[-1]], ends


# --- reading the file again ---


def test_all_records_are_read_again(file: Path) -> None:
    first = JournalStore(file)
    claim(first, 1)
    finish(first, 1, memo=b"\x00memo")
    claim(first, 2)
    first.release([Release(key, b"token--1", HOUR, "\u00c4rger") for key in keys(2)])
    claim(first, 3)
    first.forget(keys(3))
    before = first.peek([*keys(1), *keys(2), *keys(3)])
    first.close()
    again = JournalStore(file)
    assert again.peek([*keys(1), *keys(2), *keys(3)]) == before
    assert claim(again, 2, b"token--2") == [Won(2, "\u00c4rger")] * 3
    again.close()


def test_a_closed_store_opens_again_at_its_next_use(store: JournalStore) -> None:
    claim(store, 1)
    store.close()
    assert store.peek(keys(1)) != [None] * 3
    store.close()
    assert finish(store, 1) == [True] * 3


@pytest.mark.parametrize("seed", range(10))
def test_it_answers_as_memory_however_often_it_is_opened_and_rewritten(
    file: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLACK", 5)
    monkeypatch.setattr(module, "_KEYS_IN_A_FRAME", 3)
    monkeypatch.setattr(module, "_PREALLOCATED", 300)
    monkeypatch.setattr(module, "_sync", lambda file: None)
    rng, clock = random.Random(seed), ManualClock()
    model, store = MemoryStore(clock=clock), JournalStore(file, clock=clock)
    every = [Key(bytes([number] * 16)) for number in range(10)]
    for _ in range(300):
        some = rng.choices(every, k=rng.randrange(1, 6))
        token, window, lease = bytes([rng.randrange(3)] * 8), rng.choice([1, 50, HOUR]), rng.choice([20, HOUR])
        verb, arguments = rng.choice(
            [
                ("claim", ([ClaimRequest(key, window, None, rng.random() < 0.3) for key in some], token, lease)),
                ("commit", ([Commit(key, token, window, None, rng.choice([None, b"m"])) for key in some],)),
                ("release", ([Release(key, token, window, rng.choice([None, "no"])) for key in some],)),
                ("extend", ([Claim(key, token) for key in some], lease)),
                ("forget", (some[:1],)),
            ]
        )
        assert getattr(store, verb)(*arguments) == getattr(model, verb)(*arguments)
        if rng.random() < 0.2:
            store.close()
        assert store.peek(every) == model.peek(every)
        clock.sleep(rng.choice([0, 1, 30, HOUR, FAILURES_FOR]))
    store.close()


def test_keys_of_a_batch_share_their_record_after_opening_too(file: Path) -> None:
    store = JournalStore(file)
    store.claim([ClaimRequest(key, HOUR + number % 2) for number, key in enumerate(keys(1, 100))], b"token--1", HOUR)
    store.close()
    again = JournalStore(file)
    assert len({id(record) for record in again.peek(keys(1, 100))}) == 2
    again.close()


def test_expired_records_are_dropped_after_opening_too(file: Path) -> None:
    clock = ManualClock()
    store = JournalStore(file, clock=clock)
    claim(store, 1)
    finish(store, 1)
    store.close()
    clock.sleep(3 * HOUR)
    again = JournalStore(file, clock=clock)
    assert again.sweep(100).removed == 3
    again.close()


def test_it_is_full_when_its_keys_are_many(tmp_path: Path) -> None:
    store = open_store(f"journal:///{tmp_path}/j?max_keys=5")
    store.claim([ClaimRequest(key, HOUR) for key in keys(1)], b"token--1", HOUR)
    with pytest.raises(StoreError, match=r"full with 5 keys in memory; .*raise max_keys or use sqlite"):
        store.claim([ClaimRequest(key, HOUR) for key in keys(2)], b"token--1", HOUR)
    store.close()


def test_it_has_no_transactions(store: JournalStore) -> None:
    assert not isinstance(store, Transactional)


KILLED = """
import os, sys
from eventonce.claims.protocol import Commit, ClaimRequest
from eventonce.event.keys import Key
from eventonce.stores import journal

journal._SLACK = 500  # so that it is rewritten now and then
store = journal.JournalStore(sys.argv[1])
begin = int(sys.argv[2])
for batch in range(begin, begin + 10**6):
    keys = [Key(batch.to_bytes(8, "big") + number.to_bytes(8, "big")) for number in range(20)]
    store.claim([ClaimRequest(key, 10**9) for key in keys], b"token--1", 10**6)
    assert all(store.commit([Commit(key, b"token--1", 10**9) for key in keys]))
    os.write(1, b"%d\\n" % batch)
    if batch % 3 == 0:
        assert all(store.forget(keys))
        os.write(1, b"-%d\\n" % batch)
"""


def test_what_was_answered_survives_kills(file: Path) -> None:
    rng, done, forgotten = random.Random(5), set[int](), set[int]()
    for turn in range(15):
        command = [sys.executable, "-c", KILLED, str(file), str(turn * 10**6 + 1)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        lines = [worker.stdout.readline() for _ in range(rng.randrange(1, 40))]
        time.sleep(rng.uniform(0, 0.02))
        worker.send_signal(signal.SIGKILL)
        lines += worker.communicate()[0].splitlines()
        numbers = [int(line) for line in lines]
        done |= {number for number in numbers if number > 0}
        forgotten |= {-number for number in numbers if number < 0}
        store = JournalStore(file)
        for batch in done:
            (record,) = store.peek([Key(batch.to_bytes(8, "big") + (19).to_bytes(8, "big"))])
            if batch in forgotten:
                assert record is None
            elif batch % 3:  # the others may have been forgotten without an answer
                assert record is not None
                assert record.done_at
        store.close()
    assert len(done) > 100
    assert forgotten


# --- crashes and damage ---


def test_a_torn_last_frame_is_cut_off_at_every_byte(file: Path) -> None:
    data, ends = three_claims(file)
    for size in range(ends[2], ends[3]):
        written = max(ends[2], size // 8 * 8)  # a disk writes so many bytes as a whole, or none of them
        for torn in (data[:size], data[:written] + bytes(ends[3] - written), data[:written] + bytes(5000)):
            file.write_bytes(torn)
            store = JournalStore(file)
            assert known(store) == {*keys(0), *keys(1)}
            claim(store, 7)
            store.close()
            again = JournalStore(file)
            assert known(again) == {*keys(0), *keys(1), *keys(7)}
            again.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_last_frame_of_which_some_sectors_were_not_written_is_cut_off(file: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = JournalStore(file)
    claim(store, 1)
    begin = end(store)
    many = [Key(rng.randbytes(16)) for _ in range(rng.randrange(1, 300))]
    store.claim([ClaimRequest(key, HOUR) for key in many], b"token--1", HOUR)
    frame = range(begin, end(store))
    store.close()
    data = bytearray(file.read_bytes())
    sectors = sorted({at // 512 for at in frame})
    for sector in rng.sample(sectors, rng.randrange(1, len(sectors) + 1)):
        lost = range(max(begin, sector * 512), min(frame.stop, (sector + 1) * 512))
        data[lost.start : lost.stop] = bytes(len(lost))
    file.write_bytes(data)
    again = JournalStore(file)
    assert known(again) == {*keys(1)}
    again.close()


@pytest.mark.parametrize("zeros", [0, 3, 5000, 1 << 20])
def test_a_damaged_last_frame_is_refused_at_every_byte(file: Path, zeros: int) -> None:
    """It was answered and damaged later. Dropping it would silently run its events again."""
    data, ends = three_claims(file)
    for at in range(ends[2], ends[3]):
        for wrong in (0x55, 1 << at % 8):
            damaged = data[:at] + bytes([data[at] ^ wrong]) + data[at + 1 :] + bytes(zeros)
            file.write_bytes(damaged)
            with pytest.raises(StoreUnusable, match=rf"is damaged at byte {ends[2]} \(its last frame.*restore it from"):
                JournalStore(file)
            assert file.read_bytes() == damaged


def test_a_damaged_last_frame_can_be_cut_off_by_hand(file: Path) -> None:
    data, ends = three_claims(file)
    file.write_bytes(data[:-1] + b"\xff" + bytes(5000))
    with pytest.raises(StoreUnusable, match="truncate -s") as caught:
        JournalStore(file)
    remedy = str(caught.value).partition("cut that frame off with ")[2].partition(";")[0]
    subprocess.run(remedy, shell=True, check=True)  # as the reader of the message would
    store = JournalStore(file)
    assert known(store) == {*keys(0), *keys(1)}
    assert end(store) == ends[2]
    store.close()


def test_damage_before_a_whole_frame_is_refused_at_every_byte(file: Path) -> None:
    data, ends = three_claims(file)
    for at in range(ends[0], ends[2]):
        damaged = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        file.write_bytes(damaged)
        begin = ends[0] if at < ends[1] else ends[1]
        with pytest.raises(StoreUnusable, match=rf"store.journal: is damaged at byte {begin} .*from a backup"):
            JournalStore(file)
        assert file.read_bytes() == damaged


def test_a_damaged_header_is_refused_at_every_byte(file: Path) -> None:
    data, ends = three_claims(file)
    for at in range(ends[0]):
        damaged = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        file.write_bytes(damaged)
        with pytest.raises(StoreUnusable, match=r"another program|a newer eventonce|is damaged at byte 0 \(its header"):
            JournalStore(file)
        assert file.read_bytes() == damaged


def test_a_memo_cannot_pass_for_a_frame(file: Path) -> None:
    # given a torn frame with a memo that is a whole frame of this file, but from another offset
    data, ends = three_claims(file)
    store = JournalStore(file)
    claim(store, 3)
    before = end(store)
    finish(store, 3, memo=data[ends[0] : ends[1]])
    file_end = end(store)
    store.close()
    file.write_bytes(file.read_bytes()[: file_end - 1])
    again = JournalStore(file)
    assert end(again) == before
    again.close()


def test_a_file_that_is_torn_in_its_header_is_new(file: Path) -> None:
    JournalStore(file).close()
    header = file.read_bytes()
    for size in range(len(header)):
        file.write_bytes(header[:size])
        store = JournalStore(file)
        assert claim(store, 1) == [Won(1)] * 3
        store.close()


def test_a_file_of_another_program_is_refused_and_left_alone(file: Path) -> None:
    for data in (
        b"x",
        b"a shopping list\n" * 10,
        b"SQLite format 3\x00" + bytes(1000),
        bytes(100),
        b"eventonce Journal",
    ):
        file.write_bytes(data)
        with pytest.raises(StoreUnusable, match="is a file of another program; use another file"):
            JournalStore(file)
        assert file.read_bytes() == data
    with pytest.raises(StoreUnusable, match="is a file of another program"):
        JournalStore("/dev/null")


def test_a_pipe_is_refused_and_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(StoreUnusable, match="is a file of another program"):
        JournalStore(file)


def test_a_file_of_a_newer_eventonce_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_VERSION", 2)
    JournalStore(file).close()
    monkeypatch.undo()
    with pytest.raises(StoreUnusable, match=r"newer eventonce \(journal 2\); upgrade"):
        JournalStore(file)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90" * 10, b"\x91\x92\xc0\x91\x01", b"\x91\x92\x90\x90"])
def test_a_whole_frame_that_makes_no_sense_is_refused(
    file: Path, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JournalStore(file)
    monkeypatch.setattr(module, "_encode", lambda groups: payload)
    claim(store, 1)
    store.close()
    with pytest.raises(StoreUnusable, match="is damaged at byte 31"):
        JournalStore(file)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=200), after=st.booleans())
def test_any_bytes_are_opened_or_refused(file: Path, tail: bytes, after: bool) -> None:
    data, ends = three_claims(file)
    file.write_bytes(data[: ends[1]] + tail + (data[ends[1] :] if after else b""))
    with suppress(StoreUnusable):
        store = JournalStore(file)
        assert known(store) >= set(keys(0))  # all before it is read
        store.close()
    file.write_bytes(tail)
    with suppress(StoreUnusable):
        JournalStore(file).close()
    file.unlink()


# --- a disk that fails ---


def broken(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_change_that_could_not_be_written_did_not_happen(
    file: Path, store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(store, 1)
    real = os.pwrite
    written: list[int] = []

    def half(file: int, data: bytes, at: int) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(real(file, data[: len(data) // 2], at))
        return written[0]

    monkeypatch.setattr(module, "_PREALLOCATED", 0)
    for verb in (lambda: claim(store, 2), lambda: finish(store, 1), lambda: store.forget(keys(1))):
        written.clear()
        monkeypatch.setattr(os, "pwrite", half)
        with pytest.raises(StoreUnusable, match="No space left on device; free some space on the disk and run again"):
            verb()
        monkeypatch.setattr(os, "pwrite", real)
        (record, *_), (none, *_) = store.peek(keys(1)), store.peek(keys(2))
        assert record is not None
        assert (record.done_at, none) == (0, None)
    assert claim(store, 2, b"token--2") == [Won(1)] * 3
    assert finish(store, 1) == [True] * 3


def test_after_a_failed_sync_the_file_is_read_again(store: JournalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(store, 1)
    monkeypatch.setattr(module, "_sync", broken)
    with pytest.raises(StoreUnusable, match="free some space"):
        finish(store, 1)
    assert store._journal is None
    assert known(store) == set()
    monkeypatch.undo()
    assert finish(store, 1) == [True] * 3
    assert all(isinstance(answer, Done) for answer in claim(store, 1, b"token--2"))


def test_nobody_sees_a_change_before_it_is_on_the_disk(store: JournalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(store, 1)
    record: list[Record | None] = []
    early: list[bool] = []
    looker = threading.Thread(target=lambda: record.extend(store.peek(keys(1))))

    def look(file: int) -> None:
        looker.start()
        looker.join(0.2)
        early.append(bool(record))

    monkeypatch.setattr(module, "_sync", look)
    finish(store, 1)
    looker.join()
    assert early == [False]
    assert [record is not None and bool(record.done_at) for record in record] == [True] * 3


def test_an_interrupt_leaves_memory_and_file_the_same(store: JournalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    for batch, (where, name) in enumerate([(os, "pwrite"), (module, "_sync"), (module, "_group_by_record")]):
        claim(store, batch)
        monkeypatch.setattr(where, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            finish(store, batch)
        monkeypatch.undo()
        memory = store.peek(keys(batch))
        store.close()
        assert store.peek(keys(batch)) == memory
        assert finish(store, batch) == [True] * 3


@pytest.mark.parametrize("operation", [lambda store: claim(store, 2), JournalStore.close], ids=["anew", "close"])
def test_an_interrupt_while_a_file_is_closed_leaves_a_store_that_works(
    file: Path, monkeypatch: pytest.MonkeyPatch, operation: Callable[[JournalStore], object]
) -> None:
    store = JournalStore(file)
    claim(store, 1)
    monkeypatch.setattr(module, "_SLACK", -100)
    real = Journal.close

    def interrupted(journal: Journal) -> None:
        monkeypatch.setattr(Journal, "close", real)
        real(journal)
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        operation(store)
    assert finish(store, 1) == [True] * 3
    store.close()


def test_records_that_an_interrupt_left_in_memory_are_dropped(store: JournalStore) -> None:
    claim(store, 1)
    (record,) = set(store._records.values())
    store.close()
    store._records = dict.fromkeys(keys(2), record)
    assert store.peek(keys(1) + keys(2)) == [record] * 3 + [None] * 3


def test_an_error_of_the_disk_is_an_outcome_and_loses_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Once(f"journal:///{file}") as once:
        monkeypatch.setattr(module, "_sync", broken)
        (outcome,) = once.run([{"id": "1"}], lambda event: None)
        assert (outcome.kind, outcome.action) == (OutcomeKind.UNKNOWN, "retry")
        monkeypatch.undo()


# --- one process at a time ---


def test_a_second_store_is_refused_until_the_first_is_closed(file: Path, store: JournalStore) -> None:
    claim(store, 1)
    with pytest.raises(
        StoreUnusable, match=r"store\.journal: another process or store has this journal open.*sqlite:///"
    ):
        JournalStore(file)
    store.close()
    second = JournalStore(file)
    with pytest.raises(StoreUnusable, match="has this journal open"):
        claim(store, 2)
    assert finish(second, 1) == [True] * 3
    second.close()
    assert claim(store, 2) == [Won(1)] * 3


@pytest.mark.parametrize("verb", ["run", "peek", "forget", "explain", "sweep"])
def test_the_command_line_reports_that_it_is_open(file: Path, store: JournalStore, verb: str) -> None:
    claim(store, 1)
    key = [keys(1)[0].hex()] if verb in ("peek", "forget", "explain") else []
    command = [sys.executable, "-m", "eventonce", verb, "--store", f"journal:///{file}", *key]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False, cwd=file.parent)
    assert done.returncode == 2
    assert "another process or store has this journal open" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_command_line_can_use_it(file: Path) -> None:
    def cli(*args: str, arguments: str = "") -> str:
        command = [sys.executable, "-m", "eventonce", *args]
        return subprocess.run(
            command, input=arguments, capture_output=True, text=True, check=True, cwd=file.parent
        ).stdout

    url = f"journal:///{file}"
    (file.parent / "pipeline.toml").write_text(f'store = "{url}"\nsink = "-"\n')
    cli("check", "pipeline.toml")
    event = json.dumps({"id": "1"})
    assert cli("run", "pipeline.toml", arguments=f"{event}\n{event}\n").splitlines() == [event]
    record = json.loads(cli("peek", "--store", url, arguments=event))
    assert record["state"] == "done"
    assert "done" in cli("explain", "--store", url, record["key"])
    assert json.loads(cli("forget", "--store", url, record["key"]))["forgotten"] is True
    assert json.loads(cli("peek", "--store", url, record["key"]))["state"] == "unknown"


def test_a_missing_file_is_not_created_by_a_command_that_only_reads(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="there is no such file"):
        open_store(f"journal:///{tmp_path}/none", create=False)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_not_changed_by_a_command_that_only_reads(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch()
    with pytest.raises(StoreUnusable, match="is empty; check its name"):
        open_store(f"journal:///{file}", create=False)
    assert file.read_bytes() == b""


def test_a_forked_child_cannot_write_under_its_parents_lock(file: Path, store: JournalStore) -> None:
    claim(store, 1)
    refused, reply = os.pipe()
    go, ready = os.pipe()
    child = os.fork()
    if not child:
        try:
            finish(store, 1)
        except StoreUnusable:
            os.write(reply, b"x")
            os.read(go, 1)  # the parent has closed it
            os._exit(0 if finish(store, 1) == [True] * 3 else 1)
        os._exit(2)
    os.close(reply)
    assert os.read(refused, 1) == b"x"
    assert claim(store, 2) == [Won(1)] * 3
    with pytest.raises(StoreUnusable, match="has this journal open"):
        JournalStore(file)
    store.close()
    os.write(ready, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(isinstance(answer, Done) for answer in claim(store, 1, b"token--2"))
    for end in (refused, go, ready):
        os.close(end)


def test_a_fork_is_not_locked_out_by_a_child_that_lives_on(file: Path) -> None:
    store = JournalStore(file)
    go, ready = os.pipe()
    child = os.fork()
    if not child:
        os.close(ready)
        os.read(go, 1)
        os._exit(0)
    store.close()
    again = JournalStore(file)
    assert claim(again, 1) == [Won(1)] * 3
    again.close()
    os.write(ready, b"x")
    os.waitpid(child, 0)
    os.close(go)
    os.close(ready)


# --- rewriting the file ---


def churn(store: JournalStore, times: int) -> None:
    for _ in range(times):
        claim(store, 1)
        store.forget(keys(1))


def test_a_file_that_is_mostly_out_of_date_is_rewritten(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLACK", 50)
    monkeypatch.setattr(module, "_PREALLOCATED", 0)
    store = JournalStore(file)
    claim(store, 0)
    file.chmod(0o640)
    sizes = []
    for _ in range(40):
        churn(store, 1)
        sizes.append(file.stat().st_size)
    assert max(sizes) < 5000
    assert any(after < before for before, after in pairwise(sizes))
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(file.parent.iterdir()) == [file]
    with pytest.raises(StoreUnusable, match="has this journal open"):  # the new file is locked like the old one
        JournalStore(file)
    store.close()
    again = JournalStore(file)
    assert known(again) == set(keys(0))
    again.close()


def test_a_new_file_is_synced_before_and_after_it_takes_its_place(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    replace = Path.replace

    def placed(new: Path, old: Path) -> Path:
        steps.append("replace")
        return replace(new, old)

    store = JournalStore(file)
    claim(store, 0)
    monkeypatch.setattr(module, "_SLACK", -100)
    monkeypatch.setattr(module, "_write", lambda *_: steps.append("write"))
    monkeypatch.setattr(module, "_sync", lambda _: steps.append("sync"))
    monkeypatch.setattr(module, "_sync_folder", lambda _: steps.append("folder"))
    monkeypatch.setattr(Path, "replace", placed)
    claim(store, 1)
    assert steps == ["write", "sync", "write", "sync", "write", "sync", "replace", "folder"]
    monkeypatch.undo()
    store.close()


def test_it_is_rewritten_when_it_is_opened(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PREALLOCATED", 0)
    store = JournalStore(file)
    claim(store, 0)
    churn(store, 50)
    store.close()
    before = file.stat().st_size
    monkeypatch.setattr(module, "_SLACK", 50)
    again = JournalStore(file)
    assert file.stat().st_size < before / 10
    assert finish(again, 0) == [True] * 3
    again.close()


@pytest.mark.parametrize("failing_call", ["pwrite", "flock", "replace"])
def test_if_it_cannot_be_rewritten_the_old_file_is_used(
    file: Path, monkeypatch: pytest.MonkeyPatch, failing_call: str
) -> None:
    store = JournalStore(file)
    claim(store, 0)
    churn(store, 50)
    assert store._journal is not None
    old = store._journal.file.fileno()
    real = os.pwrite

    def full(file: int, data: bytes, at: int) -> int:
        return real(file, data, at) if file == old else broken()

    monkeypatch.setattr(module, "_SLACK", 50)
    if failing_call == "pwrite":
        monkeypatch.setattr(os, "pwrite", full)
    elif failing_call == "flock":
        monkeypatch.setattr(fcntl, "flock", broken)
    else:
        monkeypatch.setattr(Path, "replace", broken)
    assert claim(store, 2) == [Won(1)] * 3
    assert finish(store, 2) == [True] * 3
    assert list(file.parent.iterdir()) == [file]
    monkeypatch.undo()
    store.close()
    again = JournalStore(file)
    assert known(again) == {*keys(0), *keys(2)}
    again.close()


def test_a_crash_while_it_is_rewritten_is_harmless(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = three_claims(file)
    beside = file.with_name("store.journal.eventonce-new")
    beside.write_bytes(data[:100])
    store = JournalStore(file)
    assert known(store) == {*keys(0), *keys(1), *keys(2)}
    monkeypatch.setattr(module, "_SLACK", 0)
    churn(store, 10)
    store.close()
    assert not beside.exists()


def test_a_file_that_is_replaced_while_it_is_locked_is_opened_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = three_claims(file)
    other = file.with_name("other")
    other.write_bytes(data)
    real = fcntl.flock

    def slow(opened: Any, how: int) -> None:
        if other.exists():
            other.replace(file)
        real(opened, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    store = JournalStore(file)
    assert store._journal is not None
    assert os.path.samestat(os.fstat(store._journal.file.fileno()), file.stat())
    assert known(store) == {*keys(0), *keys(1), *keys(2)}
    store.close()


def test_other_files_beside_it_are_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, target = file.with_name("store.journal.new"), file.with_name("target")
    for each in (other, target):
        each.write_text("mine")
    file.with_name("store.journal.eventonce-new").symlink_to(target)
    monkeypatch.setattr(module, "_SLACK", -100)
    store = JournalStore(file)
    claim(store, 1)
    store.close()
    assert (other.read_text(), target.read_text()) == ("mine", "mine")
    assert sorted(each.name for each in file.parent.iterdir()) == ["store.journal", "store.journal.new", "target"]
    assert not file.is_symlink()


def test_nothing_is_claimed_while_the_file_is_moved(file: Path, store: JournalStore) -> None:
    claim(store, 1)
    away = file.rename(file.with_name("away"))
    with pytest.raises(StoreUnusable, match=r"was moved or deleted while it is open.*put it back, or restart"):
        claim(store, 2)
    assert finish(store, 1) == [True] * 3  # commits are still written
    away.rename(file)
    assert claim(store, 2) == [Won(1)] * 3
    store.close()
    again = JournalStore(file)
    assert known(again) == {*keys(1), *keys(2)}
    assert all(isinstance(answer, Done) for answer in claim(again, 1))
    again.close()


def test_another_file_in_its_place_is_not_overwritten(
    file: Path, store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(store, 1)
    file.unlink()
    other = JournalStore(file)
    claim(other, 2)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SLACK", -100)
        assert finish(store, 1) == [True] * 3
    assert finish(other, 2) == [True] * 3
    other.close()
    again = JournalStore(file)
    assert known(again) == {*keys(2)}
    again.close()


def test_nothing_is_claimed_after_a_symbolic_link_has_changed(tmp_path: Path) -> None:
    """A process that opens it meanwhile uses another file."""
    link = tmp_path / "link.journal"
    link.symlink_to(tmp_path / "one.journal")
    ran: list[str] = []
    with Once(f"journal:///{link}") as worker:
        worker.run([{"id": "1"}], lambda event: ran.append("worker"))
        link.unlink()
        link.symlink_to(tmp_path / "two.journal")
        with Once(f"journal:///{link}") as other:
            other.run([{"id": "1"}, {"id": "2"}], lambda event: ran.append("other"))
        (outcome,) = worker.run([{"id": "2"}], lambda event: ran.append("worker"))
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert "was moved or deleted while it is open" in str(outcome.error)
    assert ran == ["worker", "other", "other"]


def test_a_link_is_followed_and_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLACK", 0)
    link = file.with_name("link")
    link.symlink_to(file)
    store = JournalStore(link)
    claim(store, 0)
    churn(store, 20)
    store.close()
    assert link.is_symlink()
    again = JournalStore(file)
    assert known(again) == set(keys(0))
    again.close()


def test_every_field_of_a_record_is_kept(file: Path) -> None:
    whole = Record(b"token", 1, True, 2, -(2**63) + 1, 3, 2**60, 4, 2**63 - 1, b"", "e", 2**61)
    empty = whole._replace(trying=None, version=None, memo=None, error=None, shared=False)
    store = JournalStore(file)
    store._change(keys(1), lambda records: records.update(zip(keys(1), [whole, empty, whole], strict=True)))
    store.close()
    again = JournalStore(file)
    assert [again._records[key] for key in keys(1)] == [whole, empty, whole]
    again.close()
