"""Who sends a request, as far as the request itself shows it."""

import hashlib

import msgspec

from eventonce.webhook.asgi import Scope

_NAMES = frozenset((
    b"host", b"x-forwarded-host", b"cookie",
    # Credentials.
    b"authorization", b"proxy-authorization", b"x-forwarded-authorization", b"x-api-key", b"api-key", b"apikey",
    b"x-auth-token", b"x-access-token", b"x-forwarded-access-token", b"x-amz-security-token",
    # Users whom a proxy has made sure of.
    b"x-forwarded-user", b"x-forwarded-email", b"x-forwarded-preferred-username", b"x-auth-request-user",
    b"x-auth-request-email", b"x-auth-request-preferred-username", b"x-auth-request-access-token", b"remote-user",
    b"x-remote-user", b"x-webauth-user", b"x-authenticated-userid", b"x-consumer-id", b"x-consumer-username",
    b"x-goog-iap-jwt-assertion", b"cf-access-jwt-assertion", b"cf-access-authenticated-user-email",
))  # fmt: skip
_FAMILIES = (  # of headers, by what their names begin with
    b"x-amzn-oidc-",
    b"x-ms-client-principal",
    b"x-goog-authenticated-user-",
    # The client's certificate, where a proxy ends TLS.
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
_OF_TLS = ("client_cert_name", "client_cert_chain", "client_cert_error")  # ASGI's own words for it


def sender(scope: Scope) -> str:
    """Return a digest of the host that is asked, of all credentials and cookies, and of the client's certificate."""
    shown: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        if name in _NAMES or name.startswith(_FAMILIES):
            shown.setdefault(name.decode("latin-1"), []).append(value.strip().decode("latin-1"))
    shown["host"] = [host.lower() for host in shown.get("host", ())]
    shown["cookie"] = ["; ".join(shown.get("cookie", ()))]  # HTTP/2 may send each cookie in a field of its own
    tls = (scope.get("extensions") or {}).get("tls") or {}
    certificate = [str(tls.get(name)) for name in _OF_TLS]
    return hashlib.sha256(msgspec.json.encode([sorted(shown.items()), certificate])).hexdigest()
