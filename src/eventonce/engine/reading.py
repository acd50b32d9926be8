"""Reading: whatever arrived becomes a job, with its event, rule and key."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from eventonce.clock import Clock, to_datetime
from eventonce.engine import endings
from eventonce.engine.jobs import Job, RefusedEvent
from eventonce.errors import ConfigError, EventExpired, EventRejected, EventUnrouted
from eventonce.event import Delivery, Event
from eventonce.event.formats import read_event
from eventonce.event.keys import Key
from eventonce.rules import CompiledRule, Keyed, Rulebook

if TYPE_CHECKING:
    from eventonce.engine.handler import Handler

_LARGE = 64 * 1024  # bytes of a batch that may take a loop too long to read
_log = logging.getLogger("eventonce")


class ItemReader:
    """Makes jobs of items: of events, or of calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def read_all(self, items: Sequence[object], first: int, handler: "Handler") -> list[Job | RefusedEvent]:
        """Read the items of a batch for a handler. Their positions begin at `first`."""
        return [self.read(position, item, handler) for position, item in enumerate(items, first)]

    def read(self, position: int, item: object, handler: "Handler | None" = None) -> Job | RefusedEvent:
        """Return the job for an item, or the reason why it cannot become one."""
        raise NotImplementedError

    def keys(self, item: object) -> tuple[Key, ...]:
        """Return all keys of an item, its own first. Raise `EventRejected` if it has none."""
        raise NotImplementedError

    def check_version(self, keyed: Keyed, since: int) -> None:
        """Reject a version that no clock can have given yet. It would make all later versions stale."""
        rule = keyed.rule
        if since > self._clock.utc() + rule.ahead_of_clock:
            time = to_datetime(since).isoformat(timespec="seconds")
            raise EventRejected(
                f"{rule.rule.version} is {keyed.version}, which no clock gives before {time}, and would make later "
                f"versions stale; if it is right, give rule {rule.name!r} another version_ahead"
            )


class Reader(ItemReader):
    """Reads events, and finds their rules and keys."""

    def __init__(self, rules: Rulebook, clock: Clock, max_bytes: int) -> None:
        super().__init__(clock)
        self._rules = rules
        self._max_bytes = max_bytes

    def keys(self, item: object) -> tuple[Key, ...]:
        """Return all keys of an event, its own first. Raise `EventRejected` if it has none."""
        return self._rules.key(read_event(item, self._max_bytes)).keys

    def read(self, position: int, item: object, handler: "Handler | None" = None) -> Job | RefusedEvent:
        """Return the job for an item, or the reason why it cannot become one."""
        restore = router = None
        if handler is not None:
            restore = handler.restore
            router = handler.router
        group = message = message_id = event = rule = keyed = None
        try:
            body = item
            if isinstance(item, Delivery):
                group, message, message_id = item.group, item.handle, item.message_id
                body = _body(item)
            event = read_event(body, self._max_bytes)  # with data of its own: a handler may write into it
            if router is not None:
                restore = router.find(event).restore
            rule = self._rules.find(event)
            keyed = rule.key(event)
            content = b"" if rule.remember == "seen" else rule.content(event)
            if keyed.since is not None:
                self.check_version(keyed, keyed.since)
            if rule.max_age is not None:
                self._check_age(event, rule, rule.max_age)
            keys = (keyed.key,) if keyed.old_key is None else keyed.keys
            version = keyed.version
            return Job(position, event, rule, keyed.key, keys, version, content, group, message, message_id, restore)
        except (EventRejected, EventExpired) as error:
            reason: EventRejected | EventExpired = error
        except Exception as error:  # whatever an event does to us, it is not lost and the others go on
            _log.exception("an event could not be read")
            reason = EventRejected(f"could not be read: {endings.one_line(error)}")
        outcome = endings.refused(reason, rule, None if keyed is None else keyed.key)
        is_known = keyed is not None or isinstance(reason, EventUnrouted)
        return RefusedEvent(position, event if is_known else None, outcome, group, message)

    def _check_age(self, event: Event, rule: CompiledRule, max_age: int) -> None:
        """Raise `EventExpired` if an event is older than its rule allows."""
        if event.time is None and event.tombstone:
            return
        if event.time is None:
            raise EventRejected(f"has no time, and rule {rule.name!r} has a max_age")
        age = self._clock.utc() - event.time.timestamp() * 1000
        if age > max_age:
            raise EventExpired(f"is {age / 1000:.0f} s old, over the max_age of rule {rule.name!r}")


def many(events: Iterable[object]) -> list[object]:
    """Return many events as a list. Raise `ConfigError` for a single one, which is iterable too."""
    if isinstance(events, Mapping | str | bytes | Event | Delivery):
        raise ConfigError("run and map take many events; pass a list, such as [event]")
    if not isinstance(events, Iterable):
        order = ", and the handler after it" if callable(events) else ""
        raise ConfigError(f"run and map take many events, not {events!r:.60}; pass a list of them first{order}")
    return list(events)


def are_large(items: Sequence[object]) -> bool:
    """Return whether a batch takes long to read."""
    return sum(map(_size, items)) > _LARGE


def _size(item: object) -> int:
    """Return the length of an event in bytes, as far as that is known without reading it."""
    if isinstance(item, Delivery):
        return max(len(item.body), _size(item.event))
    if isinstance(item, Event):
        return len(item.raw)
    return len(item) if isinstance(item, bytes | str) else 0


def _body(delivery: Delivery) -> bytes | Event:
    if delivery.unreadable is not None:
        raise EventRejected(delivery.unreadable)
    return delivery.body if delivery.event is None else delivery.event
