"""Memos that somebody has damaged: the event was processed all the same, and a run goes on."""

import pytest

from eventonce import ResultUnavailable
from eventonce.claims import memo

DAMAGED = [b"garbage", b"[1]", b"\xff", b'{"result":{"$":"nope","v":1}}', b'{"result":{"$":"decimal","v":[]}}']


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_memo_keeps_the_event_done_without_its_result(damaged: bytes) -> None:
    first, result, error = memo.read("result", damaged, 1000, 1, b"")

    assert (first.attempts, result) == (1, None)
    assert isinstance(error, ResultUnavailable)
    assert "cannot be read" in str(error)


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_memo_names_no_message(damaged: bytes) -> None:
    assert memo.message_id(damaged) is None


def test_what_is_whole_is_read() -> None:
    assert memo.read("result", b'{"result":{"$":"decimal","v":"1.5"}}', 1000, 1, b"")[2] is None
