"""The client of the S3 store. It reads objects, makes conditional writes and translates errors."""

from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.parsers import ResponseParserError

from eventonce.claims.protocol import Record
from eventonce.clients import aws
from eventonce.clients.aws import ErrorKind
from eventonce.clock import Clock
from eventonce.errors import StoreError, StoreUnusable
from eventonce.event.keys import Key
from eventonce.stores.aws_client import AwsStoreClient, Denied
from eventonce.stores.s3.record import LARGEST_BODY, decode

# A condition did not hold, another request to the object was faster, or there is no such object or configuration.
_REFUSALS = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "NoSuchLifecycleConfiguration")
_NO_ETAG = '"eventonce"'  # the ETag of no object
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_RIGHTS = "s3:GetObject, s3:PutObject and s3:DeleteObject on the objects, and s3:ListBucket on the bucket"
_REMEDIES = {
    "AuthorizationHeaderMalformed": "set region= in the URL to the region of the bucket",
    "PermanentRedirect": "set region= in the URL to the region of the bucket",
    "RequestTimeTooSkewed": "set the clock of this machine",
}
Response = dict[str, Any]


class StoredObject(NamedTuple):
    """An object as it was read."""

    body: bytes
    etag: str
    record: Record


class S3Client(AwsStoreClient):
    """A client of the objects of one bucket whose names begin with a prefix."""

    service: ClassVar[str] = "s3"
    validate: ClassVar[bool] = True  # because a botocore that lacks conditional writes would leave the condition out

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        region: str | None,
        endpoint: str | None,
        timeout: int,
        in_flight: int,
        clock: Clock,
    ) -> None:
        super().__init__(
            f"S3 bucket {bucket!r}", region=region, endpoint=endpoint, timeout=timeout, in_flight=in_flight, clock=clock
        )
        self.bucket = bucket
        self.prefix = prefix

    # --- objects ---

    def read(self, key: Key) -> StoredObject | None:
        """Read the object of a key."""
        name = self._name(key)
        response = self.call("get_object", Key=name)
        if response is None:
            return None
        try:
            return StoredObject(response["Body"], response["ETag"], decode(response["Body"]))
        except ValueError as error:
            raise StoreUnusable(
                f"{self.address()}: the object {name!r} is not a record of eventonce ({error}); use another prefix"
            ) from error

    def write(self, key: Key, body: bytes, existing: StoredObject | None) -> bool:
        """Write the object of a key, and return whether it was still the existing one, or absent."""
        condition = {"IfNoneMatch": "*"} if existing is None else {"IfMatch": existing.etag}
        return self.call("put_object", Key=self._name(key), Body=body, **condition) is not None

    def delete(self, key: Key, existing: StoredObject) -> bool:
        """Delete the object of a key, and return whether it was still the existing one."""
        return self.call("delete_object", Key=self._name(key), IfMatch=existing.etag) is not None

    def check_conditions(self) -> None:
        """Raise if a server other than AWS ignores conditions. Two claims of a key could win there."""
        host = urlsplit(self.client().meta.endpoint_url).hostname or ""
        if host.endswith(_AWS):
            return
        probe = f"{self.prefix}probe"
        self.call("put_object", Key=probe, Body=b"")
        for name, condition in (
            ("put_object", {"IfNoneMatch": "*"}),
            ("put_object", {"IfMatch": _NO_ETAG}),
            ("delete_object", {"IfMatch": _NO_ETAG}),
        ):
            if self.call(name, Key=probe, **condition) is not None:
                raise StoreUnusable(
                    f"{self.address()} ignores {next(iter(condition))} in {name}, so that two claims of a key could "
                    "win; use a server that enforces conditional writes and deletes"
                )

    def _name(self, key: Key) -> str:
        return f"{self.prefix}{key.hex()}"

    # --- calls ---

    def call(self, name: str, **arguments: Any) -> Response | None:
        """Call S3. Return None if a condition did not hold or the thing does not exist, and raise `StoreError` else."""
        try:
            client, sent_at = self.client(), self.clock.steady()
            response: Response = getattr(client, name)(Bucket=self.bucket, **arguments)
            if "Body" in response:
                response["Body"] = self._body(response, arguments["Key"])
        except ClientError as error:
            self._learn(error.response, sent_at)
            code = aws.code(error)
            if code in _REFUSALS:
                return None
            raise self._translate(code, error.response, name) from error
        except ParamValidationError as error:
            raise StoreUnusable(
                f"{self.address()}: this version of boto3 lacks conditional writes; install boto3 1.36 or newer"
            ) from error
        except (BotoCoreError, ResponseParserError, OSError) as error:
            raise self.connection_error(error) from error
        self._learn(response, sent_at)
        return response

    def _body(self, response: Response, name: str) -> bytes:
        with response["Body"] as stream:
            if response["ContentLength"] > LARGEST_BODY:
                raise StoreUnusable(
                    f"{self.address()}: the object {name!r} has {response['ContentLength']:,} bytes, "
                    "too many for a record of eventonce; use another prefix"
                )
            body: bytes = stream.read()
            return body

    def _learn(self, response: Any, sent_at: int) -> None:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.time.learn(headers.get("date"), self.clock.steady() - sent_at)

    # --- errors ---

    def _translate(self, code: str, response: Any, name: str) -> StoreError:
        """Return the store error for an error of S3."""
        reason = f"{name} ({code}: {response.get('Error', {}).get('Message', '')})"
        kind = aws.error_kind(code)
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status >= 500 or kind in (ErrorKind.THROTTLED, ErrorKind.EXPIRED):
            return StoreError(f"{self.address()} did not do {reason}; trying again later may help")
        if code == "NoSuchBucket":
            return StoreUnusable(
                f"{self.address()} does not exist; check its name, or create it: aws s3 mb s3://{self.bucket}"
            )
        if kind is ErrorKind.DENIED:
            return Denied(f"{self.address()} refused {reason}; allow {_RIGHTS}, in the IAM policy of this role")
        remedy = "check the AWS credentials" if kind is ErrorKind.CREDENTIALS else _REMEDIES.get(code)
        return StoreUnusable(f"{self.address()} refused {reason}{f'; {remedy}' if remedy else ''}")
