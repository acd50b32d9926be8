"""The header `Idempotency-Key`, as draft-ietf-httpapi-idempotency-key-header has it."""

from eventonce.formats.requests import IDEMPOTENCY_KEY, unquoted
from eventonce.refusal import Refusal
from eventonce.webhook.asgi import Scope

LONGEST = 255  # characters


def idempotency_key(scope: Scope) -> str | None:
    """The key of a request, if it has one; raises `Refusal` for one that cannot be told from others."""
    given = [value.decode("latin-1").strip() for name, value in scope["headers"] if name == IDEMPOTENCY_KEY.encode()]
    if not given:
        return None
    key = unquoted(given[0])
    if len(given) > 1 or not 0 < len(key) <= LONGEST:
        raise Refusal(400, f"Idempotency-Key is not one text of 1 to {LONGEST} characters")
    return key
