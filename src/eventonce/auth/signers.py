"""Signatures over the body as GitHub, Stripe, Shopify and others make them, and bearer tokens.

Each may have several secrets, so that a new one can be issued while the old one is still in use.
"""

import hashlib
import hmac
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from eventonce.clock import Clock, Duration, SystemClock, duration
from eventonce.errors import ConfigError
from eventonce.event.formats.cloudevents import recognises_headers
from eventonce.event.formats.headers import NAMING, READABLE
from eventonce.ports import Admitted
from eventonce.requests.reading import as_json
from eventonce.requests.refusal import RequestRefused
from eventonce.text import type_of

TOLERANCE = "5m"  # how old a signature with a time may be, as Stripe's own libraries have it
CONTENT = ("content-type", "content-encoding")  # these say how to read a body
_MAX_SIGNATURES = 16  # in one header; further ones are not checked
_BINARY = "ce-*"  # the attributes of a CloudEvent in binary mode


class Signer:
    """Authentication that needs nothing but the request, and so no event loop."""

    def verify(self, headers: Mapping[str, str], body: bytes) -> Admitted:
        """Return what may be read. Raise `RequestRefused` for a stranger."""
        raise NotImplementedError

    async def admit(self, headers: Mapping[str, str], body: bytes) -> Admitted:
        return self.verify(headers, body)


class Hmac(Signer):
    """An HMAC with SHA-256 over the body, in a header.

    With `timestamp`, the header of that name holds a time in seconds, and what is signed is the time, a dot and the
    body. Then a request that somebody has recorded cannot be sent again later.

    Other headers are not signed. Whoever has recorded a request could send its body with headers of their own, so that
    it is another event, or takes the name of another. Those named in `trust_headers` are read all the same, `ce-*` for
    CloudEvents in binary mode. A request that names itself in another header is refused, and further headers are not
    read.
    """

    def __init__(
        self,
        *secrets: str,
        header: str,
        encoding: Literal["hex", "base64"] = "hex",
        prefix: str = "",
        timestamp: str | None = None,
        tolerance: Duration = TOLERANCE,
        trust_headers: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._secrets = _checked(secrets, "Hmac")
        self._header = header.lower()
        self._trusted = _trusted(trust_headers)
        if encoding not in ("hex", "base64"):
            raise ConfigError(f"auth: encoding: {encoding!r} is neither hex nor base64")
        self._encoding = encoding
        self._prefix = prefix
        self._timestamp = None if timestamp is None else timestamp.lower()
        self._freshness = Freshness(tolerance, clock)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Admitted:
        signature = headers.get(self._header)
        if signature is None or not signature.startswith(self._prefix):
            raise unauthorized(f"the header {self._header} has no signature")
        signed = body
        if self._timestamp is not None:
            time = headers.get(self._timestamp, "")
            self._freshness.check(time)
            signed = time.encode("latin-1") + b"." + body
        check(self._secrets, signed, [self._decode(signature.removeprefix(self._prefix))])
        return self._admit(headers, body)

    def trusts(self, name: str) -> bool:
        """Return whether a header is read though it is not signed."""
        return name in self._trusted or (_BINARY in self._trusted and name.startswith("ce-"))

    def cautions(self) -> list[str]:
        """Return warnings about these settings."""
        return []

    def _admit(self, headers: Mapping[str, str], body: bytes) -> Admitted:
        if recognises_headers(headers) and _BINARY not in self._trusted:
            raise RequestRefused(
                400,
                "the attributes of this CloudEvent are in headers, which the signature does not cover; send it as "
                f"application/cloudevents+json, or name {_BINARY} in trust_headers here",
            )
        for name in NAMING:
            if name in headers and not self.trusts(name):
                self._refuse_name(name)
        trusted = {name: headers[name] for name in headers if name in CONTENT or self.trusts(name)}
        return Admitted(as_json(trusted), body)

    def _refuse_name(self, name: str) -> None:
        raise RequestRefused(
            400,
            f"the header {name} names this delivery, and the signature does not cover it; "
            "send an id in the body, or name the header in trust_headers here",
        )

    def _decode(self, signature: str) -> bytes:
        try:
            return bytes.fromhex(signature) if self._encoding == "hex" else b64decode(signature, validate=True)
        except (ValueError, Base64Error):
            return b""


class _Provider(Hmac):
    """A provider that signs bodies alone and names each delivery in a header.

    The body identifies a delivery, unless its name is trusted. The same bytes are the same event.
    """

    def __init__(self, *secrets: str, name: str, **settings: Any) -> None:
        super().__init__(*secrets, **settings)
        self._name = name

    def cautions(self) -> list[str]:
        if self.trusts(self._name):
            return []
        caution = (
            f"auth: {self._name} is not signed, so deliveries are identified by their bodies, and those with the same "
            "bytes are one event; name it in trust_headers to use it"
        )
        return [caution]

    def _admit(self, headers: Mapping[str, str], body: bytes) -> Admitted:
        return super()._admit(headers, body)._replace(name=f"sha256:{hashlib.sha256(body).hexdigest()}")

    def _refuse_name(self, name: str) -> None:
        if name != self._name:  # all of its requests have that, and it is left out
            super()._refuse_name(name)


def github(*secrets: str, trust_headers: Sequence[str] = ()) -> Hmac:
    """Return GitHub's signer: `X-Hub-Signature-256: sha256=...`.

    Its body identifies a delivery, unless `trust_headers` names `x-github-delivery`.
    """
    return _Provider(
        *_checked(secrets, "github"),
        header="x-hub-signature-256",
        prefix="sha256=",
        name="x-github-delivery",
        trust_headers=trust_headers,
    )


def shopify(*secrets: str, trust_headers: Sequence[str] = ()) -> Hmac:
    """Return Shopify's signer: `X-Shopify-Hmac-Sha256`, in base64.

    Its body identifies a delivery, unless `trust_headers` names `x-shopify-webhook-id`.
    """
    return _Provider(
        *_checked(secrets, "shopify"),
        header="x-shopify-hmac-sha256",
        encoding="base64",
        name="x-shopify-webhook-id",
        trust_headers=trust_headers,
    )


class Stripe(Signer):
    """Stripe's signer: `Stripe-Signature: t=TIME,v1=...`, over the time and the body."""

    def __init__(self, *secrets: str, tolerance: Duration = TOLERANCE, clock: Clock | None = None) -> None:
        self._secrets = _checked(secrets, "Stripe")
        self._freshness = Freshness(tolerance, clock)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Admitted:
        pairs = [part.strip().partition("=") for part in headers.get("stripe-signature", "").split(",")]
        time = next((value for name, _, value in pairs if name == "t"), "")
        signatures = [value for name, _, value in pairs if name == "v1"][:_MAX_SIGNATURES]
        if not signatures:
            raise unauthorized("the header stripe-signature has no signature")
        self._freshness.check(time)
        check(self._secrets, time.encode("latin-1") + b"." + body, [_hex(value) for value in signatures])
        return Admitted(as_json(only(CONTENT, headers)), body)  # the id is in the signed body, and no header renames it


class Bearer(Signer):
    """A token: `Authorization: Bearer ...`."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = [_digest(token.encode()) for token in _checked(tokens, "Bearer")]

    def verify(self, headers: Mapping[str, str], body: bytes) -> Admitted:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        digest = _digest(token.strip().encode("latin-1"))  # of fixed length, so that a comparison reveals nothing
        matches = [hmac.compare_digest(digest, valid) for valid in self._tokens]
        if scheme.lower() != "bearer" or not any(matches):
            raise unauthorized("the header authorization has no valid token", "Bearer")
        return Admitted(headers, body)  # whoever has the token has written all of it


class Freshness:
    """A check that a signed time is near enough to now."""

    def __init__(self, tolerance: Duration, clock: Clock | None) -> None:
        self._tolerance = duration(tolerance, "auth: tolerance")
        self._clock = clock or SystemClock()

    def check(self, seconds: str) -> None:
        if not (seconds.isascii() and seconds.isdecimal()) or len(seconds) > 12:
            raise unauthorized("the signature has no time")
        if abs(self._clock.utc() - int(seconds) * 1000) > self._tolerance:
            raise unauthorized("the signature is too old, or from a clock that is wrong")


def check(secrets: Sequence[str], signed: bytes, signatures: Sequence[bytes]) -> None:
    """Raise RequestRefused unless one of the signatures is right under one of the secrets."""
    digests = [hmac.digest(secret.encode(), signed, "sha256") for secret in secrets]
    if not any(hmac.compare_digest(digest, signature) for digest in digests for signature in signatures):
        raise unauthorized("the signature is wrong")


def only(names: Iterable[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of these names."""
    return {name: headers[name] for name in names if name in headers}


def unauthorized(reason: str, scheme: str = "Signature") -> RequestRefused:
    """Return the refusal of an unauthenticated request."""
    return RequestRefused(401, reason, www_authenticate=scheme)


def _checked(secrets: Sequence[Any], label: str) -> Sequence[str]:
    for number, secret in enumerate(secrets or (None,), 1):
        if secret is not None and not isinstance(secret, str):
            raise ConfigError(f"auth: {label}: secret {number} is {type_of(secret)}; use a string")
        if secret is None or not secret.strip():
            raise ConfigError(f"auth: {label}: secret {number} is missing or blank; set it, or anybody could sign")
    return secrets


def _trusted(names: Sequence[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise ConfigError(f"auth: trust_headers: {names!r} is a string; use a list of names")
    trusted = frozenset(name.lower() for name in names)
    for name in trusted - READABLE - {_BINARY}:
        valid_names = ", ".join((_BINARY, *sorted(READABLE)))
        raise ConfigError(f"auth: trust_headers: unsupported header {name!r}; use {valid_names}")
    return trusted


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
