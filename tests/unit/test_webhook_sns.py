"""SNS over HTTP: signatures of both versions, forged certificates, and subscriptions."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from http.client import IncompleteRead
from typing import Any
from urllib.error import URLError

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from eventonce import Event, Once
from eventonce.errors import ConfigError
from eventonce.webhook import Sns, Webhook
from eventonce.refusal import Refusal
from tests.unit.test_webhook_app import ask

NOW = datetime.now(UTC)
TOPIC = "arn:aws:sns:us-east-1:123456789012:orders"
CERTIFICATE = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem"
SUBSCRIBE = f"https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=abc"
NOTICE = {"Type": "Notification", "MessageId": "m-1", "TopicArn": TOPIC, "Message": "{}", "Timestamp": NOW.isoformat()}
CONFIRMATION = {**NOTICE, "Type": "SubscriptionConfirmation", "Token": "abc", "SubscribeURL": SUBSCRIBE}


@cache
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def certificate() -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key().public_key())
    dated = made.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return dated.sign(key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def signed(notice: dict[str, Any], version: str = "2", **more: Any) -> bytes:
    """The notice as SNS would sign and send it, with what a forger then changes."""
    order = ("Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
    text = "".join(f"{name}\n{notice[name]}\n" for name in order if notice.get(name) is not None)
    kind: hashes.HashAlgorithm = hashes.SHA1() if version == "1" else hashes.SHA256()
    signature = b64encode(key().sign(text.encode(), padding.PKCS1v15(), kind)).decode()
    whole = {**notice, "SignatureVersion": version, "Signature": signature, "SigningCertURL": CERTIFICATE, **more}
    return json.dumps(whole).encode()


class Net:
    """What is out there, and who was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Callable[[], bytes] = certificate

    def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        return self.answer()


@pytest.fixture
def net() -> Net:
    return Net()


def told(auth: Sns, body: bytes) -> str | int | None:
    """What became of it: None for an event, a word, or the status of a refusal."""
    try:
        admitted = asyncio.run(auth.admit({}, body))
    except Refusal as refusal:
        return refusal.status
    return admitted if isinstance(admitted, str) else None


@pytest.mark.parametrize("off", [timedelta(days=-2), timedelta(days=2), None])
def test_a_message_of_long_ago_is_one_that_somebody_has_kept(off: timedelta | None, net: Net) -> None:
    then = "yesterday" if off is None else (NOW + off).isoformat()
    assert told(Sns(TOPIC, fetch=net), signed({**NOTICE, "Timestamp": then})) == 401
    assert told(Sns(TOPIC, fetch=net), signed({**CONFIRMATION, "Timestamp": then})) == 401
    assert set(net.asked) == {CERTIFICATE}
    assert off is None or told(Sns(TOPIC, fetch=net, tolerance="3d"), signed({**NOTICE, "Timestamp": then})) is None


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", [{}, {"Subject": None}, {"Subject": "Orders"}])
def test_what_sns_has_signed_is_taken(version: str, subject: dict[str, Any], net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)
    assert told(auth, signed({**NOTICE, **subject}, version)) is None
    assert told(auth, signed({**NOTICE, **subject, "MessageId": "m-2"}, version)) is None
    assert net.asked == [CERTIFICATE]


@pytest.mark.parametrize(
    "change",
    [
        {"Message": '{"id": "other"}'},
        {"Subject": "added"},
        {"Timestamp": "2027"},
        {"MessageId": 7},
        {"Signature": "AAAA"},
        {"Signature": None},
        {"Signature": "not base64!"},
        {"SignatureVersion": "1"},
        {"SignatureVersion": "3"},
        {"SignatureVersion": ["1"]},
        {"Type": "UnsubscribeConfirmation"},
        {"Type": "Something"},
        {"Type": ["Notification"]},
        {"TopicArn": TOPIC + "2"},
        {"TopicArn": None},
    ],
)
def test_what_was_changed_is_refused(change: dict[str, Any], net: Net) -> None:
    assert told(Sns(TOPIC, fetch=net), signed(NOTICE, **change)) == 401


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example.com/SimpleNotificationService-0.pem",
        "http://sns.us-east-1.amazonaws.com/SimpleNotificationService-0.pem",
        "https://sns.us-east-1.amazonaws.com.evil.example.com/a.pem",
        "https://sns.us-east-1.amazonaws.com@evil.example.com/a.pem",
        "https://evil.example.com#sns.us-east-1.amazonaws.com/a.pem",
        "https://evil.example.com\\@sns.us-east-1.amazonaws.com/a.pem",
        "https://user@sns.us-east-1.amazonaws.com/a.pem",
        "https://sns.us-east-1.amazonaws.com:8443/a.pem",
        "https://sns.us-east-1.amazonaws.com./a.pem",
        "https://sns.us-east-1.amazonaws.com\t.evil.example.com/a.pem",
        "https://sns.us-east-1.amazonaws.com/a.pem\n",
        "https://sns.us-east-1.amazonaws.com/?Action=ListTopics&.pem",
        "https://sns.us-east-1.amazonaws.com/a.pem?x=1",
        "https://sns.us-east-1.amazonaws.com/../a.pem",
        "https://sns.us-east-1.amazonaws.com/a.txt",
        "https://sns.s3.amazonaws.com/a.pem",
        "https://sns.s3-us-west-2.amazonaws.com/a.pem",
        "https://evil.sns.us-east-1.amazonaws.com/a.pem",
        "https://snsxus-east-1.amazonaws.com/a.pem",
        "https://sns.us-east-1.evil.amazonaws.com/a.pem",
        "https://s3.amazonaws.com/evil/a.pem",
        "https://sns.us-east-\uff11.amazonaws.com/a.pem",
        "file:///etc/passwd.pem",
        "",
        None,
        ["https://sns.us-east-1.amazonaws.com/a.pem"],
    ],
)
def test_a_forged_certificate_is_never_fetched(url: Any, net: Net) -> None:
    assert told(Sns(TOPIC, fetch=net), signed(NOTICE, SigningCertURL=url)) == 401
    assert net.asked == []


@pytest.mark.parametrize("region", ["eu-central-1", "us-gov-west-1", "ap-southeast-2", "mx-central-1"])
def test_every_region_has_its_server(region: str, net: Net) -> None:
    url = f"https://sns.{region}.amazonaws.com/SimpleNotificationService-0.pem"
    assert told(Sns(TOPIC, fetch=net), signed(NOTICE, SigningCertURL=url)) is None
    china = "https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-0.pem"
    assert told(Sns(TOPIC, fetch=net), signed(NOTICE, SigningCertURL=china)) is None


def test_a_subscription_is_confirmed_when_it_is_signed_and_of_our_topic(net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)
    assert told(auth, signed(CONFIRMATION)) == "confirmed"
    assert net.asked == [CERTIFICATE, SUBSCRIBE]
    assert told(auth, signed({**CONFIRMATION, "Type": "UnsubscribeConfirmation"})) == "unsubscribed"
    assert net.asked == [CERTIFICATE, SUBSCRIBE]


@pytest.mark.parametrize(
    "change",
    [
        {"TopicArn": "arn:aws:sns:us-east-1:999999999999:evil"},
        {"SubscribeURL": "https://evil.example.com/?Action=ConfirmSubscription&Token=1"},
        {"SubscribeURL": "http://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=1"},
        {"SubscribeURL": "https://sns.us-east-1.amazonaws.com/?Action=DeleteTopic&Token=1"},
        {"SubscribeURL": None},
    ],
)
def test_other_subscriptions_are_not(change: dict[str, Any], net: Net) -> None:
    assert told(Sns(TOPIC, fetch=net), signed({**CONFIRMATION, **change})) == 401
    assert not [url for url in net.asked if "Action" in url]


@pytest.mark.parametrize("body", [b"{", b"[]", b'"text"', b"{}", b'{"id": "raw delivery"}'])
def test_what_is_no_message_is_refused(body: bytes, net: Net) -> None:
    assert told(Sns(TOPIC, fetch=net), body) in (400, 401)
    assert net.asked == []


@pytest.mark.parametrize(
    "renamed",
    [
        {"idempotency_key": "another"},
        {"webhook_id": "another"},
        {"ce_specversion": "1.0", "ce_id": "another", "ce_source": "/elsewhere", "ce_type": "other"},
    ],
)
def test_a_header_does_not_give_a_signed_message_another_name(renamed: dict[str, str], net: Net) -> None:
    seen: list[Event] = []
    app = Webhook(Once("memory:", consumer="c"), seen.append, auth=Sns(TOPIC, fetch=net))
    body = signed({**NOTICE, "Message": "a plain text"})

    async def twice() -> list[str]:
        told = [await ask(app, body), await ask(app, body, **renamed)]
        return [each.headers["eventonce-outcome"] for each in told]

    assert asyncio.run(twice()) == ["processed", "duplicate"]
    assert [event.id for event in seen] == ["m-1"]
    app.close()


@pytest.mark.parametrize("name", ["x-amz-sns-message-id", "x-amz-sns-topic-arn"])
def test_headers_that_name_another_message_are_refused(name: str, net: Net) -> None:
    with pytest.raises(Refusal) as refused:
        asyncio.run(Sns(TOPIC, fetch=net).admit({name: "another"}, signed(NOTICE)))
    assert refused.value.status == 401


# --- what is not signed ---

ORDER = {"source": "evil", "detail-type": "Transfer", "detail": {"cents": 1}, "id": "forged"}
CLOUD = {"specversion": "1.0", "source": "/evil", "type": "transfer", "id": "forged", "data": {"cents": 1}}
UNSIGNED: dict[str, dict[str, Any]] = {
    "EventBridge": ORDER,
    "CloudEvents": CLOUD,
    "records": {"Records": [{"eventSource": "aws:sqs", "messageId": "forged", "body": json.dumps(ORDER)}]},
    "the new bus": {"Data": json.dumps(ORDER), "SystemMetadata": {"aws:Source": "evil", "aws:EventId": "forged"}},
    "received": {"Messages": [{"ReceiptHandle": "r", "MessageId": "forged", "Body": json.dumps(ORDER)}]},
    "one of SQS": {"eventSource": "aws:sqs", "messageId": "forged", "body": json.dumps(ORDER)},
    "one of SNS": {"eventSource": "aws:sns", "Sns": {"MessageId": "forged", "Message": json.dumps(ORDER)}},
    "entries": {"Entries": [{"Source": "evil", "DetailType": "Transfer", "Detail": "{}"}]},
    "a request": {"requestContext": {}, "httpMethod": "POST", "body": json.dumps(ORDER)},
    "headers": {"headers": {"idempotency-key": "forged"}},
    "a trace": {"MessageAttributes": {"traceparent": {"Type": "String", "Value": f"00-{'a' * 32}-{'b' * 16}-01"}}},
    "a stamp": {"_eventonce": {"id": "forged"}},
}


@pytest.mark.parametrize("added", UNSIGNED.values(), ids=UNSIGNED)
@pytest.mark.parametrize("message", ['{"cents": 7}', '{"id": "1", "source": "shop", "detail-type": "O", "detail": {}}'])
def test_only_what_is_signed_is_read(message: str, added: dict[str, Any], net: Net) -> None:
    seen: list[Event] = []
    app = Webhook(Once("memory:", consumer="c"), seen.append, auth=Sns(TOPIC, fetch=net))
    genuine = {**NOTICE, "Message": message}

    async def both() -> list[str]:
        told = [await ask(app, body) for body in (signed(genuine), signed(genuine, **added))]
        return [each.headers["eventonce-outcome"] for each in told]

    assert asyncio.run(both()) == ["processed", "duplicate"]
    assert [(event.id, event.data) for event in seen] == [("1", {})] if "source" in message else [("m-1", {"cents": 7})]
    app.close()


def test_what_is_added_does_not_reach_the_handler(net: Net) -> None:
    seen: list[Event] = []
    app = Webhook(Once("memory:", consumer="c"), seen.append, auth=Sns(TOPIC, fetch=net))
    added = {name: value for members in UNSIGNED.values() for name, value in members.items()}
    assert asyncio.run(ask(app, signed({**NOTICE, "Message": '{"cents": 7}'}, **added))).status == 200
    assert [(event.id, event.source, event.type, event.data) for event in seen] == [("m-1", "", "", {"cents": 7})]
    assert set(seen[0].attributes) == {"cents", "headers"}
    assert seen[0].attributes["headers"] == {"x-amz-sns-message-id": "m-1", "x-amz-sns-topic-arn": TOPIC}
    app.close()


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_signature_does_not_fit_fields_that_are_cut_elsewhere(version: str, net: Net) -> None:
    """Signed are names and values on lines of their own, and whoever may publish chooses the lines of a message."""
    message = "{}\nMessageId\nvictim\nSubject\nhello"
    cut = {"Message": "{}", "MessageId": "victim", "Subject": "hello\nMessageId\nm-1"}
    assert told(Sns(TOPIC, fetch=net), signed({**NOTICE, "Message": message}, version)) is None
    assert told(Sns(TOPIC, fetch=net), signed({**NOTICE, "Message": message}, version, **cut)) == 401


def test_trouble_with_the_certificate_may_pass(net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)

    def fail(error: Exception) -> bytes:
        raise error

    net.answer = lambda: fail(URLError("no route"))
    assert told(auth, signed(NOTICE)) == 503
    net.answer = lambda: fail(IncompleteRead(b"half"))
    assert told(auth, signed(NOTICE)) == 503
    net.answer = lambda: b"no certificate"
    assert told(auth, signed(NOTICE)) == 503
    net.answer = certificate
    assert told(auth, signed(NOTICE)) is None


def test_a_certificate_is_fetched_once_for_all_who_wait_and_few_at_a_time(net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)

    async def crowd() -> list[Any]:
        others = [CERTIFICATE.replace("0123", f"{number:04}") for number in range(10)]
        bodies = [signed(NOTICE)] * 5 + [signed(NOTICE, SigningCertURL=url) for url in others]
        return await asyncio.gather(*(auth.admit({}, body) for body in bodies), return_exceptions=True)

    found = asyncio.run(crowd())
    assert not any(isinstance(each, Exception) for each in found[:8])
    assert [each.status for each in found[8:]] == [503] * 7
    assert net.asked.count(CERTIFICATE) == 1


def test_not_more_certificates_are_kept_than_there_are_regions_in_use(net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)
    for number in range(40):
        assert told(auth, signed(NOTICE, SigningCertURL=CERTIFICATE.replace("0123", f"{number:04}"))) is None
    assert len(auth._keys) == 16


def test_a_topic_has_to_be_named() -> None:
    for topics in ((), ("orders",), (TOPIC, "*")):
        with pytest.raises(ConfigError, match="ARN"):
            Sns(*topics)
