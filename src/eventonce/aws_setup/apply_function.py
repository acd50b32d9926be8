"""Creating the function of a pipeline, with its log, its role and what invokes it. It may be repeated."""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eventonce.aws_setup.account import Account
from eventonce.aws_setup.function import INVOCATION, LOG_DAYS, mapping, properties
from eventonce.aws_setup.plan import (
    Bus,
    EventRule,
    FunctionResource,
    QueueResource,
    SetupPlan,
    StreamResource,
    TableResource,
    Topic,
)
from eventonce.aws_setup.queue import rule_arn, statement_id
from eventonce.aws_setup.role import Resource, policy, trust
from eventonce.aws_setup.step import SetupStep
from eventonce.errors import ConfigError, EventOnceError

_MAX_ZIP = 50_000_000  # bytes: the limit of Lambda for code that is not in S3
_POLL, _TIMEOUT = 1, 60  # seconds: a new role takes some to be known everywhere
_POLICY = "eventonce"  # the name of our policy in the role


def function_steps(plan: SetupPlan, function: FunctionResource, account: Account) -> Iterator[SetupStep]:
    """Return the steps, in the order in which they can be applied. An existing function keeps its role and its log."""
    current = account.look(function.address, "lambda", "get_function_configuration", FunctionName=function.name) or {}
    log = current.get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{function.name}"
    role = current.get("Role", function.name).rpartition("/")[2]
    yield _log_group(function, log, account)
    yield _role(plan, function, role, log, account)
    yield _function(function, current, account)
    source = plan.source or plan.stream
    if source is not None:
        yield _feed(plan, function, source, account)
    elif plan.rule is not None:
        yield _permission(plan.rule, function, account)
        yield _invocation(function, account)


def function_arn(function: FunctionResource, account: Account) -> str:
    """Return the ARN of the function, whether it exists or not."""
    return account.arn(function.address, "lambda", f"function:{function.name}")


# --- log and role ---


def _log_group(function: FunctionResource, name: str, account: Account) -> SetupStep:
    address = function.address
    groups = account.call(address, "logs", "describe_log_groups", logGroupNamePrefix=name)["logGroups"]
    if any(group["logGroupName"] == name for group in groups):
        return SetupStep("keep", f"log group {name}")

    def create() -> None:
        account.call(address, "logs", "create_log_group", logGroupName=name)
        account.call(address, "logs", "put_retention_policy", logGroupName=name, retentionInDays=LOG_DAYS)

    return SetupStep("create", f"log group {name}: kept for {LOG_DAYS} d", create)


def _role(plan: SetupPlan, function: FunctionResource, name: str, log: str, account: Account) -> SetupStep:
    address = function.address
    logs = account.arn(address, "logs", f"log-group:{log}:*")
    desired = policy(plan, lambda resource: _arn(resource, account), logs)

    def allow() -> None:
        document = json.dumps(desired)
        account.call(address, "iam", "put_role_policy", RoleName=name, PolicyName=_POLICY, PolicyDocument=document)

    def create() -> None:
        trusted = json.dumps(trust("lambda.amazonaws.com", worker=False))
        account.call(address, "iam", "create_role", RoleName=name, AssumeRolePolicyDocument=trusted)
        allow()

    if account.look(address, "iam", "get_role", RoleName=name) is None:
        return SetupStep("create", f"role {name}: may do what the function does, and no more", create)
    current = account.look(address, "iam", "get_role_policy", RoleName=name, PolicyName=_POLICY)
    if current is not None and current["PolicyDocument"] == desired:
        return SetupStep("keep", f"role {name}")
    return SetupStep("change", f"role {name}: its policy {_POLICY}", allow)


def _arn(resource: Resource, account: Account) -> Any:
    address, name = resource.address, resource.name
    if name.startswith("arn:"):
        return name
    if isinstance(resource, QueueResource):
        owner, _, bare = name.rpartition("/")
        parts = account.arn(address, "sqs", bare).split(":")
        return ":".join([*parts[:4], owner or parts[4], bare])
    if isinstance(resource, TableResource) or (isinstance(resource, StreamResource) and resource.of_table):
        table = account.arn(address, "dynamodb", f"table/{name}")
        # Each new stream of a table has a new name.
        return table if isinstance(resource, TableResource) else [table, f"{table}/stream/*"]
    service, prefix = _FORMS[type(resource)]
    return account.arn(address, service, prefix + name)


_FORMS = {Topic: ("sns", ""), Bus: ("events", "event-bus/"), StreamResource: ("kinesis", "stream/")}


# --- the function ---


def _function(function: FunctionResource, current: Mapping[str, Any], account: Account) -> SetupStep:
    desired, code = properties(function), _code(function)
    summary = f"function {function.name}"
    if not current:
        details = f"{desired['Handler']} in {function.settings.code}, {desired['MemorySize']} MB"
        return SetupStep(
            "create", f"{summary}: {details}", lambda: _create(function, {**desired, "Code": code}, account)
        )
    change: dict[str, Any] = {
        name: desired[name] for name in ("MemorySize", "Timeout") if current.get(name, 0) < desired[name]
    }
    if current.get("Handler") != desired["Handler"]:
        change["Handler"] = desired["Handler"]
    architecture = {"Architectures": desired["Architectures"]}
    is_same = current.get("Architectures", ["x86_64"]) == desired["Architectures"] and _is_deployed(code, current)
    new_code = {} if is_same else {**code, **architecture}
    if not change and not new_code:
        return SetupStep("keep", summary)
    words = [f"{name} {value}" for name, value in change.items()] + ["its code"] * bool(new_code)
    return SetupStep("change", f"{summary}: {', '.join(words)}", lambda: _update(function, change, new_code, account))


def _code(function: FunctionResource) -> dict[str, Any]:
    if function.settings.s3 is not None:
        bucket, key = function.settings.s3
        return {"S3Bucket": bucket, "S3Key": key}
    label = f"function: code: {function.settings.code}"
    try:
        code = Path(function.settings.code).read_bytes()
    except OSError as error:
        raise ConfigError(f"{label}: {error.strerror}; name a zip file of the function, or s3://BUCKET/KEY") from None
    if len(code) > _MAX_ZIP:
        raise ConfigError(f"{label}: is over {_MAX_ZIP // 10**6} MB; put it into a bucket, and write s3://BUCKET/KEY")
    return {"ZipFile": code}


def _is_deployed(code: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Return whether the function has this code. The digest of code in S3 is unknown."""
    if "ZipFile" not in code:
        return True
    return base64.b64encode(hashlib.sha256(code["ZipFile"]).digest()).decode() == current.get("CodeSha256")


def _create(function: FunctionResource, arguments: Mapping[str, Any], account: Account) -> None:
    role = account.call(function.address, "iam", "get_role", RoleName=function.name)["Role"]["Arn"]
    _when_role_is_known(lambda: account.call(function.address, "lambda", "create_function", **arguments, Role=role))
    _wait(function, account)


def _update(function: FunctionResource, change: dict[str, Any], code: dict[str, Any], account: Account) -> None:
    name = {"FunctionName": function.name}
    if change:
        account.call(function.address, "lambda", "update_function_configuration", **name, **change)
        _wait(function, account)
    if code:
        account.call(function.address, "lambda", "update_function_code", **name, **code)
        _wait(function, account)


def _wait(function: FunctionResource, account: Account) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        current = account.call(function.address, "lambda", "get_function_configuration", FunctionName=function.name)
        if current.get("State") != "Pending" and current.get("LastUpdateStatus") != "InProgress":
            return
        if time.monotonic() > deadline:
            raise EventOnceError(f"function {function.name} is not ready after {_TIMEOUT} s; run this again")
        time.sleep(_POLL)


def _when_role_is_known(apply: Callable[[], object]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            apply()
        except EventOnceError as error:
            if "InvalidParameterValueException" not in str(error) or " role " not in str(error):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL)
        else:
            return


# --- what invokes it ---


def _permission(rule: EventRule, function: FunctionResource, account: Account) -> SetupStep:
    summary = f"permission of function {function.name}: rule {rule.name} may invoke it"
    source = rule_arn(rule, account)
    current = account.look(function.address, "lambda", "get_policy", FunctionName=function.name)
    statements = json.loads(current["Policy"])["Statement"] if current is not None else []
    if any(
        each["Effect"] == "Allow" and source in each.get("Condition", {}).get("ArnLike", {}).values()
        for each in statements
    ):
        return SetupStep("keep", summary)
    arguments = {
        "FunctionName": function.name,
        "StatementId": statement_id(rule),
        "Action": "lambda:InvokeFunction",
        "Principal": "events.amazonaws.com",
        "SourceArn": source,
    }
    return SetupStep("create", summary, lambda: account.call(function.address, "lambda", "add_permission", **arguments))


def _invocation(function: FunctionResource, account: Account) -> SetupStep:
    address, name = function.address, {"FunctionName": function.name, "Qualifier": "$LATEST"}
    current = account.look(address, "lambda", "get_function_event_invoke_config", **name) or {}
    own = _own_destination(current)
    desired: dict[str, Any] = {limit: max(value, current.get(limit) or 0) for limit, value in INVOCATION.items()}
    destinations = current.get("DestinationConfig") or {}
    desired["DestinationConfig"] = destinations if own else {**destinations, **_destination(function, account)}
    summary = f"failures of function {function.name}: tried 3 times within 6 h{_note(function, own, account)}"
    if all(current.get(limit) == value for limit, value in desired.items()):
        return SetupStep("keep", summary)
    return SetupStep(
        "change" if current else "create",
        summary,
        lambda: account.call(address, "lambda", "put_function_event_invoke_config", **name, **desired),
    )


def _feed(
    plan: SetupPlan, function: FunctionResource, source: QueueResource | StreamResource, account: Account
) -> SetupStep:
    desired = mapping(plan) or {}
    summary, arn = f"mapping of {source.name} to function {function.name}", _feed_arn(source, account)
    name = {"FunctionName": function.name}
    listed = account.look(function.address, "lambda", "list_event_source_mappings", **name, EventSourceArn=arn)
    current = next(iter((listed or {}).get("EventSourceMappings", [])), None)
    own = _own_destination(current)
    if function.failed is not None and own is None:
        desired["DestinationConfig"] = _destination(function, account)
    note = _note(function, own, account)
    if current is None:
        create = {**name, "EventSourceArn": arn, **desired}
        return SetupStep(
            "create",
            f"{summary}: each event fails alone{note}",
            lambda: _when_role_is_known(
                lambda: account.call(function.address, "lambda", "create_event_source_mapping", **create)
            ),
        )
    needed = ("FunctionResponseTypes", "BisectBatchOnFunctionError", "DestinationConfig")
    change = {each: desired[each] for each in needed if each in desired and current.get(each) != desired[each]}
    if not change:
        return SetupStep("keep", f"{summary}{note}")
    return SetupStep(
        "change",
        f"{summary}: each event fails alone{note}",
        lambda: account.call(function.address, "lambda", "update_event_source_mapping", UUID=current["UUID"], **change),
    )


def _feed_arn(source: QueueResource | StreamResource, account: Account) -> Any:
    """Return the ARN of the queue or the stream. The stream of a table has no ARN before it exists."""
    if isinstance(source, StreamResource) and source.of_table and not source.name.startswith("arn:"):
        table = account.call(source.address, "dynamodb", "describe_table", TableName=source.name)["Table"]
        return table["LatestStreamArn"]
    return _arn(source, account)


def _destination(function: FunctionResource, account: Account) -> dict[str, Any]:
    if function.failed is None:
        return {}
    return {"OnFailure": {"Destination": _arn(function.failed, account)}}


def _own_destination(current: Mapping[str, Any] | None) -> str | None:
    """Return where failures go already. Somebody chose that, so it stays."""
    own: str | None = ((current or {}).get("DestinationConfig") or {}).get("OnFailure", {}).get("Destination")
    return own


def _note(function: FunctionResource, own: str | None, account: Account) -> str:
    if function.failed is None:
        return ""
    if own in (None, _arn(function.failed, account)):
        return f", and then in queue {function.failed.name}"
    name = str(own).rpartition(":")[2]
    return f"; what fails for good goes to {name}, which stays; to use {function.failed.name}, remove that destination"
