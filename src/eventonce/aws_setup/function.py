"""A Lambda function and what invokes it: the properties that CloudFormation and the API of Lambda name alike."""

from typing import Any

from eventonce.aws_setup.plan import FUNCTION_TIMEOUT, FunctionResource, SetupPlan

RUNTIME = "python3.13"
LOG_DAYS = 30
INVOCATION = {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 21_600}  # the maximum of Lambda
_QUEUE_BATCH = 10  # the maximum of a FIFO queue, and of other queues without a batching window
_STREAM_BATCH = 100
_RECORD_AGE = 43_200  # seconds: half of what a stream retains by default, so that what failed can still be read


def properties(function: FunctionResource) -> dict[str, Any]:
    """Return the properties of the function, except for its code, role and log group."""
    return {
        "FunctionName": function.name,
        "Runtime": RUNTIME,
        "Handler": function.settings.handler,
        "Architectures": [function.settings.architecture],
        "MemorySize": function.settings.memory,
        "Timeout": FUNCTION_TIMEOUT,
    }


def mapping(plan: SetupPlan) -> dict[str, Any] | None:
    """Return how a queue or a stream feeds the function, or None if a rule does. ARNs are left out.

    Without ReportBatchItemFailures one failed event brings its whole batch back.
    """
    answers = {"FunctionResponseTypes": ["ReportBatchItemFailures"]}
    if plan.source is not None:
        return {"BatchSize": _QUEUE_BATCH, **answers}
    if plan.stream is None:
        return None
    return {
        "BatchSize": _STREAM_BATCH,
        "StartingPosition": plan.stream.start,
        "BisectBatchOnFunctionError": True,
        "MaximumRecordAgeInSeconds": _RECORD_AGE,
        **answers,
    }
