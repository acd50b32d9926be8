"""Door D: HTTP. Webhooks in, each event once; and a middleware that makes your own endpoints idempotent."""

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
