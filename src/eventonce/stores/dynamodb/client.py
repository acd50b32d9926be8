"""The client of the DynamoDB store. It makes calls and translates errors."""

from typing import Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.parsers import ResponseParserError
from botocore.validate import validate_parameters

from eventonce.clock import Clock
from eventonce.errors import StoreError, StoreUnusable
from eventonce.stores.aws_client import THROTTLES, AwsStoreClient, Denied

RETRYABLE = THROTTLES | {
    "ExpiredToken", "ExpiredTokenException", "InternalServerError", "InternalServerErrorException",
    "ServiceUnavailable", "ServiceUnavailableException", "TransactionConflict", "TransactionConflictException",
    "TransactionInProgressException",
}  # fmt: skip
_REFUSALS = {"ConditionalCheckFailedException"}
_TRANSACTION_REFUSALS = {
    "TransactionCanceledException", "IdempotentParameterMismatchException", "ValidationException",
    "ResourceNotFoundException",
}  # fmt: skip
_DENIED = {"AccessDenied", "AccessDeniedException"}
_NO_TABLE = {"ResourceNotFound", "ResourceNotFoundException"}
_REMEDIES = {
    "AccessDenied": "allow it in the IAM policy of this role",
    "AccessDeniedException": "allow it in the IAM policy of this role",
    "IncompleteSignatureException": "check the AWS credentials",
    "InvalidSignatureException": "check the AWS secret key and this machine's clock",
    "MissingAuthenticationToken": "set AWS credentials",
    "MissingAuthenticationTokenException": "set AWS credentials",
    "UnrecognizedClientException": "check the AWS credentials and the region",
    "InvalidClientTokenId": "check the AWS credentials and the region",
}


class RequestRefusal(Exception):
    """DynamoDB refused a request, because a condition did not hold or the request is invalid."""

    def __init__(self, code: str, response: Any) -> None:
        super().__init__(f"{code}: {_message(response)}")
        self.code = code
        self.item = response.get("Item")  # before the request, if it existed
        self.reasons: list[dict[str, Any]] = response.get("CancellationReasons") or []


class DynamoDBClient(AwsStoreClient):
    """A client of one table."""

    service: ClassVar[str] = "dynamodb"
    validate: ClassVar[bool] = False  # it takes a fifth of the client's time; DynamoDB itself refuses invalid requests

    def __init__(
        self,
        table: str,
        *,
        region: str | None,
        endpoint: str | None,
        timeout: int,
        in_flight: int,
        clock: Clock,
        remedy: str,
        foreign: Any = None,
    ) -> None:
        super().__init__(
            f"DynamoDB table {table!r}",
            region=region,
            endpoint=endpoint,
            timeout=timeout,
            in_flight=in_flight,
            clock=clock,
            foreign=foreign,
        )
        self.table = table
        self._remedy = remedy  # how to create the table

    # --- calls ---

    def call(self, name: str, *, required: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Call DynamoDB. Raise `RequestRefusal` if a condition did not hold, and `StoreError` for all other errors.

        `required` is a field that the response must have, because botocore reads a truncated response as an empty one.
        """
        try:
            client, sent_at = self.client(), self.clock.steady()
            if name == "transact_write_items":  # with the writes of a handler
                validate_parameters(
                    arguments, client.meta.service_model.operation_model("TransactWriteItems").input_shape
                )
            response: dict[str, Any] = getattr(client, name)(**arguments)
        except ClientError as error:
            self._learn(error.response, sent_at)
            code = error.response.get("Error", {}).get("Code", "")
            if code in _REFUSALS or (name == "transact_write_items" and code in _TRANSACTION_REFUSALS):
                raise RequestRefusal(code, error.response) from error
            raise self.translate_error(code, error.response, name) from error
        except (BotoCoreError, ResponseParserError, OSError) as error:
            if name == "transact_write_items" and isinstance(error, ParamValidationError):
                raise RequestRefusal(type(error).__name__, {"Message": " ".join(str(error).split())}) from error
            raise self.connection_error(error) from error
        self._learn(response, sent_at)
        if required is not None and required not in response:
            raise StoreError(f"{self.address()} gave an incomplete response to {name}")
        return response

    def _learn(self, response: Any, sent_at: int) -> None:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        if str(headers.get("server")).endswith("amazon.com"):  # moto, in its server and in this process; not AWS
            raise StoreUnusable(
                f"{self.address()} is moto, which lets two claims of a key win and loses writes; use ministack or "
                "dynoxide in its place, or the store memory: in unit tests"
            )
        self.time.learn(headers.get("date"), self.clock.steady() - sent_at)

    # --- errors ---

    def translate_error(self, code: str, response: Any, name: str) -> StoreError:
        """Return the store error for an error of DynamoDB."""
        message = _message(response)
        if code in RETRYABLE or response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
            return StoreError(f"{self.address()} did not do {name} ({code}: {message}); trying again later may help")
        if code in _NO_TABLE:
            return StoreUnusable(
                f"{self.address()} does not exist; check its name and region, or create it: {self._remedy}"
            )
        if "key element does not match" in message or "mandatory equality" in message:
            return StoreUnusable(f"{self.address()} has another key; set key= and sort= in the URL ({message})")
        kind = Denied if code in _DENIED else StoreUnusable
        remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
        return kind(f"{self.address()} refused {name} ({code}: {message}){remedy}")


def _message(response: Any) -> str:
    return str(response.get("Error", {}).get("Message") or response.get("Message") or "")
