"""Publisher: events to a bus, a topic or a queue, each under an identity that survives every retry."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eventonce.clock import Clock, SystemClock
from eventonce.closing import Closing
from eventonce.dead_letters import open_dead_letters
from eventonce.errors import ConfigError, EventRejected, describe
from eventonce.event import Event
from eventonce.event.formats.sdk import CloudEvent
from eventonce.outbox.identity import Identities, given_identity
from eventonce.outbox.message import Message, PublishResult, read
from eventonce.outbox.publish_jobs import Publishing, PublishJob
from eventonce.ports import Carrier
from eventonce.rules import given_rules
from eventonce.rules.rule import Rule
from eventonce.sinks import open_carrier

MAX_ATTEMPTS = 15  # with the pauses between, between one and a half and three minutes


class Publisher(Closing):
    """`Publisher("events://BUS").send(events)`: one `PublishResult` per event, in order. Threads may share it.

    `to` is a sink's URL: `events://BUS` (by name, or a new bus by its ARN), `sns://TOPIC`, `sqs://QUEUE`; or a carrier
    of your own, which the publisher closes. `rules` make the identity of an event; `dead_letter` is where refused ones
    are kept. Nothing is connected to before the first event.
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
        if max_attempts < 1:
            raise ConfigError(f"max_attempts: {max_attempts!r} is below 1")
        self._identities = Identities(() if rules is None else given_rules(rules))
        self._clock = clock or SystemClock()
        self._tries = max_attempts
        self._carrier = open_carrier(to) if isinstance(to, str) else to
        self._dead_letters = None if dead_letter is None else open_dead_letters(dead_letter)

    def send(self, events: Iterable[Any]) -> list[PublishResult]:
        """Publish events: `Event`, mappings, JSON, CloudEvents of the SDK, or `Message` around any of these.

        Never raises for an event or for trouble of the carrier. In a group, what is behind an event that failed is not
        sent; what is behind a refused one is.
        """
        if isinstance(events, Event | Mapping | str | bytes | Message | CloudEvent):
            raise ConfigError("send takes a list of events; put the one event into a list")
        jobs = [self._job(item if isinstance(item, Message) else Message(item)) for item in events]
        Publishing(self._carrier, self._clock, self._tries, self._dead_letters).run(jobs)
        return [job.published() for job in jobs]

    def close(self) -> None:
        """Close the connections and the place for dead letters."""
        self._carrier.close()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def _job(self, outgoing: Message) -> PublishJob:
        try:
            event = read(outgoing.event)
            given = outgoing.identity
            identity = self._identities.of(event) if given is None else given_identity(given)
        except EventRejected as error:
            return PublishJob.unreadable(outgoing, error)
        except ConfigError:
            raise
        except Exception as error:  # whatever an event does to us, it is kept and the others go on
            return PublishJob.unreadable(outgoing, EventRejected(f"could not be read: {describe(error)}"))
        return PublishJob(outgoing, event, identity)
