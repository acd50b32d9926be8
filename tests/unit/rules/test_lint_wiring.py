"""What `eventonce check` says of a pipeline whose run would be refused, and of the environment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eventonce.errors import ConfigError
from eventonce.lint import Lint
from eventonce.settings import load_for_command
from eventonce.wire import check_places

Check = Callable[[str], list[tuple[str, str]]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Returns the level and the text of each finding in a pipeline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    def findings(text: str) -> list[tuple[str, str]]:
        Path("p.toml").write_text(text)
        lint = Lint("p.toml")
        assert len(list(lint.cases())) <= 1
        return [(finding.level, finding.text) for finding in lint.findings]

    return findings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'source = "sqs://q?wait=1s"\nsink = "python:os:getcwd"\ndead_letter = "sqs://q"',
            "source and dead_letter are both sqs://q; give each its own queue",
        ),
        ('source = "sqs://q"\nsink = "sqs://q"', "source and sink are both sqs://q; give each its own queue"),
        ('sink = "sqs://q"\ndead_letter = "sqs://q"', "sink and dead_letter are both sqs://q; give each its own queue"),
        (
            'store = "memory:"\ndead_letter = "store"',
            (
                "dead_letter: memory: has no table of dead letters, only SQLite and PostgreSQL have one; use a file or "
                "sqs://QUEUE"
            ),
        ),
        ('sink = "-"\ndead_letter = "-"', "sink and dead_letter are both stdout; send one of them to a file"),
        (
            'sink = "a.txt"\ndead_letter = "./a.txt"',
            "sink and dead_letter are both ./a.txt; give each a file of its own",
        ),
        (
            'dead_letter = "stoer"',
            (
                "dead_letter: 'stoer' is neither a URL nor like a file; did you mean 'store', a table beside the "
                "claims, or file:stoer for a file?"
            ),
        ),
        (
            '[[test]]\nsaem = [{ id = "a" }, { id = "a" }]',
            "test 'test 1': unknown setting 'saem'; did you mean 'same'?",
        ),
        ('[aws]\nbuss = "x"', "aws: unknown setting 'buss'; did you mean 'bus'?"),
        ('listen = "9090"', "unknown setting 'listen'; it is an option: eventonce run --listen"),
        ('key = "content"', "unknown setting 'key'; it belongs in a [[rule]]"),
    ],
)
def test_a_run_and_the_check_refuse_the_same(check: Check, text: str, message: str) -> None:
    errors = [text for level, text in check(text) if level == "error"]

    with pytest.raises(ConfigError) as refused:
        check_places(load_for_command("p.toml"))

    assert message in errors
    assert str(refused.value).removeprefix("p.toml: ") == message


def test_queues_in_two_regions_are_two(check: Check) -> None:
    assert not [
        text for _, text in check('source = "sqs://q?region=a"\ndead_letter = "sqs://q?region=b"') if "both" in text
    ]


def test_an_unknown_setting_of_aws_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('consumer = "a"\n\n[aws]\nbus = "b"\nbuss = "x"\n')

    assert [finding.line for finding in Lint(str(tmp_path / "p.toml")).findings] == [5]


def test_a_store_in_a_folder_that_is_missing_is_warned_of(check: Check) -> None:
    ((level, text),) = check('store = "sqlite:///none/x.db"')

    assert (level, text) == ("warning", "store: no such folder 'none'; create it, or run in another folder")


def test_a_token_that_is_missing_is_an_error(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOSUCH", raising=False)
    ((level, text),) = check('sink = "https://localhost/#token_env=NOSUCH"')

    assert level == "error"
    assert "the environment variable NOSUCH is not set or blank; set it and run again" in text


# --- the environment ---


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("EVENTONCE_STROE", "did you mean EVENTONCE_STORE?"),
        ("EVENTONCE_DEADLETTER", "did you mean EVENTONCE_DEAD_LETTER?"),
        ("EVENTONCE_KEY", "EVENTONCE_ is followed by CONSUMER, STORE, "),
    ],
)
def test_an_unknown_variable_is_warned_of(
    check: Check, name: str, remedy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "secret")
    ((level, text),) = check('consumer = "a"')

    load_for_command()

    assert level == "warning"
    assert text.startswith(f"{name}: unknown environment variable; {remedy}")
    assert caplog.messages == [text]
    assert "secret" not in text


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("EVENTONCE_LEASE", "5", "EVENTONCE_LEASE: '5' has no unit; write \"5s\""),
        ("EVENTONCE_THREADS", "x", "EVENTONCE_THREADS: 'x' is not a whole number"),
        ("EVENTONCE_BATCH", "0", "EVENTONCE_BATCH: 0 is not between 1 and 10,000"),
        ("EVENTONCE_ON_STORE_ERROR", "x", "EVENTONCE_ON_STORE_ERROR: 'x' is not one of retry, process"),
        ("EVENTONCE_STORE_PASSWORD", " ", "EVENTONCE_STORE_PASSWORD: is blank; set it to the password, or unset it"),
    ],
)
def test_a_wrong_variable_is_named(
    check: Check, name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    ((level, text),) = check('consumer = "a"')

    with pytest.raises(ConfigError) as refused:
        load_for_command("p.toml")

    assert level == "error"
    assert text == str(refused.value)
    assert text.startswith(message)


def test_a_variable_that_the_file_or_an_option_overrides_is_not_read(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTONCE_LEASE", "5")

    assert check('lease = "5s"') == []
    assert load_for_command("p.toml").lease == "5s"
    assert load_for_command(lease="6s").lease == "6s"
