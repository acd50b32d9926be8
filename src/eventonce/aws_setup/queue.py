"""The attributes of a queue: those it should have, and what is to be changed about those it has."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from eventonce.aws_setup.plan import RETENTION, EventRule, QueueResource, compact

Attributes = dict[str, str]


def wanted(queue: QueueResource, dead_arn: str | None, admits: Mapping[str, Any] | None) -> Attributes:
    """The attributes of a queue that is yet to be made."""
    attributes = {"MessageRetentionPeriod": str(RETENTION)}
    if queue.purpose == "source":  # how the others are read is for their readers to say
        attributes["VisibilityTimeout"] = str(queue.visibility)
    if queue.fifo:
        attributes["FifoQueue"] = "true"
    if queue.by_content:
        attributes["ContentBasedDeduplication"] = "true"
    if dead_arn is not None:
        attributes["RedrivePolicy"] = compact({"deadLetterTargetArn": dead_arn, "maxReceiveCount": queue.receives})
    if admits is not None:
        attributes["Policy"] = compact({"Version": "2012-10-17", "Statement": [admits]})
    return attributes


def admission(rule: EventRule, queue_arn: Any, rule_arn: Any) -> dict[str, Any]:
    """A statement that lets one rule of EventBridge send to a queue. The ARNs may be references of a template."""
    return {
        "Sid": f"eventonce_{_digest(rule)}",
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule_arn}},
    }


def _digest(rule: EventRule) -> str:
    """What only this rule has, since several may feed one queue: a digest of all in its ARN but account and region.

    Those are the queue's own. A template does not know them, and its statement is to be the one that setup would write.
    """
    return hashlib.sha256(f"{rule.bus.name}/{rule.name}".encode()).hexdigest()[:16]


def changes(has: Mapping[str, str], want: Attributes) -> Attributes:
    """What is to be set, so that a queue will do."""
    found = {name: _CHANGE.get(name, _equal)(has.get(name), value) for name, value in want.items()}
    return {name: value for name, value in found.items() if value is not None}


def _equal(has: str | None, want: str) -> str | None:
    return None if has == want else want


def _at_least(has: str | None, want: str) -> str | None:
    return None if int(has or 0) >= int(want) else want


def _redrive(has: str | None, want: str) -> str | None:
    if has and own_dead_letters(has, want):
        return None
    old, new = json.loads(has or "{}"), json.loads(want)
    return None if int(old.get("maxReceiveCount", 0)) >= new["maxReceiveCount"] else want


def own_dead_letters(has: str | None, want: str | None) -> str | None:
    """What is said of a queue that moves its dead letters elsewhere: whoever set that up had a reason, so it stays."""
    old, new = json.loads(has or "{}"), json.loads(want or "{}")
    if not old or not new or old["deadLetterTargetArn"] == new["deadLetterTargetArn"]:
        return None
    own, ours = _name(old["deadLetterTargetArn"]), _name(new["deadLetterTargetArn"])
    return (
        f"its own dead-letter queue {own} stays (after {old['maxReceiveCount']} receives); "
        f"to use {ours}, remove its RedrivePolicy and run this again"
    )


def _policy(has: str | None, want: str) -> str | None:
    """The statements that there are, whoever wrote them, and ours unless one of them says the same."""
    old, (ours,) = json.loads(has or "{}"), json.loads(want)["Statement"]
    given = old.get("Statement", [])
    statements = given if isinstance(given, list) else [given]
    if any({**each, "Sid": ours["Sid"]} == ours for each in statements):
        return None
    taken = {each.get("Sid") for each in statements}
    more = (f"{ours['Sid']}_{number}" for number in range(2, len(taken) + 2))
    free = next(sid for sid in (ours["Sid"], *more) if sid not in taken)
    return compact({"Version": "2012-10-17", **old, "Statement": [*statements, {**ours, "Sid": free}]})


def _name(arn: str) -> str:
    return arn.rpartition(":")[2]


_CHANGE: dict[str, Callable[[str | None, str], str | None]] = {
    "MessageRetentionPeriod": _at_least,
    "VisibilityTimeout": _at_least,
    "RedrivePolicy": _redrive,
    "Policy": _policy,
}


def description(attributes: Attributes) -> str:
    """What attributes mean, for people."""
    return ", ".join(_WORDS[name](value) for name, value in attributes.items())


def _redriven(value: str) -> str:
    policy = json.loads(value)
    return f"to {_name(policy['deadLetterTargetArn'])} after {policy['maxReceiveCount']} receives"


def _admitted(value: str) -> str:
    rule = json.loads(value)["Statement"][-1]["Condition"]["ArnEquals"]["aws:SourceArn"]
    bus, _, name = rule.partition(":rule/")[2].rpartition("/")
    return f"admits rule {name} of bus {bus or 'default'}"


_WORDS: dict[str, Callable[[str], str]] = {
    "MessageRetentionPeriod": lambda value: f"kept for {int(value) // 86_400} d",
    "VisibilityTimeout": lambda value: f"hidden for {value} s when received",
    "FifoQueue": lambda value: "FIFO",
    "ContentBasedDeduplication": lambda value: "deduplicated by content",
    "RedrivePolicy": _redriven,
    "Policy": _admitted,
}
