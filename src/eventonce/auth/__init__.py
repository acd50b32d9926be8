"""Who may send a request: tokens, and signatures as GitHub, Stripe, Shopify, SNS and others make them."""

from eventonce.auth.caution import cautions
from eventonce.auth.signers import Admitted, Auth, Bearer, Hmac, Stripe, github, shopify
from eventonce.auth.sns import Sns

__all__ = ["Admitted", "Auth", "Bearer", "Hmac", "Sns", "Stripe", "cautions", "github", "shopify"]
