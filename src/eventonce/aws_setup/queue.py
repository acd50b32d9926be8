"""The attributes of a queue: the desired ones, and the changes that lead to them."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from eventonce.aws_setup.account import Account
from eventonce.aws_setup.plan import RETENTION, EventRule, QueueResource, compact
from eventonce.text import counted

Attributes = dict[str, str]


def desired_attributes(queue: QueueResource, dead_arn: str | None, statement: Mapping[str, Any] | None) -> Attributes:
    """Return the attributes of a new queue."""
    attributes = {"MessageRetentionPeriod": str(RETENTION)}
    if queue.purpose == "source":  # the readers of the other queues decide how to read them
        attributes["VisibilityTimeout"] = str(queue.visibility)
    if queue.fifo:
        attributes["FifoQueue"] = "true"
    if queue.by_content:
        attributes["ContentBasedDeduplication"] = "true"
    if dead_arn is not None:
        attributes["RedrivePolicy"] = compact({"deadLetterTargetArn": dead_arn, "maxReceiveCount": queue.receives})
    if statement is not None:
        attributes["Policy"] = compact({"Version": "2012-10-17", "Statement": [statement]})
    return attributes


def admission(rule: EventRule, queue_arn: Any, rule_arn: Any) -> dict[str, Any]:
    """Return the statement that lets one EventBridge rule send to a queue. ARNs may be references of a template."""
    return {
        "Sid": statement_id(rule),
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule_arn}},
    }


def statement_id(rule: EventRule) -> str:
    """Return a name with a digest of the rule's ARN without account and region: several rules may feed one queue.

    Account and region are those of the queue. A template does not know them, and writes the same statement as setup.
    """
    return f"eventonce_{hashlib.sha256(f'{rule.bus.name}/{rule.name}'.encode()).hexdigest()[:16]}"


def rule_arn(rule: EventRule, account: Account) -> str:
    """Return the ARN of the rule, whether it exists or not."""
    bus = "" if rule.bus.name == "default" else f"{rule.bus.name}/"
    return account.arn(rule.bus.address, "events", f"rule/{bus}{rule.name}")


def changes(current: Mapping[str, str], desired: Attributes) -> Attributes:
    """Return the attributes to set on an existing queue."""
    values = {name: _CHANGE.get(name, _equal)(current.get(name), value) for name, value in desired.items()}
    return {name: value for name, value in values.items() if value is not None}


def _equal(current: str | None, desired: str) -> str | None:
    return None if current == desired else desired


def _at_least(current: str | None, desired: str) -> str | None:
    return None if int(current or 0) >= int(desired) else desired


def _redrive(current: str | None, desired: str) -> str | None:
    if current and own_dead_letters(current, desired):
        return None
    old, new = json.loads(current or "{}"), json.loads(desired)
    return None if int(old.get("maxReceiveCount", 0)) >= new["maxReceiveCount"] else desired


def own_dead_letters(current: str | None, desired: str | None) -> str | None:
    """Return a note on a queue that moves its dead letters elsewhere. Somebody chose that, so it stays."""
    old, new = json.loads(current or "{}"), json.loads(desired or "{}")
    if not old or not new or old["deadLetterTargetArn"] == new["deadLetterTargetArn"]:
        return None
    own, ours = _name(old["deadLetterTargetArn"]), _name(new["deadLetterTargetArn"])
    return (
        f"its own dead-letter queue {own} stays (after {counted(int(old['maxReceiveCount']), 'receive')}); "
        f"to use {ours}, remove its RedrivePolicy and run this again"
    )


def _policy(current: str | None, desired: str) -> str | None:
    """Return the policy with our statement added, or None if it already has an equal one."""
    old, (ours,) = json.loads(current or "{}"), json.loads(desired)["Statement"]
    existing = old.get("Statement", [])
    statements = existing if isinstance(existing, list) else [existing]
    if any({**each, "Sid": ours["Sid"]} == ours for each in statements):
        return None
    used = {each.get("Sid") for each in statements}
    more = (f"{ours['Sid']}_{number}" for number in range(2, len(used) + 2))
    free = next(sid for sid in (ours["Sid"], *more) if sid not in used)
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
    """Return attributes in words."""
    return ", ".join(_WORDS[name](value) for name, value in attributes.items())


def _describe_redrive(value: str) -> str:
    policy = json.loads(value)
    return f"to {_name(policy['deadLetterTargetArn'])} after {counted(int(policy['maxReceiveCount']), 'receive')}"


def _describe_policy(value: str) -> str:
    rule = json.loads(value)["Statement"][-1]["Condition"]["ArnEquals"]["aws:SourceArn"]
    bus, _, name = rule.partition(":rule/")[2].rpartition("/")
    return f"admits rule {name} of bus {bus or 'default'}"


_WORDS: dict[str, Callable[[str], str]] = {
    "MessageRetentionPeriod": lambda value: f"kept for {int(value) // 86_400} d",
    "VisibilityTimeout": lambda value: f"hidden for {value} s when received",
    "FifoQueue": lambda value: "FIFO",
    "ContentBasedDeduplication": lambda value: "deduplicated by content",
    "RedrivePolicy": _describe_redrive,
    "Policy": _describe_policy,
}
