"""Who may send: signatures right, wrong, missing and replayed; and what a URL says of it."""

import asyncio
import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable

import pytest

from eventonce import Once
from eventonce.auth import Admitted
from eventonce.errors import ConfigError
from eventonce.testing import ManualClock
from eventonce.webhook import Auth, Bearer, Hmac, Stripe, Webhook, github, shopify
from eventonce.refusal import Refusal
from eventonce.webhook.url import read_url
from tests.unit.test_webhook_app import ask

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
    except Refusal as refused:
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
    told = [asyncio.run(ask(app, body, stripe_signature=signature, **more)) for more in ({}, renamed)]
    app.close()
    assert [each.body for each in told] == [{"outcome": "processed"}, {"outcome": "duplicate"}]
    assert ran == ["evt_1"]


def test_bearer_tokens() -> None:
    auth = Bearer("one", "two")
    assert admitted(auth, {"authorization": "bearer  two"})
    for given in ("", "Bearer", "Bearer ", "Bearer three", "Basic one", "one", "Bearer \xff"):
        assert not admitted(auth, {"authorization": given})


@pytest.mark.parametrize("make", [github, shopify, Stripe, Bearer])
def test_an_empty_secret_would_be_known_to_all(make: Callable[..., Auth]) -> None:
    for secrets in ((), ("",), ("a", "")):
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
        "auth=sns&topic=arn:aws:sns:us-east-1:123456789012:orders",
    ],
)
def test_every_scheme_can_be_named(query: str) -> None:
    assert read_url(f"http://[::1]:0?{query}").auth is not None


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
        ("http://localhost:1/?auth=github&secret_env=NOWHERE", "NOWHERE is not set"),
        ("http://localhost:1/?auth=github&secret_env=EMPTY", "EMPTY is not set"),
        ("http://localhost:1/?auth=github&secret=s-1", "'secret' is not known"),
        ("http://localhost:1/?auth=hmac&secret_env=NEW", "header="),
        ("http://localhost:1/?auth=hmac&secret_env=NEW&header=x&encoding=octal", "octal"),
        ("http://localhost:1/?auth=stripe&secret_env=NEW&tolerance=soon", "tolerance"),
        ("http://localhost:1/?auth=sns", "ARN"),
        ("http://localhost:1/?auth=sns&topic=orders", "'orders'"),
        ("http://localhost:1/?max_body=0", "max_body"),
        ("http://localhost:1/?deadline=0s", "no time"),
    ],
)
def test_a_wrong_url_is_told_what_is_wrong(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        read_url(url)
    assert "s-1" not in str(caught.value)
