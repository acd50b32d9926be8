"""`Once`, the front door. What happens behind it is in `steps.py`."""

import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from eventonce.claims import protocol
from eventonce.claims.lease import read_lease
from eventonce.claims.outcome import Outcome, OutcomeKind
from eventonce.claims.protocol import ClaimRequest, Record, Won
from eventonce.clock import LONGEST, Clock, Duration, SystemClock, duration
from eventonce.closing import Closing
from eventonce.engine import endings
from eventonce.engine.context import AsyncHandlerFunction, HandlerFunction
from eventonce.engine.decorator import Decorator
from eventonce.engine.drivers import Flow, StoreCalls, drive, drive_async
from eventonce.engine.handler import Handler
from eventonce.engine.jobs import Job, RefusedEvent
from eventonce.engine.keeper import Keeper
from eventonce.engine.order import RunLimits
from eventonce.engine.reading import Reader, many
from eventonce.engine.steps import BATCH, Batch, Engine, strongest
from eventonce.environment import is_disabled, variable, with_password
from eventonce.errors import ConfigError
from eventonce.event import Delivery
from eventonce.event.formats import MAX_BYTES
from eventonce.event.groups import Stops
from eventonce.event.keys import Key
from eventonce.ports import Auth, Checkable, Hook, Sink, Store
from eventonce.rules import Rulebook, identity, resolve_rules
from eventonce.rules.rule import DEFAULT_WINDOW, OnStoreError, Remember, Rule

if TYPE_CHECKING:
    from asyncio import Runner

    from eventonce.engine.calls.decorate import Workshop
    from eventonce.engine.hooks import Hooks


CONCURRENCY = 16  # async handlers at a time
MAX_RESULT = 32 * 1024  # bytes of a remembered result
_log = logging.getLogger("eventonce")

Returned = TypeVar("Returned")


class Once(Closing, Decorator):
    """The front door: makes every event take effect once.

    `store` is a URL or a store. It may also be a client of yours, of redis-py, or a `ConnectionPool` of psycopg_pool. A
    session or client of boto3 goes beside `dynamodb://TABLE`, as `client`. Clients of yours are never closed.
    `store_password` is for a URL without one. Without `store` and `consumer`, they come from `EVENTONCE_STORE`
    and `EVENTONCE_CONSUMER`.

    `rules` is a rule, several rules, or the path of a TOML file with rules. `key`, `ignore` and `version` are one rule
    for all events, in place of `rules`. An event that no rule matches is keyed by its own id. `window`,
    `on_store_error` and `remember` are for such events, and for the rule in place of `rules`. A duration is a string
    like "60s", or a timedelta.
    """

    def __init__(
        self,
        store: object = None,
        *,
        consumer: str | None = None,
        rules: Rule | Sequence[Rule] | str | os.PathLike[str] = (),
        key: str | Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        version: str | None = None,
        window: Duration = DEFAULT_WINDOW,
        on_store_error: OnStoreError = "retry",
        remember: Remember = "seen",
        lease: Duration = "60s",
        busy_wait: Duration | None = None,
        max_attempts: int = 5,
        store_password: str | None = None,
        client: Any = None,
        max_result: int = MAX_RESULT,
        max_bytes: int = MAX_BYTES,
        concurrency: int = CONCURRENCY,
        hooks: Sequence[Hook] = (),
        clock: Clock | None = None,
    ) -> None:
        consumer = (variable("consumer") or "default") if consumer is None else consumer
        if not consumer or not isinstance(consumer, str):
            raise ConfigError(f"consumer: {consumer!r} is not a non-empty string")
        self._limits = RunLimits(
            _at_least_one("max_attempts", max_attempts),
            read_lease(lease),
            duration("0s" if busy_wait is None else busy_wait, "busy_wait"),
        )
        self._call_wait = None if busy_wait is None else self._limits.busy_wait
        self._concurrency = _at_least_one("concurrency", concurrency)
        self._max_bytes = max_bytes
        self._clock = clock or SystemClock()
        unmatched = identity(window, on_store_error, remember)
        rule = {"key": key, "ignore": ignore or None, "version": version}
        self._rules = Rulebook(consumer, _one_rule(rule, rules, unmatched) or resolve_rules(rules), unmatched)
        self._rules.watch_ignored(_log.warning)
        if any(rule.remember != "seen" for rule in self._rules.all):
            import eventonce.claims.memo  # noqa: F401  # nothing is imported behind an effect
        self._disabled = is_disabled()
        self._batch = 1 if self._disabled else BATCH  # copies in a batch would still end with their first
        self._store, self._owns_store = _open(store, store_password, client, self._clock)
        observers, self._observed_store = _observed(self._store, hooks)
        self._store_calls = StoreCalls(self._observed_store)
        self._engine = Engine(
            reader=Reader(self._rules, self._clock, max_bytes),
            store=self._store,
            keeper=Keeper(self._observed_store, self._limits.lease, self._clock),
            clock=self._clock,
            max_result=max_result,
            checks_counts=any(rule.ahead_of_last is not None for rule in self._rules.all),
            hooks=observers,
        )
        self._consumer = consumer
        self._made: Workshop | None = None  # for what it decorates
        self._loop: Runner | None = None

    # --- the front door ---

    def _workshop(self) -> "Workshop":
        from eventonce.engine.calls.decorate import Workshop
        from eventonce.engine.calls.waiting import RunningCalls
        from eventonce.stores.memory import MemoryStore

        if self._made is None:
            self._made = Workshop(
                engine=self._engine,
                limits=self._limits,
                call_wait=self._call_wait,
                concurrency=self._concurrency,
                defaults=self._rules.definition[2],
                consumer=self._consumer,
                outlives=not (self._disabled or isinstance(self._store, MemoryStore)),
                store_calls=self._store_calls,
                prepare=self.prepare,
                batch_type=self.batch_type,
                batch=self._batch,
                flow=self._flow,
                running=RunningCalls(self._store, shared=not self._disabled),
                names={},
            )
        return self._made

    def run(self, events: Iterable[object], handler: HandlerFunction | Sink | Handler) -> list[Outcome]:
        """Run a handler or a sink over many events. Return one outcome each, in order. Use `arun` for `async def`."""
        items, prepared = many(events), self.prepare(handler)
        if prepared.is_async:
            raise ConfigError("the handler is async def; use await once.arun(events, handler)")
        return drive(self._flow(items, prepared, self._limits), self._store_calls)

    async def arun(self, events: Iterable[object], handler: AsyncHandlerFunction | Handler) -> list[Outcome]:
        """Run an `async def` handler over many events. Return one outcome each, in order."""
        items, prepared = many(events), self.prepare(handler)
        if not prepared.is_async:
            raise ConfigError("the handler is not async def; use once.run(events, handler)")
        return await drive_async(self._flow(items, prepared, self._limits), self._store_calls)

    def aws_lambda(
        self,
        handler: HandlerFunction | Sink,
        *,
        enrichment: bool = False,
        report_kafka_failures: bool = False,
        auth: Auth | None = None,
    ) -> Callable[..., Any]:
        """Return a Lambda handler for everything that AWS invokes one with. It responds as its carrier expects.

        With `enrichment` it is part of a pipe: it passes on what is new, as the handler returns it or as it came.
        With `report_kafka_failures` it names the records of Kafka that failed, which takes `ReportBatchItemFailures` in
        the mapping. Without it, one failure brings all of the batch back.
        `auth` decides who may send requests to it. AWS services that invoke it are authorised by IAM.
        """
        from eventonce.aws_lambda import Gate, LambdaHandler

        if enrichment and auth is not None:
            raise ConfigError("auth: an enrichment is invoked by its pipe and takes no requests; leave auth out")
        prepared = self.prepare(handler)

        def run(deliveries: Sequence[Delivery], remaining: int | None) -> list[Outcome]:
            # How often a message is delivered is for its carrier to decide: we write no dead letters here.
            ends = None if remaining is None else self._clock.steady() + remaining
            limits = structs.replace(self._limits, max_attempts=LONGEST, ends=ends)
            flow = self._flow(deliveries, prepared, limits)
            if prepared.is_async:
                return self._in_loop(drive_async(flow, self._store_calls))
            return drive(flow, self._store_calls)

        gate = Gate(auth, self._in_loop, self._clock, self.rules)
        return LambdaHandler(
            run,
            self._consumer,
            self._max_bytes,
            self._clock,
            gate,
            enrichment=enrichment,
            report_kafka_failures=report_kafka_failures,
        )

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules that it was created with."""
        return self._rules.definition[1]

    def key(self, event: object) -> Key:
        """Return the key of an event, or raise `EventRejected`."""
        return self.keys(event)[0]

    def keys(self, event: object) -> tuple[Key, ...]:
        """Return the key of an event, and its key under the rule that its rule replaces."""
        return self._engine.reader.keys(event)

    def preview(self, event: object) -> Outcome:
        """Return the outcome an event would have if it came now and its handler returned. Nothing is changed."""
        job = self._engine.reader.read(0, event)
        return job.outcome if isinstance(job, RefusedEvent) else self._preview(job)

    def peek(self, keys: Sequence[Key]) -> list[Record | None]:
        """Return the records of these keys. One that is not remembered is None."""
        return self._observed_store.peek(keys)

    def forget(self, keys: Sequence[Key]) -> list[bool]:
        """Forget these keys, so that the next copy of their events runs again. Return whether each was remembered."""
        return self._observed_store.forget(keys)

    def check(self) -> list[str]:
        """Return warnings about the store's server. Raise `StoreError` if it cannot be used."""
        return self._store.check() if isinstance(self._store, Checkable) else []

    def close(self) -> None:
        """End the background thread, and close the store if this `Once` opened it."""
        self._engine.keeper.stop()
        if self._loop is not None:
            self._loop.close()
        if self._owns_store:
            self._store.close()

    def _in_loop(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run in the one loop of all invocations, so that the handlers' own connections live on."""
        if self._loop is None:
            from asyncio import Runner

            self._loop = Runner()
        return self._loop.run(coroutine)

    # --- how the steps are driven ---

    batch_type = Batch

    def prepare(self, handler: "Handler | HandlerFunction | Sink") -> Handler:
        """Check and inspect a handler or a sink once, for many runs."""
        if isinstance(handler, Handler):
            return handler
        remembers = any(rule.remember == "result" for rule in self._rules.all)
        return Handler(handler, self._concurrency, self._engine.hooks, remembers_results=remembers)

    def _flow(self, items: Sequence[object], handler: Handler, limits: RunLimits) -> Flow[list[Outcome]]:
        stops = Stops()
        outcomes: list[Outcome] = []
        for first in range(0, len(items), self._batch):
            batch = self.batch_type(self._engine, handler, limits, stops)
            ended = yield from batch.steps(items[first : first + self._batch], first)
            outcomes += [event.outcome for event in ended]
        return outcomes

    def _preview(self, job: Job) -> Outcome:
        now, want = self._clock.utc(), ClaimRequest(job.key, job.rule.window, job.version)
        records = self._observed_store.peek(job.keys)
        if (end := endings.too_far_ahead(job, records, now)) is not None:
            return end.outcome
        answer = strongest([protocol.claim(record, want, b"", self._limits.lease, now)[0] for record in records])
        if not isinstance(answer, Won):
            return endings.not_won(job, answer).outcome
        if answer.attempt > self._limits.max_attempts:
            return endings.used_up(job, answer, self._limits.max_attempts).outcome
        return Outcome(kind=OutcomeKind.PROCESSED, key=job.key, rule=job.rule.name, attempt=answer.attempt)


def _open(store: object, password: str | None, client: Any, clock: Clock) -> tuple[Store, bool]:
    """Return the store, and whether it is ours to close. Without one, its URL comes from `EVENTONCE_STORE`."""
    store = variable("store") if store is None else store
    if store is None:
        raise ConfigError('store: name one, as Once("sqlite:///orders.db"), or set EVENTONCE_STORE to its URL')
    opener, owned = _opener(store, password, client, clock)
    return (_disabled(opener) if is_disabled() else opener()), owned


def _opener(store: object, password: str | None, client: Any, clock: Clock) -> tuple[Callable[[], Store], bool]:
    if isinstance(store, str):
        from eventonce.stores import check_url, open_store

        check_url(store)
        if client is None:
            return partial(open_store, with_password(store, password), clock), True
        from eventonce.stores.adopted import store_with

        return partial(store_with, store, client, clock), True
    if password is not None or client is not None:
        raise ConfigError("store_password and client go with the URL of a store; leave them out")
    if hasattr(store, "claim"):
        opened: Any = store
        return lambda: opened, False
    from eventonce.stores.adopted import store_of

    return partial(store_of, store, clock), True


def _disabled(opened: Callable[[], Store]) -> Store:
    from eventonce.stores.disabled import DisabledStore

    _log.warning("EVENTONCE_DISABLED is set: handlers run for every copy, and nothing is remembered")
    return DisabledStore(opened)


def _one_rule(fields: Mapping[str, Any], rules: object, unmatched: Rule) -> list[Rule]:
    """Return the rule that these fields of `Once` make, if any is set."""
    fields = {name: value for name, value in fields.items() if value is not None}
    if fields and rules != ():
        raise ConfigError(f"{next(iter(fields))}: the rules= of this Once define the keys; put it into a Rule there")
    return [structs.replace(unmatched, **{"name": "", **fields})] if fields else []


def _observed(store: Store, hooks: Sequence[Hook]) -> "tuple[Hooks | None, Store]":
    """Return the hooks as one, and the store that reports its calls to them."""
    if not hooks:
        return None, store
    from eventonce.engine.hooks import Hooks  # which an engine without hooks does not import
    from eventonce.engine.observed_store import ObservedStore

    observers = Hooks(hooks)
    return observers, ObservedStore(store, observers)


def _at_least_one(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}: {value!r} is not a number from 1 on")
    return value
