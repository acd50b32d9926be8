"""Ids that carriers give: no sender can write one, and the same record has the same one by every door."""

import asyncio
import gzip
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eventonce import Event, EventRejected, Once, Rule
from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.dead_letters import open_dead_letters
from eventonce.dead_letters.letter import letter_deliveries
from eventonce.event import Delivery
from eventonce.event.formats import read_events
from eventonce.event.reading import split_events
from eventonce.outbox.identity import Identities
from eventonce.outbox.rows import make_row
from eventonce.redrive import open_box
from eventonce.requests.reading import deliveries
from eventonce.rules import Rulebook, identity
from eventonce.rules.preset import rules_of
from eventonce.webhook import Webhook

QUEUE = "arn:aws:sqs:eu-west-1:111122223333:orders"
TOPIC = "arn:aws:sns:eu-west-1:111122223333:orders"
STREAM = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
CLUSTER = "arn:aws:kafka:eu-west-1:111122223333:cluster/blue/1-2"
BROKER = "arn:aws:mq:eu-west-1:111122223333:broker:orders:b-1"
FIREHOSE = "arn:aws:firehose:eu-west-1:111122223333:deliverystream/orders"
BARE = '{"cents": 100}'  # an event without an id


def packed(text: str) -> str:
    return b64encode(text.encode()).decode()


def kafka(*values: str, arn: str = CLUSTER, first: int = 16, **fields: Any) -> dict[str, Any]:
    records = [
        {"topic": "orders", "partition": 0, "offset": first + at, "value": packed(value), **fields}
        for at, value in enumerate(values)
    ]
    return {"eventSource": "aws:kafka", "eventSourceArn": arn, "records": {"orders-0": records}}


def self_managed(value: str, servers: str = "b-1:9092,b-2:9092") -> dict[str, Any]:
    records = kafka(value)["records"]
    return {"eventSource": "SelfManagedKafka", "bootstrapServers": servers, "records": records}


def kafka_item(value: str) -> dict[str, Any]:
    (record,) = kafka(value)["records"]["orders-0"]
    return {"eventSource": "aws:kafka", "eventSourceArn": CLUSTER, **record, "partition": "0"}


def sqs(body: str, **fields: Any) -> dict[str, Any]:
    return {"messageId": "m-1", "body": body, "eventSource": "aws:sqs", "eventSourceARN": QUEUE, **fields}


def sns(message: str, arn: str = TOPIC) -> dict[str, Any]:
    return {"Type": "Notification", "TopicArn": arn, "MessageId": "n-1", "Message": message}


def sns_record(message: str) -> dict[str, Any]:
    return {"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": sns(message)}


def kinesis(data: str, arn: str = STREAM) -> dict[str, Any]:
    record = {"eventID": "shardId-0:7", "eventSource": "aws:kinesis", "eventSourceARN": arn}
    return {**record, "kinesis": {"data": packed(data), "sequenceNumber": "7"}}


def firehose(data: str, arn: str = FIREHOSE) -> dict[str, Any]:
    return {"deliveryStreamArn": arn, "invocationId": "i", "records": [{"recordId": "f-1", "data": packed(data)}]}


def request(body: str, **headers: str) -> dict[str, Any]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"version": "2.0", "requestContext": {}, "rawPath": "/", "headers": names, "body": body}


def activemq(data: str, arn: str = BROKER) -> dict[str, Any]:
    message = {"messageID": "ID:b-1:1:1:1:1", "data": packed(data)}
    return {"eventSource": "aws:mq", "eventSourceArn": arn, "messages": [message]}


def rabbitmq(data: str, queue: str = "orders::/", user: str | None = None, name: str = "p-1") -> dict[str, Any]:
    message = {"basicProperties": {"messageId": name, "userId": user}, "redelivered": False, "data": packed(data)}
    return {"eventSource": "aws:rmq", "eventSourceArn": BROKER, "rmqMessagesByQueue": {queue: [message]}}


def logs(line: str, stream: str = "s") -> dict[str, Any]:
    events = [{"id": "3937", "timestamp": 1767603600000, "message": line}]
    names = {"messageType": "DATA_MESSAGE", "owner": "111122223333", "logGroup": "/orders", "logStream": stream}
    zipped = gzip.compress(json.dumps({**names, "logEvents": events}).encode(), mtime=0)
    return {"awslogs": {"data": b64encode(zipped).decode()}}


SNS_HEADERS = {"x_amz_sns_message_id": "n-1", "x_amz_sns_topic_arn": TOPIC}

# A record without an id by each carrier: its document, what it is called there, and what its name counts within.
CARRIERS: dict[str, tuple[Callable[[str], Any], str, tuple[str, ...]]] = {
    "MSK": (kafka, "orders-0-16", (CLUSTER,)),
    "MSK, with a time": (lambda value: kafka(value, timestamp=5), "orders-0-16@5", (CLUSTER,)),
    "self-managed Kafka": (self_managed, "orders-0-16", ("b-1:9092,b-2:9092",)),
    "a pipe of Kafka": (lambda value: [kafka_item(value)], "orders-0-16", (CLUSTER,)),
    "SQS": (lambda body: {"Records": [sqs(body)]}, "m-1", (QUEUE,)),
    "SQS, written by hand": (lambda body: {"Records": [sqs(body, eventSourceARN=None)]}, "m-1", ("sqs",)),
    "a pipe of SQS": (lambda body: [sqs(body)], "m-1", (QUEUE,)),
    "SNS": (lambda message: {"Records": [sns_record(message)]}, "n-1", (TOPIC,)),
    "SNS over HTTP": (lambda message: request(json.dumps(sns(message))), "n-1", ("http", TOPIC)),
    "SNS over HTTP, raw": (lambda message: request(message, **SNS_HEADERS), "n-1", (f"http {TOPIC}",)),
    "SNS to SQS": (lambda message: {"Records": [sqs(json.dumps(sns(message)))]}, "n-1", (QUEUE, TOPIC)),
    "Kinesis": (lambda data: {"Records": [kinesis(data)]}, "shardId-0:7", (STREAM,)),
    "a pipe of Kinesis": (lambda data: [kinesis(data)], "shardId-0:7", (STREAM,)),
    "Firehose": (firehose, "f-1", (FIREHOSE,)),
    "ActiveMQ": (activemq, "ID:b-1:1:1:1:1", (BROKER,)),
    "RabbitMQ": (rabbitmq, "p-1", (f"{BROKER} orders::/",)),
    "RabbitMQ, with a user": (lambda data: rabbitmq(data, user="shop"), "p-1", (f"{BROKER} orders::/ by shop",)),
}
LOG_STREAM = ("logs", "logs 111122223333 /orders s")
RULES: dict[str, list[Rule]] = {
    "default": [],
    "path": [Rule(name="r", key=["id"])],
    "expression": [Rule(name="r", key=["detail.orderId || id"])],
    "otherwise": [Rule(name="r", key=["detail.orderId"], otherwise="id")],
}


def read(document: Any) -> Event:
    (event,) = read_events(document)
    assert isinstance(event, Event), event
    return event


def rulebook(rules: str) -> Rulebook:
    return Rulebook("billing", RULES[rules], identity("14d", "retry"))


def key(document: Any, rules: str = "default") -> str:
    return rulebook(rules).key(document if isinstance(document, Event) else read(document)).key.hex()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_name_says_what_it_counts_within(carrier: str) -> None:
    made, name, named_by = CARRIERS[carrier]
    event = read(made(BARE))
    assert (event.id, event.named_by) == (name, named_by)
    own = read(made('{"id": "7", "cents": 100}'))
    assert (own.id, own.named_by) == ("7", ())


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_an_id_that_a_sender_writes_is_not_one_that_a_carrier_gave(carrier: str, rules: str) -> None:
    made, name, named_by = CARRIERS[carrier]
    genuine = key(made(BARE), rules)
    assert genuine == key(made(BARE), rules)
    forged: list[Any] = [{"id": name, "cents": 100}]
    forged += [{**forged[0], "id": each} for each in (" ".join(named_by), f"{named_by[0]} {name}", [*named_by, name])]
    forged += [{"id": name, "source": "", "detail-type": "", "detail": {"cents": 100}}]
    for each in forged:
        for document in (each, made(json.dumps(each))):
            try:
                assert key(document, rules) != genuine
            except EventRejected:
                continue  # a list cannot be an id


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("inner", CARRIERS)
def test_a_document_of_a_carrier_in_a_body_forges_no_name(inner: str, rules: str) -> None:
    genuine = {key(made(BARE), rules) for made, _, named_by in CARRIERS.values() if len(named_by) == 1}
    forged = json.dumps(CARRIERS[inner][0](BARE))
    assert genuine.isdisjoint(key(made(forged), rules) for made, _, _ in CARRIERS.values())


@pytest.mark.parametrize("rules", RULES)
def test_the_id_of_a_log_event_is_no_id_that_a_line_holds(rules: str) -> None:
    event = read(logs('{"id": "3937"}'))
    assert (event.id, event.named_by, event.data) == ("3937", LOG_STREAM, {"id": "3937"})
    genuine = key(logs("x"), rules)
    assert genuine == key(logs("x"), rules)
    others: list[Any] = [
        {"id": "3937", "source": "/orders", "type": "DATA_MESSAGE", "detail": "x"},
        logs("x", stream="t"),
        kinesis(json.dumps(logs("x"))),
        {"Records": [sqs(json.dumps(logs("x")))]},
        request(json.dumps(logs("x"))),
        logs(json.dumps({"Records": [sqs(BARE)]})),
    ]
    assert genuine not in [key(other, rules) for other in others[:-1]]
    # A line is its writer's word: what looks like another carrier's message in it takes nobody's name.
    assert key(others[-1], rules) not in {key(made(BARE), rules) for made, _, _ in CARRIERS.values()}


@pytest.mark.parametrize("made", [activemq, rabbitmq, logs, kafka], ids=["ActiveMQ", "RabbitMQ", "logs", "Kafka"])
def test_a_line_of_a_file_that_holds_a_batch_is_taken_apart(made: Callable[[str], Any]) -> None:
    document = made(BARE)
    for body in (document, {"Records": [sqs(json.dumps(document))]}):
        (delivery,) = split_events(Delivery(json.dumps(body).encode(), {"source": "events.jsonl", "line": 1}))
        assert delivery.event is not None
        assert (delivery.event.data, key(delivery.event)) == ({"cents": 100}, key(body))


def test_a_name_of_a_broker_counts_within_its_broker_queue_and_user() -> None:
    documents = [
        activemq(BARE),
        activemq(BARE, arn=f"{BROKER}-2"),
        rabbitmq(BARE),
        rabbitmq(BARE, queue="refunds::/"),
        rabbitmq(BARE, user="shop"),
        rabbitmq(BARE, user="bank"),
    ]
    assert len(set(map(key, documents))) == len(documents)
    again = rabbitmq(BARE)
    again["rmqMessagesByQueue"]["orders::/"][0]["redelivered"] = True
    assert key(again) == key(rabbitmq(BARE))
    with pytest.raises(EventRejected, match="has no id; name what identifies it, such as key = "):
        key(rabbitmq(BARE, name=""))
    assert key(rabbitmq('{"id": "7"}', name="")) == key({"id": "7"})


def test_what_a_queue_says_of_a_topic_counts_within_the_queue() -> None:
    copies = [{"Records": [sqs(json.dumps(sns(BARE)), messageId=name)]} for name in ("m-1", "m-2")]
    assert len(set(map(key, copies))) == 1  # SNS may deliver a message twice
    other = {"Records": [sqs(json.dumps(sns(BARE)), eventSourceARN=f"{QUEUE}-2")]}
    assert key(other) != key(copies[0])


def test_one_record_has_one_name_by_each_way() -> None:
    assert key(kafka(BARE)) == key([kafka_item(BARE)])
    assert key({"Records": [sqs(BARE)]}) == key([sqs(BARE)])
    moved = sqs(BARE, eventSourceARN=f"{QUEUE}-dead", attributes={"DeadLetterQueueSourceArn": QUEUE})
    assert key({"Records": [moved]}) == key({"Records": [sqs(BARE)]})
    assert key({"Records": [kinesis(BARE, f"{STREAM}/consumer/billing:1")]}) == key({"Records": [kinesis(BARE)]})
    assert key(self_managed(BARE, "b-2:9092,b-1:9092")) == key(self_managed(BARE))


def test_an_empty_record_of_kinesis_is_an_event_by_every_door(once: Once, ran: list[str]) -> None:
    (record,) = split_events(
        Delivery(b"", {"source": "kinesis://orders", "arn": STREAM, "message": "shardId-0:7"}, handle="h")
    )
    assert record.event is not None
    assert (record.event.data, key(record.event)) == ("", key({"Records": [kinesis("")]}))
    handler = once.aws_lambda(lambda event: ran.append(event.id))
    for _ in range(2):
        assert handler({"Records": [kinesis("")]}) == {"batchItemFailures": []}
    assert ran == ["shardId-0:7"]


@pytest.mark.parametrize("scheme", ["sqs", "kinesis"])
def test_the_worker_and_a_function_know_a_record_by_one_key(scheme: str) -> None:
    arn, name, document = {
        "sqs": (QUEUE, "m-1", {"Records": [sqs(BARE)]}),
        "kinesis": (STREAM, "shardId-0:7", {"Records": [kinesis(BARE)]}),
    }[scheme]
    where = {"source": f"{scheme}://orders", "arn": arn, "message": name}
    (delivery,) = split_events(Delivery(BARE.encode(), where, handle="h"))
    assert delivery.event is not None
    assert key(delivery.event) == key(document)


def test_a_webhook_and_a_function_know_a_request_by_one_key() -> None:
    headers = {name.replace("_", "-"): value for name, value in SNS_HEADERS.items()}
    for body, sent in ((BARE, headers), (json.dumps(sns(BARE)), headers), (json.dumps(sns(BARE)), {})):
        (delivery,) = deliveries(sent, body.encode(), 1000, "http://host/path")
        assert delivery.event is not None
        named = {name.replace("-", "_"): value for name, value in sent.items()}
        assert key(delivery.event) == key(request(body, **named))
        assert key(delivery.event) != key({"Records": [sns_record(BARE)]})


def test_a_name_that_the_sender_of_a_request_gives_is_his_own() -> None:
    headers = {"x-amz-sns-message-id": "n-1", "x-amz-sns-topic-arn": TOPIC, "idempotency-key": "k-1"}
    (delivery,) = deliveries(headers, BARE.encode(), 1000, "http://host/path")
    assert delivery.event is not None
    assert (delivery.event.id, delivery.event.named_by) == ("k-1", ())


# --- over the door ---


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def once() -> Iterator[Once]:
    with Once("memory:", consumer="billing") as made:
        yield made


def test_records_of_another_cluster_and_of_a_topic_made_again_run(once: Once, ran: list[str]) -> None:
    handler = once.aws_lambda(lambda event: ran.append(str(event.data["n"])))
    green = CLUSTER.replace("blue", "green")
    for _ in range(2):
        handler(kafka('{"n": 1}', timestamp=1000))
        handler(kafka('{"n": 2}', timestamp=1000, arn=green))
        handler(kafka('{"n": 3}', timestamp=2000))
    assert ran == ["1", "2", "3"]


def test_a_record_that_is_named_ahead_of_time_still_runs(once: Once, ran: list[str]) -> None:
    handler = once.aws_lambda(lambda event: ran.append(event.id))
    nested = json.dumps(kafka(BARE))
    handler(kafka('{"id": "orders-0-16"}', nested, first=3))
    handler(kafka(BARE))
    handler(kafka(BARE))
    assert ran == ["orders-0-16"] * 3


def test_a_dead_letter_keeps_the_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dead.db'}"
    failed = Outcome(kind=OutcomeKind.FAILED, attempt=1, error=ValueError("no"))
    two = f"[{BARE}, {BARE}]"
    where = {"source": "sqs://orders", "arn": QUEUE, "message": "m-1"}
    parts = [
        *split_events(Delivery(BARE.encode(), where, handle="h")),
        *split_events(Delivery(two.encode(), where, handle="h")),
    ]
    own = split_events(Delivery(b'{"id": "m-1"}', where, handle="h"))
    dead = [*parts, *own]
    open_dead_letters(url).write([(each, failed) for each in dead], 0)
    letters = list(open_box(url).letters())
    assert [letter.event_id for letter in letters] == ["m-1", "m-1/1", "m-1/2", "m-1"]
    again = [delivery.event for letter in letters for delivery in letter_deliveries(letter)]
    assert [each and key(each) for each in again] == [each.event and key(each.event) for each in dead]
    assert letters[0].fields["named_by"] == [QUEUE]
    assert "named_by" not in letters[3].fields


def test_people_see_the_name_and_its_carrier() -> None:
    event = read(kafka(BARE))
    for rules, parts in (
        ("default", {"source": "", "type": "", "id": "orders-0-16"}),
        ("path", {"id": "orders-0-16"}),
    ):
        compiled = rulebook(rules)
        assert compiled.find(event).parts(event) == {**parts, "named by": CLUSTER}
    nested = read({"Records": [sqs(json.dumps(sns(BARE)))]})
    assert rulebook("default").find(nested).parts(nested)["named by"] == f"{QUEUE} > {TOPIC}"
    rule = Rule(name="r", key=["detail.cents"])
    other = Rulebook("c", [rule], identity("14d", "retry"))
    assert other.find(event).parts(event) == {"detail.cents": 100}


def test_a_tombstone_is_known_by_its_record() -> None:
    compiled = Rulebook("c", [Rule(name="r", key="content", match={"detail": [None]})], identity("14d", "retry"))
    records = [kafka(""), kafka("", first=17), kafka("", arn=f"{CLUSTER}-2"), kafka("", timestamp=1), kafka("")]
    events = list(map(read, records))
    assert [compiled.find(each).name for each in events] == ["r"] * 5
    assert compiled.find(events[0]).parts(events[0])["id"] == "orders-0-16"
    keys = [compiled.key(each).key for each in events]
    assert len(set(keys)) == 4
    assert keys[0] == keys[4]


def test_parts_that_do_not_come_of_the_id_are_the_same_by_every_carrier() -> None:
    compiled = Rulebook("c", [Rule(name="r", key=["detail.cents", "source || 'x'"])], identity("14d", "retry"))
    assert len({compiled.key(read(made(BARE))).key for made, _, _ in CARRIERS.values()}) == 1


def test_powertools_knows_no_name_of_a_carrier() -> None:
    rule = Rule(name="r", key=["id"], digest="powertools")
    compiled = Rulebook("c", [rule], identity("14d", "retry"))
    with pytest.raises(EventRejected, match="has no id, which is in the key"):
        compiled.key(read(kafka(BARE)))
    assert compiled.key(read(kafka('{"id": "7"}'))).key == compiled.key(read({"id": "7"})).key


def test_a_publisher_makes_no_identity_that_a_sender_could_write() -> None:
    named, forged = read(kafka(BARE)), read({"id": "orders-0-16", "cents": 100})
    identities = Identities(())
    assert identities.of(forged) == "orders-0-16"
    assert identities.of(named) == identities.of(read(kafka(BARE))) != "orders-0-16"
    assert identities.of(named) != identities.of(read(kafka(BARE, arn=f"{CLUSTER}-2")))
    assert make_row(named, None, None, None).identity == identities.of(named)


TABLE = "arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/2026-01-05T09:00:00.000"


def change(arn: str | None = TABLE, name: str = "c4ca4238") -> dict[str, Any]:
    record = {"eventID": name, "eventName": "INSERT", "eventSource": "aws:dynamodb", "eventSourceARN": arn}
    return {**record, "dynamodb": {"Keys": {"k": {"S": "1"}}, "SequenceNumber": "1"}}


@pytest.mark.parametrize("rules", RULES)
def test_a_change_of_a_table_is_named_by_its_stream(rules: str) -> None:
    genuine = read({"Records": [change()]})
    assert (genuine.id, genuine.source, genuine.type, genuine.named_by) == ("c4ca4238", "orders", "INSERT", (TABLE,))
    own = {"source": "orders", "type": "INSERT", "id": "c4ca4238"}
    body = json.dumps(change())
    named_like_a_queue = {**change(QUEUE, "m-1"), "eventName": ""}
    others: list[Any] = [
        {"Records": [sqs(json.dumps(own))]},
        own,
        {"Records": [change(TABLE.replace("eu-west-1", "us-east-1"))]},
        {"Records": [change(None)]},
        *(made(body) for made in MESSAGES.values()),
    ]
    assert key(genuine, rules) == key([change()], rules) == key(change(), rules)
    assert key(genuine, rules) not in [key(other, rules) for other in others]
    assert key({"Records": [sqs(json.dumps(named_like_a_queue))]}) != key({"Records": [sqs(BARE)]})


def test_a_change_runs_whatever_was_sent_ahead_of_it(once: Once, ran: list[str]) -> None:
    handler = once.aws_lambda(lambda event: ran.append(event.source))
    forged = {"source": "orders", "type": "INSERT", "id": "c4ca4238"}
    for document in (sqs(json.dumps(forged)), sqs(json.dumps(change()))):
        handler({"Records": [document]})
    for arn in (TABLE, TABLE.replace("eu-west-1", "us-east-1"), TABLE):
        handler({"Records": [change(arn)]})
    assert ran == ["orders"] * 4


# What looks like an event without data, and is its sender's word.
HOLLOW: dict[str, Any] = {
    "a record of Kafka": {"eventSource": "aws:kafka", "topic": "t", "partition": 0, "offset": 7},
    "records of Kafka": {
        "eventSource": "aws:kafka",
        "records": {"t-0": [{"topic": "t", "partition": 0, "offset": 7, "value": None}]},
    },
    "an item of a pipe": [{"eventSource": "SelfManagedKafka", "topic": "t", "partition": 0, "offset": 7}],
    "the new bus": {"Data": None, "SystemMetadata": {}},
    "the new bus, with an id": {"Data": None, "SystemMetadata": {"aws:EventId": "b-1"}},
}
HEADER_RULE = Rule(name="requests", key=['headers."idempotency-key"'])
PATH_RULE = Rule(name="orders", key=["detail.orderId"], version="detail.version")
MESSAGES: dict[str, Callable[[str], Any]] = {
    "SQS": lambda body: {"Records": [sqs(body)]},
    "SNS": lambda body: {"Records": [sns_record(body)]},
    "Kinesis": lambda body: {"Records": [kinesis(body)]},
    "Kafka": kafka,
    "a pipe of SQS": lambda body: [sqs(body)],
}


@pytest.mark.parametrize("body", HOLLOW.values(), ids=HOLLOW)
@pytest.mark.parametrize("rule", [HEADER_RULE, PATH_RULE], ids=["header", "path"])
def test_a_request_without_data_gets_past_no_rule(body: Any, rule: Rule) -> None:
    ran: list[Event] = []
    with Once("memory:", consumer="billing", rules=[rule]) as once:
        assert once.aws_lambda(ran.append)(request(json.dumps(body)))["statusCode"] == 400
        webhook = Webhook(once, ran.append)
        assert asyncio.run(post(webhook, body)) == 400
        webhook.close()
    assert ran == []


async def post(webhook: Webhook, body: Any) -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(webhook), base_url="http://host") as client:
        return (await client.post("/", json=body)).status_code


@pytest.mark.parametrize("body", HOLLOW.values(), ids=HOLLOW)
@pytest.mark.parametrize("made", MESSAGES.values(), ids=MESSAGES)
def test_a_message_without_data_gets_past_no_rule(body: Any, made: Callable[[str], Any]) -> None:
    compiled = Rulebook("billing", [PATH_RULE], identity("14d", "retry"))
    with pytest.raises(EventRejected, match=r"has no detail\.orderId"):
        compiled.key(read(made(json.dumps(body))))
    (delivery,) = split_events(Delivery(json.dumps(body).encode(), {"source": "sqs://q", "message": "m"}, handle="h"))
    assert delivery.event is not None
    with pytest.raises(EventRejected, match=r"has no detail\.orderId"):
        compiled.key(delivery.event)


@pytest.mark.parametrize("value", [None, ""])
def test_what_kafka_itself_brings_without_a_value_is_known_by_its_record(value: Any) -> None:
    compiled = Rulebook("billing", [PATH_RULE], identity("14d", "retry"))
    document = kafka("", timestamp=1)
    document["records"]["orders-0"][0]["value"] = value
    item = {"eventSource": "aws:kafka", "eventSourceArn": CLUSTER, **document["records"]["orders-0"][0]}
    assert compiled.key(read(document)) == compiled.key(read([item]))


# --- records of services without an id ---


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"eventSource": "aws:s3", "s3": {}}, r'Amazon S3, which has no id; use its preset, such as use = \["s3"\]'),
        ({"eventSource": "aws:ses", "ses": {}}, r'Amazon SES.*key = \["detail.ses.mail.messageId"\]'),
        ({"eventSource": "aws:codecommit"}, r'AWS CodeCommit.*key = \["detail.eventId", "detail.eventPartNumber"\]'),
        ({"eventSource": "aws:other"}, "has no id; name what identifies it, such as key = "),
        ({"eventSource": ["aws:s3"]}, "has no id; name what identifies it, such as key = "),
    ],
)
def test_a_record_without_an_id_is_refused_with_its_service_and_the_remedy(record: Any, reason: str) -> None:
    with pytest.raises(EventRejected, match=reason):
        key({"Records": [{"eventVersion": "1.0", "eventName": "x", **record}]})


def test_the_remedies_for_records_without_an_id_work() -> None:
    s3 = {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "responseElements": {"x-amz-request-id": "R"}}
    s3["s3"] = {"bucket": {"name": "b"}, "object": {"key": "k", "sequencer": "1"}}
    ses = {"eventSource": "aws:ses", "ses": {"mail": {"messageId": "m"}, "receipt": {}}}
    commit = {"eventSource": "aws:codecommit", "eventName": "ReferenceChanges", "eventId": "c", "eventPartNumber": 1}
    rules: dict[str, Any] = {
        "s3": rules_of(["s3"]),
        "ses": [Rule(name="r", key=["detail.ses.mail.messageId"])],
        "commit": [Rule(name="r", key=["detail.eventId", "detail.eventPartNumber"])],
    }
    for name, record in (("s3", s3), ("ses", ses), ("commit", commit)):
        book = Rulebook("billing", rules[name], identity("14d", "retry"))
        assert book.key(read({"Records": [{"eventVersion": "1.0", **record}]})).key
