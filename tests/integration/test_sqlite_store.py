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
from eventonce.claims.protocol import FAILURES_FOR, Busy, Claim, Done, Finish, Record, Release, Want, Won
from eventonce.clock import SystemClock
from eventonce.errors import StoreUnusable
from eventonce.event.keys import Key
from eventonce.stores import sqlite as module
from eventonce.stores.embedded import EmbeddedStore, Records, Result
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
def test_nothing_is_begun_in_a_file_that_was_deleted(file: Path, replaced: bool) -> None:
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


def test_the_log_is_watched_where_the_name_is_a_symbolic_link(tmp_path: Path) -> None:
    """SQLite puts it beside what the link leads to."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real" / "store.db")
    with Once(f"sqlite:///{link}") as once:
        once.run([{"id": "1"}], lambda event: None)
        (tmp_path / "real" / "store.db-wal").unlink()
        (outcome,) = once.run([{"id": "2"}], lambda event: None)
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert "store.db-wal: was moved or deleted while it is open" in str(outcome.error)


def test_nothing_is_begun_without_its_log(file: Path) -> None:
    """Somebody takes the files beside it for leftovers; others would then find it as it was before."""
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


def test_its_log_comes_and_goes_with_its_last_connection(file: Path) -> None:
    first, second = SQLiteStore(file), SQLiteStore(file)
    for number in range(3):
        first.claim([Want(key(number), 60_000)], b"token--1", 60_000)
        second.close()
        second.claim([Want(key(number + 10), 60_000)], b"token--2", 60_000)
        first.close()
        second.claim([Want(key(number + 20), 60_000)], b"token--2", 60_000)
        second.close()
        assert not file.with_name("store.db-wal").exists()
    first.close()


def test_what_was_claimed_is_committed_while_the_file_is_somewhere_else(file: Path, store: SQLiteStore) -> None:
    store.claim([Want(key(1), 60_000)], b"token--1", 60_000)
    away = file.rename(file.with_name("away"))
    with pytest.raises(StoreUnusable, match=MOVED):
        store.claim([Want(key(2), 60_000)], b"token--1", 60_000)
    assert store.commit([Finish(key(1), b"token--1", 60_000)]) == [True]
    away.rename(file)
    (answer,) = store.claim([Want(key(1), 60_000)], b"token--2", 60_000)
    assert isinstance(answer, Done)


def test_a_file_that_is_gone_is_not_made_anew_by_one_who_knew_it(file: Path, store: SQLiteStore) -> None:
    store.claim([Want(key(1), 60_000)], b"token--1", 60_000)
    remove(file)
    pid = os.fork()  # which closes the connection, and the next call opens it again
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(StoreUnusable, match=MOVED):
        store.commit([Finish(key(1), b"token--1", 60_000)])
    with pytest.raises(StoreUnusable, match=MOVED):
        store.begin(Claim(key(1), b"token--1"))
    assert not file.exists()


def test_the_schema_is_migrated_step_by_step(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = module._migrations()
    first = SQLiteStore(file)
    first.claim([Want(KEY, 60_000)], b"token--1", 60_000)
    first.close()
    more = [*known, "ALTER TABLE eventonce_open ADD COLUMN extra TEXT;\nCREATE TABLE eventonce_more (x)"]
    monkeypatch.setattr(module, "_migrations", lambda: more)
    again = SQLiteStore(file)
    assert again.commit([Finish(KEY, b"token--1", 60_000)]) == [True]
    again.close()
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
        (key(6), b"", 0, 1, 0, None, now, later, 1, 5, None, None, None),  # done, and a newer version was given back
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
    assert store.commit([Finish(key(number), b"token--1", 60_000) for number in (1, 2, 3)]) == [True, True, False]
    assert store.claim([Want(key(3), 60_000), Want(key(7), 60_000)], b"token--3", 60_000) == [Won(2, "no"), Won(1)]
    store.close()
    assert query(file, "SELECT name FROM sqlite_master WHERE name = 'eventonce_claims'") == []


def test_who_only_looks_does_not_take_a_file_from_older_workers(file: Path) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    module._migrate(connection, module._migrations()[:1])
    connection.close()
    with pytest.raises(StoreUnusable, match=r"older eventonce \(schema 1\), .* start one of this version"):
        open_store(f"sqlite:///{file}", create=False)
    assert query(file, "SELECT max(version) FROM eventonce_schema") == [(1,)]
    open_store(f"sqlite:///{file}").close()
    open_store(f"sqlite:///{file}", create=False).close()
    assert query(file, "SELECT max(version) FROM eventonce_schema") == [(2,)]


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


def test_a_database_of_something_else_is_refused_unless_shared(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StoreUnusable, match=r"database of something else; .*\?shared=true"):
        SQLiteStore(file)
    assert query(file, "SELECT name FROM sqlite_master") == [("theirs",)]
    open_store(f"sqlite:///{file}?shared=true").close()
    SQLiteStore(file).close()


def test_what_is_no_database_is_refused_and_left_alone(file: Path) -> None:
    text = b"a shopping list, not a database\n" * 100
    file.write_bytes(text)
    with pytest.raises(StoreUnusable, match="it is no SQLite file, so name another one"):
        SQLiteStore(file)
    assert file.read_bytes() == text


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="check that it is a file"):
        SQLiteStore(tmp_path)
    with pytest.raises(StoreUnusable, match="does not exist; create it first"):
        SQLiteStore(tmp_path / "none" / "store.db")


def test_a_table_of_ours_that_is_not_ours(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE eventonce_claims (x)")
    connection.close()
    with pytest.raises(StoreUnusable, match="name another file"):
        SQLiteStore(file, shared=True)


def test_a_database_that_is_held_is_trouble_and_not_a_loss(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    with Once(f"sqlite:///{file}") as once:
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        (outcome,) = once.run([EVENT], lambda event: None)
        assert (outcome.kind, outcome.action) == ("unknown", "retry")
        assert "another process held the database" in str(outcome.error)
        holder.execute("ROLLBACK")
        holder.close()
        assert once.run([EVENT], lambda event: None)[0].kind is OutcomeKind.PROCESSED


def test_a_full_disk_is_trouble_and_not_a_loss(file: Path) -> None:
    store = SQLiteStore(file)
    store._use(lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    keys = [Key(number.to_bytes(16, "big")) for number in range(1000)]
    with pytest.raises(StoreUnusable, match="free some space"):
        store.claim([Want(key, 60_000) for key in keys], b"token--1", 60_000)
    store._use(lambda connection: connection.execute("PRAGMA max_page_count = 100000"))
    assert store.claim([Want(key, 60_000) for key in keys], b"token--1", 60_000) == [Won(1)] * 1000
    store.close()


def test_a_fork_gets_a_connection_of_its_own(store: SQLiteStore) -> None:
    store.claim([Want(KEY, 60_000)], b"token--1", 60_000)
    child = os.fork()
    if not child:
        os._exit(0 if store.commit([Finish(KEY, b"token--1", 60_000)]) == [True] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(store.claim([Want(KEY, 60_000)], b"token--2", 60_000)[0], Done)


def test_the_sweep_walks_the_whole_file_in_steps(file: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore(file, clock=clock)
    keys = [Key(number.to_bytes(16, "big")) for number in range(100)]
    store.claim([Want(key, 1000) for key in keys], b"token--1", 1000)
    store.commit([Finish(key, b"token--1", 1000) for key in keys[:90]])
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
        store.claim([Want(key(number), 1000, version=1)], b"token--1", 1000)
        store.commit([Finish(key(number), b"token--1", 1000, version=1)])
    store.claim([Want(key(number), 1000, version=2) for number in range(3)], b"token--2", 1000)  # in both tables
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
        store.claim([Want(KEY, 1)], b"token--1", 1)
        store.commit([Finish(KEY, b"token--1", 1)])

        def swept() -> bool:
            once.run([EVENT], lambda event: None)
            return query(file, f"SELECT 1 FROM eventonce_done WHERE key = x'{KEY.hex()}'") == []

        until(swept)
        store.close()


# --- its statements and the protocol ---


class Dict(EmbeddedStore):
    """The protocol over a dict: what the statements of SQLite must agree with, in answers and in what is kept."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.records: dict[Key, Record] = {}

    def _change(self, keys: Sequence[Key], act: Callable[[Records], Result]) -> Result:
        return act(self.records)

    def _read(self, keys: Sequence[Key]) -> Records:
        return self.records


def random_call(dice: random.Random) -> Callable[[Any], list[Any]]:
    """A verb with a random batch: few keys and owners, so that they meet in every state and twice in a batch."""
    keys = [Key(bytes([dice.randrange(12)] * 16)) for _ in range(dice.randrange(1, 16))]
    token, other = (bytes([dice.randrange(4)] * 8) for _ in range(2))
    windows, versions = [0, 1, 50, 5000, 2 * FAILURES_FOR], [None, None, 1, 2, 2**62]
    window, version, lease = dice.choice(windows), dice.choice(versions), dice.choice([0, 20, 1000])
    wants = [Want(key, window, version, *dice.choices([False, True], k=2)) for key in keys]
    finishes = [
        Finish(
            key, dice.choice([token, token, other]), dice.choice(windows), version, dice.choice([None, b"", b"memo"])
        )
        for key in keys
    ]
    if dice.random() < 0.5:  # as most batches are: all alike, and each key once
        keys = [*dict.fromkeys(keys)]
        wants = [Want(key, *wants[0][1:]) for key in keys]
        finishes = [Finish(key, *finishes[0][1:]) for key in keys]
    releases = [Release(key, token, window, dice.choice([None, "no", "\u00fc"])) for key in keys]
    verb = dice.choice(["claim", "claim", "commit", "commit", "release", "extend", "forget"])
    return {
        "claim": lambda store: store.claim(wants, token, lease),
        "commit": lambda store: store.commit(finishes),
        "release": lambda store: store.release(releases),
        "extend": lambda store: store.extend([Claim(key, token) for key in keys], lease),
        "forget": lambda store: store.forget(keys[:2]),
    }[verb]


@pytest.mark.parametrize("seed", range(20))
def test_its_statements_do_what_the_protocol_says(file: Path, seed: int) -> None:
    dice, clock = random.Random(seed), ManualClock()
    model, store = Dict(clock), SQLiteStore(file, clock=clock)
    store._use(lambda connection: connection.execute("PRAGMA synchronous = OFF"))
    for _ in range(200):
        call = random_call(dice)
        assert call(store) == call(model)
        assert store._read([Key(bytes([number] * 16)) for number in range(12)]) == model.records
        clock.sleep(dice.choice([0, 0, 1, 30, 1000, FAILURES_FOR // 2]))
        if dice.random() < 0.02:  # a clock may be set
            clock.sleep(dice.choice([1, 1_767_225_600_000, 1_798_761_600_000]) - clock.utc())
    store.close()


@pytest.mark.parametrize("count", [1, 511, 512, 513, 1537])
def test_of_a_large_batch_some_keys_are_new_and_the_others_in_every_state(file: Path, count: int) -> None:
    clock = ManualClock()
    model, store = Dict(clock), SQLiteStore(file, clock=clock)
    wants = [Want(key(number), 1000) for number in range(count)]
    done, busy, over, again = wants[::7], wants[1::7], wants[2::7], wants[3::7]

    def agree(milliseconds: int, call: Callable[[Any], object]) -> None:
        clock.sleep(milliseconds)
        assert call(store) == call(model)
        assert store._read([want.key for want in wants]) == model.records

    agree(0, lambda each: each.claim(done, b"earlier1", 100))
    agree(0, lambda each: each.commit([Finish(want.key, b"earlier1", 5000) for want in done]))
    agree(0, lambda each: each.claim(busy, b"earlier2", 9000))
    agree(0, lambda each: each.claim(over, b"earlier3", 100))
    agree(200, lambda each: each.claim(again, b"token--1", 1000))  # and the answer was lost
    agree(0, lambda each: each.claim(wants, b"token--1", 1000))
    agree(0, lambda each: each.commit([Finish(want.key, b"token--1", 1000) for want in wants]))
    agree(1000, lambda each: each.claim(wants, b"token--2", 1000))  # most windows are over, and nothing was swept
    agree(0, lambda each: each.commit([Finish(want.key, b"token--2", 1000) for want in wants]))
    store.close()


def test_a_commit_of_which_some_claims_are_lost_keeps_the_others(file: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore(file, clock=clock)
    keys = [key(number) for number in range(100)]
    store.claim([Want(each, 60_000) for each in keys], b"token--1", 1000)
    clock.sleep(2000)
    store.claim([Want(each, 60_000) for each in keys[:10]], b"token--2", 60_000)  # takes over
    store.release([Release(each, b"token--1", 60_000, "no") for each in keys[10:20]])
    finishes = [Finish(each, b"token--1", number % 3, None, b"memo") for number, each in enumerate(keys)]
    assert store.commit(finishes) == [False] * 20 + [True] * 80
    assert store.commit([Finish(each, b"token--2", 60_000) for each in keys[:10]]) == [True] * 10
    assert query(file, "SELECT count(*), min(tries), min(error) FROM eventonce_open") == [(10, 1, "no")]
    assert query(file, "SELECT count(*), sum(took) FROM eventonce_done") == [(90, 100)]
    store.close()


def test_what_triggers_write_counts_for_nothing(file: Path) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("CREATE TABLE log (x)")
    store = SQLiteStore(file, shared=True)
    for number, table in enumerate(("eventonce_open", "eventonce_done")):
        connection.execute(
            f"CREATE TRIGGER t{number} AFTER INSERT ON {table} BEGIN INSERT INTO log VALUES (1), (2); END"
        )
    connection.close()
    keys = [key(number) for number in range(6)]
    store.claim([Want(each, 60_000) for each in keys[:4]], b"token--1", 60_000)
    store.commit([Finish(each, b"token--1", 60_000) for each in keys[:2]])
    answers = store.claim([Want(each, 60_000) for each in keys], b"token--2", 60_000)
    assert [type(answer) for answer in answers] == [Done, Done, Busy, Busy, Won, Won]
    assert store.commit([Finish(each, b"token--2", 60_000) for each in keys[3:]]) == [False, True, True]
    assert store.commit([Finish(each, b"token--1", 60_000) for each in keys[2:4]]) == [True, True]
    store.close()


@pytest.mark.parametrize("windows", [(0, 1000), (1000, 0), (0, 0), (1000, 1000)])
def test_a_commit_with_a_key_that_stands_there_twice_is_as_the_protocol_says(
    file: Path, windows: tuple[int, int]
) -> None:
    clock = ManualClock()
    model, store = Dict(clock), SQLiteStore(file, clock=clock)
    finishes = [Finish(KEY, b"token--1", window, None, b"%d" % window) for window in windows]
    for each in (model, store):
        each.claim([Want(KEY, 1000)], b"token--1", 1000)
    assert store.commit(finishes) == model.commit(finishes)
    assert store._read([KEY]) == model.records
    store.close()


def _work(file: Path, seed: int) -> int:
    """In a process of its own: claim all keys in batches, in another order, and commit what was won."""
    store, dice, done = SQLiteStore(file), random.Random(seed), 0
    keys = [key(number) for number in range(2000)]
    dice.shuffle(keys)
    for begin in range(0, len(keys), 100):
        some, token = keys[begin : begin + 100], os.urandom(8)
        answers = store.claim([Want(each, 60_000) for each in some], token, 60_000)
        won = [each for each, answer in zip(some, answers, strict=True) if isinstance(answer, Won)]
        assert None not in store.peek(some)
        done += sum(store.commit([Finish(each, token, 60_000) for each in won]))
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


def rows(file: Path) -> list[Any]:
    return [x for (x,) in query(file, "SELECT x FROM t ORDER BY x")]


def insert(event: Event, ctx: Any) -> None:
    ctx.tx.execute("INSERT INTO t VALUES (?)", (event.id,))


def test_the_effect_is_there_when_the_outcome_is(once: Once, file: Path) -> None:
    assert once.run([EVENT], insert)[0].kind is OutcomeKind.PROCESSED
    assert rows(file) == ["1"]


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
    assert rows(file) == (["1"] if swallow else [])
    assert once.run([EVENT], insert)[0].kind is (OutcomeKind.DUPLICATE if swallow else OutcomeKind.PROCESSED)
    assert rows(file) == ["1"]


def test_a_with_block_ends_nothing(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        with ctx.tx:
            insert(event, ctx)
        if event.id == "2":
            raise ValueError

    kinds = [outcome.kind for outcome in once.run([EVENT, {"id": "2"}], handle)]
    assert kinds == [OutcomeKind.PROCESSED, OutcomeKind.FAILED]
    assert rows(file) == ["1"]


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
    assert rows(file) == ["1", "2"]


def test_a_context_ends_with_its_handler(once: Once, file: Path) -> None:
    """What another handler wrote through one that was kept would belong to no event, and be undone unseen."""
    kept: list[Any] = []

    def handle(event: Event, ctx: Any) -> None:
        kept.append(ctx)
        if event.id == "2":
            insert(event, kept[0])

    outcomes = once.run([{"id": "1"}, {"id": "2"}, {"id": "3"}], handle)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.PROCESSED, OutcomeKind.FAILED, OutcomeKind.PROCESSED]
    assert "ended with its handler" in str(outcomes[1].error)
    kept.clear()
    assert once.run([{"id": "2"}], insert)[0].kind is OutcomeKind.PROCESSED
    assert rows(file) == ["2"]


def test_an_interrupted_transaction_is_undone(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        insert(event, ctx)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once.run([EVENT], handle)
    assert rows(file) == []
    assert once.run([EVENT], insert)[0].kind is OutcomeKind.PROCESSED


def test_an_interrupt_on_the_way_into_a_transaction_strands_nothing(
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
    assert rows(file) == ["two"]


def test_an_interrupt_anywhere_before_the_commit_strands_nothing(once: Once, file: Path) -> None:
    assert interrupt_before_the_commit(once, insert, lambda name: rows(file).count(name)) > 20


def test_a_lost_claim_cannot_begin_a_transaction(store: SQLiteStore) -> None:
    with pytest.raises(LeaseLost):
        store.begin(Claim(KEY, b"token--1"))
    assert store.claim([Want(KEY, 1000)], b"token--1", 1000) == [Won(1)]


def test_the_store_cannot_be_used_inside_its_own_transaction(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        insert(event, ctx)
        once.run([{"id": "inner"}], insert)

    (outcome,) = once.run([EVENT], handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert "this thread is inside ctx.tx" in str(outcome.error)
    assert rows(file) == []


def test_threads_take_turns_with_transactions(once: Once, file: Path) -> None:
    events = [{"id": f"{number:03}"} for number in range(40)]
    found: list[str] = []

    def work() -> None:
        found.extend(outcome.kind for outcome in once.run(events, insert))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(file) == [event["id"] for event in events]
    assert set(found) <= {"processed", "duplicate", "busy"}


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
    assert rows(file) == []


def test_a_deferred_constraint_is_the_handlers_failure(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        ctx.tx.execute("CREATE TABLE p (id PRIMARY KEY)")
        ctx.tx.execute("CREATE TABLE c (id REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
        ctx.tx.execute("PRAGMA defer_foreign_keys = ON")
        insert(event, ctx)
        raise sqlite3.IntegrityError("FOREIGN KEY constraint failed")

    (outcome,) = once.run([EVENT], handle)
    assert (outcome.kind, outcome.attempt) == (OutcomeKind.FAILED, 1)
    assert rows(file) == []


def test_an_open_cursor_is_the_handlers_failure(once: Once, file: Path) -> None:
    kept: list[Any] = []

    def handle(event: Event, ctx: Any) -> None:
        kept.append(ctx.tx.execute("INSERT INTO t VALUES ('a'), ('b') RETURNING x"))
        next(kept[0])

    (outcome,) = once.run([EVENT], handle)
    if outcome.kind is not OutcomeKind.PROCESSED:  # newer versions of SQLite let it commit
        assert "fetch them all" in str(outcome.error)
        assert rows(file) == []
    kept.clear()
    assert once.run([{"id": "2"}], insert)[0].kind is OutcomeKind.PROCESSED


def test_a_handle_that_was_kept_is_closed(once: Once) -> None:
    kept: list[Any] = []
    once.run([EVENT], lambda event, ctx: kept.append(ctx.tx))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        kept[0].execute("INSERT INTO t VALUES ('late')")


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
    assert rows(file) == []


def test_a_handler_cannot_close_the_store_it_writes_to(once: Once, file: Path) -> None:
    def handle(event: Event, ctx: Any) -> None:
        insert(event, ctx)
        ctx.tx.close()

    assert once.run([EVENT], handle)[0].kind is OutcomeKind.FAILED
    assert rows(file) == []
    assert once.run([EVENT], insert)[0].kind is OutcomeKind.PROCESSED


@pytest.mark.parametrize("moment", ["record", "commit"])
def test_an_interrupt_while_committing_undoes_or_keeps_both(
    once: Once, file: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(module.SQLiteTransaction, "_commit", _interrupting(module.SQLiteTransaction._commit, moment))
    with pytest.raises(KeyboardInterrupt):
        once.run([EVENT], insert)
    monkeypatch.undo()
    expected = ["1"] if moment == "commit" else []
    assert rows(file) == expected
    assert once.run([EVENT], insert)[0].kind is (OutcomeKind.DUPLICATE if expected else OutcomeKind.PROCESSED)
    assert rows(file) == ["1"]


def _interrupting(commit: Any, moment: str) -> Any:
    def interrupted(self: Any, finish: Finish) -> bool:
        if moment == "commit":
            commit(self, finish)
        raise KeyboardInterrupt

    return interrupted


def test_a_file_is_the_same_wherever_the_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SQLiteStore("here.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.close()
    store.claim([Want(KEY, 1000)], b"token--1", 1000)
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
