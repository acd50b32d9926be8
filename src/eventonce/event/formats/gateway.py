"""Requests as API Gateway, a function URL, a load balancer or VPC Lattice passes them to a Lambda function."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from eventonce.errors import EventRejected
from eventonce.event.formats.text import from_base64

_PROXIED = frozenset(("httpMethod", "isBase64Encoded", "rawPath"))
_LATTICE = frozenset(("raw_path", "method", "headers"))  # VPC Lattice in the first version of its events


def recognises(document: Mapping[str, Any]) -> bool:
    """Return whether this is a request."""
    if isinstance(document.get("requestContext"), dict) and not _PROXIED.isdisjoint(document):
        return True
    return document.keys() >= _LATTICE and not {"body", "is_base64_encoded"}.isdisjoint(document)


def headers(document: Mapping[str, Any]) -> dict[str, str]:
    """Return its headers, with names in lower case. The last one of several with a name counts."""
    return {name.lower(): values[-1] for name, values in _headers(document)}


def repeated(document: Mapping[str, Any], name: str) -> bool:
    """Return whether a header is repeated, as far as the document shows that."""
    return any(header.lower() == name and len(values) > 1 for header, values in _headers(document))


def body(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of its body as they were sent. Raise `EventRejected` if the document does not hold them."""
    content = document.get("body")
    if content is None or content == "":
        return b""
    if (document.get("isBase64Encoded") or document.get("is_base64_encoded")) in (True, "true"):
        raw = from_base64(content)
        if raw is None:
            raise EventRejected("has body that is not base64")
        return raw
    if isinstance(content, dict):  # the document was written by hand
        return msgspec.json.encode(content)
    if not isinstance(content, str):
        raise EventRejected("has a body that is not a string")
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise EventRejected("has a body that holds half a surrogate pair, which has no UTF-8 form") from None


def _headers(document: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for field in ("headers", "multiValueHeaders"):  # a load balancer may send the second alone
        pairs = document.get(field)
        for name, value in pairs.items() if isinstance(pairs, dict) else ():
            values = value if isinstance(value, list) else [value]
            if isinstance(name, str) and values and all(isinstance(item, str) for item in values):
                # As from a server, whose headers are bytes: a signature is then checked on the same text.
                yield name, [item.encode("utf-8", "replace").decode("latin-1") for item in values]
