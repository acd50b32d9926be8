"""The SQLite store's file: schema, sharing, durability, transactions."""

import multiprocessing
import os
import random
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eventonce import ConfigError, Event, LeaseLost, Once, OutcomeKind, StoreError, open_store
from eventonce.claims import protocol
from eventonce.claims.protocol import (
    FAILURES_FOR,
    Answer,
    Busy,
    Claim,
    ClaimRequest,
    Commit,
    Done,
    Record,
    Release,
    Token,
    Won,
)
from eventonce.clock import SystemClock
from eventonce.errors import StoreUnusable
from eventonce.event.keys import Key
from eventonce.ports import Swept
from eventonce.stores import sqlite as module
from eventonce.stores import sqlite_rows as rows
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing import ManualClock
from tests.interrupts import interrupt_before_the_commit
from tests.until import until

KEY = Key(bytes(16))
EVENT = {"id": "1"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(file: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(file)
    yield store
    store.close()


def key(number: int) -> Key:
    return Key(number.to_bytes(16, "big"))


def query(file: Path, sql: str) -> list[Any]:
    connection = sqlite3.connect(file)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


# --- the file ---


def test_urls_name_relative_and_absolute_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, name in (("sqlite:///a.db", "a.db"), (f"sqlite:///{tmp_path}/b%20c.db", "b c.db")):
        open_store(url).close()
        assert (tmp_path / name).exists()


def test_what_was_committed_is_on_the_disk(store: SQLiteStore) -> None:
    names = ("journal_mode", "synchronous")
    settings = [store._use(lambda it, name=name: it.execute(f"PRAGMA {name}").fetchone()[0]) for name in names]  # type: ignore[misc]
    assert settings == ["wal", 2]


MOVED = r"store.db: was moved or deleted while it is open.*put it back, or restart with the file that is there then"


def remove(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_claimed_in_a_file_that_was_deleted(file: Path, replaced: bool) -> None:
    ran: list[str] = []
    with Once(f"sqlite:///{file}") as worker:
        worker.run([EVENT], lambda event: ran.append("worker"))
        remove(file)
        if replaced:
            with Once(f"sqlite:///{file}") as other:
                other.run([EVENT], lambda event: ran.append("other"))
        for _ in range(2):
            (outcome,) = worker.run([EVENT], lambda event: ran.append("worker"))
            assert (outcome.kind, type(outcome.error)) == (OutcomeKind.UNKNOWN, StoreUnusable)
            assert re.search(MOVED, str(outcome.error))
    assert ran == (["worker", "other"] if replaced else ["worker"])
    assert file.exists() == replaced


def test_the_log_is_checked_also_if_the_name_is_a_symbolic_link(tmp_path: Path) -> None:
    """SQLite creates it beside the target of the link."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real" / "store.db")
    with Once(f"sqlite:///{link}") as once:
        once.run([{"id": "1"}], lambda event: None)
        (tmp_path / "real" / "store.db-wal").unlink()
        (outcome,) = once.run([{"id": "2"}], lambda event: None)
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert "store.db-wal: was moved or deleted while it is open" in str(outcome.error)


def test_nothing_is_claimed_without_the_log(file: Path) -> None:
    """If somebody deletes the log, other processes would read the file without the last commits."""
    ran: list[str] = []
    SQLiteStore(file).close()
    with Once(f"sqlite:///{file}") as worker:
        worker.run([EVENT], lambda event: ran.append("worker"))
        for each in ("store.db-wal", "store.db-shm"):
            file.with_name(each).unlink()
        (outcome,) = worker.run([{"id": "2"}], lambda event: ran.append("worker"))
        assert (outcome.kind, type(outcome.error)) == (OutcomeKind.UNKNOWN, StoreUnusable)
        assert "store.db-wal: was moved or deleted while it is open" in str(outcome.error)
    assert ran == ["worker"]


def test_the_log_exists_as_long_as_a_connection(file: Path) -> None:
    first, second = SQLiteStore(file), SQLiteStore(file)
    for number in range(3):
        first.claim([ClaimRequest(key(number), 60_000)], b"token--1", 60_000)
        second.close()
        second.claim([ClaimRequest(key(number + 10), 60_000)], b"token--2", 60_000)
        first.close()
        second.claim([ClaimRequest(key(number + 20), 60_000)], b"token--2", 60_000)
        second.close()
        assert not file.with_name("store.db-wal").exists()
    first.close()


def test_claims_can_be_committed_while_the_file_is_moved(file: Path, store: SQLiteStore) -> None:
    store.claim([ClaimRequest(key(1), 60_000)], b"token--1", 60_000)
    away = file.rename(file.with_name("away"))
    with pytest.raises(StoreUnusable, match=MOVED):
        store.claim([ClaimRequest(key(2), 60_000)], b"token--1", 60_000)
    assert store.commit([Commit(key(1), b"token--1", 60_000)]) == [True]
    away.rename(file)
    (answer,) = store.claim([ClaimRequest(key(1), 60_000)], b"token--2", 60_000)
    assert isinstance(answer, Done)


def test_a_deleted_file_is_not_created_again_by_an_open_store(file: Path, store: SQLiteStore) -> None:
    store.claim([ClaimRequest(key(1), 60_000)], b"token--1", 60_000)
    remove(file)
    pid = os.fork()  # which closes the connection, and the next call opens it again
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(StoreUnusable, match=MOVED):
        store.commit([Commit(key(1), b"token--1", 60_000)])
    with pytest.raises(StoreUnusable, match=MOVED):
        store.begin(Claim(key(1), b"token--1"))
    assert not file.exists()


def test_the_schema_is_migrated_step_by_step(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = module._migrations()
    first = SQLiteStore(file)
    first.claim([ClaimRequest(KEY, 60_000)], b"token--1", 60_000)
    first.close()
    more = [*known, "ALTER TABLE eventonce_open ADD COLUMN extra TEXT;\nCREATE TABLE eventonce_more (x)"]
    monkeypatch.setattr(module, "_migrations", lambda: more)
    reopened = SQLiteStore(file)
    assert reopened.commit([Commit(KEY, b"token--1", 60_000)]) == [True]
    reopened.close()
    assert query(file, "SELECT version FROM eventonce_schema") == [(1,), (2,), (3,)]
    assert query(file, "SELECT count(*) FROM eventonce_more") == [(0,)]


def test_a_migration_that_fails_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SQLiteStore(file).close()
    broken = [*module._migrations(), "CREATE TABLE eventonce_more (x);\nCREATE nonsense"]
    monkeypatch.setattr(module, "_migrations", lambda: broken)
    with pytest.raises(StoreError):
        SQLiteStore(file)
    assert query(file, "SELECT max(version) FROM eventonce_schema") == [(2,)]
    assert query(file, "SELECT name FROM sqlite_master WHERE name = 'eventonce_more'") == []


def test_a_file_of_the_first_schema_answers_as_before(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    module._migrate(connection, module._migrations()[:1])
    now = SystemClock().utc()
    later, values = now + 60_000, ", ".join("?" * 13)
    for row in (  # key, token, lease, shared, tries, trying, done_at, until, took, version, memo, error, expires
        (key(1), b"token--1", 0, 0, 0, None, now, later, 1, None, b"memo", None, None),  # done
        (key(2), b"token--1", later, 1, 1, None, 0, 0, 0, None, None, None, later),  # running
        (key(3), b"token--1", 0, 0, 1, None, 0, 0, 0, None, None, "no", later),  # failed
        (key(4), b"token--2", 0, 0, 2, 6, now, later, 3, 5, None, "no", later),  # done, and failed in a newer version
        (key(5), b"token--2", later, 0, 1, 6, now, later, 1, 5, None, None, later),  # done, and a newer version runs
        (key(6), b"", 0, 1, 0, None, now, later, 1, 5, None, None, None),  # done, and a newer version was released
    ):
        connection.execute(f"INSERT INTO eventonce_claims VALUES ({values})", row)
    connection.close()
    store = SQLiteStore(file)
    assert store.peek([key(number) for number in range(1, 8)]) == [
        Record(b"token--1", 0, False, 0, None, now, later, 1, None, b"memo", None, later),
        Record(b"token--1", later, True, 1, None, 0, 0, 0, None, None, None, later),
        Record(b"token--1", 0, False, 1, None, 0, 0, 0, None, None, "no", later),
        Record(b"token--2", 0, False, 2, 6, now, later, 3, 5, None, "no", later),
        Record(b"token--2", later, False, 1, 6, now, later, 1, 5, None, None, later),
        Record(b"", 0, True, 0, None, now, later, 1, 5, None, None, later),
        None,
    ]
    assert store.commit([Commit(key(number), b"token--1", 60_000) for number in (1, 2, 3)]) == [True, True, False]
    assert store.claim([ClaimRequest(key(3), 60_000), ClaimRequest(key(7), 60_000)], b"token--3", 60_000) == [
        Won(2, "no"),
        Won(1),
    ]
    store.close()
    assert query(file, "SELECT name FROM sqlite_master WHERE name = 'eventonce_claims'") == []


def test_a_command_that_only_reads_does_not_migrate_a_file_of_older_workers(file: Path) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    module._migrate(connection, module._migrations()[:1])
    connection.close()
    with pytest.raises(StoreUnusable, match=r"older eventonce \(schema 1\), .* start one of this version"):
        open_store(f"sqlite:///{file}", create=False)
    assert query(file, "SELECT max(version) FROM eventonce_schema") == [(1,)]
    open_store(f"sqlite:///{file}").close()
    open_store(f"sqlite:///{file}", create=False).close()
    assert query(file, "SELECT max(version) FROM eventonce_schema") == [(2,)]


@pytest.mark.parametrize("shared", ["", "?shared=true"])
def test_a_command_that_only_reads_makes_no_tables(file: Path, shared: str) -> None:
    file.touch()
    with pytest.raises(StoreUnusable, match="has no tables of eventonce; check its name"):
        open_store(f"sqlite:///{file}{shared}", create=False)
    assert file.read_bytes() == b""
    assert list(file.parent.iterdir()) == [file]


def test_a_command_that_only_reads_leaves_other_tables_alone(file: Path) -> None:
    query(file, "CREATE TABLE orders (id)")
    before = file.read_bytes()
    with pytest.raises(StoreUnusable, match="has no tables of eventonce"):
        open_store(f"sqlite:///{file}?shared=true", create=False)
    assert file.read_bytes() == before


def test_a_file_of_a_newer_eventonce_is_refused(file: Path) -> None:
    SQLiteStore(file).close()
    connection = sqlite3.connect(file)
    connection.execute("INSERT INTO eventonce_schema VALUES (99)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreUnusable, match=r"newer eventonce \(schema 99\); upgrade"):
        SQLiteStore(file)


def test_many_threads_may_open_a_new_file_at_once(file: Path) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            SQLiteStore(file).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_database_of_another_program_is_refused_unless_shared(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StoreUnusable, match=r"database of another program; .*\?shared=true"):
        SQLiteStore(file)
    assert query(file, "SELECT name FROM sqlite_master") == [("theirs",)]
    open_store(f"sqlite:///{file}?shared=true").close()
    SQLiteStore(file).close()


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(file: Path) -> None:
    text = b"a shopping list, not a database\n" * 100
    file.write_bytes(text)
    with pytest.raises(StoreUnusable, match="file is not a database; use another file"):
        SQLiteStore(file)
    assert file.read_bytes() == text


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="check that it is a file"):
        SQLiteStore(tmp_path)
    with pytest.raises(StoreUnusable, match="does not exist; create it first"):
        SQLiteStore(tmp_path / "none" / "store.db")


def test_a_foreign_table_with_our_name_is_refused(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE eventonce_claims (x)")
    connection.close()
    with pytest.raises(StoreUnusable, match="use another file"):
        SQLiteStore(file, shared=True)


def test_a_locked_database_is_unknown_and_loses_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.05)
    with Once(f"sqlite:///{file}") as once:
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        (outcome,) = once.run([EVENT], lambda event: None)
        assert (outcome.kind, outcome.action) == ("unknown", "retry")
        assert "another process held the database" in str(outcome.error)
        holder.execute("ROLLBACK")
        holder.close()
        assert once.run([EVENT], lambda event: None)[0].kind is OutcomeKind.PROCESSED


def test_a_full_disk_is_an_error_and_loses_nothing(file: Path) -> None:
    store = SQLiteStore(file)
    store._use(lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    keys = [Key(number.to_bytes(16, "big")) for number in range(1000)]
    with pytest.raises(StoreUnusable, match="free some space"):
        store.claim([ClaimRequest(key, 60_000) for key in keys], b"token--1", 60_000)
    store._use(lambda connection: connection.execute("PRAGMA max_page_count = 100000"))
    assert store.claim([ClaimRequest(key, 60_000) for key in keys], b"token--1", 60_000) == [Won(1)] * 1000
    store.close()


def test_a_forked_child_opens_its_own_connection(store: SQLiteStore) -> None:
    store.claim([ClaimRequest(KEY, 60_000)], b"token--1", 60_000)
    child = os.fork()
    if not child:
        os._exit(0 if store.commit([Commit(KEY, b"token--1", 60_000)]) == [True] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(store.claim([ClaimRequest(KEY, 60_000)], b"token--2", 60_000)[0], Done)


def test_the_sweep_walks_the_whole_file_in_steps(file: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore(file, clock=clock)
    keys = [Key(number.to_bytes(16, "big")) for number in range(100)]
    store.claim([ClaimRequest(key, 1000) for key in keys], b"token--1", 1000)
    store.commit([Commit(key, b"token--1", 1000) for key in keys[:90]])
    clock.sleep(1500)
    swept = [store.sweep(40)]
    while swept[-1].cursor is not None:
        swept.append(store.sweep(40, swept[-1].cursor))
    assert [step.removed for step in swept] == [40, 40, 10]
    clock.sleep(FAILURES_FOR - 1000)
    assert store.sweep(100).removed == 0
    clock.sleep(1000)
    assert store.sweep(100).removed == 10
    store.close()


def test_the_sweep_drops_both_rows_of_a_key_and_none_that_is_still_open(file: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore(file, clock=clock)
    for number in range(6):
        store.claim([ClaimRequest(key(number), 1000, version=1)], b"token--1", 1000)
        store.commit([Commit(key(number), b"token--1", 1000, version=1)])
    store.claim(
        [ClaimRequest(key(number), 1000, version=2) for number in range(3)], b"token--2", 1000
    )  # in both tables
    clock.sleep(5000)
    steps = [store.sweep(4)]
    while steps[-1].cursor is not None:
        steps.append(store.sweep(4, steps[-1].cursor))
    assert [step.removed for step in steps] == [1, 2]
    assert [record is None for record in store.peek([key(number) for number in range(6)])] == [False] * 3 + [True] * 3
    clock.sleep(FAILURES_FOR)
    assert store.sweep(100).removed == 3
    assert query(file, "SELECT key FROM eventonce_open UNION SELECT key FROM eventonce_done") == []
    store.close()


def test_a_worker_sweeps_by_itself(file: Path) -> None:
    with Once(f"sqlite:///{file}") as once:
        store = SQLiteStore(file)
        store.claim([ClaimRequest(KEY, 1)], b"token--1", 1)
        store.commit([Commit(KEY, b"token--1", 1)])

        def swept() -> bool:
            once.run([EVENT], lambda event: None)
            return query(file, f"SELECT 1 FROM eventonce_done WHERE key = x'{KEY.hex()}'") == []

        until(swept)
        store.close()


# --- its fast path and the protocol ---


class ProtocolModel:
    """The pure protocol over a dict, one key at a time, with which the SQLite store must agree."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.records: dict[Key, Record] = {}

    def claim(self, wants: Sequence[ClaimRequest], token: Token, lease: int) -> list[Answer]:
        answers = []
        for want in wants:
            answer, record = protocol.claim(self.records.get(want.key), want, token, lease, self.clock.utc())
            if record is not None:
                self.records[want.key] = record
            answers.append(answer)
        return answers

    def extend(self, claims: Sequence[Claim], lease: int) -> list[bool]:
        now = self.clock.utc()
        return [
            self._update(claim.key, protocol.extend(self.records.get(claim.key), claim.token, lease, now))
            for claim in claims
        ]

    def commit(self, finishes: Sequence[Commit]) -> list[bool]:
        now = self.clock.utc()
        return [
            self._update(finish.key, protocol.commit(self.records.get(finish.key), finish, now)) for finish in finishes
        ]

    def release(self, releases: Sequence[Release]) -> list[bool]:
        results = []
        for release in releases:
            owned, record = protocol.release(self.records.get(release.key), release, self.clock.utc())
            if owned and not self._update(release.key, record):
                del self.records[release.key]
            results.append(owned)
        return results

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        now = self.clock.utc()
        existed = [protocol.live(self.records.get(key), now) is not None for key in keys]
        for key in keys:
            self.records.pop(key, None)
        return existed

    def sweep(self, limit: int) -> Swept:
        expired = [key for key, record in self.records.items() if not protocol.live(record, self.clock.utc())]
        assert len(self.records) < limit
        self.forget(expired)
        return Swept(len(expired), None)

    def _update(self, key: Key, record: Record | None) -> bool:
        if record is not None:
            self.records[key] = record
        return record is not None


class RandomHistory:
    """Verbs with random batches: few keys and owners, so that they meet in every state and twice in a batch."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._claimed: tuple[list[Key], Token] = ([], b"")  # by the last claim

    def next_call(self) -> Callable[[Any], object]:
        rng = self._rng
        keys = [Key(bytes([rng.randrange(12)] * 16)) for _ in range(rng.randrange(1, 16))]
        token, other = (bytes([rng.randrange(4)] * 8) for _ in range(2))
        windows, versions = [0, 1, 50, 5000, 2 * FAILURES_FOR], [None, None, 1, 2, 2**62]
        window, version, lease = rng.choice(windows), rng.choice(versions), rng.choice([0, 20, 1000])
        verb = rng.choice(["claim", "claim", "commit", "commit", "release", "extend", "forget", "sweep"])
        alike = rng.random() < 0.5  # distinct keys with equal terms, as in most batches
        if alike and verb != "claim":
            keys, token = self._claimed
        if alike:
            keys = [*dict.fromkeys(keys)]
        if verb == "claim":
            self._claimed = keys, token
        terms = rng.choices([False, True], k=2)
        memo, error = rng.choice([None, b"", b"memo"]), rng.choice([None, "no", "\u00fc"])
        calls: dict[str, Callable[[Any], object]] = {
            "claim": lambda store: store.claim(
                [ClaimRequest(key, window, version, *terms) for key in keys], token, lease
            ),
            "commit": lambda store: store.commit([Commit(key, token, window, version, memo) for key in keys]),
            "release": lambda store: store.release([Release(key, token, window, error) for key in keys]),
            "extend": lambda store: store.extend([Claim(key, token) for key in keys], lease),
            "forget": lambda store: store.forget(keys[:2]),
            "sweep": lambda store: store.sweep(100),
        }
        if not alike and verb == "claim":
            wants = [ClaimRequest(key, window, version, *rng.choices([False, True], k=2)) for key in keys]
            return lambda store: store.claim(wants, token, lease)
        if not alike and verb == "commit":
            finishes = [
                Commit(key, rng.choice([token, other]), rng.choice(windows), version, rng.choice([None, memo]))
                for key in keys
            ]
            return lambda store: store.commit(finishes)
        return calls[verb]


FAST_STATEMENTS = {rows._CLAIM_NEW: "claim", rows._COMMIT_OWNED: "commit", rows._DROP_DONE_BEFORE: "replace"}


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Collect how the statements of the fast path ended: for all, some or none of their keys."""
    paths: set[str] = set()
    write = rows._write

    def watched(connection: sqlite3.Connection, statement: str, keys: Sequence[Key], values: Any = ()) -> int:
        changed = write(connection, statement, keys, values)
        if statement in FAST_STATEMENTS:
            extent = "all" if changed == len(keys) else "some" if changed else "none"
            paths.add(f"{FAST_STATEMENTS[statement]} {extent}")
        return changed

    monkeypatch.setattr(rows, "_write", watched)
    return paths


@pytest.mark.parametrize("seed", range(5))
def test_the_fast_path_equals_the_protocol(file: Path, paths: set[str], seed: int) -> None:
    rng, clock = random.Random(seed), ManualClock()
    history, model, store = RandomHistory(rng), ProtocolModel(clock), SQLiteStore(file, clock=clock)
    store._use(lambda connection: connection.execute("PRAGMA synchronous = OFF"))
    for _ in range(2000):
        call = history.next_call()
        assert call(store) == call(model)
        assert store._read([Key(bytes([number] * 16)) for number in range(12)]) == model.records
        clock.sleep(rng.choice([0, 0, 1, 30, 1000, FAILURES_FOR // 2]))
        if rng.random() < 0.02:  # a clock may be set
            clock.sleep(rng.choice([1, 1_767_225_600_000, 1_798_761_600_000]) - clock.utc())
    store.close()
    statements, extents = ("claim", "commit", "replace"), ("all", "some", "none")
    assert paths == {f"{statement} {extent}" for statement in statements for extent in extents}


@pytest.mark.parametrize("count", [1, 511, 512, 513, 1537])
def test_of_a_large_batch_some_keys_are_new_and_the_others_in_every_state(file: Path, count: int) -> None:
    clock = ManualClock()
    model, store = ProtocolModel(clock), SQLiteStore(file, clock=clock)
    wants = [ClaimRequest(key(number), 1000) for number in range(count)]
    done, busy, over, reopened = wants[::7], wants[1::7], wants[2::7], wants[3::7]

    def agree(milliseconds: int, call: Callable[[Any], object]) -> None:
        clock.sleep(milliseconds)
        assert call(store) == call(model)
        assert store._read([want.key for want in wants]) == model.records

    agree(0, lambda each: each.claim(done, b"earlier1", 100))
    agree(0, lambda each: each.commit([Commit(want.key, b"earlier1", 5000) for want in done]))
    agree(0, lambda each: each.claim(busy, b"earlier2", 9000))
    agree(0, lambda each: each.claim(over, b"earlier3", 100))
    agree(200, lambda each: each.claim(reopened, b"token--1", 1000))  # a claim whose answer was lost
    agree(0, lambda each: each.claim(wants, b"token--1", 1000))
    agree(0, lambda each: each.commit([Commit(want.key, b"token--1", 1000) for want in wants]))
    agree(1000, lambda each: each.claim(wants, b"token--2", 1000))  # most windows have expired, and nothing was swept
    agree(0, lambda each: each.commit([Commit(want.key, b"token--2", 1000) for want in wants]))
    store.close()


def test_a_commit_of_which_some_claims_are_lost_keeps_the_others(file: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore(file, clock=clock)
    keys = [key(number) for number in range(100)]
    store.claim([ClaimRequest(each, 60_000) for each in keys], b"token--1", 1000)
    clock.sleep(2000)
    store.claim([ClaimRequest(each, 60_000) for each in keys[:10]], b"token--2", 60_000)  # takes over
    store.release([Release(each, b"token--1", 60_000, "no") for each in keys[10:20]])
    finishes = [Commit(each, b"token--1", number % 3, None, b"memo") for number, each in enumerate(keys)]
    assert store.commit(finishes) == [False] * 20 + [True] * 80
    assert store.commit([Commit(each, b"token--2", 60_000) for each in keys[:10]]) == [True] * 10
    assert query(file, "SELECT count(*), min(tries), min(error) FROM eventonce_open") == [(10, 1, "no")]
    assert query(file, "SELECT count(*), sum(took) FROM eventonce_done") == [(90, 100)]
    store.close()


def test_changes_by_triggers_are_not_counted(file: Path) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("CREATE TABLE log (x)")
    store = SQLiteStore(file, shared=True)
    for number, table in enumerate(("eventonce_open", "eventonce_done")):
        connection.execute(
            f"CREATE TRIGGER t{number} AFTER INSERT ON {table} BEGIN INSERT INTO log VALUES (1), (2); END"
        )
    connection.close()
    keys = [key(number) for number in range(6)]
    store.claim([ClaimRequest(each, 60_000) for each in keys[:4]], b"token--1", 60_000)
    store.commit([Commit(each, b"token--1", 60_000) for each in keys[:2]])
    answers = store.claim([ClaimRequest(each, 60_000) for each in keys], b"token--2", 60_000)
    assert [type(answer) for answer in answers] == [Done, Done, Busy, Busy, Won, Won]
    assert store.commit([Commit(each, b"token--2", 60_000) for each in keys[3:]]) == [False, True, True]
    assert store.commit([Commit(each, b"token--1", 60_000) for each in keys[2:4]]) == [True, True]
    store.close()


@pytest.mark.parametrize("windows", [(0, 1000), (1000, 0), (0, 0), (1000, 1000)])
def test_a_commit_with_a_key_twice_equals_the_protocol(file: Path, windows: tuple[int, int]) -> None:
    clock = ManualClock()
    model, store = ProtocolModel(clock), SQLiteStore(file, clock=clock)
    finishes = [Commit(KEY, b"token--1", window, None, b"%d" % window) for window in windows]
    for each in (model, store):
        each.claim([ClaimRequest(KEY, 1000)], b"token--1", 1000)
    assert store.commit(finishes) == model.commit(finishes)
    assert store._read([KEY]) == model.records
    store.close()


def _work(file: Path, seed: int) -> int:
    """Claim all keys in batches, in a random order, and commit what was won. This runs in a separate process."""
    store, rng, done = SQLiteStore(file), random.Random(seed), 0
    keys = [key(number) for number in range(2000)]
    rng.shuffle(keys)
    for begin in range(0, len(keys), 100):
        some, token = keys[begin : begin + 100], os.urandom(8)
        answers = store.claim([ClaimRequest(each, 60_000) for each in some], token, 60_000)
        won = [each for each, answer in zip(some, answers, strict=True) if isinstance(answer, Won)]
        assert None not in store.peek(some)
        done += sum(store.commit([Commit(each, token, 60_000) for each in won]))
    store.close()
    return done


def test_processes_move_each_key_once(file: Path) -> None:
    SQLiteStore(file).close()
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert sum(pool.starmap(_work, [(file, seed) for seed in range(4)])) == 2000
    assert query(file, "SELECT count(*), sum(took) FROM eventonce_done") == [(2000, 2000)]
    assert query(file, "SELECT count(*) FROM eventonce_open") == [(0,)]


# --- transactions ---


@pytest.fixture
def once(file: Path) -> Iterator[Once]:
    with Once(f"sqlite:///{file}") as once:
        once.run([{"id": "setup"}], lambda event, ctx: ctx.tx.execute("CREATE TABLE t (x)"))
        yield once


def effects(file: Path) -> list[Any]:
    return [x for (x,) in query(file, "SELECT x FROM t ORDER BY x")]


def insert(event: Event, ctx: Any) -> None:
    ctx.tx.execute("INSERT INTO t VALUES (?)", (event.id,))


def test_the_effect_is_there_when_the_outcome_is(once: Once, file: Path) -> None:
    assert once.run([EVENT], insert)[0].kind is OutcomeKind.PROCESSED
    assert effects(file) == ["1"]


ENDINGS = {
    "commit()": lambda tx: tx.commit(),
    "rollback()": lambda tx: tx.rollback(),
    "COMMIT": lambda tx: tx.execute("COMMIT"),
    "END": lambda tx: tx.execute("END"),
    "ROLLBACK": lambda tx: tx.execute("ROLLBACK"),
    "BEGIN": lambda tx: tx.execute("BEGIN"),
    "executescript": lambda tx: tx.executescript("INSERT INTO t VALUES ('script')"),
    "isolation_level": lambda tx: setattr(tx, "isolation_level", None),
}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("swallow", [False, True])
def test_a_handler_cannot_end_the_transaction(once: Once, file: Path, end: Any, *, swallow: bool) -> None:
    def handle(event: Event, ctx: Any) -> None:
        insert(event, ctx)
        try:
            end(ctx.tx)
        except (sqlite3.Error, ConfigError):
            if not swallow:
                raise

    (outcome,) = once.run([EVENT], handle)
    assert outcome.kind is (OutcomeKind.PROCESSED if swallow else OutcomeKind.FAILED)
    assert effects(file) == (["1"] if swallow else [])
    assert once.run([EVENT], insert)[0].kind is (OutcomeKind.DUPLICATE if swallow else OutcomeKind.PROCESSED)
    assert effects(file) == ["1"]


def test_a_with_block_ends_nothing(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        with ctx.tx:
            insert(event, ctx)
        if event.id == "2":
            raise ValueError

    kinds = [outcome.kind for outcome in once.run([EVENT, {"id": "2"}], handle)]
    assert kinds == [OutcomeKind.PROCESSED, OutcomeKind.FAILED]
    assert effects(file) == ["1"]


def test_what_a_handler_does_to_the_connection_ends_with_it(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        ctx.tx.row_factory = sqlite3.Row
        ctx.tx.text_factory = bytes
        ctx.tx.isolation_level = "DEFERRED"
        ctx.tx.execute("SAVEPOINT mine")
        insert(event, ctx)
        ctx.tx.execute("RELEASE mine")

    once.run([EVENT], handle)
    assert once.run([EVENT, {"id": "2"}], insert)[1].kind is OutcomeKind.PROCESSED
    assert effects(file) == ["1", "2"]


def test_a_context_ends_with_its_handler(once: Once, file: Path) -> None:
    """Writes of another handler through an old context would belong to no event and be undone silently."""
    contexts: list[Any] = []

    def handle(event: Event, ctx: Any) -> None:
        contexts.append(ctx)
        if event.id == "2":
            insert(event, contexts[0])

    outcomes = once.run([{"id": "1"}, {"id": "2"}, {"id": "3"}], handle)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.PROCESSED, OutcomeKind.FAILED, OutcomeKind.PROCESSED]
    assert "ended with its handler" in str(outcomes[1].error)
    contexts.clear()
    assert once.run([{"id": "2"}], insert)[0].kind is OutcomeKind.PROCESSED
    assert effects(file) == ["2"]


def test_an_interrupted_transaction_is_undone(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        insert(event, ctx)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once.run([EVENT], handle)
    assert effects(file) == []
    assert once.run([EVENT], insert)[0].kind is OutcomeKind.PROCESSED


def test_an_interrupt_before_a_transaction_strands_nothing(
    once: Once, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = module.SQLiteStore.enter

    def interrupted(store: module.SQLiteStore, transaction: module.SQLiteTransaction) -> None:
        enter(store, transaction)
        raise KeyboardInterrupt

    def handle(event: Event, ctx: Any) -> None:
        if event.id == "two":
            insert(event, ctx)

    events = [{"id": name} for name in ("one", "two", "three")]
    monkeypatch.setattr(module.SQLiteStore, "enter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        once.run(events, handle)
    monkeypatch.undo()
    kinds = [outcome.kind for outcome in once.run(events, handle)]
    assert kinds == [OutcomeKind.DUPLICATE, OutcomeKind.PROCESSED, OutcomeKind.PROCESSED]
    assert effects(file) == ["two"]


def test_an_interrupt_anywhere_before_the_commit_strands_nothing(once: Once, file: Path) -> None:
    assert interrupt_before_the_commit(once, insert, lambda name: effects(file).count(name)) > 20


def test_a_lost_claim_cannot_begin_a_transaction(store: SQLiteStore) -> None:
    with pytest.raises(LeaseLost):
        store.begin(Claim(KEY, b"token--1"))
    assert store.claim([ClaimRequest(KEY, 1000)], b"token--1", 1000) == [Won(1)]


def test_the_store_cannot_be_used_inside_its_own_transaction(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        insert(event, ctx)
        once.run([{"id": "inner"}], insert)

    (outcome,) = once.run([EVENT], handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert "this thread is inside ctx.tx" in str(outcome.error)
    assert effects(file) == []


def test_threads_take_turns_with_transactions(once: Once, file: Path) -> None:
    events = [{"id": f"{number:03}"} for number in range(40)]
    kinds: list[str] = []

    def work() -> None:
        kinds.extend(outcome.kind for outcome in once.run(events, insert))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert effects(file) == [event["id"] for event in events]
    assert set(kinds) <= {"processed", "duplicate", "busy"}


def test_writes_after_sqlite_rolled_back_are_refused(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        ctx.tx.execute("CREATE UNIQUE INDEX IF NOT EXISTS one ON t (x)")
        insert(event, ctx)
        with pytest.raises(sqlite3.IntegrityError):
            ctx.tx.execute("INSERT OR ROLLBACK INTO t VALUES (?)", (event.id,))
        for write in (ctx.tx.execute, ctx.tx.cursor().execute):
            with pytest.raises(sqlite3.OperationalError, match="rolled the transaction back"):
                write("INSERT INTO t VALUES ('charged')")

    (outcome,) = once.run([EVENT], handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert effects(file) == []


def test_a_deferred_constraint_is_the_handlers_failure(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        ctx.tx.execute("CREATE TABLE p (id PRIMARY KEY)")
        ctx.tx.execute("CREATE TABLE c (id REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
        ctx.tx.execute("PRAGMA defer_foreign_keys = ON")
        insert(event, ctx)
        raise sqlite3.IntegrityError("FOREIGN KEY constraint failed")

    (outcome,) = once.run([EVENT], handle)
    assert (outcome.kind, outcome.attempt) == (OutcomeKind.FAILED, 1)
    assert effects(file) == []


def test_an_open_cursor_is_the_handlers_failure(once: Once, file: Path) -> None:
    cursors: list[Any] = []

    def handle(event: Event, ctx: Any) -> None:
        cursors.append(ctx.tx.execute("INSERT INTO t VALUES ('a'), ('b') RETURNING x"))
        next(cursors[0])

    (outcome,) = once.run([EVENT], handle)
    if outcome.kind is not OutcomeKind.PROCESSED:  # newer versions of SQLite let it commit
        assert "fetch them all" in str(outcome.error)
        assert effects(file) == []
    cursors.clear()
    assert once.run([{"id": "2"}], insert)[0].kind is OutcomeKind.PROCESSED


def test_a_handle_is_closed_after_its_handler(once: Once) -> None:
    handles: list[Any] = []
    once.run([EVENT], lambda event, ctx: handles.append(ctx.tx))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        handles[0].execute("INSERT INTO t VALUES ('late')")


def test_a_handle_belongs_to_the_handlers_thread(once: Once, file: Path) -> None:
    errors: list[BaseException] = []

    def handle(event: Event, ctx: Any) -> None:
        def elsewhere() -> None:
            try:
                insert(event, ctx)
            except ConfigError as error:
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    once.run([EVENT], handle)
    assert "belongs to the thread" in str(errors[0])
    assert effects(file) == []


def test_a_handler_cannot_close_the_store_it_writes_to(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        insert(event, ctx)
        ctx.tx.close()

    assert once.run([EVENT], handle)[0].kind is OutcomeKind.FAILED
    assert effects(file) == []
    assert once.run([EVENT], insert)[0].kind is OutcomeKind.PROCESSED


@pytest.mark.parametrize("interrupted_at", ["record", "commit"])
def test_an_interrupt_while_committing_undoes_or_keeps_both(
    once: Once, file: Path, monkeypatch: pytest.MonkeyPatch, interrupted_at: str
) -> None:
    monkeypatch.setattr(
        module.SQLiteTransaction, "_commit", _interrupting(module.SQLiteTransaction._commit, interrupted_at)
    )
    with pytest.raises(KeyboardInterrupt):
        once.run([EVENT], insert)
    monkeypatch.undo()
    expected = ["1"] if interrupted_at == "commit" else []
    assert effects(file) == expected
    assert once.run([EVENT], insert)[0].kind is (OutcomeKind.DUPLICATE if expected else OutcomeKind.PROCESSED)
    assert effects(file) == ["1"]


def _interrupting(commit: Any, interrupted_at: str) -> Any:
    def interrupted(self: Any, finish: Commit) -> bool:
        if interrupted_at == "commit":
            commit(self, finish)
        raise KeyboardInterrupt

    return interrupted


def test_the_file_stays_the_same_if_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SQLiteStore("here.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.close()
    store.claim([ClaimRequest(KEY, 1000)], b"token--1", 1000)
    store.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_a_forked_child_commits_outlives_its_parents_close(file: Path) -> None:
    once = Once(f"sqlite:///{file}")
    once.run([{"id": "parent"}], lambda event: None)
    go, ready = os.pipe()
    child = os.fork()
    if not child:
        os.read(go, 1)
        done = once.run([{"id": "child"}], lambda event: None)
        os._exit(0 if done[0].kind is OutcomeKind.PROCESSED else 1)
    once.close()
    os.write(ready, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with Once(f"sqlite:///{file}") as newcomer:
        kinds = [outcome.kind for outcome in newcomer.run([{"id": "parent"}, {"id": "child"}], lambda event: None)]
    assert kinds == [OutcomeKind.DUPLICATE, OutcomeKind.DUPLICATE]


def test_a_child_that_was_forked_inside_a_transaction_is_refused(once: Once) -> None:
    codes: list[int] = []

    def handle(event: Event, ctx: Any) -> None:
        insert(event, ctx)
        child = os.fork()
        if not child:
            try:
                once.peek([KEY])
            except StoreUnusable:
                os._exit(7)
            os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert once.run([EVENT], handle)[0].kind is OutcomeKind.PROCESSED
    assert codes == [7]


@pytest.mark.parametrize(("shared", "bytes_of_a_page"), [(False, 1024), (True, 4096)])
def test_a_file_of_its_own_has_small_pages(tmp_path: Path, shared: bool, bytes_of_a_page: int) -> None:
    SQLiteStore(tmp_path / "store.db", shared=shared).close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("PRAGMA page_size").fetchone() == (bytes_of_a_page,)
    connection.close()
