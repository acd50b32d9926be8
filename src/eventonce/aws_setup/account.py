"""An account of AWS, or an emulator of one: calls to it, what things are called there, its errors in our words."""

from typing import Any

from eventonce.clients.aws import AwsUrl, ErrorKind, error_kind
from eventonce.errors import ConfigError, EventOnceError


class Account:
    """Calls AWS as a pipeline's URLs, the environment and its profile say."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str | None, str | None], Any] = {}
        self._owners: dict[tuple[str | None, str | None], list[str]] = {}

    def call(self, place: AwsUrl, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Do something; raises an error that says what to do about it."""
        found = self._try(place, service, operation, arguments)
        if found is None:
            raise ConfigError(f"{service}: {operation}: {_shown(arguments)} is not there (any more); run this again")
        return found

    def look(self, place: AwsUrl, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """Look at something; None where there is no such thing."""
        return self._try(place, service, operation, arguments)

    def arn(self, place: AwsUrl, service: str, name: str) -> str:
        """What something of ours is called, also before it is there."""
        if name.startswith("arn:"):
            return name
        region = self._client(place, service).meta.region_name
        partition, owner = self._owner(place)
        return f"arn:{partition}:{service}:{region}:{owner}:{name}"

    def _owner(self, place: AwsUrl) -> list[str]:
        at = (place.options.get("region"), place.options.get("endpoint"))
        if at not in self._owners:
            identity = self.call(place, "sts", "get_caller_identity")
            self._owners[at] = [str(identity["Arn"]).split(":")[1], str(identity["Account"])]
        return self._owners[at]

    def _client(self, place: AwsUrl, service: str) -> Any:
        at = (service, place.options.get("region"), place.options.get("endpoint"))
        if at not in self._clients:
            self._clients[at] = _made(place, service)
        return self._clients[at]

    def _try(self, place: AwsUrl, service: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        client = self._client(place, service)
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if error_kind(code) is ErrorKind.MISSING:
                return None
            action = f"{service}:{client.meta.method_to_api_mapping[operation]}"
            raise _refusal(action, code, str(error.response["Error"].get("Message", "")), _shown(arguments)) from error
        except BotoCoreError as error:
            raise _no_answer(service, error) from error
        return answer

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def _made(place: AwsUrl, service: str) -> Any:
    no_region = ConfigError(
        f"{place.label}: there is no region; set AWS_DEFAULT_REGION, or add ?region=REGION to its URL"
    )
    try:
        client = place.client(service)
    except ConfigError as error:
        if type(error.__cause__).__name__ != "NoRegionError":
            raise
        raise no_region from error
    if not client.meta.region_name:  # the variable is there and empty
        raise no_region
    return client


def _refusal(action: str, code: str, said: str, what: str) -> EventOnceError:
    kind = error_kind(code)
    if kind is ErrorKind.DENIED:
        return ConfigError(
            f"{action} is not allowed on {what} ({said}); allow it for this user or role, and run it again"
        )
    if kind in (ErrorKind.CREDENTIALS, ErrorKind.EXPIRED):
        return ConfigError(
            f"{action}: AWS does not accept the credentials ({code}); check them, the profile and the region"
        )
    if kind is ErrorKind.DELETED:
        return EventOnceError(
            f"{what} was deleted a moment ago, and SQS waits before its name is free; run it again in 60 s"
        )
    return EventOnceError(f"{action} failed on {what} ({code}: {said}); mend that and run it again")


def _no_answer(service: str, error: Exception) -> EventOnceError:
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError

    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigError(
            "there are no AWS credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return EventOnceError(f"{service} did not answer ({error}); check the network and the endpoint, then run it again")


def _shown(arguments: dict[str, Any]) -> str:
    """What a call is about: the first of its arguments names it."""
    first = next(iter(arguments.values()), "this account")
    return str(first).rpartition("/")[2] if str(first).startswith("http") else str(first)
