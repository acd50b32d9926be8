"""The attributes of a queue: those it should have, and what is to be changed about those it has."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from eventonce.aws_setup.plan import RETENTION, EventRule, Queue, compact

Attributes = dict[str, str]


def wanted(queue: Queue, dead_arn: str | None, admits: Mapping[str, Any] | None) -> Attributes:
    """The attributes of a queue that is yet to be made."""
    attributes = {"MessageRetentionPeriod": str(RETENTION), "VisibilityTimeout": str(queue.visibility)}
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
        "Sid": f"eventonce_{rule.name.replace('.', '_')}",  # several rules may feed one queue
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule_arn}},
    }


def changes(has: Mapping[str, str], want: Attributes) -> Attributes:
    """What is to be set, so that a queue will do."""
    found = {name: _CHANGE.get(name, _equal)(has.get(name), value) for name, value in want.items()}
    return {name: value for name, value in found.items() if value is not None}


def _equal(has: str | None, want: str) -> str | None:
    return None if has == want else want


def _at_least(has: str | None, want: str) -> str | None:
    return None if int(has or 0) >= int(want) else want


def _redrive(has: str | None, want: str) -> str | None:
    old, new = json.loads(has or "{}"), json.loads(want)
    same = old.get("deadLetterTargetArn") == new["deadLetterTargetArn"]
    return None if same and int(old.get("maxReceiveCount", 0)) >= new["maxReceiveCount"] else want


def _policy(has: str | None, want: str) -> str | None:
    """With our statement, and those of others as they are."""
    old, (ours,) = json.loads(has or "{}"), json.loads(want)["Statement"]
    given = old.get("Statement", [])
    statements = given if isinstance(given, list) else [given]
    if ours in statements:
        return None
    others = [each for each in statements if each.get("Sid") != ours["Sid"]]
    return compact({"Version": "2012-10-17", **old, "Statement": [*others, ours]})


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
    return f"to {policy['deadLetterTargetArn'].rpartition(':')[2]} after {policy['maxReceiveCount']} receives"


def _admitted(value: str) -> str:
    rule = json.loads(value)["Statement"][-1]["Condition"]["ArnEquals"]["aws:SourceArn"]
    return f"admits rule {rule.rpartition('/')[2]}"


_WORDS: dict[str, Callable[[str], str]] = {
    "MessageRetentionPeriod": lambda value: f"kept for {int(value) // 86_400} d",
    "VisibilityTimeout": lambda value: f"hidden for {value} s when received",
    "FifoQueue": lambda value: "FIFO",
    "ContentBasedDeduplication": lambda value: "deduplicated by content",
    "RedrivePolicy": _redriven,
    "Policy": _admitted,
}
