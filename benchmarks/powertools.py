"""The baseline: Powertools for AWS Lambda, one event at a time from the same raw bytes, keyed by the event's detail."""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

NAME = "Powertools"


class OnDict(BasePersistenceLayer):
    """A dict as its store."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records: dict[str, DataRecord] = {}

    def _get_record(self, idempotency_key: str) -> DataRecord:
        if idempotency_key not in self.records:
            raise IdempotencyItemNotFoundError
        return self.records[idempotency_key]

    def _put_record(self, data_record: DataRecord) -> None:
        record = self.records.get(data_record.idempotency_key)
        if record is not None and not record.is_expired:
            raise IdempotencyItemAlreadyExistsError(old_data_record=record)
        self.records[data_record.idempotency_key] = data_record

    def _update_record(self, data_record: DataRecord) -> None:
        self.records[data_record.idempotency_key] = data_record

    def _delete_record(self, data_record: DataRecord) -> None:
        self.records.pop(data_record.idempotency_key, None)


class Invocation:
    """The context that Lambda passes to a function."""

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def powertools(store: BasePersistenceLayer) -> Callable[[Sequence[bytes]], None]:
    """Run each event once, as its guide shows."""
    config = IdempotencyConfig(event_key_jmespath="detail", expires_after_seconds=14 * 86_400)
    config.register_lambda_context(cast(Any, Invocation()))  # or it would warn at every event

    @idempotent_function(data_keyword_argument="event", persistence_store=store, config=config)  # type: ignore[untyped-decorator]
    def handle(*, event: dict[str, Any]) -> None:
        return None

    def run(events: Sequence[bytes]) -> None:
        for raw in events:
            handle(event=json.loads(raw))

    return run
