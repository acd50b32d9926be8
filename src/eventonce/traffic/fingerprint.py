"""64 bits that stand for a key, an id or a content: small, quick, and good for counting.

Among ten million of them the odds that any two are taken for each other are 1 in 350,000.
"""

from hashlib import blake2b, sha256
from struct import Struct
from typing import Any

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.keys import part
from eventonce.event.stamp import FIELD, identity_of
from eventonce.rules.rulebook import CompiledRule, Keyed

_first = Struct(">Q").unpack_from


def of_digest(digest: bytes) -> int:
    """A key's first half, or as much of a longer digest."""
    found: int = _first(digest)[0]
    return found


def of_id(event: Event) -> int | None:
    """What an id identifies an event by, as under a rule with `key = "id"`; None where it has none."""
    data = event.data
    if event.named_by and identity_of(event) is None:
        return _of((event.source, event.type, event.named_by, event.id))
    if event.form == "eventbridge" and not (isinstance(data, dict) and FIELD in data):  # by far the most common
        return _of_text(event.id)
    given: Any = identity_of(event)
    if given is None:
        if not event.id:
            return None
        if event.form == "eventbridge":
            return _of_text(event.id)
        given = event.id if event.form == "cloudevents" else event.attributes.get("id", event.id)  # 7 and "7" differ
        if isinstance(given, dict | list):
            return None
    named = (event.source, given) if event.form == "cloudevents" else (event.source, event.type, given)
    return _of(tuple(map(part, named)))


def _of_text(text: str) -> int | None:
    return of_digest(sha256(text.encode("utf-8", "surrogatepass")).digest()) if text else None


def of_content(keyed: Keyed, event: Event) -> int:
    """Source, type and what the event says, without what its rule ignores; of a key by content, the key itself."""
    if keyed.rule.rule.key == "content":
        return of_digest(keyed.key)
    return _of((event.source, event.type), _content(keyed.rule, event))


def _of(value: object, content: bytes = b"") -> int:
    # Not Python's own hash: that differs from process to process.
    state = blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8)
    state.update(content)
    return int.from_bytes(state.digest())


def _content(rule: CompiledRule, event: Event) -> bytes:
    try:
        return rule.content(event)
    except EventRejected:  # it has no canonical form, and a key by id needs none
        return event.raw
