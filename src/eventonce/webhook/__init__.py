"""Door D: HTTP. A webhook runs each event once. A middleware makes your own endpoints idempotent."""

from eventonce.auth import Auth, Bearer, Hmac, Sns, Stripe, github, shopify
from eventonce.webhook.app import Webhook
from eventonce.webhook.middleware import IdempotencyMiddleware

__all__ = [
    "Webhook",
    "IdempotencyMiddleware",
    # who may send
    "Auth",
    "Bearer",
    "Hmac",
    "Sns",
    "Stripe",
    "github",
    "shopify",
]
