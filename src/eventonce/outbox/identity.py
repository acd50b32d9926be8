"""The identity of an event to publish. It is the same for every copy, and at every attempt."""

import hashlib
from collections.abc import Sequence

from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.keys import Digester, part
from eventonce.event.stamp import LONGEST
from eventonce.rules import CompiledRule, Keyed, Rulebook, identity
from eventonce.rules.rule import DEFAULT_WINDOW, Rule

_SCOPE = "eventonce publisher"  # in place of a consumer's name
_deduplication = Digester(_SCOPE, "deduplication", "")


class Identities:
    """Makes identities by rules: the digest of the key, with the version if there is one.

    If no rule matches, the identity is the event's own id. For an event without an id it is the digest of its content.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rulebook = Rulebook(_SCOPE, rules, identity(DEFAULT_WINDOW, "retry"))
        self._content = CompiledRule(_SCOPE, Rule(name="content", key="content"))

    def of(self, event: Event) -> str:
        """Return the identity of an event. Raise `EventRejected` if its rule finds no key in it."""
        rule = self._rulebook.find(event)
        if rule.name == "id" and rule is self._rulebook.all[-1]:
            return self.of_id(event) or _from_key(self._content.key(event))
        return _from_key(rule.key(event))

    def of_id(self, event: Event) -> str:
        """Return the identity that the event's id makes. An id that a carrier gave cannot equal a sender's id."""
        if not event.named_by:
            return _limit_length(event.id)
        return _from_key(self._rulebook.all[-1].key(event))


def check_identity(value: object) -> str:
    """Return an identity that the caller chose. Raise `EventRejected` if it is not valid."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST:
        raise EventRejected(f"has the identity {value!r:.60}; use a string of 1 to {LONGEST} characters, or None")
    return value


def deduplication_id(event: Event, identity: str) -> str:
    """Return the id by which a carrier recognises copies. Two producers may share an identity, so it has the source."""
    return _deduplication([part(event.source), part(event.type), part(identity)], "").hex()


def _from_key(keyed: Keyed) -> str:
    return keyed.key.hex() if keyed.version is None else f"{keyed.key.hex()}-{keyed.version}"


def _limit_length(text: str) -> str:
    return text if len(text) <= LONGEST else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
