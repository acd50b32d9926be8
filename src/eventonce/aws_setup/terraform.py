"""What a pipeline needs, as Terraform in its JSON syntax, for a file whose name ends in `.tf.json`."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from eventonce.aws_setup.function import INVOCATION, LOG_DAYS, mapping, properties
from eventonce.aws_setup.plan import (
    RETENTION,
    RETRY,
    Bus,
    EventRule,
    FunctionResource,
    QueueResource,
    SetupPlan,
    StreamResource,
    TableResource,
    Topic,
    foreign,
)
from eventonce.aws_setup.queue import admission
from eventonce.aws_setup.role import Resource, policy, trust

_Block = tuple[str, dict[str, Any]]  # its address, such as resource.aws_sqs_queue.source, and its arguments


def terraform(plan: SetupPlan, *, function: bool = False) -> str:
    """Return a configuration with the role of a worker or of a function, and with the function if there is one."""
    blocks: dict[str, Any] = {}
    user = _function_role if function or plan.function is not None else _worker_role
    made = () if plan.function is None else _function(plan, plan.function)
    for address, body in (*_common(plan), *user(plan), *made):
        *parents, label = address.split(".")
        inner = blocks
        for name in parents:
            inner = inner.setdefault(name, {})
        inner[label] = body
    return json.dumps(_escape(blocks), indent=2)


def _common(plan: SetupPlan) -> Iterator[_Block]:
    """Everything but who uses it."""
    yield from map(_queue, plan.queues)
    yield from _place(plan)
    for bus in plan.buses:
        source = {"event_source_name": bus.name} if bus.partner else {}
        yield f"resource.{_address(bus)}", {"name": bus.name, **source}
    if isinstance(plan.sink, Topic) and not foreign(plan.sink):
        yield f"resource.{_address(plan.sink)}", {"name": plan.sink.name, "fifo_topic": plan.sink.fifo}
    if isinstance(plan.sink, Bus) and plan.sink.name == "default":
        yield "data.aws_cloudwatch_event_bus.default", {"name": "default"}
    for stream in (plan.stream, plan.sink):
        if isinstance(stream, StreamResource) and not stream.name.startswith("arn:"):
            yield _stream_address(stream), {"name": stream.name}
    if plan.rule is not None:
        yield from _rule(plan.rule, plan)
    if plan.table is not None:
        yield _table(plan.table)


def _place(plan: SetupPlan) -> Iterator[_Block]:
    """The partition and the region, which the ARN of a queue of another account needs."""
    if any(isinstance(each, QueueResource) and foreign(each) for each in (plan.source, plan.letters, plan.sink)):
        yield "data.aws_partition.current", {}
        yield "data.aws_region.current", {}


def _queue(queue: QueueResource) -> _Block:
    body: dict[str, Any] = {
        "name": queue.name,
        "message_retention_seconds": RETENTION,
        "visibility_timeout_seconds": queue.visibility,
    }
    if queue.fifo:
        body["fifo_queue"] = True
    if queue.by_content:
        body["content_based_deduplication"] = True
    if queue.dead is not None:
        redrive = {"deadLetterTargetArn": _arn(queue.dead), "maxReceiveCount": queue.receives}
        body["redrive_policy"] = _json(redrive)
    return f"resource.{_address(queue)}", body


def _rule(rule: EventRule, plan: SetupPlan) -> Iterator[_Block]:
    bus = _reference(f"{_address(rule.bus)}.name") if rule.bus in plan.buses else rule.bus.name
    pattern = {"name": rule.name, "event_bus_name": bus, "event_pattern": _json(rule.pattern)}
    yield "resource.aws_cloudwatch_event_rule.rule", pattern
    target: dict[str, Any] = {
        "rule": _reference("aws_cloudwatch_event_rule.rule.name"),
        "event_bus_name": bus,
        "target_id": "eventonce",
        "arn": _arn(rule.target),
        "retry_policy": {
            "maximum_event_age_in_seconds": RETRY["MaximumEventAgeInSeconds"],
            "maximum_retry_attempts": RETRY["MaximumRetryAttempts"],
        },
        "dead_letter_config": {"arn": _arn(rule.undelivered)},
    }
    if rule.group is not None:
        target["sqs_target"] = {"message_group_id": rule.group}
    yield "resource.aws_cloudwatch_event_target.target", target
    for queue in rule.queues:
        admits = admission(rule, _arn(queue), _reference("aws_cloudwatch_event_rule.rule.arn"))
        document = _json({"Version": "2012-10-17", "Statement": [admits]})
        body = {"queue_url": _reference(f"{_address(queue)}.url"), "policy": document}
        yield f"resource.aws_sqs_queue_policy.{queue.purpose}", body


def _table(table: TableResource) -> _Block:
    keys = [name for name in (table.key, table.sort) if name]
    body = {
        "name": table.name,
        "billing_mode": "PAY_PER_REQUEST",
        **dict(zip(("hash_key", "range_key"), keys, strict=False)),
        "attribute": [{"name": name, "type": "S"} for name in keys],
        "ttl": {"attribute_name": table.ttl, "enabled": True},
        "point_in_time_recovery": {"enabled": True},
        "deletion_protection_enabled": True,
    }
    return f"resource.{_address(table)}", body


# --- who uses it ---


def _worker_role(plan: SetupPlan) -> Iterator[_Block]:
    parameter = {"type": "string", "default": "ecs-tasks.amazonaws.com"}
    yield "variable.worker_service", {"description": "What the worker runs on", **parameter}
    yield from _role(plan, "worker", _reference("var.worker_service"))


def _function_role(plan: SetupPlan) -> Iterator[_Block]:
    group = {"name_prefix": "/aws/lambda/eventonce-", "retention_in_days": LOG_DAYS}
    yield "resource.aws_cloudwatch_log_group.function", group
    streams = _Template(_reference("aws_cloudwatch_log_group.function.arn") + ":*")
    yield from _role(plan, "function", "lambda.amazonaws.com", streams)


def _role(plan: SetupPlan, name: str, service: str, logs: str | None = None) -> Iterator[_Block]:
    role = f"aws_iam_role.{name}"
    trusted = _json(trust(service, worker=logs is None))
    yield f"resource.{role}", {"name_prefix": "eventonce-", "assume_role_policy": trusted}
    allowed = _json(policy(plan, _arn, logs))
    yield (
        f"resource.aws_iam_role_policy.{name}",
        {"name": "eventonce", "role": _reference(f"{role}.id"), "policy": allowed},
    )
    yield f"output.{name}_role", {"value": _reference(f"{role}.arn")}


def _function(plan: SetupPlan, function: FunctionResource) -> Iterator[_Block]:
    log = {"log_format": "Text", "log_group": _reference("aws_cloudwatch_log_group.function.name")}
    role = {"role": _reference("aws_iam_role.function.arn"), "logging_config": log}
    yield "resource.aws_lambda_function.function", {**_snake(properties(function)), **_code(function), **role}
    feed = mapping(plan)
    yield from _invocation(function) if feed is None else _feed(plan, feed)


def _code(function: FunctionResource) -> dict[str, Any]:
    if function.settings.s3 is not None:
        bucket, key = function.settings.s3
        return {"s3_bucket": bucket, "s3_key": key}
    code = function.settings.code
    quoted = json.dumps(_escape(code), ensure_ascii=False)
    return {"filename": code, "source_code_hash": _reference(f"filebase64sha256({quoted})")}


def _feed(plan: SetupPlan, feed: dict[str, Any]) -> Iterator[_Block]:
    """A queue or a stream that feeds the function."""
    body = _snake(feed)
    if plan.function is not None and plan.function.failed is not None:
        body["destination_config"] = {"on_failure": {"destination_arn": _arn(plan.function.failed)}}
    arn = _arn(plan.source) if plan.source is not None else plan.stream and _feed_arn(plan.stream)
    ends = {"function_name": _reference("aws_lambda_function.function.arn"), "event_source_arn": arn}
    allowed = {"depends_on": ["aws_iam_role_policy.function"]}  # Lambda refuses a mapping that it may not read
    yield "resource.aws_lambda_event_source_mapping.feed", {**ends, **body, **allowed}


def _feed_arn(stream: StreamResource) -> Any:
    by_name = stream.of_table and not stream.name.startswith("arn:")
    return _reference(f"{_stream_address(stream)}.stream_arn") if by_name else _stream_arn(stream)


def _invocation(function: FunctionResource) -> Iterator[_Block]:
    """A rule that invokes the function."""
    name = {"function_name": _reference("aws_lambda_function.function.function_name")}
    rule = _reference("aws_cloudwatch_event_rule.rule.arn")
    permission = {"action": "lambda:InvokeFunction", "principal": "events.amazonaws.com", "source_arn": rule}
    yield "resource.aws_lambda_permission.rule", {**name, **permission}
    if function.failed is not None:
        kept = {"destination_config": {"on_failure": {"destination": _arn(function.failed)}}}
        allowed = {"depends_on": ["aws_iam_role_policy.function"]}
        body = {**name, **_snake(INVOCATION), **kept, **allowed}
        yield "resource.aws_lambda_function_event_invoke_config.function", body


def _snake(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties under the names that Terraform has for them."""
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): value for name, value in properties.items()}


# --- names ---

_TYPES = {
    QueueResource: "aws_sqs_queue",
    Topic: "aws_sns_topic",
    Bus: "aws_cloudwatch_event_bus",
    TableResource: "aws_dynamodb_table",
}


def _address(resource: Resource) -> str:
    """Return how expressions refer to a resource."""
    label = (
        resource.purpose
        if isinstance(resource, QueueResource)
        else type(resource).__name__.removesuffix("Resource").lower()
    )
    if isinstance(resource, Bus):
        label = "partner" if resource.partner else f"bus_{resource.label}"
    return f"{_TYPES[type(resource)]}.{label}"


def _stream_address(stream: StreamResource) -> str:
    """Return how expressions refer to a stream, which is someone else's resource."""
    return f"data.{'aws_dynamodb_table' if stream.of_table else 'aws_kinesis_stream'}.{stream.purpose}"


def _arn(resource: Resource | FunctionResource) -> Any:
    if isinstance(resource, FunctionResource):
        return _reference("aws_lambda_function.function.arn")
    if isinstance(resource, StreamResource):
        return _stream_arn(resource)
    if isinstance(resource, QueueResource) and foreign(resource):
        owner, _, name = resource.name.partition("/")
        region = _escape(resource.address.options.get("region")) or _reference("data.aws_region.current.id")
        return _Template(f"arn:{_reference('data.aws_partition.current.partition')}:sqs:{region}:{owner}:{name}")
    if not isinstance(resource, TableResource) and foreign(resource):
        return resource.name
    if isinstance(resource, Bus) and resource.name == "default":
        return _reference("data.aws_cloudwatch_event_bus.default.arn")
    return _reference(f"{_address(resource)}.arn")


def _stream_arn(stream: StreamResource) -> Any:
    if stream.name.startswith("arn:"):
        return stream.name
    address = _stream_address(stream)
    if not stream.of_table:
        return _reference(f"{address}.arn")
    return [_reference(f"{address}.{name}") for name in ("arn", "stream_arn")]


# --- strings, each of which is a template in this syntax ---


class _Template(str):
    """A string in which `${...}` is an expression."""

    __slots__ = ()


def _reference(expression: str) -> _Template:
    return _Template(f"${{{expression}}}")


def _json(document: Any) -> _Template:
    """Return an argument that is a document in JSON. References are replaced inside its text."""
    return _Template(json.dumps(_escape(document), separators=(",", ":")))


def _escape(value: Any) -> Any:
    """Return the value with every string written so that Terraform reads plain text as it is."""
    if isinstance(value, dict):
        return {_escape(name): _escape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    if isinstance(value, str) and not isinstance(value, _Template):
        return value.replace("${", "$${").replace("%{", "%%{")
    return value
