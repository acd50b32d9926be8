"""SNS over HTTP: signatures of both versions, forged certificates, and subscriptions."""

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from http.client import IncompleteRead
from typing import Any
from urllib.error import URLError

import pytest
from botocore.loaders import Loader
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from eventonce import Event, Once
from eventonce.auth import sns
from eventonce.errors import ConfigError
from eventonce.event.formats import text
from eventonce.requests.refusal import RequestRefused
from eventonce.webhook import Sns, Webhook
from tests.unit.webhook.test_webhook_app import ask

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
    """The network: its response, and the URLs that were requested."""

    def __init__(self) -> None:
        self.requested: list[str] = []
        self.answer: Callable[[], bytes] = certificate

    def __call__(self, url: str) -> bytes:
        self.requested.append(url)
        return self.answer()


@pytest.fixture
def net() -> Net:
    return Net()


def admit(auth: Sns, body: bytes) -> str | int | None:
    """Return the result: None for an event, a word, or the status of a refusal."""
    try:
        admitted = asyncio.run(auth.admit({}, body))
    except RequestRefused as refusal:
        return refusal.status
    return admitted if isinstance(admitted, str) else None


@pytest.mark.parametrize("off", [timedelta(days=-2), timedelta(days=2), None])
def test_a_message_of_long_ago_is_one_that_somebody_has_kept(off: timedelta | None, net: Net) -> None:
    then = "yesterday" if off is None else (NOW + off).isoformat()
    assert admit(Sns(TOPIC, fetch=net), signed({**NOTICE, "Timestamp": then})) == 401
    assert admit(Sns(TOPIC, fetch=net), signed({**CONFIRMATION, "Timestamp": then})) == 401
    assert net.requested == []
    assert off is None or admit(Sns(TOPIC, fetch=net, tolerance="3d"), signed({**NOTICE, "Timestamp": then})) is None


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", [{}, {"Subject": None}, {"Subject": "Orders"}])
def test_what_sns_has_signed_is_taken(version: str, subject: dict[str, Any], net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)
    assert admit(auth, signed({**NOTICE, **subject}, version)) is None
    assert admit(auth, signed({**NOTICE, **subject, "MessageId": "m-2"}, version)) is None
    assert net.requested == [CERTIFICATE]


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
    assert admit(Sns(TOPIC, fetch=net), signed(NOTICE, **change)) == 401


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
    assert admit(Sns(TOPIC, fetch=net), signed(NOTICE, SigningCertURL=url)) == 401
    assert net.requested == []


PLACES = {
    "arn:aws:sns:eu-central-1": "sns.eu-central-1.amazonaws.com",
    "arn:aws:sns:ap-southeast-2": "sns.ap-southeast-2.amazonaws.com",
    "arn:aws:sns:mx-central-1": "sns.mx-central-1.amazonaws.com",
    "arn:aws-us-gov:sns:us-gov-west-1": "sns.us-gov-west-1.amazonaws.com",
    "arn:aws-cn:sns:cn-north-1": "sns.cn-north-1.amazonaws.com.cn",
    "arn:aws-eusc:sns:eusc-de-east-1": "sns.eusc-de-east-1.amazonaws.eu",
    "arn:aws-iso:sns:us-iso-east-1": "sns.us-iso-east-1.c2s.ic.gov",
    "arn:aws-iso-b:sns:us-isob-east-1": "sns.us-isob-east-1.sc2s.sgov.gov",
    "arn:aws-iso-e:sns:eu-isoe-west-1": "sns.eu-isoe-west-1.cloud.adc-e.uk",
    "arn:aws-iso-f:sns:us-isof-south-1": "sns.us-isof-south-1.csp.hci.ic.gov",
}


@pytest.mark.parametrize(("arn", "host"), PLACES.items())
def test_a_topic_is_signed_and_confirmed_by_the_server_of_its_region_alone(arn: str, host: str, net: Net) -> None:
    topic = f"{arn}:123456789012:orders"
    auth = Sns(topic, fetch=net)
    for other in {"sns.us-east-1.amazonaws.com", *PLACES.values()} - {host}:
        url = f"https://{other}/SimpleNotificationService-0.pem"
        assert admit(auth, signed({**NOTICE, "TopicArn": topic}, SigningCertURL=url)) == 401
    assert net.requested == []
    certificate = f"https://{host}/SimpleNotificationService-0.pem"
    assert admit(auth, signed({**NOTICE, "TopicArn": topic}, SigningCertURL=certificate)) is None
    subscribe = f"https://{host}/?Action=ConfirmSubscription&TopicArn={topic}&Token=abc"
    elsewhere = {**CONFIRMATION, "TopicArn": topic}
    assert admit(auth, signed(elsewhere, SigningCertURL=certificate)) == 401
    assert admit(auth, signed({**elsewhere, "SubscribeURL": subscribe}, SigningCertURL=certificate)) == "confirmed"
    assert net.requested == [certificate, subscribe]


def test_partitions_are_those_of_aws() -> None:
    known = Loader().load_data("partitions")["partitions"]
    assert {each["id"]: each["outputs"]["dnsSuffix"] for each in known}.items() <= sns.PARTITIONS.items()


def test_a_subscription_is_confirmed_when_it_is_signed_and_of_our_topic(net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)
    assert admit(auth, signed(CONFIRMATION)) == "confirmed"
    assert net.requested == [CERTIFICATE, SUBSCRIBE]
    assert admit(auth, signed({**CONFIRMATION, "Type": "UnsubscribeConfirmation"})) == "unsubscribed"
    assert net.requested == [CERTIFICATE, SUBSCRIBE]


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
    assert admit(Sns(TOPIC, fetch=net), signed({**CONFIRMATION, **change})) == 401
    assert not [url for url in net.requested if "Action" in url]


@pytest.mark.parametrize("body", [b"{", b"[]", b'"text"', b"{}", b'{"id": "raw delivery"}'])
def test_what_is_no_message_is_refused(body: bytes, net: Net) -> None:
    assert admit(Sns(TOPIC, fetch=net), body) in (400, 401)
    assert net.requested == []


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
        admit = [await ask(app, body), await ask(app, body, **renamed)]
        return [each.headers["eventonce-outcome"] for each in admit]

    assert asyncio.run(twice()) == ["processed", "duplicate"]
    assert [event.id for event in seen] == ["m-1"]
    app.close()


@pytest.mark.parametrize("name", ["x-amz-sns-message-id", "x-amz-sns-topic-arn"])
def test_headers_that_name_another_message_are_refused(name: str, net: Net) -> None:
    with pytest.raises(RequestRefused) as refused:
        asyncio.run(Sns(TOPIC, fetch=net).admit({name: "another"}, signed(NOTICE)))
    assert refused.value.status == 401


# --- strangers ---


class Decoder:
    """Counts what is decoded."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.decoded = inner, 0

    def decode(self, body: bytes) -> Any:
        self.decoded += 1
        return self.inner.decode(body)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    made = Decoder(sns._decoder)
    monkeypatch.setattr(sns, "_decoder", made)
    monkeypatch.setattr(text, "_ordinary_decoder", lambda: made)
    return made


HOSTILE = b'{"TopicArn": "arn:aws:sns:us-east-1:999999999999:evil", "x": [' + b"1e300," * 150_000 + b"0]}"


def test_a_signed_message_that_points_to_s3_is_refused_with_the_remedy(net: Net) -> None:
    pointer = '["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"b","s3Key":"k"}]'
    seen: list[Event] = []
    app = Webhook(Once("memory:", consumer="c"), seen.append, auth=Sns(TOPIC, fetch=net))
    response = asyncio.run(ask(app, signed({**NOTICE, "Message": pointer})))
    assert (response.status, seen) == (400, [])
    assert "is a pointer to a payload in S3 by the extended client of SQS or SNS" in response.body["error"]
    app.close()


@pytest.mark.parametrize("body", [HOSTILE, b"[" * 100_000, b"", b'{"id": "raw delivery"}'])
def test_a_body_that_names_no_topic_of_ours_is_not_parsed(body: bytes, net: Net, decoder: Decoder) -> None:
    app = Webhook(Once("memory:", consumer="c"), [].append, auth=Sns(TOPIC, fetch=net))
    assert asyncio.run(ask(app, body, content_type="text/plain; charset=UTF-8")).status == 401
    app.close()
    assert (decoder.decoded, net.requested) == (0, [])


def test_headers_of_another_topic_or_type_are_enough(net: Net, decoder: Decoder) -> None:
    for headers, status in (
        ({"x-amz-sns-topic-arn": TOPIC + "2"}, 401),
        ({"x-amz-sns-rawdelivery": "true"}, 401),
        ({"content-type": "text/html"}, 415),
    ):
        with pytest.raises(RequestRefused) as refused:
            asyncio.run(Sns(TOPIC, fetch=net).admit(headers, signed(NOTICE)))
        assert refused.value.status == status
    assert decoder.decoded == 0


def test_what_is_not_signed_is_not_parsed_either(net: Net) -> None:
    """A number that no reader takes shows it: what is skipped costs next to nothing, whatever it is."""
    body = signed(NOTICE)[:-1] + b', "x": [' + b"1e999999," * 10_000 + b"0]}"
    assert admit(Sns(TOPIC, fetch=net), body) is None


def test_more_than_sns_sends_is_too_large(net: Net, decoder: Decoder) -> None:
    longest = {**NOTICE, "Message": '"' * 1024 * 1024}  # the longest message, each byte of it escaped
    assert admit(Sns(TOPIC, fetch=net), signed(longest)) is None
    assert admit(Sns(TOPIC, fetch=net), signed({**NOTICE, "Message": '"' * 1100 * 1024})) == 413
    assert decoder.decoded == 1


@pytest.mark.parametrize(
    "change",
    [
        {"SignatureVersion": "3"},
        {"Signature": "not base64!"},
        {"Signature": "AAAA" * 2000},
        {"Timestamp": "yesterday"},
        {"Timestamp": (NOW - timedelta(days=2)).isoformat()},
        {"Subject": "two\nlines"},
        {"Token": None, "Type": "SubscriptionConfirmation"},
        {"SigningCertURL": CERTIFICATE.replace("us-east-1", "xx-any-1")},
    ],
)
def test_nothing_is_fetched_for_what_cannot_be_right(change: dict[str, Any], net: Net) -> None:
    assert admit(Sns(TOPIC, fetch=net), signed(NOTICE, **change)) == 401
    assert net.requested == []


def test_a_name_that_is_not_resolved_does_not_hold_the_sender_for_ever(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    net.answer = lambda: certificate() if go.wait(60) else b""
    monkeypatch.setattr(sns, "_TOTAL_TIMEOUT", 0.05)
    auth = Sns(TOPIC, fetch=net)

    async def twice() -> list[int | None]:
        results = [await status(auth)]
        go.set()
        while auth._fetches:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(sns, "_TOTAL_TIMEOUT", 60.0)
        return [*results, await status(auth)]

    async def status(auth: Sns) -> int | None:
        try:
            await auth.admit({}, signed(NOTICE))
        except RequestRefused as refusal:
            return refusal.status
        return None

    assert asyncio.run(twice()) == [503, None]


# --- what is not signed ---

ORDER: dict[str, Any] = {"source": "evil", "detail-type": "Transfer", "detail": {"cents": 1}, "id": "forged"}
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
        admit = [await ask(app, body) for body in (signed(genuine), signed(genuine, **added))]
        return [each.headers["eventonce-outcome"] for each in admit]

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
    assert admit(Sns(TOPIC, fetch=net), signed({**NOTICE, "Message": message}, version)) is None
    assert admit(Sns(TOPIC, fetch=net), signed({**NOTICE, "Message": message}, version, **cut)) == 401


def test_trouble_with_the_certificate_may_pass(net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)

    def fail(error: Exception) -> bytes:
        raise error

    net.answer = lambda: fail(URLError("no route"))
    assert admit(auth, signed(NOTICE)) == 503
    net.answer = lambda: fail(IncompleteRead(b"half"))
    assert admit(auth, signed(NOTICE)) == 503
    net.answer = lambda: b"no certificate"
    assert admit(auth, signed(NOTICE)) == 503
    net.answer = certificate
    assert admit(auth, signed(NOTICE)) is None


def test_a_certificate_is_fetched_once_for_all_who_wait_and_few_at_a_time(net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)

    async def crowd() -> list[Any]:
        others = [CERTIFICATE.replace("0123", f"{number:04}") for number in range(10)]
        bodies = [signed(NOTICE)] * 5 + [signed(NOTICE, SigningCertURL=url) for url in others]
        return await asyncio.gather(*(auth.admit({}, body) for body in bodies), return_exceptions=True)

    results = asyncio.run(crowd())
    assert not any(isinstance(each, Exception) for each in results[:8])
    assert [each.status for each in results[8:]] == [503] * 7
    assert net.requested.count(CERTIFICATE) == 1


def test_not_more_certificates_are_kept_than_there_are_regions_in_use(net: Net) -> None:
    auth = Sns(TOPIC, fetch=net)
    for number in range(40):
        assert admit(auth, signed(NOTICE, SigningCertURL=CERTIFICATE.replace("0123", f"{number:04}"))) is None
    assert len(auth._keys) == 16


def test_a_topic_has_to_be_named() -> None:
    for topics in (
        (),
        ("orders",),
        (TOPIC, "*"),
        (TOPIC.replace("us-east-1", "s3"),),
        (TOPIC.replace("aws", "aws-x"),),
    ):
        with pytest.raises(ConfigError, match="ARN"):
            Sns(*topics)
