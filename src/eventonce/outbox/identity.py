"""The identity of an event to publish: the same for every copy of it, and at every attempt."""

import hashlib
from collections.abc import Sequence

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.keys import Digester, part
from eventonce.event.stamp import LONGEST
from eventonce.rules import CompiledRule, Keyed, Rulebook, identity
from eventonce.rules.rule import DEFAULT_WINDOW, Rule

_SCOPE = "eventonce publisher"  # stands where a consumer's name does
_deduplication = Digester(_SCOPE, "deduplication", "")


class Identities:
    """What the rules make of events: the digest of a key, with the version where there is one.

    Where no rule matches it is the event's own id, and for an event without one the digest of its content.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._book = Rulebook(_SCOPE, rules, identity(DEFAULT_WINDOW, "retry"))
        self._content = CompiledRule(_SCOPE, Rule(name="content", key="content"))

    def of(self, event: Event) -> str:
        """The identity of an event, or `EventRejected` where its rule finds no key in it."""
        rule = self._book.find(event)
        if rule.name == "id" and rule is self._book.all[-1]:
            return self.own(event) or _text(self._content.key(event))
        return _text(rule.key(event))

    def own(self, event: Event) -> str:
        """What the event's id makes: one that a carrier gave is no id that a sender could write."""
        if not event.named_by:
            return _short(event.id)
        return _text(self._book.all[-1].key(event))


def given_identity(value: object) -> str:
    """An identity that the caller gave."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST:
        raise EventRejected(f"has the identity {value!r:.60}; give a text of 1 to {LONGEST} characters, or none")
    return value


def deduplication_id(event: Event, identity: str) -> str:
    """What a carrier is to tell copies by. Two producers may use one identity, so it is more than that."""
    return _deduplication([part(event.source), part(event.type), part(identity)], "").hex()


def _text(keyed: Keyed) -> str:
    return keyed.key.hex() if keyed.version is None else f"{keyed.key.hex()}-{keyed.version}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
