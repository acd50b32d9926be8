"""Authentication: signatures right, wrong, missing and replayed, and the settings in a URL."""

import asyncio
import gzip
import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest

from eventonce import Event, Once, Rule
from eventonce.auth import Admitted
from eventonce.errors import ConfigError
from eventonce.event.formats.headers import NAMING
from eventonce.requests.refusal import RequestRefused
from eventonce.testing import ManualClock
from eventonce.webhook import Auth, Bearer, Hmac, Stripe, Webhook, github, shopify
from eventonce.webhook.address import read_url
from tests.unit.webhook.test_webhook_app import Reply, ask

BODY = b'{"n": 1}'
NOW = 1_800_000_000


def sign(secret: str, signed: bytes) -> bytes:
    return hmac.new(secret.encode(), signed, hashlib.sha256).digest()


def of_github(secret: str, body: bytes = BODY, at: int = NOW) -> dict[str, str]:
    return {"x-hub-signature-256": f"sha256={sign(secret, body).hex()}"}


def of_shopify(secret: str, body: bytes = BODY, at: int = NOW) -> dict[str, str]:
    return {"x-shopify-hmac-sha256": b64encode(sign(secret, body)).decode()}


def of_stripe(secret: str, body: bytes = BODY, at: int = NOW) -> dict[str, str]:
    return {"stripe-signature": f"t={at},v1={'0' * 64},v1={sign(secret, b'%d.' % at + body).hex()},v0=old"}


def of_hmac(secret: str, body: bytes = BODY, at: int = NOW) -> dict[str, str]:
    return {"x-time": str(at), "x-sign": f"v1={b64encode(sign(secret, b'%d.' % at + body)).decode()}"}


def generic(*secrets: str) -> Hmac:
    return Hmac(*secrets, header="X-Sign", encoding="base64", prefix="v1=", timestamp="X-Time", clock=clock())


def clock() -> ManualClock:
    return ManualClock(NOW * 1000)


def stripe(*secrets: str) -> Stripe:
    return Stripe(*secrets, clock=clock())


def admitted(auth: Auth, headers: dict[str, str], body: bytes = BODY) -> bool:
    try:
        return isinstance(asyncio.run(auth.admit(headers, body)), Admitted)
    except RequestRefused as refused:
        refusal = refused
    assert refusal.status == 401
    assert "www-authenticate" in refusal.headers
    assert "s-1" not in str(refusal)
    return False


SCHEMES = {
    "github": (github, of_github),
    "shopify": (shopify, of_shopify),
    "stripe": (stripe, of_stripe),
    "hmac": (generic, of_hmac),
}
schemes = pytest.mark.parametrize(("make", "signed"), SCHEMES.values(), ids=SCHEMES)
Make = Callable[..., Auth]
Signed = Callable[..., dict[str, str]]


@schemes
def test_a_right_signature_is_known_under_the_new_secret_and_the_old(make: Make, signed: Signed) -> None:
    auth = make("s-1", "s-0")
    assert admitted(auth, signed("s-1"))
    assert admitted(auth, signed("s-0"))


@schemes
def test_a_wrong_or_missing_signature_is_not(make: Make, signed: Signed) -> None:
    auth = make("s-1")
    assert not admitted(auth, {})
    assert not admitted(auth, signed("s-2"))
    assert not admitted(auth, signed("s-1", b'{"n": 2}'))
    assert not admitted(auth, signed("s-1"), b'{"n": 2}')
    for name, value in signed("s-1").items():
        assert not admitted(auth, {**signed("s-1"), name: ""})
        assert not admitted(auth, {**signed("s-1"), name: "\xff" + value})
        assert not admitted(auth, {**signed("s-1"), name: value[:-8]})


@pytest.mark.parametrize(("make", "signed"), [SCHEMES["stripe"], SCHEMES["hmac"]])
@pytest.mark.parametrize("off", [-301, 301])
def test_a_replayed_signature_is_too_old(make: Make, signed: Signed, off: int) -> None:
    assert not admitted(make("s-1"), signed("s-1", at=NOW + off))
    assert admitted(make("s-1"), signed("s-1", at=NOW + off // 2))


def test_the_time_of_a_signature_is_signed_too() -> None:
    old = of_stripe("s-1", at=NOW - 1000)["stripe-signature"]
    assert not admitted(stripe("s-1"), {"stripe-signature": old.replace(f"t={NOW - 1000}", f"t={NOW}")})
    assert not admitted(generic("s-1"), {**of_hmac("s-1", at=NOW - 1000), "x-time": str(NOW)})


@pytest.mark.parametrize("renamed", [{"idempotency_key": "another"}, {"webhook_id": "another"}])
def test_a_header_does_not_give_an_event_of_stripe_another_name(renamed: dict[str, str]) -> None:
    ran: list[str] = []
    app = Webhook(Once("memory:"), lambda event: ran.append(event.id), auth=stripe("s-1"))
    body = b'{"id": "evt_1", "object": "event"}'
    signature = of_stripe("s-1", body)["stripe-signature"]
    responses = [asyncio.run(ask(app, body, stripe_signature=signature, **more)) for more in ({}, renamed)]
    app.close()
    assert [each.body for each in responses] == [{"outcome": "processed"}, {"outcome": "duplicate"}]
    assert ran == ["evt_1"]


# --- headers, which are not signed ---

CLOUD = {"ce_specversion": "1.0", "ce_id": "order-8", "ce_source": "/bank", "ce_type": "transfer"}
Headers = Callable[[bytes], dict[str, str]]
PROVIDERS: dict[str, tuple[Make, Headers]] = {
    "github": (github, lambda body: {"x_hub_signature_256": f"sha256={hexed(body)}"}),
    "shopify": (shopify, lambda body: {"x_shopify_hmac_sha256": b64encode(sign("s-1", body)).decode()}),
}
BODY_SIGNERS: dict[str, tuple[Make, Headers]] = {
    "hmac": (partial(Hmac, header="X-Sign"), lambda body: {"x_sign": hexed(body)}),
    **PROVIDERS,
}
body_signers = pytest.mark.parametrize(("make", "headers"), BODY_SIGNERS.values(), ids=BODY_SIGNERS)
NAME = {"github": "x-github-delivery", "shopify": "x-shopify-webhook-id"}
LABEL = {"github": "x-github-event", "shopify": "x-shopify-topic"}


def hexed(body: bytes) -> str:
    return sign("s-1", body).hex()


class Hook:
    """A webhook behind one signer, and the events that have run."""

    made: ClassVar[list[Webhook]] = []

    def __init__(self, auth: Auth, **settings: Any) -> None:
        self.ran: list[Event] = []
        self._app = Webhook(Once("memory:", **settings), self.ran.append, auth=auth)
        self.made.append(self._app)

    def send(self, body: bytes, headers: dict[str, str], **more: str) -> Reply:
        keywords = {name.replace("-", "_"): value for name, value in {**headers, **more}.items()}
        return asyncio.run(ask(self._app, body, **keywords))


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while Hook.made:
        Hook.made.pop().close()


@body_signers
def test_a_captured_body_does_not_become_a_cloudevent_of_the_forgers(make: Make, headers: Headers) -> None:
    hook, body = Hook(make("s-1")), b'{"id": "order-7"}'
    response = hook.send(body, headers(body), **CLOUD)
    assert (response.status, hook.ran) == (400, [])
    assert "application/cloudevents+json, or name ce-* in trust_headers" in response.body["error"]
    structured = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}).encode()
    kind = {"content_type": "application/cloudevents+json"}
    assert hook.send(structured, headers(structured), **kind, **CLOUD).status == 200  # it is not in binary mode
    assert [(event.id, event.source) for event in hook.ran] == [("1", "/s")]


@body_signers
def test_binary_mode_is_read_where_it_is_trusted(make: Make, headers: Headers) -> None:
    hook, body = Hook(make("s-1", trust_headers=["ce-*"])), b'{"n": 1}'
    assert hook.send(body, headers(body), **CLOUD).body == {"outcome": "processed"}
    assert [(event.id, event.source, event.type, event.data) for event in hook.ran] == [
        ("order-8", "/bank", "transfer", {"n": 1})
    ]


@pytest.mark.parametrize("name", NAMING)
@body_signers
def test_a_header_that_names_the_delivery_is_refused(make: Make, headers: Headers, name: str) -> None:
    hook, body = Hook(make("s-1")), b'{"id": "order-7"}'
    response = hook.send(body, headers(body), **{name: "another"})
    if name == NAME.get(getattr(make, "__name__", "")):
        assert response.status == 200
        return
    assert (response.status, hook.ran) == (400, [])
    assert response.body["error"].startswith(
        f"the header {name} names this delivery, and the signature does not cover it"
    )
    trusting = Hook(make("s-1", trust_headers=[name.upper()]))
    assert trusting.send(body, headers(body), **{name: "another"}).status == 200
    assert [event.id for event in trusting.ran] == ["another"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_is_known_by_the_body_that_it_signed(provider: str) -> None:
    make, headers = PROVIDERS[provider]
    hook, first, second = Hook(make("s-1")), b'{"id": 7, "n": 1}', b'{"id": 7, "n": 2}'
    name, label = NAME[provider], LABEL[provider]
    sent = [
        (first, {name: "d-1", label: "push"}),
        (first, {name: "d-1", label: "push"}),  # sent again
        (first, {name: "d-9", label: "other"}),  # captured, under another name
        (first, {name: "d-2", label: "push"}),  # captured, under the name of one that is to come
        (second, {name: "d-2", label: "push"}),
        (b'[{"n": 1}, {"n": 2}]', {name: "d-3"}),
    ]
    response = [hook.send(body, headers(body), **more).body for body, more in sent]
    assert [each["outcome"] for each in response] == ["processed", *["duplicate"] * 3, "processed", "processed"]
    digests = [hashlib.sha256(body).hexdigest() for body in (first, second, sent[-1][0])]
    assert [event.id for event in hook.ran] == [
        *(f"sha256:{digest}" for digest in digests[:2]),
        *(f"sha256:{digests[2]}/{number}" for number in (1, 2)),
    ]
    assert [event.attributes.get("headers") for event in hook.ran] == [None] * 4
    assert [event.line() for event in hook.ran[:2]] == [first, second]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_is_known_by_its_own_name_where_that_is_trusted(provider: str) -> None:
    make, headers = PROVIDERS[provider]
    name, label = NAME[provider], LABEL[provider]
    hook, body = Hook(make("s-1", trust_headers=[name, label])), b'{"id": 7}'
    response = [
        hook.send(body, headers(body), **{name: each, label: "push"}).body["outcome"] for each in ("1", "1", "2")
    ]
    assert response == ["processed", "duplicate", "processed"]
    assert [event.id for event in hook.ran] == ["1", "2"]
    assert hook.ran[0].attributes["headers"] == {name: "1", label: "push"}


@body_signers
def test_labels_are_seen_where_they_are_trusted(make: Make, headers: Headers) -> None:
    body = b'{"id": "e-1"}'
    label = {"x-gitlab-event": "push", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    for trusted in ([], ["x-gitlab-event"]):
        hook = Hook(make("s-1", trust_headers=trusted))
        assert hook.send(body, headers(body), **label).status == 200
        expected = {name: label[name] for name in trusted}
        assert hook.ran[0].attributes.get("headers", {}) == expected


RULES = [
    Rule(name="by key", key=["detail.headers.x", 'headers."x-github-delivery" || headers.traceparent']),
    Rule(name="by match", match={"$or": [{"source": ["s"]}, {"headers": {"x-shopify-topic": [{"exists": True}]}}]}),
    Rule(name="by id"),
]


def test_what_rules_will_never_see_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    by_key = "rule 'by key' reads traceparent and x-github-delivery, which the signature does not cover"
    by_match = "rule 'by match' reads x-shopify-topic, which"
    by_body = "x-github-delivery is not signed, so deliveries are identified by their bodies"
    trusting = {"trust_headers": ["x-github-delivery", "x-shopify-topic", "traceparent"]}
    for auth, warnings in (
        (github("s-1"), [by_key, by_match, by_body]),
        (github("s-1", **trusting), []),
        (Hmac("s-1", header="x"), [by_key, by_match]),
        (stripe("s-1"), []),
        (Bearer("t"), []),
    ):
        caplog.clear()
        Hook(auth, rules=RULES)
        assert len(caplog.messages) == len(warnings)
        assert all(each in message for each, message in zip(warnings, caplog.messages, strict=True))


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/octet-stream"])
@body_signers
def test_headers_that_say_how_to_read_a_body_change_nothing(make: Make, headers: Headers, kind: str) -> None:
    hook, body = Hook(make("s-1")), b'{"id": "e-1"}'
    response = [hook.send(body, headers(body)).body, hook.send(body, headers(body), content_type=kind).body]
    assert response == [{"outcome": "processed"}, {"outcome": "duplicate"}]


BARE = [
    b'"ping"',
    b"123",
    b"null",
    b"hello",
    b"[]",
    b"",
    gzip.compress(b"hello", mtime=0),
    b"\xf3\x89\x9a\xc2",
    b'\xef\xbb\xbf"x"',
]
SIGNED: dict[str, tuple[Make, Headers]] = {
    **BODY_SIGNERS,
    "hmac with a time": (generic, lambda body: underscored(of_hmac("s-1", body))),
    "stripe": (stripe, lambda body: underscored(of_stripe("s-1", body))),
}


def underscored(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in headers.items()}


@pytest.mark.parametrize("body", BARE)
@pytest.mark.parametrize(("make", "headers"), SIGNED.values(), ids=SIGNED)
def test_no_type_that_is_not_signed_makes_an_event_of_a_body(make: Make, headers: Headers, body: bytes) -> None:
    hook = Hook(make("s-1"))
    for kind in ("application/json", "text/plain", "text/plain; charset=utf-8", "", "application/octet-stream"):
        assert hook.send(body, headers(body), content_type=kind).status == 400
    assert hook.ran == []
    open_to_all = Hook(Bearer("t"))
    trusted = {"authorization": "Bearer t", "content_type": "text/plain", "idempotency_key": "k"}
    assert open_to_all.send(b"hello", {}, **trusted).status == 200  # whoever has the token vouches for the type as well


def test_who_has_the_token_writes_the_headers_too() -> None:
    hook = Hook(Bearer("t"))
    assert hook.send(b'{"n": 1}', {"authorization": "Bearer t"}, **CLOUD).status == 200
    assert hook.send(b'{"n": 1}', {"authorization": "Bearer t"}, idempotency_key="k").status == 200
    assert [event.id for event in hook.ran] == ["order-8", "k"]


@body_signers
def test_only_headers_that_are_read_can_be_trusted(make: Make, headers: Headers) -> None:
    for names in (["x-hub-signature-256"], ["ce-id"], ["*"], "idempotency-key"):
        with pytest.raises(ConfigError, match="trust_headers"):
            make("s-1", trust_headers=names)


def test_bearer_tokens() -> None:
    auth = Bearer("one", "two")
    assert admitted(auth, {"authorization": "bearer  two"})
    for header in ("", "Bearer", "Bearer ", "Bearer three", "Basic one", "one", "Bearer \xff"):
        assert not admitted(auth, {"authorization": header})


@pytest.mark.parametrize("make", [github, shopify, Stripe, Bearer])
def test_an_empty_secret_would_be_known_to_all(make: Callable[..., Auth]) -> None:
    for secrets in ((), ("",), ("a", ""), ("  ",), ("a", "\n")):
        with pytest.raises(ConfigError, match="secret"):
            make(*secrets)


# --- the URL ---


@pytest.fixture
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEW", "s-1")
    monkeypatch.setenv("OLD", "s-0 \n")
    monkeypatch.setenv("EMPTY", " ")


@pytest.mark.usefixtures("_secrets")
def test_a_url_says_where_and_who() -> None:
    place = read_url("http://0.0.0.0:8080/events?auth=github&secret_env=NEW,OLD&max_body=100&deadline=4s")
    assert (place.host, place.port, place.path) == ("0.0.0.0", 8080, "/events")
    assert place.settings == {"max_body": 100, "deadline": "4s"}
    assert str(place) == "http://0.0.0.0:8080/events"
    assert place.auth is not None
    assert admitted(place.auth, of_github("s-1"))
    assert admitted(place.auth, of_github("s-0"))
    assert not admitted(place.auth, of_github("NEW"))


@pytest.mark.usefixtures("_secrets")
@pytest.mark.parametrize(
    "query",
    [
        "auth=bearer&secret_env=NEW",
        "auth=shopify&secret_env=NEW",
        "auth=stripe&secret_env=NEW&tolerance=1m",
        "auth=hmac&secret_env=NEW&header=x-sign&encoding=base64&prefix=v1%3D&timestamp=x-time",
        "auth=hmac&secret_env=NEW&header=x-sign&trust_headers=ce-*,Idempotency-Key",
        "auth=github&secret_env=NEW&trust_headers=x-github-delivery,x-github-event",
        "auth=shopify&secret_env=NEW&trust_headers=x-shopify-topic",
        "auth=sns&topic=arn:aws:sns:us-east-1:123456789012:orders",
    ],
)
def test_every_scheme_can_be_named(query: str) -> None:
    assert read_url(f"http://[::1]:0?{query}").auth is not None


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (Bearer, "Bearer"),
        (Stripe, "Stripe"),
        (github, "github"),
        (shopify, "shopify"),
        (generic, "Hmac"),
    ],
)
@pytest.mark.parametrize(
    ("secrets", "problem"),
    [
        ([], "secret 1 is missing or blank; set it"),
        ([""], "secret 1 is missing or blank; set it"),
        (["s-1", " \t\n"], "secret 2 is missing or blank; set it"),
        ([None], "secret 1 is missing or blank; set it"),  # os.environ.get
        ([b"s-1"], "secret 1 is of type bytes; use a string"),
        ([["s-1"]], "secret 1 is of type list; use a string"),
    ],
)
def test_a_blank_secret_is_refused_by_name(
    make: Callable[..., Any], label: str, secrets: list[Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"^auth: {label}: {problem}") as caught:
        make(*secrets)
    assert "s-1" not in str(caught.value)


@pytest.mark.usefixtures("_secrets")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://localhost/events", "HOST:PORT"),
        ("https://localhost:1/events", "TLS"),
        ("http://:8080/", "HOST:PORT"),
        ("http://localhost:99999/", "not a URL"),
        ("http://user:s-1@localhost:1/", "secret_env"),
        ("http://localhost:1/?auth=gitlab", "github"),
        ("http://localhost:1/?auth=github", "names no environment variable"),
        ("http://localhost:1/?auth=github&secret_env=NOWHERE", "NOWHERE is not set or blank"),
        ("http://localhost:1/?auth=github&secret_env=EMPTY", "EMPTY is not set or blank"),
        ("http://localhost:1/?auth=github&secret=s-1", "unknown option 'secret'"),
        ("http://localhost:1/?auth=hmac&secret_env=NEW", "header="),
        ("http://localhost:1/?auth=hmac&secret_env=NEW&header=x&encoding=octal", "octal"),
        ("http://localhost:1/?auth=stripe&secret_env=NEW&tolerance=soon", "tolerance"),
        ("http://localhost:1/?auth=github&secret_env=NEW&trust_headers=x-hub", "unsupported header 'x-hub'"),
        ("http://localhost:1/?auth=stripe&secret_env=NEW&trust_headers=ce-*", "unknown option 'trust_headers'"),
        ("http://localhost:1/?auth=bearer&secret_env=NEW&trust_headers=ce-*", "unknown option 'trust_headers'"),
        ("http://localhost:1/?auth=sns", "ARN"),
        ("http://localhost:1/?auth=sns&topic=orders", "'orders'"),
        ("http://localhost:1/?max_body=0", "max_body"),
        ("http://localhost:1/?deadline=0s", "no time"),
    ],
)
def test_a_wrong_url_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        read_url(url)
    assert "s-1" not in str(caught.value)
