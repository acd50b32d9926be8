"""Door A: a Lambda function's handler, for every shape in which AWS invokes one."""

from eventonce.aws_lambda.gate import Gate
from eventonce.aws_lambda.handler import LambdaHandler

__all__ = ["Gate", "LambdaHandler"]
