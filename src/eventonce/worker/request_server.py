"""The worker for requests: a webhook server whose outcomes are counted."""

from collections.abc import Callable
from typing import Any

from eventonce.claims.outcome import Action, Outcome
from eventonce.engine import Once
from eventonce.event import Delivery
from eventonce.ports import DeadLetters, Sink
from eventonce.sources import Requests
from eventonce.webhook.serve import WebhookServer
from eventonce.worker.counts import OutcomeCounts
from eventonce.worker.worker import Watcher


class RequestServer:
    """Serves requests until it is stopped, and counts their outcomes."""

    def __init__(
        self,
        once: Once,
        source: Requests,
        handler: Sink | Callable[..., Any],
        dead_letters: DeadLetters,
        *,
        batch: int,
        threads: int,
        watch: Watcher,
    ) -> None:
        self.tally = OutcomeCounts()
        self._watch = watch
        self._server = WebhookServer(
            once, handler, source.url, dead_letters, threads=threads, batch=batch, watch=self._count
        )
        self.address = self._server.address

    def stop(self) -> None:
        """Take no more requests. May be called by a signal handler."""
        self._server.stop()

    def run(self, grace: int) -> int:
        """Serve until stopped. Return how many events did not finish within the grace time (milliseconds)."""
        return self._server.run(grace)

    def _count(self, delivery: Delivery, outcome: Outcome) -> None:
        self.tally.add(outcome, dead=outcome.action is not Action.ACK)
        self._watch(delivery, outcome)
