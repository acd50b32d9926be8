"""Warnings about signatures that cover the body of a request alone."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eventonce.auth.signers import Hmac
from eventonce.event.formats.headers import READABLE
from eventonce.ports import Auth
from eventonce.rules.rule import Rule

_HEADER = re.compile(r"""(?<![\w."\]])headers\.(?:"([^"]+)"|([A-Za-z_]\w*))""")


def cautions(auth: Auth | None, rules: Sequence[Rule]) -> list[str]:
    """Return warnings about headers that these rules will never see, and about what identifies deliveries instead."""
    if not isinstance(auth, Hmac):
        return []
    unseen = {
        rule.name: sorted(name for name in set(_headers(rule)) & READABLE if not auth.trusts(name)) for rule in rules
    }
    warnings = [
        f"rule {rule!r} reads {' and '.join(names)}, which the signature does not cover, so it never sees it; "
        "name what you trust in trust_headers"
        for rule, names in unseen.items()
        if names
    ]
    return [*warnings, *auth.cautions()]


def _headers(rule: Rule) -> Iterator[str]:
    for text in () if isinstance(rule.key, str) else rule.key:
        yield from (quoted or plain for quoted, plain in _HEADER.findall(text))
    yield from _matched(rule.match or {})


def _matched(match: Mapping[str, Any]) -> Iterator[str]:
    headers, branches = match.get("headers"), match.get("$or")
    yield from headers if isinstance(headers, Mapping) else ()
    for branch in branches if isinstance(branches, list) else ():
        yield from _matched(branch) if isinstance(branch, Mapping) else ()
