"""What a pipeline needs of AWS: the queues, the rule that fills them, the table, and the sink."""

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from eventonce.clients.aws import AwsUrl
from eventonce.clock import duration
from eventonce.errors import ConfigError
from eventonce.rules.rule import Rule
from eventonce.stores import check_url
from eventonce.stores.dynamodb.layout import Layout
from eventonce.wire import AwsSettings, Settings

RETENTION = 14 * 86_400  # seconds; as long as SQS keeps anything
RETRY = {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}  # as often and as long as EventBridge does
FUNCTION_TIMEOUT = 30  # seconds
_SHORTEST, _LONGEST = 30, 43_200  # seconds that SQS hides a message for: its own default, and the most it can
_FEWEST, _MOST = 10, 1000  # receives
_PATTERN = 2048  # characters that EventBridge takes
_QUEUE = re.compile(r"(\d{12}/)?([A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo)")


class QueueResource(NamedTuple):
    """A queue of SQS. Attributes of a queue that is there already may be larger than these."""

    place: AwsUrl
    purpose: str  # source, dead, undelivered, letters or sink
    visibility: int = _SHORTEST  # seconds
    dead: "QueueResource | None" = None  # where SQS moves what has been received too often
    receives: int = 0  # how often that is
    by_content: bool = False  # a FIFO queue that a rule feeds: EventBridge gives no id to tell copies by

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


class Topic(NamedTuple):
    """A topic of SNS."""

    place: AwsUrl

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


class Bus(NamedTuple):
    """A bus of EventBridge."""

    place: AwsUrl
    name: str

    @property
    def partner(self) -> bool:
        """Whether a partner fills it; it then has the name of the partner's event source."""
        return self.name.startswith("aws.partner/")

    @property
    def label(self) -> str:
        """Its name in a template, of letters and digits; with a digest where that of another bus could be the same."""
        bare = "".join(filter(str.isalnum, self.name.lower()))
        return bare if bare == self.name else bare + hashlib.sha256(self.name.encode()).hexdigest()[:8]


class EventRule(NamedTuple):
    """A rule of EventBridge with one target: what it cannot deliver goes to a queue of its own."""

    name: str
    bus: Bus
    pattern: Mapping[str, Any]
    target: QueueResource
    undelivered: QueueResource
    group: str  # of all messages in a FIFO queue


class TableResource(NamedTuple):
    """A table of DynamoDB."""

    place: AwsUrl
    url: str
    key: str
    sort: str | None
    ttl: str

    @property
    def name(self) -> str:
        return self.place.name


class StreamResource(NamedTuple):
    """A stream of Kinesis, or of a table's changes. It is used and not made: its owner says how many shards it has."""

    place: AwsUrl
    purpose: str  # source or sink

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def of_table(self) -> bool:
        return self.place.scheme == "dynamodbstreams"


Sink = QueueResource | Topic | Bus | StreamResource


class SetupPlan(NamedTuple):
    """All of it. `queues` are in the order in which they can be made."""

    consumer: str
    queues: list[QueueResource]
    source: QueueResource | None
    stream: StreamResource | None  # in place of it
    letters: QueueResource | None  # where the worker puts dead letters
    sink: Sink | None
    rule: EventRule | None
    table: TableResource | None

    @property
    def buses(self) -> list[Bus]:
        """Those to be made: each account has a default bus."""
        named = [bus for bus in (self.sink, self.rule and self.rule.bus) if isinstance(bus, Bus)]
        wanted = {bus.name: bus for bus in named}
        return [bus for name, bus in wanted.items() if name != "default" and not foreign(bus)]

    @property
    def places(self) -> list[AwsUrl]:
        """Everything that the pipeline names."""
        others = [each.place for each in (self.stream, self.sink, self.table) if each is not None]
        return [queue.place for queue in self.queues] + others


def foreign(named: Sink) -> bool:
    """Whether something is someone else's: named by its ARN, or by its account. It is used and not made."""
    if isinstance(named, StreamResource):
        return True
    return "/" in named.name if isinstance(named, QueueResource) else named.name.startswith("arn:")


def make_plan(settings: Settings, *, function: bool = False) -> SetupPlan:
    """What a pipeline needs: for a worker, or for a Lambda function."""
    letters, sink = _letters(settings), _sink(settings)
    source = _source(settings, letters, function=function)
    rule = None if settings.aws is None else _rule(settings, settings.aws, source)
    named = [rule and rule.undelivered, source and source.dead, letters, sink, source]
    queues = _apart([queue for queue in named if isinstance(queue, QueueResource) and not foreign(queue)])
    return SetupPlan(settings.consumer, queues, source, _stream(settings), letters, sink, rule, _table(settings))


# --- queues ---


def _apart(queues: list[QueueResource]) -> list[QueueResource]:
    """Each queue once. Two that are meant for different things must not be the same."""
    found: dict[tuple[str, str], QueueResource] = {}
    for queue in queues:
        other = found.setdefault((queue.name, str(queue.place.options)), queue)
        if other is not queue:
            both = f"{other.purpose} and {queue.purpose}"
            raise queue.place.wrong(f"is the queue for {both}; give each of them a queue of its own")
    return list(found.values())


def _source(settings: Settings, letters: QueueResource | None, *, function: bool) -> QueueResource | None:
    if not settings.source.startswith("sqs://"):
        return None
    place = _queue_place(settings.source, "source")
    if "/" in place.name:
        return QueueResource(place, "source")
    # A message that shows up again while its event runs is a copy that is busy. Lambda wants six times its own timeout.
    lease = math.ceil(duration(settings.lease) / 1000)
    visibility = max(lease, 6 * FUNCTION_TIMEOUT if function else _SHORTEST)
    # The worker itself takes out what fails max_attempts times, with the reason. A copy that is busy and a store that
    # is away use up receives too, so SQS must be more patient, or it takes out events that were never tried.
    receives = min(max(2 * settings.max_attempts, _FEWEST), _MOST)
    return QueueResource(
        place,
        "source",
        visibility=min(visibility, _LONGEST),
        dead=_dead(place, letters),
        receives=receives,
        by_content=place.name.endswith(".fifo") and settings.aws is not None,
    )


def _dead(source: AwsUrl, letters: QueueResource | None) -> QueueResource:
    """The pipeline's own queue of dead letters, so that there is one to watch; SQS wants it to be of the same kind."""
    fifo = source.name.endswith(".fifo")
    alike = letters is not None and letters.fifo == fifo and letters.place.options == source.options
    if letters is not None and alike and not foreign(letters):
        return letters
    return QueueResource(_beside(source, "dead", ".fifo" if fifo else ""), "dead")


def _letters(settings: Settings) -> QueueResource | None:
    url = settings.dead_letter
    return QueueResource(_queue_place(url, "dead_letter"), "letters") if url.startswith("sqs://") else None


def _beside(place: AwsUrl, what: str, ending: str = "") -> AwsUrl:
    name = f"{place.name.removesuffix('.fifo')}-{what}{ending}"
    if not _QUEUE.fullmatch(name):
        raise place.wrong(f"its name is too long: {name} has to be a name too, of 80 characters at most")
    query = f"?{urlencode(place.options)}" if place.options else ""
    return AwsUrl(f"sqs://{name}{query}", place.label)


# --- the rule ---


def _rule(settings: Settings, feed: AwsSettings, source: QueueResource | None) -> EventRule:
    if source is None or foreign(source):
        raise ConfigError('aws: a rule needs a queue of this account to send to; write source = "sqs://QUEUE"')
    name = feed.rule or f"eventonce-{settings.consumer}"
    AwsSettings(rule=name)  # raises where the consumer's name does not do
    return EventRule(
        name,
        Bus(source.place, feed.bus),
        _pattern(settings.rule) if feed.pattern is None else feed.pattern,
        source,
        QueueResource(_beside(source.place, "undelivered"), "undelivered"),
        group=name,
    )


def _pattern(rules: list[Rule]) -> Mapping[str, Any]:
    """All that the rules match."""
    remedy = 'say in [aws] which events to take, such as pattern = { source = ["com.example.orders"] }'
    if not rules:
        raise ConfigError(f"aws: there is no rule that says which events are wanted; {remedy}")
    different: list[Mapping[str, Any]] = []
    for rule in rules:
        if rule.match is None:
            raise ConfigError(f"aws: rule {rule.name!r} matches every event; {remedy}")
        if rule.match not in different:
            different.append(rule.match)
    pattern = different[0] if len(different) == 1 else {"$or": different}
    if len(text := compact(pattern)) > _PATTERN:
        raise ConfigError(f"aws: the rules' patterns take {len(text)} of {_PATTERN} characters together; {remedy}")
    return pattern


def compact(document: Any) -> str:
    """A document as JSON, as short as can be."""
    return msgspec.json.encode(document).decode()


# --- streams, sink and store ---


def _stream(settings: Settings) -> StreamResource | None:
    url = settings.source
    return (
        StreamResource(_place(url, "source"), "source")
        if url.startswith(("kinesis://", "dynamodbstreams://"))
        else None
    )


def _sink(settings: Settings) -> Sink | None:
    url = settings.sink
    if url.startswith("kinesis://"):
        return StreamResource(_place(url, "sink"), "sink")
    if url.startswith("sqs://"):
        return QueueResource(_queue_place(url, "sink"), "sink")
    if url.startswith("sns://"):
        return Topic(_place(url, "sink"))
    if url.startswith("events://"):
        place = _place(url, "sink")
        return Bus(place, place.name)
    return None


def _table(settings: Settings) -> TableResource | None:
    url = settings.store
    if not url.startswith("dynamodb://"):
        return None
    check_url(url)
    usual, found = Layout(), dict(parse_qsl(urlsplit(url).query))
    return TableResource(
        _place(url, "store"),
        url,
        key=found.get("key", usual.key_name),
        sort=found.get("sort", usual.sort_name),
        ttl=found.get("ttl", usual.ttl),
    )


def _queue_place(url: str, what: str) -> AwsUrl:
    place = _place(url, what)
    if not _QUEUE.fullmatch(place.name):
        raise place.wrong("is no name of a queue; use up to 80 letters, digits, - and _, and .fifo at its end")
    return place


def _place(url: str, what: str) -> AwsUrl:
    """Where something is. What else its URL says is for those who read or write it."""
    bare, _, query = url.partition("?")
    kept = [(option, value) for option, value in parse_qsl(query) if option in ("region", "endpoint")]
    return AwsUrl(f"{bare}?{urlencode(kept)}", what)
