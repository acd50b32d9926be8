"""Publisher: sends events to a bus, a topic or a queue, each under an identity that survives every retry."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eventonce.clock import Clock, SystemClock
from eventonce.closing import Closing
from eventonce.dead_letters import open_dead_letters
from eventonce.engine.options import at_least_one
from eventonce.errors import ConfigError, EventRejected, describe
from eventonce.event import Event
from eventonce.event.formats.sdk import CloudEvent
from eventonce.outbox.identity import Identities, check_identity
from eventonce.outbox.message import Message, PublishResult, read_publishable
from eventonce.outbox.publish_jobs import PublishJob, PublishSender
from eventonce.ports import Carrier
from eventonce.rules import resolve_rules
from eventonce.rules.rule import Rule
from eventonce.sinks import open_carrier

MAX_ATTEMPTS = 15  # with their pauses, between one and a half and three minutes


class Publisher(Closing):
    """`Publisher("events://BUS").send(events)` returns one `PublishResult` per event, in order. Threads may share it.

    `to` is a sink's URL: `events://BUS` (by name, or a new bus by its ARN), `sns://TOPIC`, `sqs://QUEUE`. It may also
    be a carrier of your own, which the publisher closes. `rules` make the identity of an event. Refused events are
    written to `dead_letter`. No connection is made before the first event.
    """

    def __init__(
        self,
        to: str | Carrier,
        *,
        rules: Rule | Sequence[Rule] | str | Path | None = None,
        dead_letter: str | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        clock: Clock | None = None,
    ) -> None:
        self._identities = Identities(() if rules is None else resolve_rules(rules))
        self._clock = clock or SystemClock()
        self._max_attempts = at_least_one("max_attempts", max_attempts)
        self._carrier = open_carrier(to) if isinstance(to, str) else to
        self._dead_letters = None if dead_letter is None else open_dead_letters(dead_letter)

    def send(self, events: Iterable[Any]) -> list[PublishResult]:
        """Publish events: `Event`, mappings, JSON, CloudEvents of the SDK, or `Message` around any of these.

        It never raises for an event or for an error of the carrier. After an event that failed, the rest of its group
        is not sent. After a refused one it is.
        """
        if isinstance(events, Event | Mapping | str | bytes | Message | CloudEvent):
            raise ConfigError("send takes a list of events; put the one event into a list")
        jobs = [self._job(event if isinstance(event, Message) else Message(event)) for event in events]
        PublishSender(self._carrier, self._clock, self._max_attempts, self._dead_letters).run(jobs)
        return [job.publish_result() for job in jobs]

    def close(self) -> None:
        """Close the carrier and the dead-letter sink."""
        self._carrier.close()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def _job(self, message: Message) -> PublishJob:
        try:
            event = read_publishable(message.event)
            chosen = message.identity
            identity = self._identities.of(event) if chosen is None else check_identity(chosen)
        except EventRejected as error:
            return PublishJob.unreadable(message, error)
        except ConfigError:
            raise
        except Exception as error:  # an event that breaks the reader must not stop the others
            return PublishJob.unreadable(message, EventRejected(f"could not be read: {describe(error)}"))
        return PublishJob(message, event, identity)
