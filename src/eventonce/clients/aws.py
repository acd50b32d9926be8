"""Clients of AWS services, from the usual environment and profiles and from the options of a URL, and their errors."""

import os
from enum import Enum, auto
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from eventonce.clock import duration
from eventonce.errors import ConfigError, MissingDriver

_SLOW_DOWN = ("LimitExceededException", "RequestLimitExceeded", "TooManyRequestsException", "PriorRequestNotComplete")
_TIMEOUT = "10s"  # for an answer; a client of a queue adds the time of its longest poll


class AwsUrl:
    """A URL of an AWS resource, such as `sqs://orders?region=eu-west-1&endpoint=http://localhost:4566`."""

    def __init__(self, url: str, label: str, *valid_options: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"{label}: {url.partition(':')[0]}: is not a URL: {error}") from None
        self.url = url
        self.label = label  # source, sink or dead_letter
        self.scheme = parts.scheme
        self.name = f"{parts.netloc}{parts.path}".strip("/")
        self.options = dict(parse_qsl(parts.query, keep_blank_values=True))
        valid_options = ("region", "endpoint", "timeout", *valid_options)
        for option in self.options:
            if option not in valid_options:
                raise self.wrong(f"unknown option {option!r}; use {', '.join(valid_options)}")
        if not self.name:
            raise self.wrong(f"names nothing; write {self.scheme}://NAME")
        self.timeout = duration(self.options.get("timeout", _TIMEOUT), f"{label}: timeout")

    def wrong(self, reason: str) -> ConfigError:
        """Return an error that names this URL."""
        return ConfigError(f"{self.label}: {self.scheme}://{self.name}: {reason}")

    def client(self, service: str, *, connections: int = 10, extra_timeout: int = 0, tries: int = 3) -> Any:
        """Return a client of a service. `extra_timeout` is added to the timeout for an answer, in milliseconds."""
        return client(
            service,
            label=f"{self.label}: {self.scheme}://{self.name}",
            region=self.options.get("region"),
            endpoint=self.options.get("endpoint"),
            timeout=self.timeout + extra_timeout,
            connections=connections,
            tries=tries,
        )


class NoRegion(ConfigError):
    """Neither a URL nor the environment nor the profile names a region."""

    def __init__(self, label: str) -> None:
        super().__init__(f"{label}: no AWS region is set; add ?region=REGION to the URL, or set AWS_REGION")


def has_region(url: str) -> bool:
    """Return whether the region of an AWS URL is known in this environment. Without the driver, assume so."""
    location, _, query = url.partition("?")
    if "://arn:" in location or dict(parse_qsl(query)).get("region"):
        return True
    try:
        from boto3.session import Session
        from botocore.exceptions import BotoCoreError
    except ModuleNotFoundError:
        return True
    try:
        return bool(os.environ.get("AWS_REGION") or Session().region_name)
    except BotoCoreError:  # no such profile
        return False


def client(
    service: str,
    *,
    label: str | None = None,
    region: str | None = None,
    endpoint: str | None = None,
    timeout: int = 10_000,
    connections: int = 10,
    tries: int = 3,
    validate: bool = True,
    session: Any = None,
) -> Any:
    """Return a client of an AWS service. It reads `AWS_ENDPOINT_URL`, `AWS_PROFILE` and the like.

    `label` begins its errors. `session` is one of boto3, in place of a new one.
    """
    label = label or service
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise MissingDriver(
            f"{label}: needs the Python package {error.name}; install it with pip install 'eventonce[aws]'"
        ) from error
    config = Config(
        connect_timeout=min(timeout, 5000) / 1000,
        read_timeout=timeout / 1000,
        retries={"mode": "standard", "total_max_attempts": tries},
        max_pool_connections=connections,
        tcp_keepalive=True,
        parameter_validation=validate,
        user_agent=f"eventonce boto3/{boto3.__version__}",  # botocore composes its own again for every call
    )
    try:
        session = session or boto3.session.Session(region_name=os.environ.get("AWS_REGION"))  # boto3 ignores it
        if not (region or session.region_name):
            raise NoRegion(label)
        return session.client(service, region_name=region, endpoint_url=endpoint, config=config)
    except NoRegion:
        raise
    except Exception as error:  # no such profile, or an invalid URL
        raise ConfigError(f"{label}: {error}") from error


def code(error: BaseException | None) -> str:
    """Return the code of an error response. The response of a lost connection is None."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def is_away(error: Exception) -> bool:
    """Return whether a retry may help: the service did not answer, was throttling or had an internal error."""
    from botocore import exceptions

    if not isinstance(error, exceptions.ClientError):
        unanswered = isinstance(error, exceptions.ConnectionError | exceptions.HTTPClientError)
        return unanswered and not isinstance(error, exceptions.SSLError)
    error_code, status = code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or "Throttl" in error_code or "ThroughputExceeded" in error_code or error_code in _SLOW_DOWN


class ErrorKind(Enum):
    """What an error of AWS means for the caller."""

    THROTTLED = auto()  # passes: the service has too much to do
    EXPIRED = auto()  # passes where the credentials are renewed
    CREDENTIALS = auto()  # they are missing or wrong
    DENIED = auto()  # they do not allow it
    MISSING = auto()  # the resource does not exist
    DELETED = auto()  # the resource was deleted a moment ago, and its name is not free yet
    UNUSABLE = auto()  # the account, the resource or its encryption key is in a state or of a kind that forbids it
    TOO_LARGE = auto()
    INVALID = auto()  # what was sent is refused, whoever sends it


# One table for the services that say these in their own spellings: in their plain form, as `error_kind` reads them.
_ERRORS = {
    ErrorKind.THROTTLED: (
        "kmsthrottled", "kmsthrottling", "provisionedthroughputexceeded", "requestlimitexceeded", "requestthrottled",
        "requesttimeout", "slowdown", "throttled", "throttling", "toomanyrequests",
    ),
    ErrorKind.EXPIRED: ("expiredtoken", "requestexpired"),
    ErrorKind.CREDENTIALS: (
        "incompletesignature", "invalidaccesskeyid", "invalidclienttokenid", "invalidsecurity", "invalidsignature",
        "missingauthenticationtoken", "signaturedoesnotmatch", "unrecognizedclient",
    ),
    ErrorKind.DENIED: ("accessdenied", "authorizationerror", "kmsaccessdenied", "unauthorizedoperation"),
    ErrorKind.MISSING: ("nonexistentqueue", "nosuchentity", "notfound", "queuedoesnotexist", "resourcenotfound"),
    ErrorKind.DELETED: ("queuedeletedrecently",),
    ErrorKind.UNUSABLE: (
        "invalidaccountid", "invalidaddress", "invalidstate", "kmsdisabled", "kmsinvalidkeyusage", "kmsinvalidstate",
        "kmsnotfound", "kmsoptinrequired", "optinrequired", "unsupportedoperation",
    ),
    ErrorKind.TOO_LARGE: ("413", "batchrequesttoolong", "requestentitytoolarge", "requesttoolong"),
    ErrorKind.INVALID: (
        "invalidargument", "invalidinput", "invalidmessagecontents", "invalidparameter", "invalidparametervalue",
        "malformeddetail", "notauthorizedfordetailtype", "notauthorizedforsource", "parametervalueinvalid",
        "paramvalidation", "redactionfailure", "validation", "validationerror",
    ),
}  # fmt: skip
_KINDS = {code: kind for kind, codes in _ERRORS.items() for code in codes}


def error_kind(error_code: str) -> ErrorKind | None:
    """Return what a code means, or None for one that the table lacks.

    Services differ in a name before a dot, in the ending and in capital letters.
    """
    return _KINDS.get(error_code.rpartition(".")[2].removesuffix("Exception").lower())
