"""Messages that AWS put into a dead-letter queue: EventBridge, Classic and new, and SQS itself."""

from collections.abc import Mapping
from typing import Any

import msgspec

from eventonce.clock import to_datetime
from eventonce.dead_letters.letter import OUTCOME
from eventonce.event import Delivery
from eventonce.event.decoding import decode
from eventonce.ports import DeadLetter
from eventonce.sources.sqs import MOVED_FROM

_UNTRUSTED = (
    "SQS moved it here, and only its sender calls it a dead letter; inspect it, then send its content to its queue or "
    "delete it"
)


def read_undelivered(delivery: Delivery, message: Mapping[str, Any]) -> DeadLetter:
    """Return the letter that such a message is."""
    attributes = {
        name: str(value.get("StringValue", "")) for name, value in message.get("MessageAttributes", {}).items()
    }
    system = message.get("Attributes", {})
    letter = DeadLetter(
        id=message["MessageId"],
        body=delivery.body,
        outcome="undelivered",
        time=to_datetime(int(system["SentTimestamp"])) if "SentTimestamp" in system else None,
        origin=delivery.origin,
        handle=delivery.handle,
    )
    record = _new_bus(delivery.body)
    if MOVED_FROM in system:  # its sender chose the body and the attributes
        untrusted = OUTCOME in attributes or record is not None
        return _from_sqs(letter, delivery, system, _UNTRUSTED if untrusted else None)
    if "ERROR_CODE" in attributes or "RULE_ARN" in attributes:
        return _from_classic_bus(letter, attributes)
    return _from_sqs(letter, delivery, system) if record is None else _from_new_bus(letter, record)


def _from_classic_bus(letter: DeadLetter, attributes: Mapping[str, str]) -> DeadLetter:
    """Return the letter of a message of EventBridge Classic, whose body is the event."""
    error, message = attributes.get("ERROR_CODE"), attributes.get("ERROR_MESSAGE")
    return msgspec.structs.replace(
        letter,
        reason=_reason(error, message, attributes.get("EXHAUSTED_RETRY_CONDITION")),
        attempts=_number(attributes.get("RETRY_ATTEMPTS")),
        rule=attributes.get("RULE_ARN", "").rpartition("/")[2] or None,
    )


def _new_bus(body: bytes) -> dict[str, Any] | None:
    if b'"failedMessages"' not in body:
        return None
    try:
        record = decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    complete = isinstance(record, dict) and "busArn" in record and isinstance(record.get("failedMessages"), list)
    return record if complete else None


def _from_new_bus(letter: DeadLetter, record: Mapping[str, Any]) -> DeadLetter:
    """Return the letter of a record of the new bus, which has ids and no events.

    https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-custom-bus-retry.html
    """
    ids = [str(message.get("eventId")) for message in record["failedMessages"] if isinstance(message, dict)]
    return msgspec.structs.replace(
        letter,
        reason=_reason(record.get("errorCode"), record.get("errorMessage"), record.get("exhaustedRetryCondition")),
        attempts=_number(record.get("retryAttempts")),
        rule=str(record.get("subscriberArn", "")).rpartition("subscriber/")[2].partition("/")[0] or None,
        unreadable=f"it names its events and does not hold them; replay {', '.join(ids)} from {record['busArn']}",
    )


def _from_sqs(
    letter: DeadLetter, delivery: Delivery, system: Mapping[str, str], unusable: str | None = None
) -> DeadLetter:
    """Return the letter of a message that was received too often. SQS moves it with its body and its id."""
    queue = system.get(MOVED_FROM, "").rpartition(":")[2]
    reason = f"was received too often from {queue}" if queue else "was received too often, and moved here by SQS"
    return msgspec.structs.replace(letter, reason=reason, attempts=delivery.receive_count - 1, unreadable=unusable)


def _reason(code: Any, message: Any, condition: Any) -> str:
    text = ": ".join(str(part) for part in (code, message) if part)
    return f"{text} ({condition})" if condition else text


def _number(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0
