"""A redrive: dead letters go through the pipeline again, one more attempt each.

What is remembered of a letter's event decides, as ever. It is not done, since it died; so it runs, whatever number of
attempts was used up, and its history goes on. Where another copy of it got through meanwhile, it is a duplicate. A
letter is taken out only when its event is done, so a redrive that is killed is run again: what the first one did, the
store knows, and the letter goes without another run.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from eventonce.clock import Clock, SystemClock
from eventonce.engine import Once
from eventonce.errors import EventRejected, StoreUnusable
from eventonce.event import Delivery
from eventonce.formats import read_event
from eventonce.outcome import Kind, Outcome
from eventonce.pipeline import Settings
from eventonce.ports import Sink
from eventonce.redrive.box import Box
from eventonce.redrive.letter import Letter
from eventonce.rule import Rule

if TYPE_CHECKING:
    from asyncio import Runner

BATCH = 20  # letters that are claimed together, and taken out together
_NO_END = 2**31 - 1
DONE = (Kind.PROCESSED, Kind.DUPLICATE, Kind.STALE)
_TRIED = (Kind.FAILED, Kind.REJECTED)

Watcher = Callable[[Letter, Outcome], None]


def redrive_settings(settings: Settings, *, again: bool) -> Settings:
    """The pipeline for a redrive: attempts without end; with `again`, each letter's mark is part of its event's key."""
    settings = structs.replace(settings, max_attempts=_NO_END)
    if not again:
        return settings
    unmatched = Rule(name="no rule", window=settings.window, store_trouble=settings.store_trouble)
    marked = [structs.replace(rule, replay="reprocess") for rule in (*settings.rule, unmatched)]
    return structs.replace(settings, rule=marked)


class Redrive:
    """Runs letters through a handler or a sink, and settles them with their box."""

    def __init__(
        self,
        once: Once,
        handler: Sink | Callable[..., Any],
        box: Box,
        *,
        again: bool = False,
        watch: Watcher = lambda letter, outcome: None,
        clock: Clock | None = None,
    ) -> None:
        self._once = once
        self._handler = once.prepare(handler)
        self._box = box
        self._again = again
        self._watch = watch
        self._clock = clock or SystemClock()

    def run(self, letters: Sequence[Letter]) -> bool:
        """Redrive these; whether all of them are done."""
        from asyncio import Runner

        good = True
        with Runner() as runner:
            for start in range(0, len(letters), BATCH):
                batch = letters[start : start + BATCH]
                outcomes = self._outcomes(batch, runner)
                self._settle(batch, outcomes)
                good = good and all(outcome.kind in DONE for outcome in outcomes)
        return good

    def _outcomes(self, letters: Sequence[Letter], runner: "Runner") -> list[Outcome]:
        parts = [list(self._deliveries(letter)) for letter in letters]
        deliveries = [delivery for part in parts for delivery in part]
        if self._handler.is_async:
            outcomes = runner.run(self._once.arun(deliveries, self._handler))
        else:
            outcomes = self._once.run(deliveries, self._handler)
        left = iter(outcomes)
        return [_weightiest([next(left) for _ in part]) for part in parts]

    def _deliveries(self, letter: Letter) -> Iterator[Delivery]:
        for delivery in letter.deliveries():
            yield _marked(delivery, letter.mark) if self._again else delivery

    def _settle(self, letters: Sequence[Letter], outcomes: Sequence[Outcome]) -> None:
        pairs = list(zip(letters, outcomes, strict=True))
        self._box.remove([letter for letter, outcome in pairs if outcome.kind in DONE])
        now = self._clock.utc()
        self._box.keep([letter.again(outcome, now) for letter, outcome in pairs if outcome.kind in _TRIED])
        for letter, outcome in pairs:
            self._watch(letter, outcome)
        for outcome in outcomes:
            if isinstance(outcome.error, StoreUnusable):
                raise outcome.error


def _marked(delivery: Delivery, mark: str) -> Delivery:
    if delivery.trouble is not None:
        return delivery
    try:
        event = read_event(delivery.event or delivery.body)
    except EventRejected:  # the engine says so
        return delivery
    return structs.replace(delivery, event=structs.replace(event, replay=mark))


def _weightiest(outcomes: Sequence[Outcome]) -> Outcome:
    """What became of a letter with several events: what is not done counts most, then what ran now."""
    return min(outcomes, key=lambda outcome: (outcome.kind in DONE, outcome.kind is not Kind.PROCESSED))
