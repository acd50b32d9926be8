"""The header `Idempotency-Key`, as draft-ietf-httpapi-idempotency-key-header has it."""

from eventonce.webhook.asgi import Scope
from eventonce.webhook.refusal import Refusal

NAME = "idempotency-key"
LONGEST = 255  # characters


def idempotency_key(scope: Scope) -> str | None:
    """The key of a request, if it has one; raises `Refusal` for one that cannot be told from others."""
    given = [value.decode("latin-1").strip() for name, value in scope["headers"] if name == NAME.encode()]
    if not given:
        return None
    key = unquoted(given[0])
    if len(given) > 1 or not 0 < len(key) <= LONGEST:
        raise Refusal(400, f"Idempotency-Key is not one text of 1 to {LONGEST} characters")
    return key


def unquoted(key: str) -> str:
    """The key itself: the draft puts it in quotes, most clients do not."""
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
