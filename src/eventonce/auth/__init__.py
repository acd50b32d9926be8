"""Who may send a request: tokens, and signatures as GitHub, Stripe, Shopify, SNS and others make them."""

from eventonce.auth.caution import cautions
from eventonce.auth.signers import Auth, Bearer, Hmac, Signer, Stripe, github, shopify
from eventonce.auth.sns import Sns
from eventonce.requests.reading import Admitted

__all__ = ["Admitted", "Auth", "Bearer", "Hmac", "Signer", "Sns", "Stripe", "cautions", "github", "shopify"]
