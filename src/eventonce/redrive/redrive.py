"""A redrive: dead letters go through the pipeline again, one more attempt each.

The store decides, as for every event. A dead event is not done, so it runs, however many attempts were used up. If
another copy of it was processed meanwhile, it is a duplicate. A letter is removed only when its event is done. So a
redrive that was killed can be repeated: what the first one did is in the store, and the letter goes without a run.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.clock import Clock, SystemClock
from eventonce.dead_letters.letter import after_failure, letter_deliveries
from eventonce.engine import Once
from eventonce.errors import EventRejected, StoreUnusable
from eventonce.event import Delivery
from eventonce.event.formats import read_event
from eventonce.ports import DeadLetter, DeadLetterBox, Sink
from eventonce.rules.rule import Rule
from eventonce.settings import Settings

if TYPE_CHECKING:
    from asyncio import Runner

BATCH = 20  # letters that are claimed together, and removed together
_NO_END = 2**31 - 1
DONE = (OutcomeKind.PROCESSED, OutcomeKind.DUPLICATE, OutcomeKind.STALE)
_TRIED = (OutcomeKind.FAILED, OutcomeKind.REJECTED, OutcomeKind.UNROUTED)

Watcher = Callable[[DeadLetter, Outcome], None]


def redrive_settings(settings: Settings, *, reprocess: bool) -> Settings:
    """Return the settings of a redrive: unlimited attempts. With `reprocess`, each letter's replay is in its key."""
    settings = structs.replace(settings, max_attempts=_NO_END)
    if not reprocess:
        return settings
    unmatched = Rule(name="no rule", window=settings.window, on_store_error=settings.on_store_error)
    rules = [structs.replace(rule, replay="reprocess") for rule in (*settings.rule, unmatched)]
    return structs.replace(settings, rule=rules)


class Redrive:
    """Runs letters through a handler or a sink, and settles them with their box."""

    def __init__(
        self,
        once: Once,
        handler: Sink | Callable[..., Any],
        box: DeadLetterBox,
        *,
        reprocess: bool = False,
        watch: Watcher = lambda letter, outcome: None,
        clock: Clock | None = None,
    ) -> None:
        self._once = once
        self._handler = once.prepare(handler)
        self._box = box
        self._reprocess = reprocess
        self._watch = watch
        self._clock = clock or SystemClock()

    def run(self, letters: Sequence[DeadLetter]) -> bool:
        """Redrive letters. Return whether the events of all are done."""
        from asyncio import Runner

        succeeded = True
        with Runner() as runner:
            for start in range(0, len(letters), BATCH):
                batch = letters[start : start + BATCH]
                outcomes = self._outcomes(batch, runner)
                self._settle(batch, outcomes)
                succeeded = succeeded and all(outcome.kind in DONE for outcome in outcomes)
        return succeeded

    def _outcomes(self, letters: Sequence[DeadLetter], runner: "Runner") -> list[Outcome]:
        parts = [list(self._deliveries(letter)) for letter in letters]
        deliveries = [delivery for part in parts for delivery in part]
        if self._handler.is_async:
            outcomes = runner.run(self._once.arun(deliveries, self._handler))
        else:
            outcomes = self._once.run(deliveries, self._handler)
        remaining = iter(outcomes)
        return [_strongest_outcome([next(remaining) for _ in part]) for part in parts]

    def _deliveries(self, letter: DeadLetter) -> Iterator[Delivery]:
        for delivery in letter_deliveries(letter):
            yield _add_replay(delivery, letter.replay_name) if self._reprocess else delivery

    def _settle(self, letters: Sequence[DeadLetter], outcomes: Sequence[Outcome]) -> None:
        pairs = list(zip(letters, outcomes, strict=True))
        self._box.remove([letter for letter, outcome in pairs if outcome.kind in DONE])
        now = self._clock.utc()
        self._box.keep([after_failure(letter, outcome, now) for letter, outcome in pairs if outcome.kind in _TRIED])
        for letter, outcome in pairs:
            self._watch(letter, outcome)
        for outcome in outcomes:
            if isinstance(outcome.error, StoreUnusable):
                raise outcome.error


def _add_replay(delivery: Delivery, name: str) -> Delivery:
    if delivery.unreadable is not None:
        return delivery
    try:
        event = read_event(delivery.event or delivery.body)
    except EventRejected:  # the engine reports it
        return delivery
    return structs.replace(delivery, event=structs.replace(event, replay=name))


def _strongest_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome that stands for all events of a letter: one that is not done first, then one that ran."""
    return min(outcomes, key=lambda outcome: (outcome.kind in DONE, outcome.kind is not OutcomeKind.PROCESSED))
