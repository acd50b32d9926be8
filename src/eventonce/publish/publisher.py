"""Publisher: events to a bus, a topic or a queue, each under an identity that survives every retry."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eventonce.clock import Clock
from eventonce.publish.published import Published
from eventonce.rule import Rule

MAX_ATTEMPTS = 15  # with the pauses between, between one and a half and three minutes


class Publisher:
    """`Publisher("events://BUS").send(events)`: one `Published` per event, in order. Threads may share it.

    `url` is a sink's: `events://BUS` (by name, or a new bus by its ARN), `sns://TOPIC`, `sqs://QUEUE`. `rules` make the
    identity of an event; `dead_letter` is where refused ones are kept. Nothing is connected to before the first event.
    """

    def __init__(
        self,
        url: str,
        *,
        rules: Rule | Sequence[Rule] | str | Path | None = None,
        dead_letter: str | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        clock: Clock | None = None,
    ) -> None:
        raise NotImplementedError

    def send(self, events: Iterable[Any]) -> list[Published]:
        """Publish events: `Event`, mappings, JSON, CloudEvents of the SDK, or `Outgoing` around any of these.

        Never raises for an event or for trouble of the carrier.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections and the place for dead letters."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
