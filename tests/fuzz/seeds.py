"""Where fuzzing begins: an example of each thing that a target reads."""

import base64
import gzip
import json

BRIDGE = {
    "version": "0", "id": "e-1", "source": "shop", "detail-type": "Order", "account": "1", "region": "eu-west-1",
    "time": "2026-01-05T09:00:00Z", "resources": [], "detail": {"id": "o-1", "at": 1.5, "lines": [{"n": 1}, None]},
}  # fmt: skip
CLOUD = {
    "specversion": "1.0",
    "id": "c-1",
    "source": "/shop",
    "type": "order",
    "data": {"n": 1},
    "time": BRIDGE["time"],
}
WITH_METADATA = {"Data": BRIDGE, "SystemMetadata": {"aws:EventId": "1", "aws:DeliveryType": "REPLAY"}}
NOTICE = {"Type": "Notification", "TopicArn": "arn:aws:sns:x:1:t", "MessageId": "m", "Message": json.dumps(BRIDGE)}
SQS = {"messageId": "m", "receiptHandle": "r", "body": json.dumps(NOTICE), "attributes": {}, "eventSource": "aws:sqs"}
PACKED = base64.b64encode(gzip.compress(json.dumps(BRIDGE).encode(), mtime=0)).decode()
KINESIS = {"eventID": "s:1", "eventSource": "aws:kinesis", "kinesis": {"data": PACKED, "sequenceNumber": "1"}}
STREAM = {
    "eventID": "1", "eventName": "INSERT", "eventSource": "aws:dynamodb",
    "dynamodb": {"Keys": {"k": {"S": "a"}}, "NewImage": {"n": {"N": "1.0"}, "l": {"L": [{"BOOL": True}]}}},
}  # fmt: skip
FIREHOSE = {"invocationId": "i", "deliveryStreamArn": "a", "records": [{"recordId": "1", "data": PACKED}]}
REQUEST = {"version": "2.0", "headers": {"ce-id": "1"}, "body": json.dumps(CLOUD), "requestContext": {"http": {}}}
EVENTS = [
    BRIDGE,
    CLOUD,
    WITH_METADATA,
    NOTICE,
    *({"Records": [each]} for each in (SQS, KINESIS, STREAM)),
    FIREHOSE,
    REQUEST,
]
PATTERN = {
    "source": [{"prefix": "sh"}, {"anything-but": ["x"]}], "detail": {"at": [{"numeric": [">", 1, "<=", 2]}]},
    "$or": [{"account": [{"cidr": "10.0.0.0/24"}]}, {"region": [{"wildcard": "eu-*-1"}]}],
}  # fmt: skip
PIPELINE = """consumer = "c"
store = "memory:"
window = "5d"
use = ["genesys"]
[[rule]]
name = "orders"
match = { source = ["shop"], detail-type = [{ prefix = "Order" }] }
key = ["detail.id", "floor_time(detail.at, '1s')"]
ignore = ["**.at", "lines[*].n"]
version = "detail.n"
"""
LETTER = {
    "time": BRIDGE["time"], "outcome": "failed", "reason": "r", "attempts": 5, "rule": "orders", "key": "00",
    "body": json.dumps(BRIDGE),
}  # fmt: skip
SIGNED = {
    "Type": "Notification", "MessageId": "m", "Message": json.dumps(BRIDGE), "Timestamp": "2026-11-19T09:00:00Z",
    "SignatureVersion": "2", "Signature": PACKED, "Subject": None,
    "SigningCertURL": "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0.pem",
}  # fmt: skip
HEADERS = {"content-type": "application/json", "authorization": "Bearer secret", "idempotency-key": '"k"'}

_PATHS = (b"detail.id", b"a || b", b"floor_time(time,'1s')", b"**.at")
_JSON = [json.dumps(each).encode() for each in EVENTS]
_SEEDS: dict[str, list[bytes]] = {
    "pattern": [json.dumps(PATTERN).encode() + b"\n" + json.dumps(BRIDGE).encode()],
    "pipeline": [PIPELINE.encode()],
    "paths": [
        path + b"\n" + json.dumps(BRIDGE).encode()
        for path in (b"detail.id", b"a || b", b"floor_time(time,'1s')", b"**.at")
    ],
    "durations": [b"14d", b"1h30m", b"250ms", b"0"],
    "urls": [
        b"memory:?max_keys=3",
        b"redis://u:p@h:1/0?cluster=true",
        b"sqs://q?endpoint=http://h",
        b"https://h/p?timeout=1s",
    ],
    "notice": [json.dumps(SIGNED).encode(), json.dumps({**SIGNED, "Type": "SubscriptionConfirmation"}).encode()],
    "letter": [json.dumps(LETTER).encode()],
    "message": [b"name\n" + each for each in _JSON],
    "binary_cloudevent": [b'{"ce-time": "2026-01-05T09:00:00Z"}\n{"n": 1}'],
    "webhook": [json.dumps(HEADERS).encode() + b"\n" + each for each in _JSON],
    "command": [b"\n---\n".join([PIPELINE.encode(), b"\n".join(_JSON[:4])]) + b" " * number for number in range(5)],
    "options": [each + b" " * number for each in (b"14d", b"content", b"memory:", b"-1") for number in range(8)],
    "documents": [b"\n".join(_JSON[:3]), b"".join(_JSON[:3]), b'{"a": "\\"}"}\n\n[1]\nx'],
}


def seeds(target: str) -> list[bytes]:
    """The seeds of a target."""
    return _SEEDS.get(target, _JSON)
