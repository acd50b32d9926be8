"""A simulation: the real engine and worker in several processes, one store, one queue, and all that can go wrong.

One seed is one schedule. The same seed gives the same run to the last step, and a failing one shrinks to a short story.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec import structs

from eventonce import backoff
from eventonce.claims.protocol import Claim, ClaimRequest
from eventonce.clock import duration, format_duration
from eventonce.dead_letters.letter import DeadEvents
from eventonce.engine import Once
from eventonce.engine.context import Context
from eventonce.engine.keeper import Keeper
from eventonce.event import Event
from eventonce.event.keys import Key
from eventonce.ports import Store
from eventonce.rules.rule import Rule
from eventonce.stores.memory import MemoryStore
from eventonce.worker import Worker
from lab.choices import Choices, shrink
from lab.model import Model, SimulatedEffect
from lab.queue import QueueMessage, SimulatedQueue
from lab.scheduler import NEVER, Endless, Killed, SimulatedProcess, Task, World
from lab.store import StoreLink, TransactionalMemory, TransactionalStoreLink

LEASE, VISIBILITY = 1000, 3000  # milliseconds
ATTEMPTS = 4
CONSUMER = "proof"
_SKEW = 900  # of the clock of a process, either way
_TICK = LEASE // 6
_MAX_FAULTS = 7
_HANDLER_FAULT = 6  # percent
_LONG, _SHORT = "14d", "8s"  # windows; the short one can expire in a run
_LATE = 6000  # milliseconds after which a copy may come, once or twice


class ProcessClock:
    """The clock of one process, which may be wrong."""

    def __init__(self, world: World, skew: int) -> None:
        self._world = world
        self._skew = skew
        self._started_at = world.now

    def utc(self) -> int:
        return self._world.now + self._skew

    def steady(self) -> int:
        return self._world.now - self._started_at

    def sleep(self, duration: int) -> None:
        self._world.sleep(duration)


class StoreClock(ProcessClock):
    """The store's own clock, which is right."""

    def __init__(self, world: World) -> None:
        super().__init__(world, 0)


class TaskKeeper(Keeper):
    """The engine's own keeper, whose thread is a task of the world."""

    def __init__(self, world: World, store: Store, clock: ProcessClock) -> None:
        super().__init__(store, LEASE, clock)
        self._world = world
        self._task: Task | None = None

    def _start(self) -> None:
        if self._task is None or self._task.dead:
            self._task = self._world.start(self._world.process, self._keep)

    def _keep(self) -> None:
        while self._batches:
            self._world.sleep(_TICK)
            self.tick()


class Setup(NamedTuple):
    """The parts under test. A mutant is a setup with one part that is wrong on purpose."""

    store: Callable[[World], Store] = lambda world: MemoryStore(clock=StoreClock(world))
    worker: type[Worker] = Worker
    once: type[Once] = Once
    keeper: type[TaskKeeper] = TaskKeeper
    transactional: bool = False


MEMORY = Setup()
TRANSACTIONAL = Setup(lambda world: TransactionalMemory(clock=StoreClock(world)), transactional=True)


class ScheduleResult(NamedTuple):
    """The result of one schedule."""

    seed: int
    made: Sequence[int]  # the choices, with which it can be repeated
    violations: Sequence[str]
    story: Sequence[tuple[int, str, str]]
    counts: Counter[str]

    def __str__(self) -> str:
        story = "\n".join(f"{time:>7} ms  {process:<10} {text}" for time, process, text in self.story)
        return f"{story}\nviolated: {'; '.join(self.violations) or 'nothing'}"


class Scene:
    """The events of one run and their rules: versions of one thing or several, groups, windows that expire."""

    def __init__(self, choices: Choices) -> None:
        self.versions = choices.rarely(25)
        groups = ((), (), ("g",), ("g", "h"))[choices.below(4)]
        named = (self._name(number, choices) for number in range(1 + choices.below(3)))
        self.events = [Event(id=name, data={"thing": thing, "version": n}) for n, (name, thing) in enumerate(named, 1)]
        self.group_of = {
            event.id: groups[index % len(groups)] if groups else None for index, event in enumerate(self.events)
        }
        self.rules = self._rules(choices)
        engines = [Once("memory:", consumer=CONSUMER, rules=rule) for rule in self.rules]
        self.keys = {event.id: [once._rules.key(event).keys for once in engines] for event in self.events}

    def messages(self, choices: Choices, now: int) -> list[QueueMessage]:
        """Return a message for each event, and copies of some, in order but for the copies."""
        copies = [(event, choices.below(3) * _LATE) for event in self.events for _ in range(choices.below(3))]
        return [
            QueueMessage(event, self.group_of[event.id], now + late)
            for event, late in [*((event, 0) for event in self.events), *copies]
        ]

    def earlier_in_group(self, event: Event) -> list[Event]:
        """Return the events before it in its group."""
        group, index = self.group_of[event.id], self.events.index(event)
        return [each for each in self.events[:index] if group and self.group_of[each.id] == group]

    def version(self, event: Event) -> int | None:
        return event.data["version"] if self.versions else None

    def all_keys(self, event: Event) -> set[Key]:
        return {key for keys in self.keys[event.id] for key in keys}

    def _name(self, number: int, choices: Choices) -> tuple[str, str]:
        return f"e{number}", "thing" if self.versions and not choices.rarely(20) else f"thing {number}"

    def _rules(self, choices: Choices) -> list[Rule]:
        """Return one rule, or also one that replaces it, as while a new version is rolled out."""
        rule = Rule(
            name="old",
            key=["detail.thing"],
            version="detail.version" if self.versions else None,
            window=_SHORT if choices.rarely(30) else _LONG,
            refresh=choices.rarely(20),
        )
        return [rule, structs.replace(rule, name="new", replaces="old")] if choices.rarely(15) else [rule]


class Simulation:
    """One run: the messages in the queue, the workers, and what became of it all."""

    def __init__(self, choices: Choices, setup: Setup) -> None:
        self._setup = setup
        self._choices = choices
        self._world = world = World(choices, faults=choices.below(_MAX_FAULTS + 1))
        self._model = Model()
        self._store = setup.store(world)
        self._scene = scene = Scene(choices)
        self._poison = {event.id for event in scene.events if choices.rarely(6)}
        self._queue = SimulatedQueue(world, scene.messages(choices, world.now), VISIBILITY)
        self._dead: dict[str, int] = {}  # events that became dead letters, after how many effects
        self._mistakes: list[str] = []
        self._batch = 1 + choices.below(4)
        self._busy_wait = choices.below(2) * LEASE // 2
        self._started = 0
        self._links: list[tuple[SimulatedProcess, StoreLink]] = []
        self._had_earlier_workers = choices.rarely(15)
        self._workers = 1 + choices.below(3)
        for _ in range(self._workers):
            self._spawn()

    def run(self) -> tuple[list[str], Counter[str]]:
        """Run it to its end. Return what was violated, and the counts."""
        try:
            self._world.run()
        except Exception as error:
            reason = str(error) if isinstance(error, Endless) else f"a worker ended with {error!r}"
            return [*self._model.violations, *self._mistakes, reason], Counter()
        finally:
            self._store.close()
        return self._violations(), self._counts()

    @property
    def story(self) -> Sequence[tuple[int, str, str]]:
        return self._world.story

    # --- the workers ---

    def _claim_earlier(self) -> None:
        """Claim some events for workers that died in company. Some leases have expired, and others last a while."""
        for event in self._scene.events:
            lease = (0, 1, LEASE)[self._choices.below(3)]
            if lease:
                token = f"dead {event.id}".encode()
                wants = [
                    ClaimRequest(
                        self._scene.keys[event.id][0][0], duration(_LONG), self._scene.version(event), shared=True
                    )
                ]
                answers = self._store.claim(wants, token, lease)
                self._model.claimed(wants, token, lease, answers, self._world.now)
                self._model.died({token})

    def _spawn(self, after: int = 0) -> None:
        self._started += 1
        process = SimulatedProcess(f"worker {self._started}")
        process.skew = (0, _SKEW, -_SKEW)[self._choices.below(3)]
        self._world.start(process, lambda: self._live(process), self._world.now + after)

    def _live(self, process: SimulatedProcess) -> None:
        """Live as a process with one or two threads of work."""
        link_type = TransactionalStoreLink if self._setup.transactional else StoreLink
        if self._had_earlier_workers:
            self._had_earlier_workers = False
            self._claim_earlier()
        link = link_type(self._world, process, self._store, self._model, LEASE)
        self._links.append((process, link))
        try:
            serve = self._worker(link, ProcessClock(self._world, process.skew))
            if self._choices.rarely(20):
                self._world.start(process, serve)
            serve()
        except Killed:
            self._model.died(link.tokens)
            self._spawn(after=self._choices.below(2) * LEASE)
            raise

    def _worker(self, link: StoreLink, clock: ProcessClock) -> Callable[[], None]:
        rule = self._choices.below(len(self._scene.rules))
        once = self._setup.once(
            link,
            consumer=CONSUMER,
            rules=self._scene.rules[rule],
            lease=format_duration(LEASE),
            busy_wait=format_duration(self._busy_wait),
            max_attempts=ATTEMPTS,
            clock=clock,
        )
        once._engine.keeper = self._setup.keeper(self._world, link, clock)
        worker = self._setup.worker(
            once,
            _CheckedQueue(self),
            self._handler(rule),
            _DeadLetters(self),
            batch=self._batch,
            endless=True,
            clock=clock,
        )

        def serve() -> None:
            while received := self._queue.receive(self._batch):
                worker.work(received)

        return serve

    # --- what is checked during the run ---

    def _handler(self, rule: int) -> Callable[..., None]:
        def handle(event: Event, ctx: Context) -> None:
            assert ctx.claim is not None
            self._model.started(ctx.claim, self._world.now)
            self._suffer(event, ctx.claim, "before")
            keys = self._scene.keys[event.id][rule]
            if self._setup.transactional:
                ctx.tx.append((event.id, keys))
            else:
                self._world.log(f"effect of {event.id}")
                self._model.took_effect(event.id, keys, ctx.claim.token, self._world.now)
            self._suffer(event, ctx.claim, "after")
            self._model.returned(keys, ctx.claim.token, self._world.now)

        return handle

    def _suffer(self, event: Event, claim: Claim, when: str) -> None:
        """Let something happen to a handler before or after its effect, perhaps."""
        world = self._world
        world.point()
        if when == "before" and event.id in self._poison:
            self._fail(claim, f"{event.id} is poison")
        if not world.fault(_HANDLER_FAULT):
            return
        chosen = world.choices.below(4 if when == "before" else 3)
        if chosen == 0:
            world.log(f"handler of {event.id} is slow")
            world.sleep(2 * LEASE)
        elif chosen == 1:
            world.freeze(2 * LEASE)
            world.point()
        elif chosen == 2:
            world.kill(world.process)
        else:
            self._fail(claim, f"handler of {event.id} fails")

    def _fail(self, claim: Claim, reason: str) -> None:
        self._world.log(reason)
        self._model.failed(claim)
        raise RuntimeError(reason)

    def note_dead_letters(self, dead: DeadEvents) -> None:
        for delivery, outcome in dead:
            event = delivery.event
            assert event is not None
            self._world.log(f"dead letter of {event.id}: {outcome.kind}")
            self._dead.setdefault(event.id, len(self._model.effects))
            if self._model.attempts(self._scene.all_keys(event)) < ATTEMPTS:
                self._mistakes.append(f"{event.id} became a dead letter before its attempts were used up")

    def check_ack(self, message: QueueMessage) -> None:
        """Note a violation if a message is acked whose event is neither done nor kept as a dead letter."""
        if not self._is_settled(message.event):
            self._mistakes.append(f"{message.event.id} was acked, and it was neither done nor kept")

    def _is_settled(self, event: Event) -> bool:
        return event.id in self._dead or self._done_after(event) is not None

    def _done_after(self, event: Event) -> int | None:
        return self._model.done_after(self._scene.all_keys(event), self._scene.version(event))

    # --- the end ---

    def _violations(self) -> list[str]:
        violations = [*self._model.violations, *self._mistakes, *self._unprovoked(), *self._out_of_order()]
        for event in self._scene.events:
            effects = self._effects_of(event)
            if not effects and not self._is_settled(event):
                violations.append(f"{event.id} was lost")
            violations += self._unexplained(event, effects)
        return violations

    def _effects_of(self, event: Event) -> list[SimulatedEffect]:
        return [each for each in self._model.effects if each.event == event.id]

    def _unexplained(self, event: Event, effects: list[SimulatedEffect]) -> list[str]:
        tokens = Counter(each.token for each in effects)
        if max(tokens.values(), default=0) > 1:
            return [f"{event.id} took effect twice under one claim"]
        if self._setup.transactional:
            free = [each for each in effects if not self._model.window_expired(each)]
            return [f"{event.id} took effect twice in a store with transactions"] if len(free) > 1 else []
        free = [each for each in effects if not self._model.explains(each)]
        return [f"{event.id} took effect twice, and no death or lost lease explains it"] if len(free) > 1 else []

    def _unprovoked(self) -> list[str]:
        """Return violations by processes without faults: they keep their leases, and commit soon."""
        calm = {token for process, link in self._links if not process.harmed for token in link.tokens}
        lost = [key for key, token in self._model.overtaken if token in calm]
        late = [key for key, token in self._model.slow if token in calm]
        return [f"key {key.hex()[:6]} lost its lease, and nothing had happened" for key in lost] + [
            f"key {key.hex()[:6]} was committed late, and nothing had happened" for key in late
        ]

    def _out_of_order(self) -> list[str]:
        """Return violations of groups: events that took effect before an earlier one of their group was settled."""
        firsts = {each.event: count for count, each in reversed(list(enumerate(self._model.effects)))}
        violations = []
        for event in (each for each in self._scene.events if each.id in firsts):
            earlier = self._scene.earlier_in_group(event)
            late = [each.id for each in earlier if self._settled_after(each, firsts) > firsts[event.id]]
            violations += [f"{event.id} took effect before {name}, which is before it in its group" for name in late]
        return violations

    def _settled_after(self, event: Event, firsts: Mapping[str, int]) -> int:
        """Return after how many effects no other event had to wait for it any more."""
        counts = (firsts.get(event.id), self._dead.get(event.id), self._done_after(event))
        return min((count for count in counts if count is not None), default=NEVER)

    def _counts(self) -> Counter[str]:
        effects = self._model.effects
        expired = [effect for effect in effects if self._model.window_expired(effect)]
        remembered = Counter(effect.event for effect in effects if effect not in expired)
        return Counter(
            {
                "events": len(self._scene.events),
                "deliveries": sum(message.receive_count for message in self._queue.messages),
                "effects": len(effects),
                "windows expired": len(expired),
                "doubled": sum(count > 1 for count in remembered.values()),
                "fenced": self._model.fenced,
                "dead letters": len(self._dead),
                "deaths": self._started - self._workers,
            }
        )


class _CheckedQueue:
    """The queue, which checks what is acked."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._queue = simulation._queue
        self.receive = self._queue.receive
        self.retry = self._queue.retry
        self.close = self._queue.close

    def ack(self, deliveries: Sequence[Any]) -> None:
        for delivery in deliveries:
            self._simulation.check_ack(delivery.handle)
        self._queue.ack(deliveries)


class _DeadLetters:
    """Dead letters, which are noted."""

    name = "dead letters"

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def write(self, dead: DeadEvents, now: int) -> None:
        self._simulation.note_dead_letters(dead)

    def close(self) -> None:
        """Nothing to close."""


def simulate(seed: int, setup: Setup = MEMORY, recorded: Sequence[int] | None = None) -> ScheduleResult:
    """Run one schedule, with the choices of a seed or with recorded ones."""
    choices = Choices(seed, recorded)
    with _quiet(seed):
        simulation = Simulation(choices, setup)
        violations, counts = simulation.run()
    return ScheduleResult(seed, choices.made, violations, simulation.story, counts)


def shrunk(run: ScheduleResult, setup: Setup = MEMORY) -> ScheduleResult:
    """Return the shortest run that violates something too."""
    best = shrink(run.made, lambda choices: bool(simulate(run.seed, setup, choices).violations))
    return simulate(run.seed, setup, best)


@contextmanager
def _quiet(seed: int) -> Iterator[None]:
    """Silence logs, and draw the jitter of waits from the seed."""
    log, chance = logging.getLogger("eventonce"), backoff.chance
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    backoff.chance = random.Random(seed)
    try:
        yield
    finally:
        log.setLevel(level)
        backoff.chance = chance
