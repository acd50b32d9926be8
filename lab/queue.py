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
    """Messages that come back until they are acked, and once in a while even then."""

    def __init__(self, world: World, messages: Sequence[QueueMessage], visibility: int) -> None:
        self.messages = messages
        self._world = world
        self._visibility = visibility

    def receive(self, limit: int) -> Sequence[Delivery]:
        """Waits for what is visible next; empty once nothing is left."""
        while waiting := [message for message in self.messages if not message.gone]:
            now = self._world.now
            if visible := self._visible([message for message in waiting if message.arrives <= now])[:limit]:
                return [self._offer(message) for message in visible]
            # What is visible already stands behind one of its group that is not.
            times = [max(message.arrives, message.visible_at) for message in waiting]
            self._world.sleep(min(time for time in times if time > now) - now)
        return []

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._world.point()
        for delivery in deliveries:
            message: QueueMessage = delivery.handle
            self._world.tell(f"acks {message.event.id}")
            if self._world.trouble(2):
                self._world.tell(f"queue keeps {message.event.id} all the same")
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
        """What may be offered now: in any order, but a group only from its first and while none of it is in flight."""
        now = self._world.now
        in_flight = {message.group for message in waiting if message.visible_at > now} - {None}
        found = [message for message in waiting if message.visible_at <= now and message.group not in in_flight]
        turn = self._world.choices.below(len(found)) if len(found) > 1 and not any(m.group for m in found) else 0
        return found[turn:] + found[:turn]

    def _offer(self, message: QueueMessage) -> Delivery:
        message.receive_count += 1
        # Visibility is no guarantee: once in a while a copy is offered to two at a time.
        twice = message.group is None and self._world.trouble(3)
        message.visible_at = self._world.now + (0 if twice else self._visibility)
        return Delivery(b"", {}, message.receive_count, event=message.event, group=message.group, handle=message)
