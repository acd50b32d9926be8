"""Retries of a server that does not answer: for how long, and what is logged."""

import pytest

from eventonce.errors import StoreBusy, StoreError, StoreUnusable
from eventonce.stores.retry import call_with_retries
from eventonce.testing.clock import ManualClock


class Server:
    """A server that does not answer before a certain time."""

    def __init__(self, answers_at: int, error: type[StoreError] = StoreError) -> None:
        self.clock = ManualClock()
        self._answers_at = self.clock.steady() + answers_at
        self._error = error
        self.calls = 0

    def call(self) -> str:
        self.calls += 1
        if self.clock.steady() < self._answers_at:
            raise self._error("nobody there")
        return "done"


def test_a_short_outage_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(1000)
    assert call_with_retries(server.call, server.clock, 30_000) == "done"
    assert caplog.messages == []


def test_a_longer_outage_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(20_000)
    assert call_with_retries(server.call, server.clock, 30_000) == "done"
    first, last = caplog.messages
    assert first == "the store does not answer, retrying for 30 s: nobody there"
    assert last.startswith("the store answers again, after 2")
    assert 20 < server.calls < 60  # with pauses


def test_retries_end(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(60_000)
    with pytest.raises(StoreError, match="nobody there"):
        call_with_retries(server.call, server.clock, 30_000)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("error", [StoreBusy, StoreUnusable])
def test_an_error_that_is_final_or_had_no_effect_is_not_retried(error: type[StoreError]) -> None:
    server = Server(1000, error)
    with pytest.raises(error):
        call_with_retries(server.call, server.clock, 30_000)
    assert server.calls == 1
