"""What counts as a file, and the error for a scheme that is not supported."""

from pathlib import Path

import pytest

from eventonce.errors import ConfigError
from eventonce.urls import file_name, read_scheme

FORMS = {"python": "python:package.module:function", "sqs": "sqs://QUEUE", "https": "https://HOST"}
ALL = "python:package.module:function, sqs://QUEUE, https://HOST"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("-", "-"),
        ("out.jsonl", "out.jsonl"),
        ("./out", "./out"),
        ("folder/out", "folder/out"),
        ("/tmp/a:b", "/tmp/a:b"),
        ("./sqs:orders", "./sqs:orders"),
        ("2026-01-31T10:00.jsonl", "2026-01-31T10:00.jsonl"),
        ("file:out", "out"),
        ("file:sqs:orders", "sqs:orders"),
        ("file:/tmp/out", "/tmp/out"),
        ("file:///tmp/out", "/tmp/out"),
        ("file:-", "./-"),
    ],
)
def test_a_file(url: str, name: str) -> None:
    assert read_scheme(url, FORMS, "sink") == ""
    assert file_name(url) == name


def test_a_file_that_exists_needs_no_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        read_scheme("orders", FORMS, "sink")

    (tmp_path / "orders").touch()
    assert read_scheme("orders", FORMS, "sink") == ""


def test_a_file_with_the_name_of_a_mistyped_url_does_not_hide_the_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyton:billing:charge").touch()
    with pytest.raises(ConfigError):
        read_scheme("pyton:billing:charge", FORMS, "sink")


@pytest.mark.parametrize("url", ["python:billing:charge", "sqs://orders", "https://example.com/a?b=c:d"])
def test_a_scheme(url: str) -> None:
    assert read_scheme(url, FORMS, "sink") == url.partition(":")[0]
    assert file_name(url) is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("pyton:billing:charge", f"pyton: is not supported; did you mean {FORMS['python']}, or file:NAME for a file"),
        ("sqs:/orders", "sqs: is not supported; did you mean sqs://QUEUE, or file:NAME for a file"),
        ("sqs:orders", "sqs: is not supported; did you mean sqs://QUEUE, or file:NAME for a file"),
        ("SQS://orders", "SQS:// is not supported; did you mean sqs://QUEUE"),
        ("htps://me:secret@host", "htps:// is not supported; did you mean https://HOST"),
        ("kafka://host/topic", f"kafka:// is not supported; use a file (file:NAME), -, {ALL}"),
        ("localhost:9000", f"localhost: is not supported; use a file (file:NAME), -, {ALL}"),
        ("https//host", "'https//host' is neither a URL nor like a file; did you mean https://HOST, or file:NAME"),
        ("orders", f"'orders' is neither a URL nor like a file; use a file (file:NAME), -, {ALL}"),
        ("", "'' is neither a URL nor like a file"),
    ],
)
def test_anything_else_is_refused_with_the_nearest_form(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_scheme(url, FORMS, "sink")
    assert str(refusal.value).startswith(f"sink: {message}")
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("url", ["out.jsonl", "-", "file:out", "sq://orders"])
def test_a_place_without_files(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_scheme(url, FORMS, "publisher", files=False)
    assert "file:NAME" not in str(refusal.value)


@pytest.mark.parametrize("url", ["file:", "file://", "file://out.jsonl"])
def test_a_file_without_a_name(url: str) -> None:
    with pytest.raises(ConfigError, match="names no file; write file:NAME or file:///ABSOLUTE/NAME"):
        file_name(url)
