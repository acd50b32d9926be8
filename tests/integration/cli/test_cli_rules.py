"""`eventonce key` and `eventonce check`, through the real command."""

import base64
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PIPELINE = """\
consumer = "billing"

[[rule]]
name   = "orders"
match  = { source = ["shop"] }
key    = "content"
ignore = ["detail.sentAt"]

[[rule]]
name    = "rides"
match   = { source = ["rides"] }
key     = ["detail.rideId"]
version = "detail.count"

[[test]]
name = "a retry under a new id"
same = [
    { id = "1", source = "shop", detail-type = "t", detail = { n = 1, sentAt = 1 } },
    { id = "2", source = "shop", detail-type = "t", detail = { n = 1.0, sentAt = 2 } },
]
"""
ORDER = {"id": "1", "source": "shop", "detail-type": "t", "detail": {"n": 1, "sentAt": 1, "lines": [{"sku": "a"}]}}


def run(folder: Path, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "eventonce", *words],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    return tmp_path


def write(folder: Path, name: str, event: Any) -> str:
    (folder / name).write_text(json.dumps(event))
    return name


def test_key_shows_rule_parts_ignored_and_key(folder: Path) -> None:
    ride = {"id": "9", "source": "rides", "detail-type": "t", "detail": {"rideId": "r", "count": 3}}
    done = run(folder, "key", "pipeline.toml", stdin=json.dumps(ORDER) + json.dumps(ride) + '{"id": "x"}')
    order, printed, plain = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert (order["rule"], order["ignored"], len(order["key"])) == ("orders", ["detail.sentAt"], 32)
    assert order["parts"] == {"source": "shop", "type": "t", "content": {"n": 1, "lines": [{"sku": "a"}]}}
    assert (printed["parts"], printed["version"]) == ({"detail.rideId": "r"}, 3)
    assert (plain["rule"], plain["parts"]["id"]) == ("id", "x")


def test_key_reads_any_carrier_and_goes_on_after_what_is_rejected(folder: Path) -> None:
    records = [{"messageId": "m", "body": json.dumps(ORDER), "eventSource": "aws:sqs"}] * 2
    data = base64.b64encode(json.dumps(ORDER).encode()).decode()
    kinesis = [{"eventID": "s:1", "eventSource": "aws:kinesis", "kinesis": {"data": data, "sequenceNumber": "1"}}]
    lines = [json.dumps({"Records": records}), "broken", json.dumps({"Records": kinesis}), json.dumps(ORDER)]
    done = run(folder, "key", "pipeline.toml", stdin="\n".join(lines))
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert len(printed) == 5
    assert "is not JSON" in printed[2]["rejected"]
    assert len({each["key"] for each in printed if "key" in each}) == 1


def test_compare_says_same_or_which_fields_differ(folder: Path) -> None:
    same = {**ORDER, "id": "2", "detail": {**ORDER["detail"], "sentAt": 9}}  # type: ignore[dict-item]
    other = {**ORDER, "detail": {"n": 2, "lines": [{"sku": "b"}]}}
    a, b, c = write(folder, "a.json", ORDER), write(folder, "b.json", same), write(folder, "c.json", other)
    done = run(folder, "key", "pipeline.toml", "--compare", a, b)
    assert (done.returncode, json.loads(done.stdout)["same"]) == (0, True)
    done = run(folder, "key", "pipeline.toml", "--compare", a, c)
    assert (done.returncode, json.loads(done.stdout)["differs"]) == (1, ["detail.lines[0].sku", "detail.n"])
    elsewhere = write(folder, "d.json", {**ORDER, "source": "elsewhere"})
    done = run(folder, "key", "pipeline.toml", "--compare", a, elsewhere)
    assert (done.returncode, json.loads(done.stdout)["rules"]) == (1, ["orders", "id"])


@pytest.mark.parametrize(
    "files", [[], ["a.json"], ["a.json", "none.json"], ["a.json", "two.json"], ["a.json", "bad.json"]]
)
def test_compare_takes_two_files_of_one_event(folder: Path, files: list[str]) -> None:
    write(folder, "a.json", ORDER)
    write(folder, "two.json", [ORDER, ORDER])
    (folder / "bad.json").write_text("{")
    done = run(folder, "key", "pipeline.toml", "--compare", *files)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_compare_reads_stdin_and_any_file_of_one_event(folder: Path) -> None:
    (folder / "a.json.gz").write_bytes(gzip.compress(json.dumps(ORDER, indent=2).encode()))
    done = run(folder, "key", "pipeline.toml", "--compare", "-", "a.json.gz", stdin=json.dumps(ORDER))
    assert (done.returncode, json.loads(done.stdout)["same"]) == (0, True)
    done = run(folder, "key", "--compare", "-", "a.json.gz", stdin="")
    assert (done.returncode, done.stderr) == (
        2,
        "eventonce: stdin: has no event; name a file with events, or pipe them in\n",
    )


def test_compare_names_the_parts_of_a_key_as_the_rule_does(folder: Path) -> None:
    rides = [{"source": "rides", "detail-type": "t", "detail": {"rideId": {"n": n}, "count": 1}} for n in (1, 2)]
    files = [write(folder, f"{n}.json", ride) for n, ride in enumerate(rides)]
    done = run(folder, "key", "pipeline.toml", "--compare", *files)
    assert (done.returncode, json.loads(done.stdout)["differs"]) == (1, ["detail.rideId.n"])


def test_two_versions_of_a_thing_are_two_events(folder: Path) -> None:
    events = [{"source": "rides", "detail-type": "t", "detail": {"rideId": "r", "count": n}} for n in (1, 2)]
    files = [write(folder, f"{n}.json", event) for n, event in enumerate(events)]
    done = run(folder, "key", "pipeline.toml", "--compare", *files)
    printed = json.loads(done.stdout)
    assert (done.returncode, printed["same"], printed["differs"]) == (1, False, ["version"])
    assert printed["keys"][0] == printed["keys"][1]
    ride = '{ source = "rides", detail-type = "t", detail = { rideId = "r", count = %d } }'
    (folder / "p.toml").write_text(f"{PIPELINE}\n[[test]]\ndifferent = [{ride % 1}, {ride % 2}]\n")
    assert run(folder, "check", "p.toml").returncode == 0


def test_an_event_under_the_old_rule_and_its_copy_under_the_new_one(folder: Path) -> None:
    old, new = ('name = "old"\nmatch = { source = ["a"] }', 'name = "new"\nreplaces = "old"')
    (folder / "p.toml").write_text(f'[[rule]]\n{old}\nkey = ["detail.n"]\n[[rule]]\n{new}\nkey = ["detail.n"]\n')
    files = [write(folder, f"{source}.json", {"source": source, "n": 1}) for source in "ab"]
    for pair in (files, files[::-1]):
        done = run(folder, "key", "p.toml", "--compare", *pair)
        assert (done.returncode, json.loads(done.stdout)["same"]) == (0, True)


def test_compare_knows_replays_and_old_keys(folder: Path) -> None:
    (folder / "replay.toml").write_text('[[rule]]\nname = "r"\nreplay = "reprocess"\n')
    files = [write(folder, "live.json", ORDER), write(folder, "again.json", {**ORDER, "replay-name": "monday"})]
    done = run(folder, "key", "replay.toml", "--compare", *files)
    assert (done.returncode, json.loads(done.stdout)["differs"]) == (1, ["replay"])

    test = 'different = [{ source = "s", a = 1, b = 1 }, { source = "s", a = 1, b = 2 }]'
    rule = 'name = "new"\nkey = ["detail.a", "detail.b"]\nreplaces = { name = "old", key = ["detail.a"] }'
    (folder / "was.toml").write_text(f"[[rule]]\n{rule}\n[[test]]\n{test}\n")
    files = [write(folder, f"{b}.json", {"a": 1, "b": b}) for b in (1, 2)]
    done = run(folder, "key", "was.toml", "--compare", *files)
    printed = json.loads(done.stdout)
    assert (done.returncode, printed["same"], printed["differs"]) == (0, True, ["detail.b"])
    assert "they share the old key" in printed["because"]
    done = run(folder, "check", "was.toml")
    assert (done.returncode, "events are the same that must be different" in done.stdout) == (1, True)


def test_key_reports_what_a_source_cannot_read_and_reads_no_queue(folder: Path) -> None:
    (folder / "cut.gz").write_bytes(gzip.compress(json.dumps(ORDER).encode())[:-6])
    done = run(folder, "key", "cut.gz")
    assert (done.returncode, "the gzip data is damaged" in done.stdout) == (1, True)
    done = run(folder, "key", "sqs://orders")
    assert (done.returncode, done.stdout) == (2, "")
    assert "read events from a file or stdin" in done.stderr


def test_check_of_a_good_file(folder: Path) -> None:
    done = run(folder, "check", "pipeline.toml")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "2 rules, 1 test: 0 errors, 0 warnings, 0 tests failed\n"


def test_check_of_a_wrong_file(folder: Path) -> None:
    (folder / "wrong.toml").write_text(PIPELINE.replace('ignore = ["detail.sentAt"]', 'ignroe = ["detail.sentAt"]'))
    done = run(folder, "check", "wrong.toml")
    assert done.returncode == 2
    assert done.stdout == "wrong.toml:7: error: rule 1: unknown setting 'ignroe'; did you mean 'ignore'?\n"


def test_check_names_what_is_missing(folder: Path) -> None:
    (folder / "pipeline.toml").write_text(f'source = "in.jsonl"\nsink = "out/once.jsonl"\n{PIPELINE}')
    done = run(folder, "check", "pipeline.toml")
    assert done.returncode == 0
    assert done.stdout == (
        "pipeline.toml:1: warning: source: no such file 'in.jsonl'; create it, or run in another folder\n"
        "pipeline.toml:2: warning: sink: no such folder 'out'; create it, or run in another folder\n"
    )


def test_check_runs_the_tests_in_the_file(folder: Path) -> None:
    (folder / "failing.toml").write_text(PIPELINE.replace('ignore = ["detail.sentAt"]', ""))
    done = run(folder, "check", "failing.toml", "--json")
    (finding,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert (finding["line"], finding["level"]) == (15, "failure")
    assert "must be the same, under rule 'orders'" in finding["text"]


def test_check_against_samples(folder: Path) -> None:
    (folder / "samples").mkdir()
    write(folder / "samples", "one.json", {**ORDER, "detail": {"n": 1}})
    done = run(folder, "check", "pipeline.toml", "--samples", "samples")
    assert done.returncode == 0
    assert done.stdout == "pipeline.toml:7: warning: rule 'orders': ignore: detail.sentAt is in 0 of 1 sample\n"


@pytest.mark.parametrize("words", [["check"], ["check", "none.toml"], ["key", "none.toml"], ["key", "none.jsonl"]])
def test_wrong_words(folder: Path, words: list[str]) -> None:
    done = run(folder, *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_run_peek_and_forget_take_documents_apart(folder: Path) -> None:
    records = [{"messageId": f"m{n}", "body": json.dumps({"n": n % 2}), "eventSource": "aws:sqs"} for n in range(3)]
    documents = [{"Records": [*records, {"messageId": "bad", "body": "{", "eventSource": "aws:sqs"}]}, ORDER, [ORDER]]
    stdin = "\n".join(map(json.dumps, [*documents, [1]]))
    done = run(folder, "run", "--sink", "out.jsonl", "--json", stdin=stdin)
    counts = json.loads(done.stderr.splitlines()[-1])
    assert (counts["processed"], counts["duplicate"], counts["rejected"]) == (4, 0, 3)
    assert (folder / "out.jsonl").read_text().count("\n") == 4
    dead = [json.loads(line) for line in (folder / "eventonce-dead.jsonl").read_text().splitlines()]
    assert [(each["line"], each.get("record")) for each in dead] == [(1, 4), (3, None), (4, None)]
    good = json.dumps({"Records": records})
    assert run(folder, "peek", stdin=good).stdout.count('"state": "done"') == 3
    assert run(folder, "forget", stdin=good).stdout.count('"forgotten": true') == 3


@pytest.mark.parametrize(
    "words",
    [
        ["--source", "a.jsonl", "--sink", "a.jsonl"],
        ["--source", "a.jsonl", "--sink", "b.jsonl", "--dead-letter", "./a.jsonl"],
        ["--source", "a.jsonl", "--sink", "b.jsonl", "--dead-letter", "b.jsonl"],
        ["--source", "a.jsonl", "--sink", "x.db", "--store", "sqlite:///x.db"],
    ],
)
def test_one_file_cannot_be_two_things(folder: Path, words: list[str]) -> None:
    (folder / "a.jsonl").write_text('{"id": "1"}\n')
    done = run(folder, "run", *words)
    assert done.returncode == 2
    assert "give each a file of its own" in done.stderr
    assert (folder / "a.jsonl").read_text() == '{"id": "1"}\n'


def test_samples_without_events_are_reported(folder: Path) -> None:
    (folder / "samples.jsonl").write_text(f"{json.dumps(ORDER)}\nbroken\n")
    done = run(folder, "check", "pipeline.toml", "--samples", "samples.jsonl")
    assert done.returncode == 0
    assert "eventonce: warning: --samples: samples.jsonl:2: is not JSON" in done.stderr
    (folder / "samples.jsonl").write_text("broken\n")
    done = run(folder, "check", "pipeline.toml", "--samples", "samples.jsonl")
    assert (done.returncode, "--samples: no event was found" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("events", "printed"),
    [
        ("[{ a = 1 }, 3]", "event 2 is a number, not an event; write it as a table, or as JSON in a string"),
        ("[{ b = 1 }, { a = 1 }]", "event 1 has no detail.a"),
        ("[{ a = 2026-01-01 }, { a = nan }]", "event 2 a is the number nan, which JSON has no form for; use None"),
    ],
)
def test_a_test_in_the_file_says_which_event_is_wrong(folder: Path, events: str, printed: str) -> None:
    (folder / "p.toml").write_text(f'[[rule]]\nname = "r"\nkey = ["detail.a"]\n[[test]]\nsame = {events}\n')
    done = run(folder, "check", "p.toml")
    assert (done.returncode, done.stdout.startswith(f"p.toml:4: failure: test 'test 1': {printed}")) == (1, True)


def test_a_test_in_the_file_may_have_times_without_quotes(folder: Path) -> None:
    events = '[{ a = 2026-01-05T10:30:00+01:00 }, { a = "2026-01-05T09:30:00Z" }]'
    (folder / "p.toml").write_text(f'[[rule]]\nname = "r"\nkey = ["detail.a"]\n[[test]]\nsame = {events}\n')
    assert run(folder, "check", "p.toml").returncode == 0


def test_missing_samples_are_reported(folder: Path) -> None:
    done = run(folder, "check", "pipeline.toml", "--samples", "nope")
    assert done.returncode == 2
    assert "nope" in done.stderr


@pytest.mark.parametrize("words", [["key"], ["audit", "--json"], ["advise"]])
def test_a_full_stdout_is_reported_in_one_sentence(folder: Path, words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "eventonce", *words],
            cwd=folder,
            input=json.dumps(ORDER) * 30,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    sentence = "stdout: No space left on device; fix this and run again"
    if "--json" in words:
        assert json.loads(done.stderr)["message"] == sentence
    else:
        assert done.stderr == f"eventonce: {sentence}\n"


def test_check_warns_of_headers_that_the_signature_does_not_cover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s-1")
    pipeline = 'source = "http://127.0.0.1:8080/?auth=github&secret_env=SECRET%s"\nuse = ["github"]\n'
    (tmp_path / "pipeline.toml").write_text(pipeline % "")
    printed = run(tmp_path, "check", "pipeline.toml")
    assert printed.returncode == 0
    assert "pipeline.toml:1: warning: source: rule 'github requests' reads x-github-delivery" in printed.stdout
    assert "warning: source: auth: x-github-delivery is not signed" in printed.stdout
    (tmp_path / "pipeline.toml").write_text(pipeline % "&trust_headers=x-github-delivery")
    assert run(tmp_path, "check", "pipeline.toml").stdout == ""
