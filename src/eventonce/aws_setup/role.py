"""What a worker or a function may do, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

from eventonce.aws_setup.plan import Bus, Plan, Queue, Sink, Table, Topic

Resource = Sink | Table

_RECEIVE = [
    "sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
]  # fmt: skip
_SEND = {
    Queue: ["sqs:GetQueueUrl", "sqs:SendMessage"],
    Topic: ["sns:Publish"],
    Bus: ["events:DescribeEventBus", "events:PutEvents"],
}
_REMEMBER = [
    "dynamodb:BatchGetItem", "dynamodb:ConditionCheckItem", "dynamodb:DeleteItem", "dynamodb:DescribeTable",
    "dynamodb:DescribeTimeToLive", "dynamodb:GetItem", "dynamodb:PartiQLDelete", "dynamodb:PartiQLInsert",
    "dynamodb:PartiQLSelect", "dynamodb:PartiQLUpdate", "dynamodb:PutItem", "dynamodb:UpdateItem",
]  # fmt: skip


def trust(service: Any, *, worker: bool) -> dict[str, Any]:
    """Who may take the role. Where a worker is a pod of EKS, that also tags its session."""
    actions = ["sts:AssumeRole", "sts:TagSession"] if worker else ["sts:AssumeRole"]
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}
    return {"Version": "2012-10-17", "Statement": [statement]}


def policy(plan: Plan, arn: Callable[[Resource], Any], logs: Any = None) -> dict[str, Any]:
    """What the role may do; `arn` tells how a template refers to something, `logs` is a function's log group."""
    statements = [
        {"Effect": "Allow", "Action": actions, "Resource": arn(resource)} for actions, resource in _grants(plan)
    ]
    if logs is not None:
        write = ["logs:CreateLogStream", "logs:PutLogEvents"]
        statements.append({"Effect": "Allow", "Action": write, "Resource": logs})
    return {"Version": "2012-10-17", "Statement": statements}


def _grants(plan: Plan) -> Iterator[tuple[list[str], Resource]]:
    if plan.source is not None:
        yield _RECEIVE, plan.source
    if plan.letters is not None:
        yield _SEND[Queue], plan.letters
    if plan.sink is not None:
        yield _SEND[type(plan.sink)], plan.sink
    if plan.table is not None:
        yield _REMEMBER, plan.table
