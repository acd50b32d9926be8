"""A pipeline file as a whole function: what it says is opened, and what would be lost is refused in a sentence."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventonce import lambda_function
from eventonce.dead_letters import open_box
from eventonce.errors import ConfigError
from tests.unit.aws_lambda.test_aws_lambda import bridge, failures, request, sqs

APP = """
ran = []


def charge(event) -> None:
    ran.append(event.id)
    if event.data.get("fails"):
        raise ValueError("no money")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a function's code, below which files outlive it."""
    (tmp_path / f"app_{tmp_path.name}.py").write_text(APP)
    monkeypatch.setenv("LAMBDA_TASK_ROOT", str(tmp_path))
    monkeypatch.setattr(lambda_function, "_MOUNTS", f"{tmp_path}/")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    vars(lambda_function).pop("handler", None)


def write(folder: Path, *lines: str, name: str = "pipeline.toml", sink: str = "", store: str = "memory:") -> None:
    sink = sink or f"python:app_{folder.name}:charge"
    (folder / name).write_text("\n".join([f'store = "{store}"', f'sink = "{sink}"', *lines]))


def test_a_pipeline_file_is_a_whole_function(folder: Path) -> None:
    write(folder, 'consumer = "billing"', "max_attempts = 2", f'dead_letter = "{folder}/dead.jsonl"')
    handler = lambda_function.handler
    assert lambda_function.handler is handler
    assert failures(handler(sqs(1, 1), None)) == []
    poison = bridge(2, detail={"fails": True})
    with pytest.raises(ValueError, match="no money"):
        handler(poison, None)
    assert handler(poison, None) is None
    (letter,) = open_box(f"{folder}/dead.jsonl").letters()
    assert (letter.event_id or letter.body, letter.attempts) == ("2", 2)
    import importlib

    assert importlib.import_module(f"app_{folder.name}").ran == ["1", "2", "2"]


def test_without_a_dead_letter_the_carrier_decides(folder: Path) -> None:
    write(folder, "max_attempts = 2")
    poison = bridge(1, detail={"fails": True})
    for _ in range(4):
        with pytest.raises(ValueError, match="no money"):
            lambda_function.handler(poison, None)


def test_another_file_is_named_by_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, name="billing.toml")
    monkeypatch.setenv("EVENTONCE_PIPELINE", "billing.toml")
    assert lambda_function.handler(bridge(1), None) is None
    monkeypatch.setenv("EVENTONCE_PIPELINE", "/elsewhere/billing.toml")
    assert str(lambda_function.pipeline_file()) == "/elsewhere/billing.toml"


def test_the_source_is_ignored_but_for_the_signer_of_requests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "s-1")
    write(folder, 'source = "http://0.0.0.0:80/hooks?auth=github&secret_env=HOOK"')
    assert lambda_function.handler(request('{"id": "1"}'), None)["statusCode"] == 401
    vars(lambda_function).pop("handler")
    write(folder, 'source = "sqs://orders"')
    assert failures(lambda_function.handler(sqs(1), None)) == []


@pytest.mark.parametrize(
    ("lines", "options", "sentence"),
    [
        ([], {"sink": "-"}, "sink: '-' ends with the instance of a function"),
        ([], {"sink": "out.jsonl"}, "sink: 'out.jsonl' ends with the instance of a function"),
        (['dead_letter = "dead.jsonl"'], {}, "dead_letter: 'dead.jsonl' ends with the instance"),
        (['dead_letter = "sqlite:///dead.db"'], {}, "dead_letter: 'sqlite:///dead.db' ends with the instance"),
        ([], {"sink": "python:no_such_module:charge"}, "module 'no_such_module' cannot be imported"),
        (["windoow = 3"], {}, "windoow"),
    ],
)
def test_an_error_at_the_start_is_one_sentence_in_the_log(
    folder: Path, lines: list[str], options: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, *lines, **options)
    with pytest.raises(SystemExit) as ended:
        lambda_function.handler  # noqa: B018
    assert ended.value.code == 2
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert sentence in record.getMessage()
    assert "\n" not in record.getMessage()
    assert record.exc_info is None


def test_a_missing_file_is_an_error_at_the_start(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.toml"):
        lambda_function.open_handler(lambda_function.pipeline_file())


def test_a_store_of_one_instance_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder)
    lambda_function.open_handler(lambda_function.pipeline_file())
    assert "each instance of the function has its own" in caplog.text


def test_the_module_has_nothing_else(folder: Path) -> None:
    with pytest.raises(AttributeError, match="no attribute 'handle'"):
        lambda_function.handle  # noqa: B018
