"""64 bits that stand for a key, an id or a content: small, quick, and good for counting.

Among ten million of them the odds that any two collide are 1 in 350,000.
"""

from hashlib import blake2b, sha256
from struct import Struct
from typing import Any

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.keys import is_empty, part
from eventonce.event.stamp import FIELD, identity_of
from eventonce.rules.rulebook import CompiledRule, Keyed

_first = Struct(">Q").unpack_from


def of_digest(digest: bytes) -> int:
    """Return the first half of a key, or as much of a longer digest."""
    fingerprint: int = _first(digest)[0]
    return fingerprint


def of_id(event: Event) -> int | None:
    """Return what identifies an event by its id, as under a rule with `key = "id"`. None without an id."""
    data = event.data
    if event.named_by and identity_of(event) is None:
        return _of((event.source, event.type, event.named_by, event.id))
    if event.form == "eventbridge" and not (isinstance(data, dict) and FIELD in data):  # by far the most common
        return _of_text(event.id)
    event_id: Any = identity_of(event)
    if event_id is None:
        if is_empty(event.id):
            return None
        if event.form == "eventbridge":
            return _of_text(event.id)
        event_id = event.id if event.form == "cloudevents" else event.attributes.get("id", event.id)  # 7 and "7" differ
        if isinstance(event_id, dict | list):
            return None
    parts = (event.source, event_id) if event.form == "cloudevents" else (event.source, event.type, event_id)
    return _of(tuple(map(part, parts)))


def _of_text(text: str) -> int | None:
    return of_digest(sha256(text.encode("utf-8", "surrogatepass")).digest()) if not is_empty(text) else None


def of_content(keyed: Keyed, event: Event) -> int:
    """Return that of source, type and content, without what the rule ignores. A key by content is its own."""
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
