"""The AWS resources of a pipeline: the queues, the rule that fills them, the table, and the sink."""

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from eventonce.clients.aws import AwsUrl
from eventonce.clock import duration
from eventonce.dead_letters import check_dead_letters
from eventonce.errors import ConfigError
from eventonce.event.paths import ALIASES
from eventonce.rules.rule import Rule
from eventonce.settings import AwsSettings, FunctionSettings, Settings, dead_letter_url
from eventonce.sinks import check_sink
from eventonce.sources import check_source
from eventonce.stores import check_url
from eventonce.stores.dynamodb.layout import Layout

RETENTION = 14 * 86_400  # seconds: the maximum of SQS
RETRY = {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}  # the maximum of EventBridge
FUNCTION_TIMEOUT = 30  # seconds
_MIN_VISIBILITY, _MAX_VISIBILITY = 30, 43_200  # seconds: the default and the maximum of SQS
_MIN_RECEIVES, _MAX_RECEIVES = 10, 1000
_MAX_PATTERN = 2048  # characters: the limit of EventBridge
_STREAMS = ("kinesis://", "dynamodbstreams://")
_REGIONAL = ("sqs://", "dynamodb://", *_STREAMS)
_QUEUE = re.compile(r"(\d{12}/)?([A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo)")


class QueueResource(NamedTuple):
    """An SQS queue. An existing queue may have larger values than these."""

    address: AwsUrl
    purpose: str  # source, dead, undelivered, failed, letters or sink
    visibility: int = _MIN_VISIBILITY  # seconds
    dead: "QueueResource | None" = None  # where SQS moves a message that was received too often
    receives: int = 0  # how often that is
    by_content: bool = False  # a FIFO queue that a rule feeds: EventBridge sends no deduplication id
    kind: str = "queue"

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


class Topic(NamedTuple):
    """An SNS topic."""

    address: AwsUrl

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


class Bus(NamedTuple):
    """An EventBridge bus."""

    address: AwsUrl
    name: str

    @property
    def partner(self) -> bool:
        """True if a partner fills the bus, which then has the name of the partner's event source."""
        return self.name.startswith("aws.partner/")

    @property
    def label(self) -> str:
        """The name in a template: letters and digits, with a digest if another bus could have the same."""
        bare = "".join(filter(str.isalnum, self.name.lower()))
        return bare if bare == self.name else bare + hashlib.sha256(self.name.encode()).hexdigest()[:8]


class FunctionResource(NamedTuple):
    """A Lambda function that runs the pipeline."""

    address: AwsUrl
    settings: FunctionSettings
    failed: QueueResource | None  # what Lambda gives up; a queue that feeds a function has dead letters instead
    kind: str = "function"

    @property
    def name(self) -> str:
        return self.address.name


class EventRule(NamedTuple):
    """An EventBridge rule with one target. What it cannot deliver goes to a queue of its own."""

    name: str
    bus: Bus
    pattern: Mapping[str, Any]
    target: QueueResource | FunctionResource
    undelivered: QueueResource
    group: str | None  # of all messages in a FIFO queue

    @property
    def queues(self) -> list[QueueResource]:
        """The queues that the rule sends to."""
        return [each for each in (self.target, self.undelivered) if isinstance(each, QueueResource)]


class TableResource(NamedTuple):
    """A DynamoDB table."""

    address: AwsUrl
    url: str
    key: str
    sort: str | None
    ttl: str

    @property
    def name(self) -> str:
        return self.address.name


class StreamResource(NamedTuple):
    """A Kinesis stream, or the stream of a table's changes. Its owner creates it and chooses its shards."""

    address: AwsUrl
    purpose: str  # source or sink
    start: str = "TRIM_HORIZON"  # where a function begins to read

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def of_table(self) -> bool:
        return self.address.scheme == "dynamodbstreams"


Sink = QueueResource | Topic | Bus | StreamResource


class SetupPlan(NamedTuple):
    """The resources of a pipeline. `queues` are in the order in which they can be created."""

    consumer: str
    queues: list[QueueResource]
    source: QueueResource | None
    stream: StreamResource | None  # instead of a queue
    letters: QueueResource | None  # where the worker writes dead letters
    sink: Sink | None
    rule: EventRule | None
    table: TableResource | None
    function: FunctionResource | None

    @property
    def buses(self) -> list[Bus]:
        """The buses to create. Each account has a default bus."""
        buses = [bus for bus in (self.sink, self.rule and self.rule.bus) if isinstance(bus, Bus)]
        by_name = {bus.name: bus for bus in buses}
        return [bus for name, bus in by_name.items() if name != "default" and not foreign(bus)]

    @property
    def addresses(self) -> list[AwsUrl]:
        """The addresses of everything that the pipeline names."""
        others = [each.address for each in (self.stream, self.sink, self.table, self.function) if each]
        return [queue.address for queue in self.queues] + others


def foreign(resource: Sink) -> bool:
    """Return whether a resource is used and not created: it is named by its ARN or its account, or is a stream."""
    if isinstance(resource, StreamResource):
        return True
    return "/" in resource.name if isinstance(resource, QueueResource) else resource.name.startswith("arn:")


def make_plan(settings: Settings, *, function: bool = False) -> SetupPlan:
    """Return the resources of a pipeline, for a worker or for a Lambda function."""
    check_url(settings.store)
    check_source(settings.source)
    check_sink(settings.sink)
    check_dead_letters(dead_letter_url(settings))
    letters, sink = _letters(settings), _sink(settings)
    lambda_function = None if settings.function is None else _function(settings, settings.function)
    source = _source(settings, letters, function=function or lambda_function is not None)
    target = lambda_function if settings.source == "-" else source
    rule = None if settings.aws is None else _rule(settings, settings.aws, target)
    failed = lambda_function and lambda_function.failed
    candidates = [rule and rule.undelivered, failed, source and source.dead, letters, sink, source]
    queues = _distinct([queue for queue in candidates if isinstance(queue, QueueResource) and not foreign(queue)])
    return SetupPlan(
        settings.consumer, queues, source, _stream(settings), letters, sink, rule, _table(settings), lambda_function
    )


# --- queues ---


def _distinct(queues: list[QueueResource]) -> list[QueueResource]:
    """Return each queue once. Raise `ConfigError` if one queue has two purposes."""
    by_address: dict[tuple[str, str], QueueResource] = {}
    for queue in queues:
        other = by_address.setdefault((queue.name, str(queue.address.options)), queue)
        if other is not queue:
            both = f"{other.purpose} and {queue.purpose}"
            raise queue.address.wrong(f"is the queue for {both}; use a queue for each of them")
    return list(by_address.values())


def _source(settings: Settings, letters: QueueResource | None, *, function: bool) -> QueueResource | None:
    if not settings.source.startswith("sqs://"):
        return None
    address = _queue_address(settings.source, "source")
    if "/" in address.name:
        return QueueResource(address, "source")
    # A message that is redelivered while its event runs would be busy. Lambda needs six times its own timeout.
    lease = math.ceil(duration(settings.lease) / 1000)
    visibility = max(lease, 6 * FUNCTION_TIMEOUT if function else _MIN_VISIBILITY)
    # The worker itself dead-letters what fails max_attempts times, with the reason. Busy copies and store outages use
    # up receives too, so SQS must allow more of them, or it removes events that were never tried.
    receives = min(max(2 * settings.max_attempts, _MIN_RECEIVES), _MAX_RECEIVES)
    return QueueResource(
        address,
        "source",
        visibility=min(visibility, _MAX_VISIBILITY),
        dead=_dead(address, letters),
        receives=receives,
        by_content=address.name.endswith(".fifo") and settings.aws is not None,
    )


def _dead(source: AwsUrl, letters: QueueResource | None) -> QueueResource:
    """Return the pipeline's own queue of dead letters if it is of the kind that SQS requires, or else one beside it."""
    fifo = source.name.endswith(".fifo")
    same_kind = letters is not None and letters.fifo == fifo and letters.address.options == source.options
    if letters is not None and same_kind and not foreign(letters):
        return letters
    return QueueResource(_beside(source, "dead", ".fifo" if fifo else ""), "dead")


def _letters(settings: Settings) -> QueueResource | None:
    url = settings.dead_letter
    return QueueResource(_queue_address(url, "dead_letter"), "letters") if url.startswith("sqs://") else None


def _beside(address: AwsUrl, purpose: str, suffix: str = "") -> AwsUrl:
    name = f"{address.name.removesuffix('.fifo')}-{purpose}{suffix}"
    if not _QUEUE.fullmatch(name):
        raise address.wrong(f"its name is too long; {name} must be a name of at most 80 characters")
    query = f"?{urlencode(address.options)}" if address.options else ""
    return AwsUrl(f"sqs://{name}{query}", address.label)


# --- the rule ---


def _rule(settings: Settings, aws: AwsSettings, target: QueueResource | FunctionResource | None) -> EventRule:
    if target is None or (isinstance(target, QueueResource) and foreign(target)):
        raise ConfigError(
            'aws: a rule needs a queue of this account or a function to send to; write source = "sqs://QUEUE", or '
            "leave source out and add [function]"
        )
    name = aws.rule or f"eventonce-{settings.consumer}"
    AwsSettings(rule=name)  # raises if the consumer's name is not valid for a rule
    return EventRule(
        name,
        Bus(target.address, aws.bus),
        _pattern(settings.rule) if aws.pattern is None else aws.pattern,
        target,
        QueueResource(_beside(target.address, "undelivered"), "undelivered"),
        group=name if isinstance(target, QueueResource) and target.fifo else None,
    )


def _pattern(rules: list[Rule]) -> Mapping[str, Any]:
    """Return a pattern of everything that the rules match."""
    remedy = 'name the events in [aws], such as pattern = { source = ["com.example.orders"] }'
    if not rules:
        raise ConfigError(f"aws: no rule says which events to take; {remedy}")
    patterns: list[Mapping[str, Any]] = []
    for rule in rules:
        if rule.match is None:
            raise ConfigError(f"aws: rule {rule.name!r} matches every event; {remedy}")
        match = _for_eventbridge(rule.match)
        if match not in patterns:
            patterns.append(match)
    pattern = patterns[0] if len(patterns) == 1 else {"$or": patterns}
    if len(text := compact(pattern)) > _MAX_PATTERN:
        raise ConfigError(f"aws: the rules' patterns take {len(text)} of {_MAX_PATTERN} characters together; {remedy}")
    return pattern


def _for_eventbridge(match: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule's match with the names that EventBridge has for `type` and `data`."""
    named = {ALIASES[name]: value for name, value in match.items() if name in ALIASES}
    pattern = named | {name: value for name, value in match.items() if name not in ALIASES}
    return pattern | {"$or": [_for_eventbridge(branch) for branch in match["$or"]]} if "$or" in match else pattern


def compact(document: Any) -> str:
    """Return a document as JSON without spaces."""
    return msgspec.json.encode(document).decode()


# --- the function ---


def _function(settings: Settings, function: FunctionSettings) -> FunctionResource:
    if settings.source == "-" and settings.aws is None:
        raise ConfigError("function: nothing invokes it; name a queue or a stream as source, or a rule in [aws]")
    if settings.source != "-" and not settings.source.startswith(("sqs://", *_STREAMS)):
        raise ConfigError(
            f"function: {settings.source} cannot invoke it; use sqs://QUEUE, kinesis://STREAM or "
            "dynamodbstreams://TABLE, or leave source out and name a rule in [aws]"
        )
    name = function.name or f"eventonce-{settings.consumer}"
    FunctionSettings(name=name)  # raises if the consumer's name is not valid for a function
    places = [_address(url, "function") for url in (settings.source, settings.store) if url.startswith(_REGIONAL)]
    options = f"?{urlencode(places[0].options)}" if places else ""
    address = AwsUrl(f"lambda://{name}{options}", "function")
    failed = None if settings.source.startswith("sqs://") else QueueResource(_beside(address, "failed"), "failed")
    return FunctionResource(address, function, failed)


# --- streams, sink and store ---


def _stream(settings: Settings) -> StreamResource | None:
    url = settings.source
    if not url.startswith(_STREAMS):
        return None
    start = dict(parse_qsl(urlsplit(url).query)).get("start", "trim_horizon")
    return StreamResource(_address(url, "source"), "source", start.upper())


def _sink(settings: Settings) -> Sink | None:
    url = settings.sink
    if url.startswith("kinesis://"):
        return StreamResource(_address(url, "sink"), "sink")
    if url.startswith("sqs://"):
        return QueueResource(_queue_address(url, "sink"), "sink")
    if url.startswith("sns://"):
        return Topic(_address(url, "sink"))
    if url.startswith("events://"):
        address = _address(url, "sink")
        return Bus(address, address.name)
    return None


def _table(settings: Settings) -> TableResource | None:
    url = settings.store
    if not url.startswith("dynamodb://"):
        return None
    default, query = Layout(), dict(parse_qsl(urlsplit(url).query))
    return TableResource(
        _address(url, "store"),
        url,
        key=query.get("key", default.key_name),
        sort=query.get("sort", default.sort_name),
        ttl=query.get("ttl", default.ttl),
    )


def _queue_address(url: str, setting: str) -> AwsUrl:
    address = _address(url, setting)
    if not _QUEUE.fullmatch(address.name):
        raise address.wrong("is not a queue name; use up to 80 letters, digits, - and _, and .fifo at the end")
    return address


def _address(url: str, setting: str) -> AwsUrl:
    """Return the address in a URL. Its other options are for the source, sink or store."""
    bare, _, query = url.partition("?")
    location = [(option, value) for option, value in parse_qsl(query) if option in ("region", "endpoint")]
    return AwsUrl(f"{bare}?{urlencode(location)}", setting)
