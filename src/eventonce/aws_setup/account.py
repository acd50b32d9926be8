"""An AWS account, or an emulator of one: calls to it, the names of its resources, and its errors in our words."""

from typing import Any

from eventonce.clients.aws import AwsUrl, ErrorKind, error_kind
from eventonce.errors import ConfigError, EventOnceError


class Account:
    """Calls AWS with the settings of a pipeline's URLs, the environment and the profile."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str | None, str | None], Any] = {}
        self._owners: dict[tuple[str | None, str | None], list[str]] = {}

    def call(self, address: AwsUrl, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation. Raise an error with a remedy if it fails."""
        response = self._try(address, service, operation, arguments)
        if response is None:
            raise ConfigError(
                f"{service}: {operation}: {_subject(arguments)} does not exist (any more); run this again"
            )
        return response

    def look(self, address: AwsUrl, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """Call an operation that reads. Return None if the resource does not exist."""
        return self._try(address, service, operation, arguments)

    def arn(self, address: AwsUrl, service: str, name: str) -> str:
        """Return the ARN of one of our resources, whether it exists or not."""
        if name.startswith("arn:"):
            return name
        region = self._client(address, service).meta.region_name
        partition, owner = self._owner(address)
        return f"arn:{partition}:{service}:{region}:{owner}:{name}"

    def _owner(self, address: AwsUrl) -> list[str]:
        scope = (address.options.get("region"), address.options.get("endpoint"))
        if scope not in self._owners:
            identity = self.call(address, "sts", "get_caller_identity")
            self._owners[scope] = [str(identity["Arn"]).split(":")[1], str(identity["Account"])]
        return self._owners[scope]

    def _client(self, address: AwsUrl, service: str) -> Any:
        scope = (service, address.options.get("region"), address.options.get("endpoint"))
        if scope not in self._clients:
            self._clients[scope] = address.client(service)
        return self._clients[scope]

    def _try(self, address: AwsUrl, service: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        client = self._client(address, service)
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            response: dict[str, Any] = getattr(client, operation)(**arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if error_kind(code) is ErrorKind.MISSING:
                return None
            action = f"{service}:{client.meta.method_to_api_mapping[operation]}"
            raise _service_error(
                action, code, str(error.response["Error"].get("Message", "")), _subject(arguments)
            ) from error
        except BotoCoreError as error:
            raise _connection_error(service, error) from error
        return response

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def _service_error(action: str, code: str, message: str, subject: str) -> EventOnceError:
    kind = error_kind(code)
    if kind is ErrorKind.DENIED:
        return ConfigError(
            f"{action} is not allowed on {subject} ({message}); allow it for this user or role, and run this again"
        )
    if kind in (ErrorKind.CREDENTIALS, ErrorKind.EXPIRED):
        return ConfigError(
            f"{action}: AWS does not accept the credentials ({code}); check them, the profile and the region"
        )
    if kind is ErrorKind.DELETED:
        return EventOnceError(f"{subject} was just deleted, and SQS keeps its name for a while; run this again in 60 s")
    return EventOnceError(f"{action} failed on {subject} ({code}: {message}); fix this and run again")


def _connection_error(service: str, error: Exception) -> EventOnceError:
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError

    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigError(
            "no AWS credentials were found; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return EventOnceError(f"{service} did not answer ({error}); check the network and the endpoint, and run this again")


def _subject(arguments: dict[str, Any]) -> str:
    """Return what a call is about, which its first argument names."""
    first = next(iter(arguments.values()), "this account")
    return str(first).rpartition("/")[2] if str(first).startswith("http") else str(first)
