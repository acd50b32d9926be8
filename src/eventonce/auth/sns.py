"""SNS over HTTP: signatures, and the confirmation of a subscription.

A message names the certificate that it is signed with, so a forger could name their own. It is fetched from the SNS
server in the region of the topic alone, by a URL without a port, a user, a query or a redirect. Our settings name the
topics, so a message of another topic is refused before its body is parsed or anything is fetched.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from eventonce.auth.signers import unauthorized
from eventonce.clock import Clock, SystemClock, duration
from eventonce.errors import ConfigError, MissingDriver, describe
from eventonce.event.formats.text import from_base64
from eventonce.event.paths import read_time
from eventonce.ports import Admitted
from eventonce.requests.refusal import RequestRefused
from eventonce.text import one_line

if TYPE_CHECKING:
    import asyncio

    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

# The domain of each partition of AWS, as botocore has it.
PARTITIONS = {
    "aws": "amazonaws.com",
    "aws-cn": "amazonaws.com.cn",
    "aws-us-gov": "amazonaws.com",
    "aws-eusc": "amazonaws.eu",
    "aws-iso": "c2s.ic.gov",
    "aws-iso-b": "sc2s.sgov.gov",
    "aws-iso-e": "cloud.adc-e.uk",
    "aws-iso-f": "csp.hci.ic.gov",
}
_TOPIC = re.compile(
    rf"arn:({'|'.join(PARTITIONS)}):sns:([a-z]{{2,4}}(?:-[a-z]{{2,12}}){{1,3}}-[0-9]{{1,2}})"
    r":[0-9]{12}:[A-Za-z0-9_.-]{1,256}"
)
_CERTIFICATE = re.compile(r"[A-Za-z0-9_-]{1,100}\.pem")
_CONFIRMATION = re.compile(r"\?Action=ConfirmSubscription&[!-~]{1,2000}")
_NOTICE_FIELDS = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION_FIELDS = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": _NOTICE_FIELDS,
    "SubscriptionConfirmation": _CONFIRMATION_FIELDS,
    "UnsubscribeConfirmation": _CONFIRMATION_FIELDS,
}
_HEADERS = {"x-amz-sns-message-id": "MessageId", "x-amz-sns-topic-arn": "TopicArn"}  # they repeat these fields
_MEDIA = ("", "text/plain", "application/json")  # SNS sends text/plain, and a proxy may correct it
# A message has at most 1 MiB, of characters that JSON may escape with a second byte; the rest is small.
_LONGEST = 2 * 1024 * 1024 + 64 * 1024
_LONGEST_SIGNATURE = 2048  # characters of base64: three times what a key of 4096 bits needs
SNS_TOLERANCE = "1d"
_CACHED = 16  # certificates
_FETCHES = 4  # at a time
_TIMEOUT = 5.0  # seconds, for each step of a connection
_TOTAL_TIMEOUT = 10.0  # seconds for all of it: no other timeout covers resolving a name
_LARGEST = 64 * 1024  # bytes of a response
_log = logging.getLogger("eventonce")

_NOT_SIGNED = "not a signed SNS message; turn raw message delivery off"

Fetch = Callable[[str], bytes]


class _Document(msgspec.Struct):
    """The fields of a message that are signed or needed to check it. Other fields of a document are skipped."""

    Type: str
    MessageId: str
    TopicArn: str
    Message: str
    Timestamp: str
    Signature: str
    SignatureVersion: str
    SigningCertURL: str
    Subject: str | None = None
    SubscribeURL: str | None = None
    Token: str | None = None


_decoder = msgspec.json.Decoder(_Document)


class Sns:
    """Authentication of SNS messages of these topics (ARNs). It also confirms their subscriptions.

    SNS retries for an hour at most. A message that was published longer ago than `tolerance` comes from somebody who
    recorded it. Within the tolerance its id identifies a message for the window of its rule.
    """

    def __init__(
        self,
        *topics: str,
        fetch: Fetch | None = None,
        tolerance: str | float = SNS_TOLERANCE,
        clock: Clock | None = None,
    ) -> None:
        if not topics:
            raise ConfigError("auth: sns: no topic; name the ARN of each topic that may send")
        self._servers = {topic: _server(topic) for topic in topics}
        self._names = [topic.encode() for topic in topics]
        _check_driver()
        self._fetch = fetch or _fetch
        self._tolerance = duration(tolerance, "auth: tolerance")
        self._clock = clock or SystemClock()
        self._keys: OrderedDict[str, RSAPublicKey] = OrderedDict()
        self._fetches: dict[str, asyncio.Task[bytes]] = {}

    async def admit(self, headers: Mapping[str, str], body: bytes) -> Admitted | str:
        self._glance(headers, body)
        document = _document(body)
        topic = document.TopicArn
        server = self._servers.get(topic)
        if server is None:
            raise unauthorized("the message is of a topic that may not send here")
        notice = _signed_fields(document)
        if any(headers.get(name, notice[field]) != notice[field] for name, field in _HEADERS.items()):
            raise unauthorized("the headers name another message than the signed one")
        self._check_age(document.Timestamp)
        await self._verify(document, notice, server)
        if document.Type == "SubscriptionConfirmation":
            await self._confirm(notice, server)
            return "confirmed"
        if document.Type == "UnsubscribeConfirmation":
            _log.warning("the subscription to %s has ended", topic)
            return "unsubscribed"
        proven = {name: notice[field] for name, field in _HEADERS.items()}
        return Admitted({"content-type": "application/json", **proven}, msgspec.json.encode(notice))

    def _glance(self, headers: Mapping[str, str], body: bytes) -> None:
        """Refuse a stranger's request before its body is parsed: it does not name a topic of ours."""
        if headers.get("content-type", "").partition(";")[0].strip().lower() not in _MEDIA:
            raise RequestRefused(415, "SNS sends text/plain, and this is another content type")
        if len(body) > _LONGEST:
            raise RequestRefused(413, f"the body is larger than an SNS message, which has at most {_LONGEST:,} bytes")
        if headers.get("x-amz-sns-rawdelivery", "").lower() == "true":
            raise unauthorized(_NOT_SIGNED)
        topic = headers.get("x-amz-sns-topic-arn")
        # SNS escapes nothing in an ARN, so the body contains its bytes as they are.
        if (topic is not None and topic not in self._servers) or not any(name in body for name in self._names):
            raise unauthorized("not a signed message of a topic that may send here")

    async def _verify(self, document: "_Document", notice: Mapping[str, str], server: str) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

        kinds: dict[str, hashes.HashAlgorithm] = {"1": hashes.SHA1(), "2": hashes.SHA256()}  # noqa: S303
        kind = kinds.get(document.SignatureVersion)
        signature = from_base64(document.Signature) if len(document.Signature) <= _LONGEST_SIGNATURE else None
        if kind is None or signature is None:
            raise unauthorized("the message has no supported signature")
        key = await self._key(document.SigningCertURL, server)
        try:
            key.verify(signature, _signed_text(notice), PKCS1v15(), kind)
        except InvalidSignature:
            raise unauthorized("the signature is wrong") from None

    def _check_age(self, timestamp: str) -> None:
        time = read_time(timestamp)
        if time is None or abs(self._clock.utc() - time.timestamp() * 1000) > self._tolerance:
            raise unauthorized("the message is too old, or from a clock that is wrong")

    async def _key(self, url: str, server: str) -> "RSAPublicKey":
        if not _is_at(server, url, _CERTIFICATE):
            raise unauthorized("the message names a certificate that is not on the SNS server in its topic's region")
        if url not in self._keys:
            self._keys[url] = _public_key(await self._fetch_shared(url))
            while len(self._keys) > _CACHED:
                self._keys.popitem(last=False)
        self._keys.move_to_end(url)
        return self._keys[url]

    async def _confirm(self, notice: Mapping[str, str], server: str) -> None:
        url = notice["SubscribeURL"]
        if not _is_at(server, url, _CONFIRMATION):
            raise unauthorized("the message has a confirmation URL that is not on the SNS server in its topic's region")
        await self._fetch_shared(url)
        _log.warning("the subscription to %s is confirmed", notice["TopicArn"])

    async def _fetch_shared(self, url: str) -> bytes:
        """Return the content of a URL. One fetch, on a thread, serves all that wait for it, and few run at a time."""
        import asyncio  # a third of a Lambda function's cold start, and most functions never need it
        from http.client import HTTPException

        task = self._fetches.get(url)
        if task is None:
            if len(self._fetches) >= _FETCHES:
                raise RequestRefused(503, "too many certificates are being fetched")
            task = self._fetches[url] = asyncio.create_task(asyncio.to_thread(self._fetch, url))
            task.add_done_callback(lambda _: self._fetches.pop(url, None))
        try:
            async with asyncio.timeout(_TOTAL_TIMEOUT):
                return await asyncio.shield(task)
        except (OSError, HTTPException) as error:  # URLError and TimeoutError are an OSError
            _log.warning("SNS did not answer: %s", one_line(describe(error)))
            raise RequestRefused(503, "SNS did not answer") from None


def _check_driver() -> None:
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise MissingDriver(
            "auth: sns: needs the Python package cryptography; install it with pip install 'eventonce[webhook]'"
        )


def _server(topic: str) -> str:
    """Return the SNS server in the region of a topic. Raise `ConfigError` if it is not the ARN of a topic."""
    match = _TOPIC.fullmatch(topic)
    if match is None:
        raise ConfigError(
            f"auth: sns: {topic!r} is not the ARN of a topic; use arn:aws:sns:REGION:ACCOUNT:NAME, "
            f"with one of the partitions {', '.join(PARTITIONS)}"
        )
    return f"https://sns.{match[2]}.{PARTITIONS[match[1]]}/"


def _is_at(server: str, url: str, suffix: re.Pattern[str]) -> bool:
    return url.startswith(server) and suffix.fullmatch(url, len(server)) is not None


def _document(body: bytes) -> _Document:
    try:
        document = _decoder.decode(body)
    except (msgspec.ValidationError, RecursionError):
        raise unauthorized(_NOT_SIGNED) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(400, f"is not JSON: {error}") from None
    if document.Type not in _SIGNED:
        raise unauthorized(_NOT_SIGNED)
    return document


def _signed_fields(document: _Document) -> dict[str, str]:
    """Return the fields that SNS signs in a message of this type, as far as the message has them."""
    fields: dict[str, str | None] = {name: getattr(document, name) for name in _SIGNED[document.Type]}
    if any(value is None for name, value in fields.items() if name != "Subject"):
        raise unauthorized("the message lacks a field that is signed")
    present = {name: value for name, value in fields.items() if value is not None}
    # The signed text consists of lines, and whoever may publish chooses those of a message. With several lines in
    # another field as well, the same text could be divided into other fields, such as another id.
    if any("\n" in value for name, value in present.items() if name != "Message"):
        raise unauthorized("the message has a signed field with several lines")
    return present


def _signed_text(notice: Mapping[str, str]) -> bytes:
    """Return the text that SNS signs: names and values, a line each."""
    return "".join(f"{name}\n{value}\n" for name, value in notice.items()).encode()


def _public_key(certificate: bytes) -> "RSAPublicKey":
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.x509 import load_pem_x509_certificate

    try:
        key = load_pem_x509_certificate(certificate).public_key()
    except ValueError:
        key = None
    if not isinstance(key, RSAPublicKey):
        raise RequestRefused(503, "the certificate from SNS cannot be read")
    return key


def _fetch(url: str) -> bytes:
    """Return the content of a checked https URL. Raise if it redirects."""
    from urllib.error import URLError
    from urllib.request import HTTPRedirectHandler, build_opener

    class _NoRedirect(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            raise URLError("it redirects to another URL")

    with build_opener(_NoRedirect).open(url, timeout=_TIMEOUT) as response:
        content: bytes = response.read(_LARGEST)
        return content
