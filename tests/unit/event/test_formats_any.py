"""Whatever comes, it is read or rejected, and soon."""

import gzip
import json
from base64 import b64encode
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from eventonce import Event, EventRejected
from eventonce.event.formats import read_event, read_events, read_message, unpack

# The names that decide how a document is read, so that the odd paths are taken often.
NAMES = st.sampled_from(
    """
    Records records Messages Entries eventSource EventSource eventVersion eventName eventID body Body messageId
    receiptHandle ReceiptHandle Sns Message MessageId Type TopicArn kinesis data value topic partition offset
    dynamodb Keys NewImage OldImage S N M L NS SS ApproximateCreationDateTime eventSourceARN tableName invocationId
    deliveryStreamArn recordId requestContext headers multiValueHeaders isBase64Encoded httpMethod awslogs Data
    SystemMetadata Metadata aws:EventId aws:DeliveryType specversion id source type time data_base64
    datacontenttype datacontentencoding detail detail-type replay-name Source DetailType Detail Time Resources
    ce-specversion ce-id ce-source ce-type content-type messages messageID rmqMessagesByQueue basicProperties
    messageType logGroup logStream logEvents message timestamp
    """.split()  # noqa: SIM905  # one name per line would fill a page
)
SOURCES = [
    "aws:sqs",
    "aws:sns",
    "aws:kinesis",
    "aws:dynamodb",
    "aws:s3",
    "aws:kafka",
    "SelfManagedKafka",
    "aws:mq",
    "aws:rmq",
]
WORDS = st.sampled_from([*SOURCES, "Notification", "REPLAY", "1.0", "application/json", "text/plain", "base64", ""])


def packed(value: Any) -> list[str]:
    """JSON as text, as base64 and as base64 of gzip."""
    try:
        raw = json.dumps(value).encode()
    except ValueError:
        return []
    return [raw.decode(), b64encode(raw).decode(), b64encode(gzip.compress(raw)).decode()]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(), inner, max_size=8)
        | inner.flatmap(lambda value: st.sampled_from([value, *packed(value)]))
    ),
    max_leaves=25,
)


@given(VALUES)
def test_any_value_is_read_or_rejected(value: Any) -> None:
    for results in (read_events(value), read_events(text(value))):
        assert all(isinstance(each, Event | EventRejected) for each in results)
    for carried in unpack(value):
        assert isinstance(carried.body, bytes | str | dict | Event)
        assert all(isinstance(each, Event | EventRejected) for each in read_message(carried))
    accept(read_event, value)


@given(st.binary() | st.text() | st.binary().map(lambda raw: b"\x1f\x8b" + raw) | st.binary().map(gzip.compress))
def test_any_bytes_are_read_or_rejected(body: bytes | str) -> None:
    assert all(isinstance(each, Event | EventRejected) for each in read_events(body))
    accept(read_event, body)


@given(st.dictionaries(NAMES, VALUES))
def test_what_is_read_can_be_written_and_read_again(value: dict[str, Any]) -> None:
    for event in read_events(text(value)):
        if isinstance(event, Event):
            assert isinstance(read_event(event.line()), Event)


def text(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        return b"null"


def accept(read: Any, body: Any) -> None:
    with suppress(EventRejected):
        assert isinstance(read(body), Event)
