"""Authentication of requests: tokens, and signatures as GitHub, Stripe, Shopify, SNS and others make them."""

from eventonce.auth.caution import cautions
from eventonce.auth.signers import Bearer, Hmac, Signer, Stripe, github, shopify
from eventonce.auth.sns import Sns
from eventonce.ports import Admitted, Auth

__all__ = ["Admitted", "Auth", "Bearer", "Hmac", "Signer", "Sns", "Stripe", "cautions", "github", "shopify"]
