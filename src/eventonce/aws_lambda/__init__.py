"""Door A: the handler of a Lambda function, for every form of invocation."""

from eventonce.aws_lambda.gate import Gate
from eventonce.aws_lambda.handler import LambdaHandler

__all__ = ["Gate", "LambdaHandler"]
