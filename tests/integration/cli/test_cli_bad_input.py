"""Bad input and broken surroundings, through the real command: told clearly, and nothing lost."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Finished = subprocess.CompletedProcess[str]
Command = Callable[..., Finished]

GOOD = [b'{"id":"good-%d"}' % number for number in range(3)]


pytestmark = pytest.mark.long  # a process or several for each case


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    """Runs the command line in a folder of its own, after `before` (a Python statement) has changed its limits."""

    def run(*args: str, stdin: bytes = b"", before: str = "pass") -> Finished:
        program = f"import os, sys\n{before}\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        done = subprocess.run(
            [sys.executable, "-c", program, "-m", "eventonce", *args],
            check=False,
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            timeout=200,
        )
        return Finished(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def letters(folder: Path, name: str = "eventonce-dead.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_bytes().splitlines()]


def body(letter: dict[str, Any]) -> bytes:
    """The bytes that a dead letter has kept."""
    if "body_base64" in letter:
        return b64decode(letter["body_base64"])
    letter_body: str = letter["body"]
    return letter_body.encode()


# --- events that cannot be processed ---

TEN_MEGABYTES = b'{"id":"long","text":"' + b"x" * 10_000_000 + b'"}'
REJECTED: list[tuple[str, bytes, str]] = [
    ("a broken line", b'{"id":"1","text":', "is not JSON"),
    ("a broken string", b'{"id":"1","text":"', "is not JSON"),
    ("text", b"2026-01-01 12:00 ERROR", "is not JSON"),
    ("one bracket too many", b'{"id":"1"}}', "is not JSON"),
    ("a comma too many", b'{"id":"1",}', "is not JSON"),
    ("single quotes", b"{'id':'1'}", "is not JSON"),
    ("a control character", b'{"id":"1\x00"}', "is not JSON"),
    ("a list", b'[{"id":"1"}]', "is a list, not a JSON object"),
    ("an empty list", b"[]", "is a list, not a JSON object"),
    ("a whole number", b"7", "is a number, not a JSON object"),
    ("a fraction", b"7.5", "is a number, not a JSON object"),
    ("a string", b'"id"', "is a string, not a JSON object"),
    ("null", b"null", "is null, not a JSON object"),
    ("true", b"true", "is a boolean, not a JSON object"),
    ("false", b"false", "is a boolean, not a JSON object"),
    ("no identity", b'{"text":"hello"}', "has no id"),
    ("an empty object", b"{}", "has no id"),
    ("an empty id", b'{"id":""}', "has no id"),
    ("a null id", b'{"id":null}', "has no id"),
    ("no identity in an envelope", b'{"source":"s","detail-type":"t","detail":{"id":"1"}}', "has no id"),
    ("no identity in a CloudEvent", b'{"specversion":"1.0","source":"s","type":"t"}', "has no id"),
    ("10 MB", TEN_MEGABYTES, "has 10,000,023 bytes, over the limit of 4,194,304"),
    ("10,000 levels of lists", b'{"id":"1","a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "is nested deeper than"),
    ("10,000 levels of objects", b'{"id":"1","a":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001, "is nested deeper than"),
    ("10,000 levels of lists alone", b"[" * 10_000 + b"]" * 10_000, "is nested deeper than"),
    ("201 levels", b'{"id":"1","a":' + b"[" * 201 + b"]" * 201 + b"}", "is nested deeper than 200 levels"),
    ("10,000 open brackets", b"[" * 10_000, "is n"),
    ("NaN", b'{"id":"1","n":NaN}', "is not JSON"),
    ("Infinity", b'{"id":"1","n":Infinity}', "is not JSON"),
    ("-Infinity", b'{"id":"1","n":-Infinity}', "is not JSON"),
    ("a number beyond all bounds", b'{"id":"1","n":1e999}', "is not JSON"),
    ("invalid UTF-8 in a string", b'{"id":"1","text":"\xff\xfe"}', "is not UTF-8"),
    ("invalid UTF-8 in a name", b'{"id":"1","\xc3":1}', "is not UTF-8"),
    ("Latin-1", '{"id":"1","text":"café"}'.encode("latin-1"), "is not UTF-8"),
    ("an encoded surrogate", b'{"id":"1","text":"\xed\xa0\x80"}', "is not UTF-8"),
    ("bytes", b"\xff\xfe\xfd", "is not"),
    ("half a surrogate pair", b'{"id":"1","text":"\\ud800"}', "is not JSON"),
    ("half a surrogate pair and more", b'{"id":"1","text":"\\ud800 and more"}', "is not JSON"),
    ("the other half", b'{"id":"1","text":"\\udc00"}', "is not JSON"),
    ("half a surrogate pair in the id", b'{"id":"\\ud800"}', "is not JSON"),
]


@pytest.mark.parametrize(("bad", "reason"), [case[1:] for case in REJECTED], ids=[case[0] for case in REJECTED])
def test_a_bad_event_is_rejected_with_its_line_and_kept_and_the_run_goes_on(
    cli: Command, tmp_path: Path, bad: bytes, reason: str
) -> None:
    # given a bad event between good ones
    stdin = GOOD[0] + b"\n" + GOOD[1] + b"\n" + bad + b"\n" + GOOD[2] + b"\n"

    done = cli("run", "--json", stdin=stdin)

    # then the good ones come out, and the bad one is kept with line, place and reason, as it was
    assert done.returncode == 1
    assert done.stdout.encode().splitlines() == GOOD
    logged, line = done.stderr.splitlines()
    assert reason in json.loads(logged)["error"]
    counts = json.loads(line)
    assert (counts["events"], counts["processed"], counts["rejected"], counts["dead_lettered"]) == (4, 3, 1, 1)
    (letter,) = letters(tmp_path)
    assert (letter["outcome"], letter["error"]) == ("rejected", "EventRejected")
    assert letter["reason"].startswith(reason)
    assert (letter["source"], letter["line"], letter["byte"]) == ("stdin", 3, len(GOOD[0] + GOOD[1]) + 2)
    assert body(letter) == bad


def test_all_bad_events_in_one_run(cli: Command, tmp_path: Path) -> None:
    stdin = b"".join(bad + b"\n" + b'{"id":"good-%d"}\n' % number for number, (_, bad, _) in enumerate(REJECTED))

    done = cli("run", "--json", stdin=stdin)

    assert done.returncode == 1
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [f"good-{n}" for n in range(len(REJECTED))]
    letter_body = letters(tmp_path)
    assert [letter["line"] for letter in letter_body] == [1 + 2 * number for number in range(len(REJECTED))]
    assert [body(letter) for letter in letter_body] == [bad for _, bad, _ in REJECTED]


def test_a_reason_speaks_of_the_event_and_not_of_its_end_when_a_surrogate_is_alone(
    cli: Command, tmp_path: Path
) -> None:
    # a document that is whole must not be called truncated: its owner would look for a broken transfer
    cli("run", stdin=b'{"id":"1","text":"\\ud800"}\n')

    (letter,) = letters(tmp_path)
    assert "surrogate" in letter["reason"]


def test_the_last_line_cut_off(cli: Command, tmp_path: Path) -> None:
    done = cli("run", stdin=b'{"id":"1"}\n{"id":"2","te')

    assert done.returncode == 1
    assert done.stdout == '{"id":"1"}\n'
    assert (letters(tmp_path)[0]["line"], letters(tmp_path)[0]["body"]) == (2, '{"id":"2","te')


def test_bad_events_stay_bad_events_when_repeated(cli: Command, tmp_path: Path) -> None:
    first, second = (cli("run", stdin=b"broken\n") for _ in range(2))

    assert (first.returncode, second.returncode) == (1, 1)
    assert [letter["body"] for letter in letters(tmp_path)] == ["broken", "broken"]


def test_of_repeated_names_the_last_one_counts(cli: Command) -> None:
    events = [b'{"id":"1","id":"2"}', b'{"id":"2"}', b'{"id":"1"}']

    done = cli("run", "--json", stdin=b"\n".join(events))

    assert done.returncode == 0
    assert done.stdout.encode().splitlines() == [events[0], events[2]]


def test_of_repeated_names_the_last_one_counts_in_the_content_too(cli: Command) -> None:
    events = [b'{"n":1,"n":{"a":1,"a":2}}', b'{"n":{"a":2}}', b'{"n":1}']

    done = cli("run", "--key", "content", "--json", stdin=b"\n".join(events))

    assert done.returncode == 0
    assert done.stdout.encode().splitlines() == [events[0], events[2]]


@pytest.mark.parametrize(
    "event",
    [
        b'{"id":"1","a":' + b"[" * 150 + b"]" * 150 + b"}",
        b'{"id":"1","text":"' + b"x" * 4_000_000 + b'"}',
        b'{"id":"1","n":123456789012345678901234567890}',
        b'{"id":"1","n":1e-300,"m":1E308}',
        b'{"id":"1","text":"\\ud834\\udd1e \\u0000 \xf0\x9d\x84\x9e"}',
        b'{"id":"' + b"x" * 100_000 + b'"}',
        b'{"id":7}',
        b'{"":1,"id":"1"}',
    ],
    ids=["150 levels", "4 MB", "a big number", "small and large", "pairs", "a long id", "a number as id", "no name"],
)
@pytest.mark.parametrize("key", ["id", "content"])
def test_what_is_unusual_but_right_is_processed_as_it_is(cli: Command, event: bytes, key: str) -> None:
    done = cli("run", "--json", "--key", key, stdin=event + b"\n" + event + b"\n")

    assert done.returncode == 0
    assert done.stdout.encode() == event + b"\n"


def test_damaged_gzip_is_reported_and_what_could_be_read_is_processed(cli: Command, tmp_path: Path) -> None:
    import gzip

    whole = gzip.compress(b"".join(b'{"id":"%s"}\n' % os.urandom(32).hex().encode() for _ in range(2000)))
    (tmp_path / "in.gz").write_bytes(whole[: len(whole) // 2])

    done = cli("run", "--json", "--source", "in.gz")

    assert done.returncode == 1
    assert len(done.stdout.splitlines()) > 500
    assert "gzip data is damaged" in letters(tmp_path)[-1]["reason"]


@pytest.mark.parametrize("words", [["key"], ["advise", "-"], ["run"]])
def test_a_closed_stdin_is_reported_without_options_that_a_verb_lacks(cli: Command, words: list[str]) -> None:
    done = cli(*words, before="os.close(0)")

    assert done.returncode != 0
    assert done.stderr.startswith("eventonce: stdin: is closed; pass events on stdin, or name a file\n")


def test_a_file_whose_name_is_not_utf_8(cli: Command, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    (tmp_path / name).write_bytes(b"broken\n" + GOOD[0] + b"\n")

    done = cli("run", "--source", name)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stdout.encode().splitlines() == GOOD[:1]
    assert letters(tmp_path)[0]["body"] == "broken"


def test_utf_16_is_reported_with_the_remedy(cli: Command) -> None:
    done = cli("run", stdin='\ufeff{"id":"1"}\n'.encode("utf-16-le"))

    assert done.returncode == 2
    assert sentence(done) == "stdin: is UTF-16; convert it first, such as with iconv -f UTF-16 -t UTF-8"


# --- surroundings that are broken ---

EVENTS = [b'{"id":"%d","text":"%s"}' % (number, b"x" * 100) for number in range(3000)]
INPUT = b"\n".join(EVENTS)


def sentence(done: Finished) -> str:
    """Return the error, which is one sentence on the last line. Before it there is at most the summary."""
    assert "Traceback" not in done.stderr
    *before, last = done.stderr.splitlines()
    assert len(before) <= 1, done.stderr
    assert all(" event" in line for line in before), done.stderr
    assert last.startswith("eventonce: ")
    return last.removeprefix("eventonce: ")


def not_a_database(folder: Path) -> None:
    (folder / "store.db").write_text("this is a text file, and long enough to look at\n" * 100)


def a_damaged_database(folder: Path) -> None:
    connection = sqlite3.connect(folder / "store.db")
    connection.execute("CREATE TABLE eventonce_schema (version INTEGER)")
    connection.close()
    data = bytearray((folder / "store.db").read_bytes())
    data[20:600] = os.urandom(580)
    (folder / "store.db").write_bytes(data)


def a_foreign_database(folder: Path) -> None:
    connection = sqlite3.connect(folder / "store.db")
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()


def a_newer_database(folder: Path) -> None:
    connection = sqlite3.connect(folder / "store.db")
    connection.execute("CREATE TABLE eventonce_schema (version INTEGER NOT NULL)")
    connection.execute("INSERT INTO eventonce_schema VALUES (999)")
    connection.commit()
    connection.close()


def a_newer_journal(folder: Path) -> None:
    (folder / "store.db").write_bytes(b"eventonce journal" + (999).to_bytes(2, "little") + bytes(100))


def a_directory(folder: Path) -> None:
    (folder / "store.db").mkdir()


STORES: list[tuple[Callable[[Path], None], str, str]] = [
    (not_a_database, "sqlite:///store.db", "file is not a database; use another file"),
    (a_damaged_database, "sqlite:///store.db", "use another"),
    (a_foreign_database, "sqlite:///store.db", "is a database of another program; use another file, or add ?shared"),
    (a_newer_database, "sqlite:///store.db", "was written by a newer eventonce (schema 999); upgrade eventonce"),
    (a_directory, "sqlite:///store.db", "check that it is a file that this user may read and write"),
    (lambda folder: None, "sqlite:///no/such/folder/store.db", "no/such/folder' does not exist; create it"),
    (lambda folder: None, "sqlite:///", "names no file; use sqlite:///FILE"),
    (lambda folder: None, "sqlite://store.db", "names no file; use sqlite:///FILE"),
    (lambda folder: None, "sqlit:///store.db", "sqlit:// is not supported; did you mean sqlite:///FILE"),
    (lambda folder: None, "mongodb://host/db", "mongodb:// is not supported; "),
    (lambda folder: None, "store.db", "'store.db' is not supported; use memory:, sqlite:///FILE"),
    (lambda folder: None, "sqlite:///store.db?sharde=true", "unknown option 'sharde'; use shared"),
    (not_a_database, "journal:///store.db", "is a file of another program; use another file"),
    (a_newer_journal, "journal:///store.db", "was written by a newer eventonce (journal 999); upgrade it"),
    (a_directory, "journal:///store.db", "check that it is a file that this user may read and write"),
    (lambda folder: None, "journal:///no/such/folder/store.db", "no/such/folder' does not exist; create it"),
    (lambda folder: None, "journal:///", "names no file; use journal:///FILE"),
    (lambda folder: None, "journal:///a%00b", "names no file; use journal:///FILE"),
    (lambda folder: None, "journal:///store.db?max_keys=no", "max_keys='no' is not a whole number above 0"),
]


@pytest.mark.parametrize("verb", ["run", "peek", "forget", "sweep"])
@pytest.mark.parametrize(
    ("make", "url", "remedy"),
    STORES,
    ids=[getattr(make, "__name__", "").strip("<>") + " " + url for make, url, _ in STORES],
)
def test_a_store_that_cannot_be_used_is_reported_with_the_remedy(
    cli: Command, tmp_path: Path, make: Callable[[Path], None], url: str, remedy: str, verb: str
) -> None:
    make(tmp_path)
    store = tmp_path / "store.db"
    before = store.read_bytes() if store.is_file() else None

    done = cli(verb, "--store", url, stdin=INPUT)

    # then one sentence says what to do, nothing came out, and what was there is as it was
    assert done.returncode == 2
    assert remedy in sentence(done)
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert before is None or store.read_bytes() == before
    assert not (tmp_path / "eventonce-dead.jsonl").exists()


def test_a_password_in_a_store_url_is_not_shown(cli: Command) -> None:
    done = cli("run", "--store", "mongodb://user:secret@host/db")

    assert done.returncode == 2
    assert "secret" not in done.stderr


def test_a_foreign_database_can_be_shared_on_request(cli: Command, tmp_path: Path) -> None:
    a_foreign_database(tmp_path)

    done = cli("run", "--store", "sqlite:///store.db?shared=true", stdin=INPUT)

    assert done.returncode == 0
    assert done.stdout.encode().splitlines() == EVENTS


# Root may read and write everywhere; without these capabilities it may not, and on exec it does not get them back.
ORDINARY = """
import ctypes
drop = lambda capability: ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
if os.geteuid() == 0 and (drop(1) or drop(2)):
    sys.exit(99)
"""


def ordinary(cli: Command, *args: str, stdin: bytes = INPUT) -> Finished:
    """Run as somebody whom the rights of a file can stop."""
    done = cli(*args, stdin=stdin, before=ORDINARY)
    if done.returncode == 99:
        pytest.skip("root cannot be stopped by the rights of a file here: it cannot drop its capabilities")
    return done


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_a_store_that_may_not_be_written_is_reported_with_the_remedy(cli: Command, tmp_path: Path) -> None:
    # given a store that has been used, and then was made read-only
    first = cli("run", "--store", "sqlite:///store.db", stdin=b"\n".join(EVENTS[:10]))
    (tmp_path / "store.db").chmod(stat.S_IRUSR)

    done = ordinary(cli, "run", "--store", "sqlite:///store.db")
    assert done.returncode == 2
    assert "allow writing to the file and its folder" in sentence(done)
    assert done.stdout == ""

    # when it may be written again, everything comes
    (tmp_path / "store.db").chmod(stat.S_IRUSR | stat.S_IWUSR)
    again = cli("run", "--store", "sqlite:///store.db", stdin=INPUT)
    assert again.returncode == 0
    assert (first.stdout + again.stdout).encode().splitlines() == EVENTS


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize(
    ("option", "name"), [("--sink", "out.jsonl"), ("--dead-letter", "dead.jsonl"), ("--source", "in.jsonl")]
)
def test_files_without_permission_are_reported_before_anything_is_done(
    cli: Command, tmp_path: Path, option: str, name: str
) -> None:
    (tmp_path / name).write_bytes(b'{"old":1}\n')
    (tmp_path / name).chmod(0)

    done = ordinary(cli, "run", option, name)

    assert done.returncode == 2
    assert f"{name}: cannot be " in sentence(done)
    assert "Permission denied" in sentence(done)
    assert done.stdout == ""


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize("option", ["--sink", "--dead-letter"])
def test_a_folder_without_permission_is_reported_before_anything_is_done(
    cli: Command, tmp_path: Path, option: str
) -> None:
    (tmp_path / "folder").mkdir(mode=0o555)

    done = ordinary(cli, "run", option, "folder/out.jsonl")

    assert done.returncode == 2
    assert "folder/out.jsonl: cannot be written: Permission denied" in sentence(done)
    assert done.stdout == ""


def test_a_full_disk_under_the_sink_is_reported_and_nothing_is_lost(cli: Command) -> None:
    done = cli("run", "--sink", "/dev/full", stdin=INPUT)
    assert done.returncode == 2
    assert "/dev/full: cannot be written: No space left on device; " in sentence(done)
    assert "run again (no event was lost)" in sentence(done)

    again = cli("run", "--json", stdin=INPUT)
    assert again.returncode == 0
    assert again.stdout.encode().splitlines() == EVENTS
    assert json.loads(again.stderr)["processed"] == len(EVENTS)


def test_a_full_disk_under_the_dead_letters_is_reported_and_nothing_is_lost(cli: Command, tmp_path: Path) -> None:
    stdin = b"broken\n" + INPUT

    done = cli("run", "--dead-letter", "/dev/full", stdin=stdin)
    assert done.returncode == 2
    assert "/dev/full: cannot be written: No space left on device; " in sentence(done)

    again = cli("run", stdin=stdin)
    assert again.returncode == 1
    assert {*done.stdout.encode().splitlines(), *again.stdout.encode().splitlines()} == set(EVENTS)
    assert [letter["body"] for letter in letters(tmp_path)] == ["broken"]


def full_at(size: int) -> str:
    """No file may grow beyond this: what SQLite sees is a disk that takes no more."""
    return f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"


def sizes(store: str, *sizes: int) -> list[Any]:
    return [(store, size) for size in sizes]


@pytest.mark.parametrize(
    ("store", "size"),
    sizes("sqlite:///eventonce.db", 100_000, 0, 4096, 50_000, 110_000, 200_000, 300_000)
    + sizes("journal:///eventonce.db", 10_000, 0, 10, 100, 30_000),
)
def test_a_full_disk_under_the_store_is_reported_and_nothing_is_lost(
    cli: Command, tmp_path: Path, store: str, size: int
) -> None:
    # given claims with short leases, since their release cannot be written to a full disk
    (tmp_path / "pipeline.toml").write_text(f'lease = "500ms"\nstore = "{store}"')

    done = cli("run", "pipeline.toml", stdin=INPUT, before=full_at(size))

    # then one sentence says what to do
    assert done.returncode == 2
    assert "eventonce.db" in sentence(done)
    assert "free" in sentence(done)
    assert "run again (no event was lost)" in sentence(done)

    # and when there is room again, the rest comes
    again = cli("run", "pipeline.toml", "--json", stdin=INPUT)
    assert again.returncode == 0
    assert {*done.stdout.encode().splitlines(), *again.stdout.encode().splitlines()} == set(EVENTS)


@pytest.mark.parametrize("size", [100, 5000, 50_000])
def test_a_full_disk_under_a_file_sink_is_reported_and_nothing_is_lost(cli: Command, tmp_path: Path, size: int) -> None:
    sink = ("--sink", "out.jsonl", "--store", "memory:")
    done = cli("run", *sink, stdin=INPUT, before=full_at(size))
    assert done.returncode == 2
    assert "out.jsonl: cannot be written: File too large; " in sentence(done)

    again = cli("run", *sink, stdin=INPUT)
    assert again.returncode == 0
    assert set((tmp_path / "out.jsonl").read_bytes().splitlines()) == set(EVENTS)


def test_a_store_that_is_damaged_while_in_use_is_reported(cli: Command, tmp_path: Path) -> None:
    # given a store that another program has written over
    first = cli("run", stdin=b"\n".join(EVENTS[:100]))
    data = bytearray((tmp_path / "eventonce.db").read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    (tmp_path / "eventonce.db").write_bytes(data)

    done = cli("run", stdin=INPUT)
    assert done.returncode == 2
    assert "the file is damaged, so restore it from a backup or use another one" in sentence(done)

    again = cli("run", "--store", "sqlite:///another.db", stdin=INPUT)
    assert again.returncode == 0
    assert first.returncode == 0
    assert again.stdout.encode().splitlines() == EVENTS
