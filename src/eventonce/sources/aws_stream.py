"""What the streams of AWS have in common: their URLs, their calls and what can go wrong in one."""

from typing import Any, NamedTuple

from eventonce.clients.aws import AwsUrl, code, is_away
from eventonce.clock import Clock, duration
from eventonce.errors import SourceError
from eventonce.observe.outage import Outage
from eventonce.sources.stream import IteratorOver, StreamAway, Trimmed

_CONNECTIONS = 50
_STARTS = ("trim_horizon", "latest")
_NOT_THERE = "ResourceNotFoundException"
_EXPIRED = ("ExpiredTokenException", "UnrecognizedClientException")
_TROUBLES: dict[str, type[StreamAway]] = {
    "ExpiredIteratorException": IteratorOver,
    "TrimmedDataAccessException": Trimmed,
}


class Options(NamedTuple):
    """What a URL says."""

    place: AwsUrl
    latest: bool  # whether a new consumer begins with what comes from now on
    wait: int  # between two looks at a shard that had nothing new
    lease: int  # how long a shard stays with a worker that does not answer


def read_url(url: str) -> Options:
    """`kinesis://STREAM?start=latest&wait=1s&lease=30s`; `start` is not for DynamoDB Streams."""
    start = ("start",) if url.startswith("kinesis:") else ()
    place = AwsUrl(url, "source", *start, "wait", "lease")
    if place.name.startswith("arn:") and place.name.count(":") > 4:
        place.options.setdefault("region", place.name.split(":")[3])
    begins = place.options.get("start", _STARTS[0])
    if begins not in _STARTS:
        raise place.wrong(f"start: {begins!r} is no beginning; use {' or '.join(_STARTS)}")
    wait = duration(place.options.get("wait", "1s"), "source: wait")
    if not 200 <= wait <= 60_000:
        raise place.wrong("wait: a shard can be looked at every 200ms, for all its consumers, and should be within 1m")
    lease = duration(place.options.get("lease", "30s"), "source: lease")
    if not 1000 <= lease <= 3_600_000:
        raise place.wrong("lease: a shard can be held for between 1s and 1h")
    return Options(place, begins == "latest", wait, lease)


class AwsStream:
    """A client of the stream's service, with its troubles in our words."""

    service: str

    def __init__(self, options: Options, clock: Clock) -> None:
        self._place = options.place
        self.name = f"{self._place.scheme}://{self._place.name}"
        self.start = clock.utc() if options.latest else None
        self._outage = Outage(self.name, clock)
        self._connect()

    def close(self) -> None:
        self._client.close()

    def _connect(self) -> None:
        self._client = self._place.client(self.service, connections=_CONNECTIONS)

    def _ask(self, call: Any, **asked: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = call(**asked)
        except Exception as error:  # of the network, of credentials, of an answer that is none: botocore has many
            trouble = _TROUBLES.get(code(error), StreamAway)(f"{self.name}: {error}")
            if type(trouble) is StreamAway:
                self._outage.failed(trouble)
            if code(error) in _EXPIRED:
                self._connect()  # where the credentials come from, there may be new ones
            raise trouble from error
        self._outage.worked()
        return answer

    def _first(self, call: Any, **asked: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = call(**asked)
        except Exception as error:
            remedy = (
                "check its name, region and account"
                if code(error) == _NOT_THERE
                else "check network, credentials and rights"
            )
            self.close()
            kind = StreamAway if is_away(error) else SourceError
            raise kind(f"{self.name}: cannot be read: {error}; {remedy}") from error
        return answer
