"""Reading: a bound call becomes a job, with its rule and key."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import msgspec

from eventonce.engine import endings
from eventonce.engine.calls.keys import ArgumentPath, Content, KeyParts, Values
from eventonce.engine.jobs import Job, RefusedEvent
from eventonce.engine.reading import ItemReader
from eventonce.errors import CallRejected, EventRejected
from eventonce.event import Event
from eventonce.event.keys import Digester, Key
from eventonce.rules import CompiledRule, Keyed
from eventonce.rules.rule import read_version

if TYPE_CHECKING:
    from eventonce.engine.handler import Handler

T_co = TypeVar("T_co", covariant=True)


class CallEvent(Event, frozen=True, kw_only=True):
    """A call as the engine sees it. Hooks see its function as type, and not its arguments."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class KeyRecipe(msgspec.Struct, frozen=True, eq=False):
    """How the keys of one function's calls are made, whatever class it is used on."""

    parts: KeyParts
    version: ArgumentPath | None
    content: Content | None  # if a note of it is remembered
    old_name: str | None  # of the function that this one replaces
    old_parts: KeyParts | None


class Scope:
    """The calls of one function, on one class if it is a method: their name, rule and digests."""

    def __init__(self, consumer: str, rule: CompiledRule, recipe: KeyRecipe, suffix: str) -> None:
        self.rule = rule
        self.recipe = recipe
        self._digest = Digester(consumer, rule.name, recipe.parts.kind)
        self._old_digest = None
        if recipe.old_name is not None and recipe.old_parts is not None:
            self._old_digest = Digester(consumer, f"{recipe.old_name}{suffix}", recipe.old_parts.kind)

    def key(self, values: Values) -> Keyed:
        """Return the key of a call, and its version. Raise `EventRejected` if a part of them is missing."""
        recipe = self.recipe
        key = self._digest(recipe.parts.make(values))
        if recipe.version is None and self._old_digest is None:
            return Keyed(self.rule, key)
        old_key = self._old_key(values)
        if recipe.version is None:
            return Keyed(self.rule, key, None, old_key)
        version = read_version(recipe.version(values), recipe.version.text)
        return Keyed(self.rule, key, version.number, old_key, version.since)

    def content(self, values: Values) -> bytes:
        """Return the canonical form of the arguments, if a note of it is remembered."""
        return b"" if self.recipe.content is None else self.recipe.content.text(values)

    def _old_key(self, values: Values) -> Key | None:
        if self._old_digest is None or self.recipe.old_parts is None:
            return None
        try:
            return self._old_digest(self.recipe.old_parts.make(values))
        except EventRejected:
            return None


class BoundCall(msgspec.Struct, Generic[T_co], frozen=True, eq=False):
    """A call that has its arguments and has not run: `fn.map(fn.bind(order) for order in orders)`."""

    scope: Scope
    values: Values
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __reduce__(self) -> NoReturn:
        raise CallRejected(
            f"a bound call of {self.scope.rule.name} is for map in this process; send its arguments and bind them there"
        )


class CallReader(ItemReader):
    """Reads bound calls, and makes their keys."""

    def read(self, position: int, item: object, handler: "Handler | None" = None) -> Job | RefusedEvent:
        """Return the job for a call, or the reason why it cannot become one."""
        assert isinstance(item, BoundCall)
        rule, key = item.scope.rule, None
        try:
            keyed = item.scope.key(item.values)
            key = keyed.key
            if keyed.since is not None:
                self.check_version(keyed, keyed.since)
            content = item.scope.content(item.values)
        except EventRejected as error:
            reason = EventRejected(f"{rule.name}: {error}")
            return RefusedEvent(position, None, endings.refused(reason, rule, key))
        except Exception as error:  # whatever the arguments do to us, as by a property that raises
            reason = EventRejected(f"{rule.name}: its key cannot be made: {endings.one_line(error)}")
            reason.__cause__ = error
            return RefusedEvent(position, None, endings.refused(reason, rule, None))
        event = CallEvent(data=None, type=rule.name, args=item.args, kwargs=item.kwargs)
        keys = (keyed.key,) if keyed.old_key is None else keyed.keys
        restore = None if handler is None else handler.restore
        return Job(position, event, rule, keyed.key, keys, keyed.version, content, restore=restore)

    def keys(self, item: object) -> tuple[Key, ...]:
        """Return all keys of a call, or raise `EventRejected`."""
        job = self.read(0, item)
        if isinstance(job, Job):
            return job.keys
        assert job.outcome.error is not None
        raise job.outcome.error
