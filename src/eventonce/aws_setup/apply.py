"""Creating the resources of a pipeline: look at what exists, list the steps, apply them. It may be repeated."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from eventonce.aws_setup.account import Account
from eventonce.aws_setup.apply_function import function_arn, function_steps
from eventonce.aws_setup.plan import (
    RETRY,
    Bus,
    EventRule,
    FunctionResource,
    QueueResource,
    SetupPlan,
    StreamResource,
    TableResource,
    Topic,
    compact,
    foreign,
)
from eventonce.aws_setup.queue import (
    Attributes,
    admission,
    changes,
    description,
    desired_attributes,
    own_dead_letters,
    rule_arn,
)
from eventonce.aws_setup.step import Apply, SetupStep
from eventonce.errors import ConfigError, EventOnceError
from eventonce.stores import open_store

Target = Mapping[str, Any]  # of a rule
# What put_rule would remove if it were left out. A disabled rule stays disabled.
_PRESERVED = ("Description", "RoleArn", "ScheduleExpression", "State")


def look(plan: SetupPlan, account: Account) -> Iterator[SetupStep]:
    """Return the steps, in the order in which they can be applied."""
    for stream in (plan.stream, plan.sink):
        if isinstance(stream, StreamResource):
            yield _stream(stream, account)
    yield from (_queue(queue, plan.rule, account) for queue in plan.queues if not _is_replaced(queue, plan, account))
    for bus in plan.buses:
        yield _bus(bus, account)
    if isinstance(plan.sink, Topic) and not foreign(plan.sink):
        yield _topic(plan.sink, account)
    if plan.table is not None:
        yield _table(plan.table, account)
    if plan.function is not None:
        yield from function_steps(plan, plan.function, account)
    if plan.rule is not None:
        yield from _rule(plan.rule, account)


# --- streams, which must exist ---


def _stream(stream: StreamResource, account: Account) -> SetupStep:
    address, name = stream.address, stream.name
    if stream.of_table:
        subject, remedy = f"table {name} with a stream", "turn the stream on, with NEW_AND_OLD_IMAGES or another view"
        exists = _has_stream(stream, account)
    else:
        subject, remedy = f"stream {name}", "create it, with as many shards as it needs"
        argument = {"StreamARN": name} if name.startswith("arn:") else {"StreamName": name}
        exists = account.look(address, "kinesis", "describe_stream_summary", **argument) is not None
    if not exists:
        raise ConfigError(f"{address.label}: {subject} does not exist; {remedy}, and run this again")
    return SetupStep("keep", subject)


def _has_stream(stream: StreamResource, account: Account) -> bool:
    if stream.name.startswith("arn:"):
        response = account.look(stream.address, "dynamodbstreams", "describe_stream", StreamArn=stream.name)
        return response is not None
    table = account.look(stream.address, "dynamodb", "describe_table", TableName=stream.name)
    return table is not None and bool(table["Table"].get("LatestStreamArn"))


# --- queues and topics ---


def _queue(queue: QueueResource, rule: EventRule | None, account: Account) -> SetupStep:
    address, name = queue.address, queue.name
    desired = _desired(queue, rule, account)
    url = _url(queue, account)
    if url is None:
        return SetupStep(
            "create",
            f"queue {name}: {description(desired)}",
            lambda: account.call(address, "sqs", "create_queue", QueueName=name, Attributes=desired),
        )
    current = _attributes(queue, url, account)
    change = changes(current, desired)
    note = own_dead_letters(current.get("RedrivePolicy"), desired.get("RedrivePolicy"))
    details = "; ".join(filter(None, [description(change), note]))
    summary = f"queue {name}: {details}" if details else f"queue {name}"
    if not change:
        return SetupStep("keep", summary)
    return SetupStep("change", summary, lambda: _change(queue, url, desired, account))


def _desired(queue: QueueResource, rule: EventRule | None, account: Account) -> Attributes:
    dead_arn = account.arn(queue.address, "sqs", queue.dead.name) if queue.dead else None
    statement = None
    if rule is not None and queue in rule.queues:
        statement = admission(rule, account.arn(queue.address, "sqs", queue.name), rule_arn(rule, account))
    return desired_attributes(queue, dead_arn, statement)


def _change(queue: QueueResource, url: str, desired: Attributes, account: Account) -> None:
    # Read again: since the plan was shown, another rule may have been admitted in the same policy.
    change = changes(_attributes(queue, url, account), desired)
    if change:
        account.call(queue.address, "sqs", "set_queue_attributes", QueueUrl=url, Attributes=change)


def _url(queue: QueueResource, account: Account) -> str | None:
    response = account.look(queue.address, "sqs", "get_queue_url", QueueName=queue.name)
    return None if response is None else response["QueueUrl"]


def _attributes(queue: QueueResource, url: str, account: Account) -> Attributes:
    request = {"QueueUrl": url, "AttributeNames": ["All"]}
    current: Attributes = account.call(queue.address, "sqs", "get_queue_attributes", **request).get("Attributes", {})
    return current


def _is_replaced(queue: QueueResource, plan: SetupPlan, account: Account) -> bool:
    """Return whether this queue for failures would stay unused, because an existing one is used."""
    if queue.purpose == "dead" and plan.source is not None and (url := _url(plan.source, account)) is not None:
        desired = _desired(plan.source, None, account)
        current = _attributes(plan.source, url, account)
        return own_dead_letters(current.get("RedrivePolicy"), desired["RedrivePolicy"]) is not None
    if queue.purpose == "undelivered" and plan.rule is not None:
        target = _ours(plan.rule, _targets(plan.rule, account), account)
        return _own_undelivered(plan.rule, target, account) is not None
    return False


def _topic(topic: Topic, account: Account) -> SetupStep:
    arn = account.arn(topic.address, "sns", topic.name)
    if account.look(topic.address, "sns", "get_topic_attributes", TopicArn=arn) is not None:
        return SetupStep("keep", f"topic {topic.name}")
    attributes = {"FifoTopic": "true"} if topic.fifo else {}
    return SetupStep(
        "create",
        f"topic {topic.name}",
        lambda: account.call(topic.address, "sns", "create_topic", Name=topic.name, Attributes=attributes),
    )


# --- bus, rule and target ---


def _bus(bus: Bus, account: Account) -> SetupStep:
    if account.look(bus.address, "events", "describe_event_bus", Name=bus.name) is not None:
        return SetupStep("keep", f"bus {bus.name}")
    partner = {"EventSourceName": bus.name} if bus.partner else {}
    if partner and account.look(bus.address, "events", "describe_event_source", Name=bus.name) is None:
        raise ConfigError(
            f"bus {bus.name}: the partner has no such event source for this account and region; "
            "have the partner set it up, and run this again"
        )
    return SetupStep(
        "create",
        f"bus {bus.name}" + (", for the partner's event source of that name" if partner else ""),
        lambda: account.call(bus.address, "events", "create_event_bus", Name=bus.name, **partner),
    )


def _rule(rule: EventRule, account: Account) -> Iterator[SetupStep]:
    address, names = rule.bus.address, {"Name": rule.name, "EventBusName": rule.bus.name}
    current = account.look(address, "events", "describe_rule", **names)
    targets = _targets(rule, account) if current is not None else []
    summary = f"rule {rule.name} on bus {rule.bus.name}"
    if current is not None and json.loads(current.get("EventPattern") or "null") == json.loads(compact(rule.pattern)):
        disabled = current.get("State") == "DISABLED"
        yield SetupStep("keep", f"{summary}, which is disabled: enable it to receive events" if disabled else summary)
    else:
        _refuse_shared(rule, summary, targets, account)
        preserved = {name: value for name, value in (current or {}).items() if name in _PRESERVED}
        arguments = {**preserved, **names, "EventPattern": compact(rule.pattern)}
        verb: Literal["create", "change"] = "create" if current is None else "change"
        yield SetupStep(
            verb,
            f"{summary}: {compact(rule.pattern)}",
            lambda: account.call(address, "events", "put_rule", **arguments),
        )
    yield _target(rule, targets, account)


def _refuse_shared(rule: EventRule, summary: str, targets: Sequence[Target], account: Account) -> None:
    """Raise `ConfigError` if the rule has other targets, which would lose their events."""
    ours = _ours(rule, targets, account)
    others = sorted({each["Arn"].rpartition(":")[2] for each in targets if each is not ours})
    if others:
        raise ConfigError(
            f"aws: {summary} has another pattern and also feeds {', '.join(others)}, which would lose its events; "
            f'use another rule for this pipeline in [aws], such as rule = "{rule.name[:40]}-{rule.target.name[:20]}"'
        )


def _targets(rule: EventRule, account: Account) -> list[Target]:
    names = {"Rule": rule.name, "EventBusName": rule.bus.name}
    response = account.look(rule.bus.address, "events", "list_targets_by_rule", **names)
    return [] if response is None else list(response.get("Targets", []))


def _ours(rule: EventRule, targets: Sequence[Target], account: Account) -> Target | None:
    """Return the rule's target that is the pipeline's queue or function, if any."""
    arn = _target_arn(rule, account)
    return next((each for each in targets if each["Arn"] == arn), None)


def _target_arn(rule: EventRule, account: Account) -> str:
    if isinstance(rule.target, FunctionResource):
        return function_arn(rule.target, account)
    return account.arn(rule.bus.address, "sqs", rule.target.name)


def _target(rule: EventRule, targets: Sequence[Target], account: Account) -> SetupStep:
    address, summary = rule.bus.address, f"target of rule {rule.name}: {rule.target.kind} {rule.target.name}"
    current = _ours(rule, targets, account)
    own = _own_undelivered(rule, current, account)
    desired: dict[str, Any] = {"RetryPolicy": RETRY}
    if own is None:
        desired["DeadLetterConfig"] = {"Arn": account.arn(address, "sqs", rule.undelivered.name)}
    if rule.group is not None and "SqsParameters" not in (current or {}):
        desired["SqsParameters"] = {"MessageGroupId": rule.group}
    if current is not None and all(current.get(name) == value for name, value in desired.items()):
        return SetupStep("keep", summary if own is None else f"{summary}; {own}")
    suffix = f"; {own}" if own else f", and then in queue {rule.undelivered.name}"
    target = {
        "Id": _free_id({each["Id"] for each in targets}),
        "Arn": _target_arn(rule, account),
        **(current or {}),
        **desired,
    }
    return SetupStep(
        "create" if current is None else "change",
        f"{summary}, tried for 24 h and up to 185 times{suffix}",
        lambda: _put_target(rule, target, account),
    )


def _own_undelivered(rule: EventRule, current: Target | None, account: Account) -> str | None:
    """Return a note on a target whose dead letters go elsewhere. Somebody chose that, so it stays."""
    own = (current or {}).get("DeadLetterConfig", {}).get("Arn")
    if own in (None, account.arn(rule.bus.address, "sqs", rule.undelivered.name)):
        return None
    return (
        f"what it cannot deliver goes to {own.rpartition(':')[2]}, which stays; "
        f"to use {rule.undelivered.name}, remove the target's DeadLetterConfig and run this again"
    )


def _free_id(used: set[str]) -> str:
    """Return an unused id for a target: put_targets replaces the target that has the same id."""
    more = (f"eventonce-{number}" for number in range(2, len(used) + 2))
    return next(name for name in ("eventonce", *more) if name not in used)


def _put_target(rule: EventRule, target: Target, account: Account) -> None:
    names = {"Rule": rule.name, "EventBusName": rule.bus.name}
    response = account.call(rule.bus.address, "events", "put_targets", **names, Targets=[target])
    for entry in response.get("FailedEntries", []):
        raise EventOnceError(f"rule {rule.name}: its target was refused ({entry.get('ErrorMessage')})")


# --- the table ---


def _table(table: TableResource, account: Account) -> SetupStep:
    address, summary = table.address, f"table {table.name}"
    description = account.look(address, "dynamodb", "describe_table", TableName=table.name)
    if description is None:
        key = table.key if table.sort is None else f"{table.key} and {table.sort}"
        words = ", ".join(["paid per request", f"time to live on {table.ttl}", _BACKUPS, _PROTECTION])
        return SetupStep("create", f"{summary}: key {key}, {words}", lambda: _create_table(table, account))
    warnings = _call_store(table, "check")  # raises if its key is another
    changes = list(_table_changes(table, description["Table"], account))
    if not changes:
        return SetupStep("keep", ": ".join([summary, *warnings]))
    words = ", ".join(name for name, _ in changes)
    return SetupStep("change", f"{summary}: {words}", lambda: [apply() for _, apply in changes])


def _create_table(table: TableResource, account: Account) -> None:
    _call_store(table, "create_table")
    _back_up(table, account)
    _protect(table, account)


def _table_changes(
    table: TableResource, description: Mapping[str, Any], account: Account
) -> Iterator[tuple[str, Apply]]:
    name = {"TableName": table.name}
    expiry = account.call(table.address, "dynamodb", "describe_time_to_live", **name)["TimeToLiveDescription"]
    if expiry.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        yield f"time to live on {table.ttl}", lambda: _expire(table, account)
    response = account.call(table.address, "dynamodb", "describe_continuous_backups", **name)
    backups = response["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    if backups.get("PointInTimeRecoveryStatus") != "ENABLED":
        yield _BACKUPS, lambda: _back_up(table, account)
    if not description.get("DeletionProtectionEnabled"):
        yield _PROTECTION, lambda: _protect(table, account)


def _expire(table: TableResource, account: Account) -> None:
    setting = {"Enabled": True, "AttributeName": table.ttl}
    account.call(
        table.address, "dynamodb", "update_time_to_live", TableName=table.name, TimeToLiveSpecification=setting
    )


def _back_up(table: TableResource, account: Account) -> None:
    setting = {"PointInTimeRecoveryEnabled": True}
    account.call(
        table.address,
        "dynamodb",
        "update_continuous_backups",
        TableName=table.name,
        PointInTimeRecoverySpecification=setting,
    )


def _protect(table: TableResource, account: Account) -> None:
    account.call(table.address, "dynamodb", "update_table", TableName=table.name, DeletionProtectionEnabled=True)


_BACKUPS, _PROTECTION = "point-in-time recovery", "deletion protection"


def _call_store(table: TableResource, verb: str) -> Any:
    """Call a method of the store of a table, and return its result."""
    store = open_store(table.url, create=False)
    try:
        return getattr(store, verb)()
    finally:
        store.close()
