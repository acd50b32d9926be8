"""Progress without a terminal: a line now and then, with the remaining time."""

import pytest

from eventonce.cli import progress
from eventonce.cli.progress import Progress


class Half:
    size = 1000
    position = 500


def test_a_line_now_and_then_with_the_remaining_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, *[59.0] * 9, *[600.0] * 9])
    monkeypatch.setattr("eventonce.cli.progress.time.monotonic", lambda: next(now))

    bar = Progress(Half())
    for _ in range(9):
        bar.step(5)
    assert capsys.readouterr().err == ""
    bar.step(5)

    assert capsys.readouterr().err == "50 %, 50 events, about 10 min left\n"


def test_nothing_is_printed_if_the_size_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pipe:
        size = None
        position = 0

    monkeypatch.setattr(progress, "_LINE_SECONDS", 0)
    for source in (Pipe(), object()):  # a queue does not even know how far it is
        Progress(source).step()

    assert capsys.readouterr().err == ""
