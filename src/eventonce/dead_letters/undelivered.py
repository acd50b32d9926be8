"""Messages in a dead-letter queue that AWS put there: EventBridge, classic and new, and SQS itself."""

from collections.abc import Mapping
from typing import Any

import msgspec

from eventonce.clock import moment
from eventonce.dead_letters.letter import OUTCOME
from eventonce.event import Delivery
from eventonce.event.decoding import decode
from eventonce.ports import DeadLetter
from eventonce.sources.sqs import MOVED_FROM

_UNSURE = (
    "SQS has moved it here, and only its sender says that it is a dead letter; look at it, and send what is in it to "
    "its queue, or delete it"
)


def read_undelivered(delivery: Delivery, message: Mapping[str, Any]) -> DeadLetter:
    """The letter that such a message is."""
    said = {name: str(each.get("StringValue", "")) for name, each in message.get("MessageAttributes", {}).items()}
    system = message.get("Attributes", {})
    letter = DeadLetter(
        id=message["MessageId"],
        body=delivery.body,
        outcome="undelivered",
        time=moment(int(system["SentTimestamp"])) if "SentTimestamp" in system else None,
        where=delivery.origin,
        handle=delivery.handle,
    )
    record = _new_bus(delivery.body)
    if MOVED_FROM in system:  # with the body and the attributes that its sender gave it
        unsure = OUTCOME in said or record is not None
        return _moved(letter, delivery, system, _UNSURE if unsure else None)
    if "ERROR_CODE" in said or "RULE_ARN" in said:
        return _classic(letter, said)
    return _moved(letter, delivery, system) if record is None else _record(letter, record)


def _classic(letter: DeadLetter, said: Mapping[str, str]) -> DeadLetter:
    """EventBridge, classic: the body is the event."""
    return msgspec.structs.replace(
        letter,
        reason=_told(said.get("ERROR_CODE"), said.get("ERROR_MESSAGE"), said.get("EXHAUSTED_RETRY_CONDITION")),
        attempts=_number(said.get("RETRY_ATTEMPTS")),
        rule=said.get("RULE_ARN", "").rpartition("/")[2] or None,
    )


def _new_bus(body: bytes) -> dict[str, Any] | None:
    if b'"failedMessages"' not in body:
        return None
    try:
        found = decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    whole = isinstance(found, dict) and "busArn" in found and isinstance(found.get("failedMessages"), list)
    return found if whole else None


def _record(letter: DeadLetter, record: Mapping[str, Any]) -> DeadLetter:
    """The new bus: ids only, and no event. https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-custom-bus-retry.html"""
    names = [str(each.get("eventId")) for each in record["failedMessages"] if isinstance(each, dict)]
    return msgspec.structs.replace(
        letter,
        reason=_told(record.get("errorCode"), record.get("errorMessage"), record.get("exhaustedRetryCondition")),
        attempts=_number(record.get("retryAttempts")),
        rule=str(record.get("subscriberArn", "")).rpartition("subscriber/")[2].partition("/")[0] or None,
        trouble=f"it names its events and does not hold them; replay {', '.join(names)} from {record['busArn']}",
    )


def _moved(letter: DeadLetter, delivery: Delivery, system: Mapping[str, str], trouble: str | None = None) -> DeadLetter:
    """SQS: a message that was received too often, with the body and the id it always had."""
    queue = system.get(MOVED_FROM, "").rpartition(":")[2]
    reason = f"was received too often from {queue}" if queue else "was received too often, and moved here by SQS"
    return msgspec.structs.replace(letter, reason=reason, attempts=delivery.receive_count - 1, trouble=trouble)


def _told(code: Any, said: Any, condition: Any) -> str:
    found = ": ".join(str(each) for each in (code, said) if each)
    return f"{found} ({condition})" if condition else found


def _number(value: Any) -> int:
    return int(value) if str(value).isdecimal() else 0
