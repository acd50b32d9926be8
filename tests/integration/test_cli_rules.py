"""`eventonce key` and `eventonce check`, through the real command."""

import base64
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
ignore = ["sentAt"]

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


def run(folder: Path, *words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "eventonce", *words],
        cwd=folder,
        input=given,
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
    done = run(folder, "key", "-c", "pipeline.toml", given=json.dumps(ORDER) + json.dumps(ride) + '{"id": "x"}')
    order, told, plain = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert (order["rule"], order["ignored"], len(order["key"])) == ("orders", ["sentAt"], 32)
    assert order["parts"] == {"source": "shop", "type": "t", "content": {"n": 1, "lines": [{"sku": "a"}]}}
    assert (told["parts"], told["version"]) == ({"detail.rideId": "r"}, 3)
    assert (plain["rule"], plain["parts"]["id"]) == ("id", "x")


def test_key_reads_any_carrier_and_goes_on_after_what_is_rejected(folder: Path) -> None:
    records = [{"messageId": "m", "body": json.dumps(ORDER), "eventSource": "aws:sqs"}] * 2
    data = base64.b64encode(json.dumps(ORDER).encode()).decode()
    kinesis = [{"eventID": "s:1", "eventSource": "aws:kinesis", "kinesis": {"data": data, "sequenceNumber": "1"}}]
    lines = [json.dumps({"Records": records}), "broken", json.dumps({"Records": kinesis}), json.dumps(ORDER)]
    done = run(folder, "key", "-c", "pipeline.toml", given="\n".join(lines))
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert len(told) == 5
    assert "is not JSON" in told[2]["rejected"]
    assert len({each["key"] for each in told if "key" in each}) == 1


def test_compare_says_same_or_which_fields_differ(folder: Path) -> None:
    same = {**ORDER, "id": "2", "detail": {**ORDER["detail"], "sentAt": 9}}  # type: ignore[dict-item]
    other = {**ORDER, "detail": {"n": 2, "lines": [{"sku": "b"}]}}
    a, b, c = write(folder, "a.json", ORDER), write(folder, "b.json", same), write(folder, "c.json", other)
    done = run(folder, "key", "-c", "pipeline.toml", "--compare", a, b)
    assert (done.returncode, json.loads(done.stdout)["same"]) == (0, True)
    done = run(folder, "key", "-c", "pipeline.toml", "--compare", a, c)
    assert (done.returncode, json.loads(done.stdout)["differs"]) == (1, ["lines[0].sku", "n"])
    elsewhere = write(folder, "d.json", {**ORDER, "source": "elsewhere"})
    done = run(folder, "key", "-c", "pipeline.toml", "--compare", a, elsewhere)
    assert (done.returncode, json.loads(done.stdout)["rules"]) == (1, ["orders", "id"])


@pytest.mark.parametrize(
    "files", [[], ["a.json"], ["a.json", "none.json"], ["a.json", "two.json"], ["a.json", "bad.json"]]
)
def test_compare_takes_two_files_of_one_event(folder: Path, files: list[str]) -> None:
    write(folder, "a.json", ORDER)
    write(folder, "two.json", [ORDER, ORDER])
    (folder / "bad.json").write_text("{")
    done = run(folder, "key", "-c", "pipeline.toml", "--compare", *files)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_check_of_a_good_file(folder: Path) -> None:
    done = run(folder, "check", "pipeline.toml")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "2 rules, 1 tests: 0 errors, 0 warnings, 0 tests failed\n"


def test_check_of_a_wrong_file(folder: Path) -> None:
    (folder / "wrong.toml").write_text(PIPELINE.replace('ignore = ["sentAt"]', 'ignroe = ["sentAt"]'))
    done = run(folder, "check", "wrong.toml")
    assert done.returncode == 2
    assert done.stdout == "wrong.toml:7: error: rule 1: 'ignroe' is not known; did you mean 'ignore'?\n"


def test_check_names_what_is_not_there(folder: Path) -> None:
    (folder / "pipeline.toml").write_text(f'source = "in.jsonl"\nsink = "out/once.jsonl"\n{PIPELINE}')
    done = run(folder, "check", "pipeline.toml")
    assert done.returncode == 0
    assert done.stdout == (
        "pipeline.toml:1: warning: source: there is no file 'in.jsonl' here; make it, or run where it is\n"
        "pipeline.toml:2: warning: sink: there is no folder 'out' here; make it, or run where it is\n"
    )


def test_check_runs_the_tests_in_the_file(folder: Path) -> None:
    (folder / "failing.toml").write_text(PIPELINE.replace('ignore = ["sentAt"]', ""))
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
    assert done.stdout == "pipeline.toml:7: warning: rule 'orders': ignore: sentAt is in none of 1 samples\n"


@pytest.mark.parametrize(
    "words", [["check"], ["check", "none.toml"], ["key", "-c", "none.toml"], ["key", "none.jsonl"]]
)
def test_wrong_words(folder: Path, words: list[str]) -> None:
    done = run(folder, *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_run_peek_and_forget_take_documents_apart(folder: Path) -> None:
    records = [{"messageId": f"m{n}", "body": json.dumps({"n": n % 2}), "eventSource": "aws:sqs"} for n in range(3)]
    documents = [{"Records": [*records, {"messageId": "bad", "body": "{", "eventSource": "aws:sqs"}]}, ORDER, [ORDER]]
    given = "\n".join(map(json.dumps, [*documents, [1]]))
    done = run(folder, "run", "--sink", "out.jsonl", "--json", given=given)
    counts = json.loads(done.stderr)
    assert (counts["processed"], counts["duplicate"], counts["rejected"]) == (4, 0, 3)
    assert (folder / "out.jsonl").read_text().count("\n") == 4
    dead = [json.loads(line) for line in (folder / "eventonce-dead.jsonl").read_text().splitlines()]
    assert [(each["line"], each.get("record")) for each in dead] == [(1, 4), (3, None), (4, None)]
    good = json.dumps({"Records": records})
    assert run(folder, "peek", given=good).stdout.count('"state": "done"') == 3
    assert run(folder, "forget", given=good).stdout.count('"forgotten": true') == 3


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


def test_samples_that_are_not_there(folder: Path) -> None:
    done = run(folder, "check", "pipeline.toml", "--samples", "nope")
    assert done.returncode == 2
    assert "nope" in done.stderr


@pytest.mark.parametrize("words", [["key"], ["audit", "--json"], ["advise"]])
def test_a_full_stdout_is_told_in_one_sentence(folder: Path, words: list[str]) -> None:
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
    assert done.stderr == "eventonce: stdout: No space left on device; mend that and run again\n"
