"""A simulation: the real engine and worker in several processes, one store, one queue, and all that can go wrong.

One seed is one schedule. The same seed gives the same run to the last step, and a failing one shrinks to a short story.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from eventonce.context import Context
from eventonce.engine import Once
from eventonce.event import Event
from eventonce.keeper import Keeper
from eventonce.ports import Store
from eventonce.proof.choices import Choices, shrink
from eventonce.proof.model import Model
from eventonce.proof.queue import Message, Queue
from eventonce.proof.store import Line, TransactionalLine, TransactionalMemory
from eventonce.proof.world import Endless, Killed, Process, Task, World
from eventonce.sinks.dead_letter import Dead
from eventonce.stores.memory import MemoryStore
from eventonce.worker import Worker

LEASE, VISIBILITY = 1000, 3000  # milliseconds
ATTEMPTS = 4
_SKEW = 900  # of the clock of a process, either way
_TICK = LEASE // 6
_TROUBLES = 7
_HANDLER_TROUBLE = 6  # percent


class ProcessClock:
    """The clock of one process, which may be wrong."""

    def __init__(self, world: World, skew: int) -> None:
        self._world = world
        self._skew = skew
        self._began = world.now

    def utc(self) -> int:
        return self._world.now + self._skew

    def steady(self) -> int:
        return self._world.now - self._began

    def sleep(self, duration: int) -> None:
        self._world.sleep(duration)


class StoreClock(ProcessClock):
    """The store's own clock, which is right."""

    def __init__(self, world: World) -> None:
        super().__init__(world, 0)


class Kit(NamedTuple):
    """What is put to the test; a mutant is a kit with one part that is wrong on purpose."""

    store: Callable[[World], Store] = lambda world: MemoryStore(clock=StoreClock(world))
    worker: type[Worker] = Worker
    transactional: bool = False


MEMORY = Kit()
TRANSACTIONAL = Kit(lambda world: TransactionalMemory(clock=StoreClock(world)), transactional=True)


class Run(NamedTuple):
    """What one schedule came to."""

    seed: int
    made: Sequence[int]  # the choices, with which it can be had again
    violations: Sequence[str]
    story: Sequence[tuple[int, str, str]]
    counts: Counter[str]

    def __str__(self) -> str:
        told = "\n".join(f"{time:>7} ms  {who:<10} {what}" for time, who, what in self.story)
        return f"{told}\nviolated: {'; '.join(self.violations) or 'nothing'}"


class _Keeper(Keeper):
    """The engine's own keeper, whose thread is a task of the world."""

    def __init__(self, world: World, store: Store, clock: ProcessClock) -> None:
        super().__init__(store, LEASE, clock)
        self._world = world
        self._task: Task | None = None

    def _begin(self) -> None:
        if self._task is None or self._task.dead:
            self._task = self._world.start(self._world.process, self._keep)

    def _keep(self) -> None:
        while self._batches:
            self._world.sleep(_TICK)
            self.turn()


class Simulation:
    """One run: what is in the queue, who works on it, and what became of it all."""

    def __init__(self, choices: Choices, kit: Kit) -> None:
        self._kit = kit
        self._choices = choices
        self._world = world = World(choices, troubles=choices.below(_TROUBLES + 1))
        self._model = Model()
        self._store = kit.store(world)
        self._events = [Event(id=f"e{number}", data={}) for number in range(1 + choices.below(3))]
        self._groups = choices.rarely(30)
        self._poison = {event.id for event in self._events if choices.rarely(6)}
        self._keys = {event.id: Once("memory:", consumer="proof").key(event) for event in self._events}
        self._queue = Queue(world, [(event, self._group()) for event in self._arrivals()], VISIBILITY)
        self._dead: set[str] = set()
        self._wrong: list[str] = []
        self._batch = 1 + choices.below(4)
        self._born = 0
        self._workers = 1 + choices.below(3)
        for _ in range(self._workers):
            self._spawn()

    def run(self) -> tuple[list[str], Counter[str]]:
        """Run it to its end; what was violated, and what there was to count."""
        try:
            self._world.run()
        except Endless as error:
            return [*self._model.violations, *self._wrong, str(error)], Counter()
        finally:
            self._store.close()
        return self._violations(), self._counts()

    @property
    def story(self) -> Sequence[tuple[int, str, str]]:
        return self._world.story

    # --- the cast ---

    def _arrivals(self) -> list[Event]:
        """Each event, and copies of some, in order but for the copies."""
        copies = [event for event in self._events for _ in range(self._choices.below(3))]
        return self._events + copies

    def _group(self) -> str | None:
        return "g" if self._groups else None

    def _spawn(self, after: int = 0) -> None:
        self._born += 1
        process = Process(f"worker {self._born}")
        process.skew = (0, _SKEW, -_SKEW)[self._choices.below(3)]
        self._world.start(process, lambda: self._live(process), self._world.now + after)

    def _live(self, process: Process) -> None:
        line_of = TransactionalLine if self._kit.transactional else Line
        line = line_of(self._world, process, self._store, self._model, LEASE)
        try:
            self._serve(line, ProcessClock(self._world, process.skew))
        except Killed:
            self._model.died(line.tokens)
            self._spawn(after=self._choices.below(2) * LEASE)
            raise

    def _serve(self, line: Line, clock: ProcessClock) -> None:
        once = Once(line, consumer="proof", lease=LEASE / 1000, max_attempts=ATTEMPTS, clock=clock)
        once._keeper = _Keeper(self._world, line, clock)
        worker = self._kit.worker(
            once, _Watched(self), self._handler(), _DeadLetters(self), batch=self._batch, endless=True, clock=clock
        )
        while received := self._queue.receive(self._batch):
            worker.work(received)

    # --- what is watched ---

    def _handler(self) -> Callable[..., None]:
        def handle(event: Event, ctx: Context) -> None:
            self._suffer(event, "before")
            if self._kit.transactional:
                ctx.tx.append(event.id)
            else:
                self._take_effect(event, ctx)
            self._suffer(event, "after")

        return handle

    def _take_effect(self, event: Event, ctx: Context) -> None:
        assert ctx.claim is not None
        self._world.tell(f"effect of {event.id}")
        self._model.took_effect(self._keys[event.id], ctx.claim.token)
        self._check_order(event)

    def _suffer(self, event: Event, when: str) -> None:
        """What may happen to a handler before and after its effect."""
        world = self._world
        world.point()
        if when == "before" and event.id in self._poison:
            world.tell(f"{event.id} is poison")
            raise RuntimeError("poison")
        if not world.trouble(_HANDLER_TROUBLE):
            return
        chosen = world.choices.below(4 if when == "before" else 3)
        if chosen == 0:
            world.tell(f"handler of {event.id} is slow")
            world.sleep(2 * LEASE)
        elif chosen == 1:
            world.tell("stands still")
            world.process.still_until = world.now + 2 * LEASE
            world.point()
        elif chosen == 2:
            world.kill(world.process)
        else:
            world.tell(f"handler of {event.id} fails")
            raise RuntimeError("the handler failed")

    def _check_order(self, event: Event) -> None:
        """In a group, nothing takes effect before what stands before it is over."""
        if self._groups:
            before = self._events[: [each.id for each in self._events].index(event.id)]
            effects = {key for key, _ in self._model.effects}
            late = [each.id for each in before if self._keys[each.id] not in effects and each.id not in self._dead]
            self._wrong += [
                f"{event.id} took effect before {other}, which stands before it in its group" for other in late
            ]

    def kept(self, dead: Dead) -> None:
        for delivery, outcome in dead:
            assert delivery.event is not None
            self._world.tell(f"dead letter of {delivery.event.id}: {outcome.kind}")
            self._dead.add(delivery.event.id)

    def acked(self, message: Message) -> None:
        """Nothing is acked that is not done or kept."""
        event = message.event
        if self._keys[event.id] not in self._model.done and event.id not in self._dead:
            self._wrong.append(f"{event.id} was acked, and it was neither done nor kept")

    # --- the end ---

    def _violations(self) -> list[str]:
        effects = Counter(key for key, _ in self._model.effects)
        wrong = [*self._model.violations, *self._wrong]
        for event in self._events:
            key = self._keys[event.id]
            if not effects[key] and event.id not in self._dead:
                wrong.append(f"{event.id} was lost")
            if event.id in self._dead and self._model.won[key] < ATTEMPTS:
                wrong.append(f"{event.id} became a dead letter before its attempts were used up")
            if effects[key] > 1:
                wrong += self._unexplained(event)
        return wrong

    def _unexplained(self, event: Event) -> list[str]:
        key = self._keys[event.id]
        if self._kit.transactional:
            return [f"{event.id} took effect twice in a store with transactions"]
        tokens = [token for each, token in self._model.effects if each == key]
        free = [token for token in tokens if not self._model.explains(key, token)]
        return [f"{event.id} took effect twice, and no death or lost lease explains it"] if len(free) > 1 else []

    def _counts(self) -> Counter[str]:
        effects = Counter(key for key, _ in self._model.effects)
        return Counter(
            {
                "events": len(self._events),
                "deliveries": sum(message.offers for message in self._queue.messages),
                "effects": sum(effects.values()),
                "doubled": sum(count > 1 for count in effects.values()),
                "fenced": self._model.fenced,
                "dead letters": len(self._dead),
                "deaths": self._born - self._workers,
            }
        )


class _Watched:
    """The queue, with an eye on what is acked."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._queue = simulation._queue
        self.receive = self._queue.receive
        self.retry = self._queue.retry
        self.close = self._queue.close

    def ack(self, deliveries: Sequence[Any]) -> None:
        for delivery in deliveries:
            self._simulation.acked(delivery.handle)
        self._queue.ack(deliveries)


class _DeadLetters:
    """Where dead letters go."""

    name = "dead letters"

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def write(self, dead: Dead, now: int) -> None:
        self._simulation.kept(dead)

    def close(self) -> None:
        """Nothing to close."""


def simulate(seed: int, kit: Kit = MEMORY, given: Sequence[int] | None = None) -> Run:
    """Run one schedule: of a seed, or the given choices."""
    choices = Choices(seed, given)
    with _quiet(seed):
        simulation = Simulation(choices, kit)
        violations, counts = simulation.run()
    return Run(seed, choices.made, violations, simulation.story, counts)


def shrunk(run: Run, kit: Kit = MEMORY) -> Run:
    """The shortest story found that is violated too."""
    best = shrink(run.made, lambda given: bool(simulate(run.seed, kit, given).violations))
    return simulate(run.seed, kit, best)


@contextmanager
def _quiet(seed: int) -> Iterator[None]:
    """Without logs, and with the jitter of waits drawn from the seed."""
    log, before = logging.getLogger("eventonce"), random.getstate()
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    random.seed(seed)
    try:
        yield
    finally:
        log.setLevel(level)
        random.setstate(before)
