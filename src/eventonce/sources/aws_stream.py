"""What the AWS streams have in common: their URLs, their calls and the errors of these."""

from typing import Any, NamedTuple

from eventonce.clients.aws import AwsUrl, code, is_away
from eventonce.clock import Clock, duration
from eventonce.errors import SourceError
from eventonce.observe.outage import Outage
from eventonce.sources.stream import IteratorExpired, StreamAway, Trimmed

_CONNECTIONS = 50
_STARTS = ("trim_horizon", "latest")
_NOT_FOUND = "ResourceNotFoundException"
_EXPIRED = ("ExpiredTokenException", "UnrecognizedClientException")
_ERRORS: dict[str, type[StreamAway]] = {
    "ExpiredIteratorException": IteratorExpired,
    "TrimmedDataAccessException": Trimmed,
}


class Options(NamedTuple):
    """The parsed URL of a stream. Times are in milliseconds."""

    address: AwsUrl
    latest: bool  # whether a new consumer starts with the records to come
    wait: int  # between two reads of a shard that had nothing new
    lease: int  # how long a worker that does not respond keeps its shards


def read_url(url: str) -> Options:
    """Parse `kinesis://STREAM?start=latest&wait=1s&lease=30s`. DynamoDB Streams have no `start`."""
    start_option = ("start",) if url.startswith("kinesis:") else ()
    address = AwsUrl(url, "source", *start_option, "wait", "lease")
    if address.name.startswith("arn:") and address.name.count(":") > 4:
        address.options.setdefault("region", address.name.split(":")[3])
    start = address.options.get("start", _STARTS[0])
    if start not in _STARTS:
        raise address.wrong(f"unknown start {start!r}; use {' or '.join(_STARTS)}")
    wait = duration(address.options.get("wait", "1s"), "source: wait")
    if not 200 <= wait <= 60_000:
        raise address.wrong("wait is out of range; use 200ms (the limit for all readers of a shard) to 1m")
    lease = duration(address.options.get("lease", "30s"), "source: lease")
    if not 1000 <= lease <= 3_600_000:
        raise address.wrong("lease is out of range; use 1s to 1h")
    return Options(address, start == "latest", wait, lease)


class AwsStream:
    """A client of the stream's service, with its errors translated."""

    service: str

    def __init__(self, options: Options, clock: Clock) -> None:
        self._address = options.address
        self.name = f"{self._address.scheme}://{self._address.name}"
        self.start = clock.utc() if options.latest else None
        self._outage = Outage(self.name, clock)
        self._connect()

    def close(self) -> None:
        self._client.close()

    def _connect(self) -> None:
        self._client = self._address.client(self.service, connections=_CONNECTIONS)

    def _call(self, operation: Any, **arguments: Any) -> dict[str, Any]:
        try:
            response: dict[str, Any] = operation(**arguments)
        except Exception as error:  # network, credentials, invalid responses: botocore has many
            translated = _ERRORS.get(code(error), StreamAway)(f"{self.name}: {error}")
            if type(translated) is StreamAway:
                self._outage.failed(translated)
            if code(error) in _EXPIRED:
                self._connect()  # a new client may get new credentials
            raise translated from error
        self._outage.worked()
        return response

    def _first_call(self, operation: Any, **arguments: Any) -> dict[str, Any]:
        try:
            response: dict[str, Any] = operation(**arguments)
        except Exception as error:
            remedy = (
                "check its name, region and account"
                if code(error) == _NOT_FOUND
                else "check network, credentials and permissions"
            )
            self.close()
            kind = StreamAway if is_away(error) else SourceError
            raise kind(f"{self.name}: cannot be read: {error}; {remedy}") from error
        return response
