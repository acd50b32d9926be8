"""The sender of a request, as far as the request itself shows it."""

import hashlib

import msgspec

from eventonce.webhook.asgi import Scope

_NAMES = frozenset((
    b"host", b"x-forwarded-host", b"cookie",
    # Credentials.
    b"authorization", b"proxy-authorization", b"x-forwarded-authorization", b"x-api-key", b"api-key", b"apikey",
    b"x-auth-token", b"x-access-token", b"x-forwarded-access-token", b"x-amz-security-token",
    # Users whom a proxy has authenticated.
    b"x-forwarded-user", b"x-forwarded-email", b"x-forwarded-preferred-username", b"x-auth-request-user",
    b"x-auth-request-email", b"x-auth-request-preferred-username", b"x-auth-request-access-token", b"remote-user",
    b"x-remote-user", b"x-webauth-user", b"x-authenticated-userid", b"x-consumer-id", b"x-consumer-username",
    b"x-goog-iap-jwt-assertion", b"cf-access-jwt-assertion", b"cf-access-authenticated-user-email",
))  # fmt: skip
_PREFIXES = (
    b"x-amzn-oidc-",
    b"x-ms-client-principal",
    b"x-goog-authenticated-user-",
    # The client's certificate, if a proxy ends TLS.
    b"client-cert",
    b"x-client-cert",
    b"cf-client-cert",
    b"x-forwarded-client-cert",
    b"x-forwarded-tls-client-cert",
    b"x-amzn-mtls-",
    b"x-arr-clientcert",
    b"ssl-client-",
    b"x-ssl-client-",
    b"x-ssl-cert",
)
_TLS_FIELDS = ("client_cert_name", "client_cert_chain", "client_cert_error")  # as ASGI names them


def sender(scope: Scope) -> str:
    """Return a digest of the requested host, all credentials and cookies, and the client's certificate."""
    values: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        if name in _NAMES or name.startswith(_PREFIXES):
            values.setdefault(name.decode("latin-1"), []).append(value.strip().decode("latin-1"))
    values["host"] = [host.lower() for host in values.get("host", ())]
    values["cookie"] = ["; ".join(values.get("cookie", ()))]  # HTTP/2 may send each cookie in a field of its own
    tls = (scope.get("extensions") or {}).get("tls") or {}
    certificate = [str(tls.get(name)) for name in _TLS_FIELDS]
    return hashlib.sha256(msgspec.json.encode([sorted(values.items()), certificate])).hexdigest()
