"""Door A: the handler of a Lambda function, for every form of invocation."""

import eventonce.claims.memo  # noqa: F401  # nothing is imported behind an effect
from eventonce.aws_lambda.gate import Gate
from eventonce.aws_lambda.handler import LambdaHandler

__all__ = ["Gate", "LambdaHandler"]
