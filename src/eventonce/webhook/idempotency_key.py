"""The header `Idempotency-Key`, as draft-ietf-httpapi-idempotency-key-header defines it."""

from eventonce.event.formats.headers import IDEMPOTENCY_KEY
from eventonce.requests import reading
from eventonce.webhook.asgi import Scope


def idempotency_key(scope: Scope) -> str | None:
    """Return the key of a request, if it has one. Raise `RequestRefused` if it is not valid."""
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == IDEMPOTENCY_KEY.encode()]
    return reading.idempotency_key(values)
