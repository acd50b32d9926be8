"""The table that says how to settle a delivery."""

import pytest

from eventonce.claims.outcome import Action, Outcome, OutcomeKind, settle

TABLE = {
    "processed": "ack",
    "duplicate": "ack",
    "stale": "ack",
    "expired": "ack",
    "busy": "retry",
    "failed": "retry",
    "unknown": "retry",
    "rejected": "dead-letter",
    "unrouted": "ack",
}


def test_the_table_knows_every_kind() -> None:
    assert set(TABLE) == set(OutcomeKind)


@pytest.mark.parametrize(("kind", "action"), TABLE.items())
def test_each_kind_has_one_action(kind: str, action: str) -> None:
    assert settle(OutcomeKind(kind)) == action
    assert Outcome(kind=OutcomeKind(kind)).action == action


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_only_what_failed_or_has_no_handler_can_be_final(kind: OutcomeKind) -> None:
    can_be = kind in (OutcomeKind.FAILED, OutcomeKind.UNROUTED)
    expected = Action.DEAD_LETTER if can_be else settle(kind)
    assert settle(kind, final=True) is expected
