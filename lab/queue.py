"""A queue as queues really are: it delivers late, twice and out of order, and forgets that it was acked."""

from collections.abc import Sequence

from eventonce.event import Delivery, Event
from lab.scheduler import World


class QueueMessage:
    """One copy of an event in the queue."""

    def __init__(self, event: Event, group: str | None, arrives: int) -> None:
        self.event = event
        self.group = group
        self.arrives = arrives
        self.visible_at = 0
        self.receive_count = 0
        self.gone = False


class SimulatedQueue:
    """Messages that come back until they are acked, and sometimes even then."""

    def __init__(self, world: World, messages: Sequence[QueueMessage], visibility: int) -> None:
        self.messages = messages
        self._world = world
        self._visibility = visibility

    def receive(self, limit: int) -> Sequence[Delivery]:
        """Return the messages that are visible next, or none once all are gone."""
        while waiting := [message for message in self.messages if not message.gone]:
            now = self._world.now
            if visible := self._visible([message for message in waiting if message.arrives <= now])[:limit]:
                return [self._offer(message) for message in visible]
            # A message that is visible already waits for one of its group that is not.
            times = [max(message.arrives, message.visible_at) for message in waiting]
            self._world.sleep(min(time for time in times if time > now) - now)
        return []

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._world.point()
        for delivery in deliveries:
            message: QueueMessage = delivery.handle
            self._world.log(f"acks {message.event.id}")
            if self._world.fault(2):
                self._world.log(f"queue keeps {message.event.id} all the same")
            else:
                message.gone = True

    def retry(self, delivery: Delivery, delay: int) -> None:
        self._world.point()
        message: QueueMessage = delivery.handle
        if message.receive_count == delivery.receive_count:  # a receipt that is out of date changes nothing
            message.visible_at = self._world.now + delay

    def close(self) -> None:
        """Nothing to close."""

    def _visible(self, waiting: list[QueueMessage]) -> list[QueueMessage]:
        """Return the messages that may be offered now, in any order but for groups, of which none is in flight."""
        now = self._world.now
        in_flight = {message.group for message in waiting if message.visible_at > now} - {None}
        visible = [message for message in waiting if message.visible_at <= now and message.group not in in_flight]
        ordered = len(visible) <= 1 or any(message.group for message in visible)
        first = 0 if ordered else self._world.choices.below(len(visible))
        return visible[first:] + visible[:first]

    def _offer(self, message: QueueMessage) -> Delivery:
        message.receive_count += 1
        # Visibility guarantees nothing: sometimes a message is offered to two workers at a time.
        twice = message.group is None and self._world.fault(3)
        message.visible_at = self._world.now + (0 if twice else self._visibility)
        return Delivery(b"", {}, message.receive_count, event=message.event, group=message.group, handle=message)
