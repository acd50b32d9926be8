"""The permissions that a worker or a function needs, and no others."""

from collections.abc import Callable, Iterator
from typing import Any

from eventonce.aws_setup.plan import Bus, QueueResource, SetupPlan, Sink, StreamResource, TableResource, Topic

Resource = Sink | TableResource

# What a worker calls, and what Lambda calls to read for a function.
_RECEIVE = {
    "worker": [
        "sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:GetQueueUrl",
        "sqs:ReceiveMessage",
    ],
    "function": ["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"],
}  # fmt: skip
_READ_KINESIS = {
    "worker": ["kinesis:DescribeStreamSummary", "kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards"],
    "function": [
        "kinesis:DescribeStream", "kinesis:DescribeStreamSummary", "kinesis:GetRecords", "kinesis:GetShardIterator",
        "kinesis:ListShards",
    ],
}  # fmt: skip
_READ_TABLE = {
    "worker": ["dynamodb:DescribeStream", "dynamodb:DescribeTable", "dynamodb:GetRecords", "dynamodb:GetShardIterator"],
    "function": ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator", "dynamodb:ListStreams"],
}
_SEND = {
    QueueResource: ["sqs:GetQueueUrl", "sqs:SendMessage"],
    Topic: ["sns:Publish"],
    Bus: ["events:DescribeEventBus", "events:PutEvents"],
    StreamResource: ["kinesis:PutRecords"],
}
_REMEMBER = [
    "dynamodb:BatchGetItem", "dynamodb:DeleteItem", "dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate",
    "dynamodb:PutItem", "dynamodb:UpdateItem",
]  # fmt: skip
_CHECK = ["dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"]  # which a worker does at its start


def trust(service: Any, *, worker: bool) -> dict[str, Any]:
    """Return the trust policy of the role. A worker in a pod of EKS also tags its session."""
    actions = ["sts:AssumeRole", "sts:TagSession"] if worker else ["sts:AssumeRole"]
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}
    return {"Version": "2012-10-17", "Statement": [statement]}


def policy(plan: SetupPlan, arn: Callable[[Resource], Any], logs: Any = None) -> dict[str, Any]:
    """Return the policy of the role.

    `arn` returns how a template refers to a resource, and `logs` is the log group of a function.
    """
    statements = [
        {"Effect": "Allow", "Action": actions, "Resource": arn(resource)}
        for actions, resource in _grants(plan, function=logs is not None)
    ]
    if logs is not None:
        write = ["logs:CreateLogStream", "logs:PutLogEvents"]
        statements.append({"Effect": "Allow", "Action": write, "Resource": logs})
    return {"Version": "2012-10-17", "Statement": statements}


def _grants(plan: SetupPlan, *, function: bool) -> Iterator[tuple[list[str], Resource]]:
    reader = "function" if function else "worker"
    if plan.source is not None:
        yield _RECEIVE[reader], plan.source
    if plan.stream is not None:
        yield (_READ_TABLE if plan.stream.of_table else _READ_KINESIS)[reader], plan.stream
    if plan.letters is not None:
        yield _SEND[QueueResource], plan.letters
    if plan.sink is not None:
        new_bus = ":event-busv2/" in plan.sink.name  # which cannot be described: it has an address and not a name
        yield ["events:PutEvents"] if new_bus else _SEND[type(plan.sink)], plan.sink
    if plan.function is not None and plan.function.failed is not None:
        yield ["sqs:SendMessage"], plan.function.failed  # which Lambda does in the function's name
    if plan.table is not None:
        yield sorted(_REMEMBER if function else _REMEMBER + _CHECK), plan.table
