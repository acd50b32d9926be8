"""Making what a pipeline needs: look at what is there, say what is to be done, do it. All of it may be repeated."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from eventonce.aws_setup.account import Account
from eventonce.aws_setup.plan import (
    RETRY,
    Bus,
    EventRule,
    QueueResource,
    SetupPlan,
    StreamResource,
    TableResource,
    Topic,
    compact,
    foreign,
)
from eventonce.aws_setup.queue import Attributes, admission, changes, description, own_dead_letters, wanted
from eventonce.errors import ConfigError, EventOnceError
from eventonce.stores import open_store

Act = Callable[[], object]
Target = Mapping[str, Any]  # of a rule
# What a rule would lose that is put anew without it. Who disabled one had a reason.
_KEPT = ("Description", "RoleArn", "ScheduleExpression", "State")


class SetupStep(NamedTuple):
    """One thing to be made or changed, or that is as it should be."""

    verb: Literal["create", "change", "keep"]
    what: str
    act: Act | None = None


def look(plan: SetupPlan, account: Account) -> Iterator[SetupStep]:
    """What is to be done, in the order in which it can be done."""
    for stream in (plan.stream, plan.sink):
        if isinstance(stream, StreamResource):
            yield _stream(stream, account)
    yield from (_queue(queue, plan.rule, account) for queue in plan.queues if not _replaced(queue, plan, account))
    for bus in plan.buses:
        yield _bus(bus, account)
    if isinstance(plan.sink, Topic) and not foreign(plan.sink):
        yield _topic(plan.sink, account)
    if plan.rule is not None:
        yield from _rule(plan.rule, account)
    if plan.table is not None:
        yield _table(plan.table, account)


# --- streams, which must be there ---


def _stream(stream: StreamResource, account: Account) -> SetupStep:
    place, name = stream.place, stream.name
    if stream.of_table:
        what, remedy = f"table {name} with a stream", "turn the stream on, with NEW_AND_OLD_IMAGES or another view"
        there = _has_stream(stream, account)
    else:
        what, remedy = f"stream {name}", "make it, with as many shards as it needs"
        named = {"StreamARN": name} if name.startswith("arn:") else {"StreamName": name}
        there = account.look(place, "kinesis", "describe_stream_summary", **named) is not None
    if not there:
        raise ConfigError(f"{place.label}: {what} is not there; {remedy}, and run this again")
    return SetupStep("keep", what)


def _has_stream(stream: StreamResource, account: Account) -> bool:
    if stream.name.startswith("arn:"):
        found = account.look(stream.place, "dynamodbstreams", "describe_stream", StreamArn=stream.name)
        return found is not None
    table = account.look(stream.place, "dynamodb", "describe_table", TableName=stream.name)
    return table is not None and bool(table["Table"].get("LatestStreamArn"))


# --- queues and topics ---


def _queue(queue: QueueResource, rule: EventRule | None, account: Account) -> SetupStep:
    place, name = queue.place, queue.name
    want = _wanted(queue, rule, account)
    url = _url(queue, account)
    if url is None:
        return SetupStep(
            "create",
            f"queue {name}: {description(want)}",
            lambda: account.call(place, "sqs", "create_queue", QueueName=name, Attributes=want),
        )
    has = _attributes(queue, url, account)
    change = changes(has, want)
    kept = own_dead_letters(has.get("RedrivePolicy"), want.get("RedrivePolicy"))
    said = "; ".join(filter(None, [description(change), kept]))
    told = f"queue {name}: {said}" if said else f"queue {name}"
    return SetupStep("change", told, lambda: _change(queue, url, want, account)) if change else SetupStep("keep", told)


def _wanted(queue: QueueResource, rule: EventRule | None, account: Account) -> Attributes:
    dead_arn = account.arn(queue.place, "sqs", queue.dead.name) if queue.dead else None
    admits = None
    if rule is not None and queue in (rule.target, rule.undelivered):
        admits = admission(rule, account.arn(queue.place, "sqs", queue.name), _rule_arn(rule, account))
    return wanted(queue, dead_arn, admits)


def _change(queue: QueueResource, url: str, want: Attributes, account: Account) -> None:
    # Looked at anew: since the plan was shown, another rule may have got its right to send, in the same policy.
    change = changes(_attributes(queue, url, account), want)
    if change:
        account.call(queue.place, "sqs", "set_queue_attributes", QueueUrl=url, Attributes=change)


def _url(queue: QueueResource, account: Account) -> str | None:
    found = account.look(queue.place, "sqs", "get_queue_url", QueueName=queue.name)
    return None if found is None else found["QueueUrl"]


def _attributes(queue: QueueResource, url: str, account: Account) -> Attributes:
    asked = {"QueueUrl": url, "AttributeNames": ["All"]}
    has: Attributes = account.call(queue.place, "sqs", "get_queue_attributes", **asked).get("Attributes", {})
    return has


def _replaced(queue: QueueResource, plan: SetupPlan, account: Account) -> bool:
    """Whether nothing would lead to this queue for what goes wrong, as another one stays in its place."""
    if queue.purpose == "dead" and plan.source is not None and (url := _url(plan.source, account)) is not None:
        want = _wanted(plan.source, None, account)
        has = _attributes(plan.source, url, account)
        return own_dead_letters(has.get("RedrivePolicy"), want["RedrivePolicy"]) is not None
    if queue.purpose == "undelivered" and plan.rule is not None:
        target = _ours(plan.rule, _targets(plan.rule, account), account)
        return _own_undelivered(plan.rule, target, account) is not None
    return False


def _topic(topic: Topic, account: Account) -> SetupStep:
    arn = account.arn(topic.place, "sns", topic.name)
    if account.look(topic.place, "sns", "get_topic_attributes", TopicArn=arn) is not None:
        return SetupStep("keep", f"topic {topic.name}")
    attributes = {"FifoTopic": "true"} if topic.fifo else {}
    return SetupStep(
        "create",
        f"topic {topic.name}",
        lambda: account.call(topic.place, "sns", "create_topic", Name=topic.name, Attributes=attributes),
    )


# --- bus, rule and target ---


def _bus(bus: Bus, account: Account) -> SetupStep:
    if account.look(bus.place, "events", "describe_event_bus", Name=bus.name) is not None:
        return SetupStep("keep", f"bus {bus.name}")
    partner = {"EventSourceName": bus.name} if bus.partner else {}
    if partner and account.look(bus.place, "events", "describe_event_source", Name=bus.name) is None:
        raise ConfigError(
            f"bus {bus.name}: the partner has set up no such event source for this account and region; "
            "have it set up there first, and run this again"
        )
    return SetupStep(
        "create",
        f"bus {bus.name}" + (", for the partner's event source of that name" if partner else ""),
        lambda: account.call(bus.place, "events", "create_event_bus", Name=bus.name, **partner),
    )


def _rule_arn(rule: EventRule, account: Account) -> str:
    bus = "" if rule.bus.name == "default" else f"{rule.bus.name}/"
    return account.arn(rule.bus.place, "events", f"rule/{bus}{rule.name}")


def _rule(rule: EventRule, account: Account) -> Iterator[SetupStep]:
    place, named = rule.bus.place, {"Name": rule.name, "EventBusName": rule.bus.name}
    has = account.look(place, "events", "describe_rule", **named)
    targets = _targets(rule, account) if has is not None else []
    told = f"rule {rule.name} on bus {rule.bus.name}"
    if has is not None and json.loads(has.get("EventPattern") or "null") == json.loads(compact(rule.pattern)):
        disabled = has.get("State") == "DISABLED"
        yield SetupStep("keep", f"{told}, which is disabled: enable it when events are to come" if disabled else told)
    else:
        _refuse_shared(rule, told, targets, account)
        kept = {name: value for name, value in (has or {}).items() if name in _KEPT}
        put = {**kept, **named, "EventPattern": compact(rule.pattern)}
        verb: Literal["create", "change"] = "create" if has is None else "change"
        yield SetupStep(
            verb, f"{told}: {compact(rule.pattern)}", lambda: account.call(place, "events", "put_rule", **put)
        )
    yield _target(rule, targets, account)


def _refuse_shared(rule: EventRule, told: str, targets: Sequence[Target], account: Account) -> None:
    """With another pattern, others that the rule feeds would lose their events: mostly those of another pipeline."""
    ours = _ours(rule, targets, account)
    others = sorted({each["Arn"].rpartition(":")[2] for each in targets if each is not ours})
    if others:
        raise ConfigError(
            f"aws: {told} has another pattern and also feeds {', '.join(others)}, which would lose its events; "
            f'give this pipeline a rule of its own in [aws], such as rule = "{rule.name[:40]}-{rule.target.name[:20]}"'
        )


def _targets(rule: EventRule, account: Account) -> list[Target]:
    named = {"Rule": rule.name, "EventBusName": rule.bus.name}
    found = account.look(rule.bus.place, "events", "list_targets_by_rule", **named)
    return [] if found is None else list(found.get("Targets", []))


def _ours(rule: EventRule, targets: Sequence[Target], account: Account) -> Target | None:
    """The rule's target that is the pipeline's queue."""
    arn = account.arn(rule.bus.place, "sqs", rule.target.name)
    return next((each for each in targets if each["Arn"] == arn), None)


def _target(rule: EventRule, targets: Sequence[Target], account: Account) -> SetupStep:
    place, told = rule.bus.place, f"target of rule {rule.name}: queue {rule.target.name}"
    has = _ours(rule, targets, account)
    own = _own_undelivered(rule, has, account)
    want: dict[str, Any] = {"RetryPolicy": RETRY}
    if own is None:
        want["DeadLetterConfig"] = {"Arn": account.arn(place, "sqs", rule.undelivered.name)}
    if rule.target.fifo and "SqsParameters" not in (has or {}):
        want["SqsParameters"] = {"MessageGroupId": rule.group}
    if has is not None and all(has.get(name) == value for name, value in want.items()):
        return SetupStep("keep", told if own is None else f"{told}; {own}")
    arn = account.arn(place, "sqs", rule.target.name)
    end = f"; {own}" if own else f", and then in queue {rule.undelivered.name}"
    target = {"Id": _free_id({each["Id"] for each in targets}), "Arn": arn, **(has or {}), **want}
    return SetupStep(
        "create" if has is None else "change",
        f"{told}, tried for 24 h and up to 185 times{end}",
        lambda: _put_target(rule, target, account),
    )


def _own_undelivered(rule: EventRule, has: Target | None, account: Account) -> str | None:
    """What is said of a target whose dead letters go elsewhere: whoever set that up had a reason, so it stays."""
    own = (has or {}).get("DeadLetterConfig", {}).get("Arn")
    if own in (None, account.arn(rule.bus.place, "sqs", rule.undelivered.name)):
        return None
    return (
        f"what it cannot deliver goes to {own.rpartition(':')[2]}, which stays; "
        f"to use {rule.undelivered.name}, remove the target's DeadLetterConfig and run this again"
    )


def _free_id(taken: set[str]) -> str:
    """An id for a target. To put one under an id that is taken would take that target away."""
    more = (f"eventonce-{number}" for number in range(2, len(taken) + 2))
    return next(name for name in ("eventonce", *more) if name not in taken)


def _put_target(rule: EventRule, target: Target, account: Account) -> None:
    named = {"Rule": rule.name, "EventBusName": rule.bus.name}
    answer = account.call(rule.bus.place, "events", "put_targets", **named, Targets=[target])
    for failed in answer.get("FailedEntries", []):
        raise EventOnceError(f"rule {rule.name}: its target was refused ({failed.get('ErrorMessage')})")


# --- the table ---


def _table(table: TableResource, account: Account) -> SetupStep:
    place, told = table.place, f"table {table.name}"
    if account.look(place, "dynamodb", "describe_table", TableName=table.name) is None:
        key = table.key if table.sort is None else f"{table.key} and {table.sort}"
        return SetupStep(
            "create",
            f"{told}: key {key}, paid per request, time to live on {table.ttl}",
            lambda: _as_store(table, "create_table"),
        )
    warnings = _as_store(table, "check")  # raises where its key is another
    has = account.call(place, "dynamodb", "describe_time_to_live", TableName=table.name)["TimeToLiveDescription"]
    if has.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return SetupStep("keep", ": ".join([told, *warnings]))
    setting = {"Enabled": True, "AttributeName": table.ttl}
    return SetupStep(
        "change",
        f"{told}: time to live on {table.ttl}",
        lambda: account.call(
            place, "dynamodb", "update_time_to_live", TableName=table.name, TimeToLiveSpecification=setting
        ),
    )


def _as_store(table: TableResource, verb: str) -> Any:
    """What the store itself knows about its table."""
    store = open_store(table.url, create=False)
    try:
        return getattr(store, verb)()
    finally:
        store.close()
