"""Who sends a request, as far as the request itself shows it."""

import hashlib

import msgspec

from eventonce.webhook.asgi import Scope

_CERTIFICATES = (  # of the client, where a proxy ends TLS: RFC 9440, Envoy, and load balancers of AWS
    b"client-cert",
    b"x-forwarded-client-cert",
    b"x-amzn-mtls-clientcert",
    b"x-amzn-mtls-clientcert-leaf",
)
_NAMES = (b"host", b"x-forwarded-host", b"authorization", b"x-api-key", b"cookie", *_CERTIFICATES)
_OF_TLS = ("client_cert_name", "client_cert_chain", "client_cert_error")  # ASGI's own words for it


def sender(scope: Scope) -> str:
    """Return a digest of the host that is asked, of all credentials and cookies, and of the client's certificate."""
    shown = {name: [value.strip() for each, value in scope["headers"] if each == name] for name in _NAMES}
    shown[b"host"] = [host.lower() for host in shown[b"host"]]
    shown[b"cookie"] = [b"; ".join(shown[b"cookie"])]  # HTTP/2 may send each cookie in a field of its own
    tls = (scope.get("extensions") or {}).get("tls") or {}
    fields = [[value.decode("latin-1") for value in shown[name]] for name in _NAMES]
    certificate = [str(tls.get(name)) for name in _OF_TLS]
    return hashlib.sha256(msgspec.json.encode([*fields, certificate])).hexdigest()
