"""Door D: HTTP. Webhooks in, each event once; and a middleware that makes your own endpoints idempotent."""

from eventonce.webhook.app import Webhook
from eventonce.webhook.auth import Auth, Bearer, Hmac, Stripe, github, shopify
from eventonce.webhook.middleware import IdempotencyMiddleware
from eventonce.webhook.sns import Sns

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
