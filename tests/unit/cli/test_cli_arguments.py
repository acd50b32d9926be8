"""Arguments and options that verbs share: one way to name a pipeline, and files that the shell completes."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from eventonce import Once
from eventonce.cli.main import VERBS, cli
from eventonce.text import counted

NAMES = [name for group in VERBS.values() for name in group]
PIPELINES = [
    *("run", "explain", "peek", "key", "redrive", "forget", "sweep"),
    *("audit", "dedupe", "check", "setup", "template", "package", "publish"),
]
RULES = """
store = "sqlite:///claims.db"

[[rule]]
name = "orders"
key = ["detail.order"]
"""
EVENT = {"id": "a", "source": "shop", "detail-type": "Order", "detail": {"order": 7}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text(RULES)
    (tmp_path / "pipeline.conf").write_text(RULES)
    (tmp_path / "event.json").write_text(json.dumps(EVENT) + "\n")
    return tmp_path


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def verb(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


# --- a pipeline ---


@pytest.mark.parametrize("name", PIPELINES)
def test_every_verb_takes_its_pipeline_as_the_first_argument_and_as_an_option(name: str) -> None:
    usage, *_ = command(name, "--help").output.splitlines()
    options = [each for each in verb(name).params if "--pipeline" in each.opts]

    assert " PIPELINE" in usage or " [PIPELINE]" in usage
    assert [each.opts for each in options] == [["-p", "--pipeline"]]


def test_no_other_verb_names_a_pipeline() -> None:
    others = set(NAMES) - set(PIPELINES)

    assert not [name for name in others if "PIPELINE" in command(name, "--help").output.splitlines()[0]]


@pytest.mark.parametrize("words", [["pipeline.toml"], ["-p", "pipeline.toml"], ["--pipeline", "pipeline.conf"]])
@pytest.mark.usefixtures("folder")
def test_arguments_after_the_pipeline_stay_what_they_are(words: Sequence[str]) -> None:
    keyed = json.loads(command("key", *words, "event.json").output)
    audited = json.loads(command("audit", *words, "event.json", "--json").output)
    copied = command("dedupe", *words, "event.json", "out")
    published = command("publish", *words, "event.json", "--to", "events://")

    assert (keyed["rule"], keyed["place"]) == ("orders", "event.json:1")
    assert audited["groups"][0]["rules"][0]["rule"] == "orders"
    assert copied.output == "1 event in 1 document of 1 file: 1 kept, 0 dropped, 0 rejected.\n"
    assert "events://" in str(published.exception)  # the pipeline and the events were taken


@pytest.mark.usefixtures("folder")
def test_without_a_pipeline_the_first_argument_is_one_of_the_others() -> None:
    assert json.loads(command("key", "event.json").output)["rule"] == "id"


@pytest.mark.parametrize("name", ["run", "explain", "audit", "check"])
@pytest.mark.usefixtures("folder")
def test_a_pipeline_that_is_named_twice_is_refused(name: str) -> None:
    done = command(name, "pipeline.toml", "-p", "pipeline.toml")

    assert done.exit_code == 2
    assert "name the pipeline once, as PIPELINE or with --pipeline" in done.output


@pytest.mark.parametrize("name", ["check", "setup", "template"])
def test_a_pipeline_that_is_needed_and_missing(name: str) -> None:
    done = command(name)

    assert done.exit_code == 2
    assert "name the pipeline, as PIPELINE or with --pipeline" in done.output


@pytest.mark.usefixtures("folder")
def test_an_archive_that_is_missing() -> None:
    done = command("dedupe", "pipeline.toml", "out")

    assert done.exit_code == 2
    assert "name files or folders to copy, and after them the new folder OUT" in done.output


@pytest.mark.parametrize("name", ["explain", "peek", "forget"])
@pytest.mark.usefixtures("folder")
def test_a_pipeline_or_event_in_place_of_a_key_is_answered_with_the_right_way(name: str) -> None:
    with Once("sqlite:///claims.db") as once:
        once.run([{"id": "1"}], bool)
    for word in ("pipeline.conf", "event.json"):
        done = command(name, "-p", "pipeline.toml", word)

        assert f"{word!r} is not a key" in str(done.exception)
        assert "a pipeline ends in .toml" in str(done.exception)
        assert "--events" in str(done.exception)


@pytest.mark.usefixtures("folder")
def test_one_rule_is_not_one_rules() -> None:
    done = command("check", "pipeline.toml")

    assert done.output == "1 rule, 0 tests: 0 errors, 0 warnings, 0 tests failed\n"


@pytest.mark.parametrize(("count", "text"), [(0, "0 copies"), (1, "1 copy"), (2000, "2,000 copies")])
def test_a_count_with_its_noun(count: int, text: str) -> None:
    assert counted(count, "copy", "copies") == text


@pytest.mark.parametrize("name", ["key", "explain", "audit", "publish"])
@pytest.mark.usefixtures("folder")
def test_a_pipeline_behind_other_arguments_is_not_read_as_events(name: str) -> None:
    done = command(name, "event.json", "pipeline.toml", *(["--to", "events://b"] if name == "publish" else []))

    assert done.exit_code == 2
    assert "pipeline.toml: name one pipeline, before the other arguments" in done.output


@pytest.mark.parametrize("name", ["explain", "peek", "forget", "key"])
@pytest.mark.usefixtures("folder")
def test_a_file_without_events_is_not_answered_with_silence(name: str) -> None:
    command("run", "pipeline.toml", "--source", "event.json", "--sink", "out.jsonl")  # makes the store
    Path("empty.jsonl").touch()
    done = command(name, "pipeline.toml", *(["empty.jsonl"] if name == "key" else ["--events", "empty.jsonl"]))

    assert str(done.exception) == "empty.jsonl: has no event; name a file with events, or pipe them in"


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.usefixtures("folder")
def test_a_pipeline_that_cannot_be_read_names_the_remedy(name: str) -> None:
    others = {"dedupe": ["event.json", "out"], "publish": ["event.json", "--to", "events://b"]}.get(name, [])
    Path("folder").mkdir()
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    reasons = [str(command(name, "-p", file, *others).exception) for file in ("none.toml", "folder", "binary.toml")]

    assert reasons[0] == "none.toml: cannot be read: No such file or directory; name a pipeline file (TOML)"
    assert reasons[1] == "folder: cannot be read: Is a directory; name a pipeline file (TOML)"
    assert reasons[2].endswith("save it as UTF-8")


@pytest.mark.usefixtures("folder")
def test_an_empty_pipeline_is_warned_of() -> None:
    Path("empty.toml").touch()

    assert "empty.toml:1: warning: sets nothing" in command("check", "empty.toml").output
    assert command("setup", "empty.toml").output == "nothing to do: empty.toml names no AWS resource\n"


@pytest.mark.parametrize("option", ["source", "sink", "dead-letter"])
@pytest.mark.usefixtures("folder")
def test_an_empty_name_is_named(option: str) -> None:
    done = command("run", "pipeline.toml", f"--{option}", "")

    name = option.replace("-", "_")
    assert str(done.exception) == f"pipeline.toml: {name}: is empty; name a file or URL, or leave it out"


@pytest.mark.usefixtures("folder")
def test_a_function_that_is_misspelt() -> None:
    done = command("run", "pipeline.toml", "--source", "event.json", "--sink", "python:json:dmps")

    assert str(done.exception).endswith("module 'json' has no function 'dmps'; did you mean 'dumps'?")


# --- completion ---

FILES = [
    *((name, ["p"]) for name in PIPELINES),
    *((name, ["-p"]) for name in PIPELINES),
    *(("run", [option]) for option in ("--source", "--sink", "--dead-letter")),
    *(("redrive", [option]) for option in ("--from", "--sink")),
    *((name, ["--events"]) for name in ("explain", "peek", "forget")),
    *((name, ["--to"]) for name in ("send", "relay")),
    *((name, ["--dead-letter"]) for name in ("publish", "relay")),
    *((name, ["p.toml", "f"]) for name in ("key", "audit", "dedupe", "publish")),
    *((name, ["f"]) for name in ("advise", "send")),
    ("check", ["--samples"]),
    ("audit", ["--html"]),
]
FOLDERS = [("audit", ["--work"]), ("demo", ["--keep"])]


def completed(*words: str, incomplete: str = "x") -> list[str]:
    items = ShellComplete(cli, {}, "eventonce", "_EVENTONCE_COMPLETE").get_completions([*words], incomplete)
    return [item.type if item.type != "plain" else item.value for item in items]


@pytest.mark.parametrize(("name", "words"), FILES)
def test_files_are_completed(name: str, words: list[str]) -> None:
    before = words if words[-1].startswith("-") else words[:-1]

    assert completed(name, *before) == ["file"]


@pytest.mark.parametrize(("name", "words"), FOLDERS)
def test_folders_are_completed(name: str, words: list[str]) -> None:
    assert completed(name, *words) == ["dir"]


def test_the_names_of_presets_are_completed() -> None:
    assert completed("presets", incomplete="gen") == ["genesys"]


def test_every_parameter_that_speaks_of_files_is_completed() -> None:
    """A new option that takes a file is not forgotten."""
    parameters = [(name, each) for name in NAMES for each in verb(name).params]
    speaking = [(name, each) for name, each in parameters if isinstance(each, click.Option) and _speaks_of_files(each)]

    assert speaking
    for name, each in speaking:
        assert completed(name, each.opts[-1])[:1] in (["file"], ["dir"]), (name, each.opts)


def _speaks_of_files(option: click.Option) -> bool:
    text = option.help or ""
    return (
        not option.is_flag
        and not isinstance(option.type, click.Choice)
        and any(word in text for word in (" file", "Where to write", "folder", "Folder"))
    )


def test_the_shell_gets_files_by_the_protocol_of_click(folder: Path) -> None:
    environment = {"_EVENTONCE_COMPLETE": "bash_complete", "COMP_WORDS": "eventonce run --source ev", "COMP_CWORD": "3"}
    done = CliRunner(env=environment).invoke(cli, [], prog_name="eventonce")

    assert done.output == "file,ev\n"
