"""What a pipeline needs, as Terraform, laid out as `terraform fmt` would."""

from typing import Any

from eventonce.aws_setup.hcl import Block, Reference, block, encoded
from eventonce.aws_setup.plan import (
    RETENTION,
    RETRY,
    Bus,
    EventRule,
    QueueResource,
    SetupPlan,
    StreamResource,
    TableResource,
    Topic,
    foreign,
)
from eventonce.aws_setup.queue import admission
from eventonce.aws_setup.role import Resource, policy, trust


def terraform(plan: SetupPlan, *, function: bool = False) -> str:
    """Resources, with the role of a worker, or of a function."""
    blocks = [_queue(queue) for queue in plan.queues]
    blocks += [_bus(bus) for bus in plan.buses]
    if isinstance(plan.sink, Topic) and not foreign(plan.sink):
        blocks.append(_resource(plan.sink, {"name": plan.sink.name, "fifo_topic": plan.sink.fifo}))
    if isinstance(plan.sink, Bus) and plan.sink.name == "default":
        blocks.append(block("data", "aws_cloudwatch_event_bus", "default", body={"name": "default"}))
    blocks += [_looked_up(each) for each in (plan.stream, plan.sink) if isinstance(each, StreamResource)]
    blocks += _rule(plan.rule, plan) if plan.rule is not None else []
    blocks += [_table(plan.table)] if plan.table is not None else []
    blocks += _function_role(plan) if function else _worker_role(plan)
    return "\n".join(filter(None, blocks)).rstrip("\n")


def _queue(queue: QueueResource) -> str:
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
        body["redrive_policy"] = encoded(redrive)
    return _resource(queue, body)


def _looked_up(stream: StreamResource) -> str:
    """A stream that someone else made, or nothing where its name says it all."""
    if stream.name.startswith("arn:"):
        return ""
    kind = "aws_dynamodb_table" if stream.of_table else "aws_kinesis_stream"
    return block("data", kind, stream.purpose, body={"name": stream.name})


def _bus(bus: Bus) -> str:
    return _resource(bus, {"name": bus.name} | ({"event_source_name": bus.name} if bus.partner else {}))


def _rule(rule: EventRule, plan: SetupPlan) -> list[str]:
    bus = Reference(f"{_label(rule.bus)}.name") if rule.bus in plan.buses else rule.bus.name
    target = {
        "rule": Reference("aws_cloudwatch_event_rule.rule.name"),
        "event_bus_name": bus,
        "target_id": "eventonce",
        "arn": _arn(rule.target),
        "retry_policy": Block(
            maximum_event_age_in_seconds=RETRY["MaximumEventAgeInSeconds"],
            maximum_retry_attempts=RETRY["MaximumRetryAttempts"],
        ),
        "dead_letter_config": Block(arn=_arn(rule.undelivered)),
    }
    if rule.target.fifo:
        target["sqs_target"] = Block(message_group_id=rule.group)
    named = {"name": rule.name, "event_bus_name": bus, "event_pattern": encoded(rule.pattern)}
    return [
        block("resource", "aws_cloudwatch_event_rule", "rule", body=named),
        block("resource", "aws_cloudwatch_event_target", "queue", body=target),
        *(_queue_policy(queue, rule) for queue in (rule.target, rule.undelivered)),
    ]


def _queue_policy(queue: QueueResource, rule: EventRule) -> str:
    admits = admission(rule, _arn(queue), Reference("aws_cloudwatch_event_rule.rule.arn"))
    body = {
        "queue_url": Reference(f"{_label(queue)}.url"),
        "policy": encoded({"Version": "2012-10-17", "Statement": [admits]}),
    }
    return block("resource", "aws_sqs_queue_policy", queue.purpose, body=body)


def _table(table: TableResource) -> str:
    keys = [name for name in (table.key, table.sort) if name]
    body = {"name": table.name, "billing_mode": "PAY_PER_REQUEST"}
    body |= dict(zip(("hash_key", "range_key"), keys, strict=False))
    attributes = [Block(name=name, type="S") for name in keys]
    return _resource(table, {**body, "attribute": attributes, "ttl": Block(attribute_name=table.ttl, enabled=True)})


# --- who uses it ---


def _worker_role(plan: SetupPlan) -> list[str]:
    variable = {
        "description": "What the worker runs on",
        "type": Reference("string"),
        "default": "ecs-tasks.amazonaws.com",
    }
    return [
        block("variable", "worker_service", body=variable),
        *_role(plan, "worker", Reference("var.worker_service")),
    ]


def _function_role(plan: SetupPlan) -> list[str]:
    group = {"name_prefix": "/aws/lambda/eventonce-", "retention_in_days": 30}
    streams = Reference('"${aws_cloudwatch_log_group.function.arn}:*"')
    return [
        block("resource", "aws_cloudwatch_log_group", "function", body=group),
        *_role(plan, "function", "lambda.amazonaws.com", streams),
    ]


def _role(plan: SetupPlan, name: str, service: Any, logs: Any = None) -> list[str]:
    role = {"name_prefix": "eventonce-", "assume_role_policy": encoded(trust(service, worker=logs is None))}
    allowed = {"role": Reference(f"aws_iam_role.{name}.id"), "policy": encoded(policy(plan, _arn, logs))}
    return [
        block("resource", "aws_iam_role", name, body=role),
        block("resource", "aws_iam_role_policy", name, body=allowed),
        block("output", f"{name}_role", body={"value": Reference(f"aws_iam_role.{name}.arn")}),
    ]


# --- names ---

_KINDS = {
    QueueResource: "aws_sqs_queue",
    Topic: "aws_sns_topic",
    Bus: "aws_cloudwatch_event_bus",
    TableResource: "aws_dynamodb_table",
}


def _resource(resource: Resource, body: dict[str, Any]) -> str:
    kind, _, name = _label(resource).partition(".")
    return block("resource", kind, name, body=body)


def _label(resource: Resource) -> str:
    """How others refer to something."""
    name = (
        resource.purpose
        if isinstance(resource, QueueResource)
        else type(resource).__name__.removesuffix("Resource").lower()
    )
    if isinstance(resource, Bus):
        name = "partner" if resource.partner else f"bus_{resource.label}"
    return f"{_KINDS[type(resource)]}.{name}"


def _arn(resource: Resource) -> Any:
    if isinstance(resource, StreamResource):
        return _stream_arn(resource)
    if isinstance(resource, QueueResource) and foreign(resource):
        owner, _, name = resource.name.partition("/")
        return f"arn:*:sqs:{resource.address.options.get('region', '*')}:{owner}:{name}"
    if not isinstance(resource, TableResource) and foreign(resource):
        return resource.name
    if isinstance(resource, Bus) and resource.name == "default":
        return Reference("data.aws_cloudwatch_event_bus.default.arn")
    return Reference(f"{_label(resource)}.arn")


def _stream_arn(stream: StreamResource) -> Any:
    if stream.name.startswith("arn:"):
        return stream.name
    if not stream.of_table:
        return Reference(f"data.aws_kinesis_stream.{stream.purpose}.arn")
    return [Reference(f"data.aws_dynamodb_table.{stream.purpose}.{name}") for name in ("arn", "stream_arn")]
