"""Patience with a server that does not answer: for how long, and what is said of it."""

import pytest

from eventonce.errors import StoreBusy, StoreError, StoreUnusable
from eventonce.stores.retry import call_with_retries
from eventonce.testing.clock import ManualClock


class Server:
    """Does not answer before this moment."""

    def __init__(self, answers_at: int, error: type[StoreError] = StoreError) -> None:
        self.clock = ManualClock()
        self._answers_at = self.clock.steady() + answers_at
        self._error = error
        self.asked = 0

    def act(self) -> str:
        self.asked += 1
        if self.clock.steady() < self._answers_at:
            raise self._error("nobody there")
        return "done"


def test_a_short_absence_is_waited_for_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(1000)
    assert call_with_retries(server.act, server.clock, 30_000) == "done"
    assert caplog.messages == []


def test_a_longer_one_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(20_000)
    assert call_with_retries(server.act, server.clock, 30_000) == "done"
    begin, end = caplog.messages
    assert begin == "the store does not answer, retrying for 30 s: nobody there"
    assert end.startswith("the store answers again, after 2")
    assert 20 < server.asked < 60  # with pauses


def test_patience_ends(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(60_000)
    with pytest.raises(StoreError, match="nobody there"):
        call_with_retries(server.act, server.clock, 30_000)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("error", [StoreBusy, StoreUnusable])
def test_what_does_not_pass_or_did_nothing_is_not_asked_again(error: type[StoreError]) -> None:
    server = Server(1000, error)
    with pytest.raises(error):
        call_with_retries(server.act, server.clock, 30_000)
    assert server.asked == 1
