"""A CloudFormation or SAM template of the resources of a pipeline. It is JSON, which both read."""

import json
from typing import Any

from eventonce.aws_setup.function import INVOCATION, LOG_DAYS, mapping, properties
from eventonce.aws_setup.plan import (
    RETENTION,
    RETRY,
    Bus,
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

_SERVICES = ["ecs-tasks.amazonaws.com", "ec2.amazonaws.com", "pods.eks.amazonaws.com"]
# What must survive the stack: events that nobody has looked at, and the record of what is done.
_RETAINED = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}
_KEPT = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}  # also by a rollback, which protection stops


def cloudformation(plan: SetupPlan, *, function: bool = False) -> str:
    """Return a template with the role of a worker or of a function, and with the function if the pipeline has one."""
    template = _Template(plan)
    template.common()
    if function or plan.function is not None:
        template.function_role()
    else:
        template.worker_role()
    if plan.function is not None:
        template.function(plan.function)
    return template.text()


def sam(plan: SetupPlan) -> str:
    """Return a template with a function whose code `sam` uploads."""
    template = _Template(plan, sam=True)
    template.common()
    template.function_role()
    if plan.function is not None:
        template.function(plan.function)
    return template.text()


class _Template:
    """Collects the resources of a template."""

    def __init__(self, plan: SetupPlan, *, sam: bool = False) -> None:
        self._plan = plan
        self._sam = sam
        self._head: dict[str, Any] = {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": f"What the eventonce pipeline of consumer {plan.consumer} needs",
        }
        self._resources: dict[str, Any] = {}

    def text(self) -> str:
        return json.dumps({**self._head, "Resources": self._resources}, indent=2)

    def common(self) -> None:
        """Add everything except the worker or the function."""
        for queue in self._plan.queues:
            self._queue(queue)
        for bus in self._plan.buses:
            source = {"EventSourceName": bus.name} if bus.partner else {}
            self._add(_id(bus), "AWS::Events::EventBus", {"Name": bus.name, **source})
        if isinstance(sink := self._plan.sink, Topic) and not foreign(sink):
            fifo = {"FifoTopic": True} if sink.fifo else {}
            self._add(_id(sink), "AWS::SNS::Topic", {"TopicName": sink.name, **fifo})
        self._rule()
        if self._plan.table is not None:
            self._table(self._plan.table)

    def _add(self, name: str, kind: str, properties: dict[str, Any], **more: Any) -> None:
        self._resources[name] = {"Type": kind, **more, "Properties": properties}

    def _queue(self, queue: QueueResource) -> None:
        properties: dict[str, Any] = {
            "QueueName": queue.name,
            "MessageRetentionPeriod": RETENTION,
            "VisibilityTimeout": queue.visibility,
        }
        if queue.fifo:
            properties["FifoQueue"] = True
        if queue.by_content:
            properties["ContentBasedDeduplication"] = True
        if queue.dead is not None:
            properties["RedrivePolicy"] = {"deadLetterTargetArn": _arn(queue.dead), "maxReceiveCount": queue.receives}
        self._add(_id(queue), "AWS::SQS::Queue", properties, **_RETAINED)

    def _rule(self) -> None:
        rule = self._plan.rule
        if rule is None:
            return
        target: dict[str, Any] = {
            "Id": "eventonce",
            "Arn": _arn(rule.target),
            "RetryPolicy": RETRY,
            "DeadLetterConfig": {"Arn": _arn(rule.undelivered)},
        }
        if rule.group is not None:
            target["SqsParameters"] = {"MessageGroupId": rule.group}
        bus = rule.bus.name if rule.bus not in self._plan.buses else {"Ref": _id(rule.bus)}
        properties = {"Name": rule.name, "EventBusName": bus, "EventPattern": rule.pattern, "Targets": [target]}
        self._add("EventRule", "AWS::Events::Rule", properties)
        for queue in rule.queues:
            statement = admission(rule, _arn(queue), {"Fn::GetAtt": ["EventRule", "Arn"]})
            document = {"Version": "2012-10-17", "Statement": [statement]}
            properties = {"Queues": [{"Ref": _id(queue)}], "PolicyDocument": document}
            self._add(f"{_id(queue)}Policy", "AWS::SQS::QueuePolicy", properties)

    def _table(self, table: TableResource) -> None:
        keys = [(name, kind) for name, kind in ((table.key, "HASH"), (table.sort, "RANGE")) if name]
        properties = {
            "TableName": table.name,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keys],
            "TimeToLiveSpecification": {"AttributeName": table.ttl, "Enabled": True},
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
            "DeletionProtectionEnabled": True,
        }
        self._add(_id(table), "AWS::DynamoDB::Table", properties, **_KEPT)

    # --- the worker or the function ---

    def worker_role(self) -> None:
        parameter = {"Default": _SERVICES[0], "AllowedValues": _SERVICES}
        self._parameter("WorkerService", "What the worker runs on", **parameter)
        self._role("WorkerRole", {"Ref": "WorkerService"})

    def function_role(self) -> None:
        self._add("LogGroup", "AWS::Logs::LogGroup", {"RetentionInDays": LOG_DAYS}, **_RETAINED)
        self._role("FunctionRole", "lambda.amazonaws.com", {"Fn::GetAtt": ["LogGroup", "Arn"]})

    def _role(self, name: str, service: Any, logs: Any = None) -> None:
        permissions = {"PolicyName": "eventonce", "PolicyDocument": policy(self._plan, _arn, logs)}
        trust_policy = trust(service, worker=logs is None)
        self._add(name, "AWS::IAM::Role", {"AssumeRolePolicyDocument": trust_policy, "Policies": [permissions]})
        self._head["Outputs"] = {name: {"Value": {"Fn::GetAtt": [name, "Arn"]}}}

    def function(self, function: FunctionResource) -> None:
        arn = {"Fn::GetAtt": ["Function", "Arn"]}
        self._add(
            "Function",
            f"AWS::{'Serverless' if self._sam else 'Lambda'}::Function",
            {
                **properties(function),
                **self._code(function),
                "Role": {"Fn::GetAtt": ["FunctionRole", "Arn"]},
                "LoggingConfig": {"LogGroup": {"Ref": "LogGroup"}},
            },
        )
        kept = {}
        if function.failed is not None:
            kept = {"DestinationConfig": {"OnFailure": {"Destination": _arn(function.failed)}}}
        feed = mapping(self._plan)
        if feed is not None:
            fed = {"FunctionName": arn, "EventSourceArn": self._feed_arn(), **feed, **kept}
            self._add("Feed", "AWS::Lambda::EventSourceMapping", fed)
            return
        rule = {"Principal": "events.amazonaws.com", "SourceArn": {"Fn::GetAtt": ["EventRule", "Arn"]}}
        allowed = {"FunctionName": arn, "Action": "lambda:InvokeFunction", **rule}
        self._add("Permission", "AWS::Lambda::Permission", allowed)
        latest = {"FunctionName": {"Ref": "Function"}, "Qualifier": "$LATEST"}
        self._add("Invocation", "AWS::Lambda::EventInvokeConfig", {**latest, **INVOCATION, **kept})

    def _code(self, function: FunctionResource) -> dict[str, Any]:
        if self._sam:
            self._head["Transform"] = "AWS::Serverless-2016-10-31"
            return {"CodeUri": function.settings.code}
        if function.settings.s3 is not None:
            bucket, key = function.settings.s3
            return {"Code": {"S3Bucket": bucket, "S3Key": key}}
        code = function.settings.code
        self._parameter("CodeBucket", f"The bucket to which {code} was uploaded")
        self._parameter("CodeKey", f"The key of {code} in the bucket")
        return {"Code": {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}}}

    def _feed_arn(self) -> Any:
        stream = self._plan.stream
        if self._plan.source is not None:
            return _arn(self._plan.source)
        if stream is None or not stream.of_table or stream.name.startswith("arn:"):
            return stream and _arn(stream)
        self._parameter("StreamArn", f"The ARN of the stream of table {stream.name}")
        return {"Ref": "StreamArn"}

    def _parameter(self, name: str, description: str, **more: Any) -> None:
        self._head.setdefault("Parameters", {})[name] = {"Type": "String", **more, "Description": description}


# --- names ---


def _id(resource: Resource) -> str:
    """Return the logical id of a resource."""
    if isinstance(resource, QueueResource):
        return f"{resource.purpose.capitalize()}Queue"
    if isinstance(resource, Bus):
        return "PartnerBus" if resource.partner else f"Bus{resource.label.capitalize()}"
    return type(resource).__name__.removesuffix("Resource")


def _arn(resource: Resource | FunctionResource) -> Any:
    if isinstance(resource, FunctionResource):
        return {"Fn::GetAtt": ["Function", "Arn"]}
    if isinstance(resource, StreamResource):
        return _stream_arn(resource)
    if isinstance(resource, QueueResource) and foreign(resource):
        owner, _, name = resource.name.partition("/")
        region = resource.address.options.get("region", "${AWS::Region}")
        return {"Fn::Sub": f"arn:${{AWS::Partition}}:sqs:{region}:{owner}:{name}"}
    if not isinstance(resource, TableResource) and foreign(resource):
        return resource.name
    if isinstance(resource, Bus) and resource.name == "default":
        return {"Fn::Sub": "arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}:event-bus/default"}
    return {"Ref": _id(resource)} if isinstance(resource, Topic) else {"Fn::GetAtt": [_id(resource), "Arn"]}


def _stream_arn(stream: StreamResource) -> Any:
    """Return the ARN of a stream. For the changes of a table return those of the table and of all its streams.

    Each new stream of a table has a new name.
    """
    if stream.name.startswith("arn:"):
        return stream.name
    scope = f"{stream.address.options.get('region', '${AWS::Region}')}:${{AWS::AccountId}}"
    if not stream.of_table:
        return {"Fn::Sub": f"arn:${{AWS::Partition}}:kinesis:{scope}:stream/{stream.name}"}
    table = f"arn:${{AWS::Partition}}:dynamodb:{scope}:table/{stream.name}"
    return [{"Fn::Sub": table}, {"Fn::Sub": f"{table}/stream/*"}]
