"""URLs of stores, outboxes, dead letters, sources and sinks: nothing in them is left out in silence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventonce.dead_letters import open_dead_letters
from eventonce.errors import ConfigError
from eventonce.outbox import Outbox
from eventonce.sinks import open_sink
from eventonce.sources import open_source
from eventonce.stores import open_store
from eventonce.webhook.address import read_url


@pytest.mark.parametrize(
    ("open_url", "url"),
    [
        (open_store, "sqlite:///a#1.db"),
        (open_store, "journal:///a#1.db"),
        (open_store, "memory:#a"),
        (open_store, "redis://localhost/0#a"),
        (open_store, "dynamodb://claims#a"),
        (Outbox, "sqlite:///a#1.db"),
        (Outbox, "dynamodb://orders#a"),
        (open_dead_letters, "sqlite:///a#1.db"),
        (open_dead_letters, "sqs://dead#a"),
        (open_source, "sqs://orders#a"),
        (open_sink, "sns://orders?region=eu-west-1#a"),
    ],
)
def test_a_number_sign_cuts_off_nothing(
    open_url: Callable[[str], Any], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"a # in a URL cuts off what follows it; write it as %23$"):
        open_url(url)

    assert not list(tmp_path.iterdir())


def test_a_number_sign_can_be_written_as_percent_23(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    open_store("sqlite:///a%231.db").close()

    assert (tmp_path / "a#1.db").is_file()


def test_a_number_sign_in_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="%23") as raised:
        open_store("redis://:sec#ret@localhost/0")

    assert "sec" not in str(raised.value)
    assert "ret@" not in str(raised.value)


@pytest.mark.parametrize(
    ("open_url", "url", "option"),
    [
        (open_store, "sqlite:///a.db?shared=true&shared=false", "shared"),
        (open_store, "memory:?max_keys=1&max_keys=2", "max_keys"),
        (open_store, "redis://localhost?timeout=1s&timeout=2s", "timeout"),
        (open_store, "postgresql://localhost/a?timeout=1s&timeout=2s", "timeout"),
        (open_source, "sqs://orders?region=a&region=b", "region"),
        (open_sink, "https://localhost#token_env=A&token_env=B", "token_env"),
        (read_url, "http://localhost:8000/?max_body=1&max_body=2", "max_body"),
    ],
)
def test_an_option_is_written_once(
    open_url: Callable[[str], Any], url: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=rf"option {option} occurs twice; write it once$"):
        open_url(url)

    assert not list(tmp_path.iterdir())
