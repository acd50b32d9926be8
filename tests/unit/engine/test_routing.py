"""Routing: `@once.on(...)` registers handlers, of which each event has the first that takes it."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from eventonce import ConfigError, Context, Event, EventRejected, Once
from eventonce.claims.outcome import Action, OutcomeKind
from eventonce.dead_letters.file import DeadFile
from eventonce.errors import EventUnrouted
from eventonce.event import Delivery
from eventonce.observe import emf
from eventonce.ports import Hook, OutcomeDetails
from eventonce.requests.response import respond
from eventonce.sinks import open_sink
from eventonce.sources.file import FileSource
from eventonce.stores.memory import MemoryStore
from eventonce.testing import try_handler
from eventonce.worker.stop_guard import guard
from eventonce.worker.worker import Worker

ran: list[tuple[str, Any]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


def an_event(kind: str, source: str = "shop", name: str = "1", **data: Any) -> dict[str, Any]:
    return {"id": name, "source": source, "detail-type": kind, "detail": data}


def kinds(outcomes: list[Any]) -> list[str]:
    return [outcome.kind.value for outcome in outcomes]


@dataclass
class Order:
    id: str


def shop(**options: Any) -> Once:
    """Return a `Once` with three handlers, of orders, of shipments and of what is expensive."""
    once = Once("memory:", **options)

    @once.on("Order Placed", source="shop")
    def placed(event: Event[Order]) -> str:
        ran.append(("placed", event.data.id))
        return f"placed {event.data.id}"

    @once.on(["Shipped", "Returned"])
    def moved(event: Event, ctx: Context) -> None:
        ran.append(("moved", ctx.attempt))

    @once.on(match={"detail": {"price": [{"numeric": [">", 100]}]}})
    def expensive(event: Event) -> None:
        ran.append(("expensive", event.data["price"]))

    return once


def test_each_event_has_the_first_handler_that_takes_it() -> None:
    events = [
        an_event("Order Placed", name="1", id="o-1"),
        an_event("Returned", name="2", price=500),
        an_event("Quoted", name="3", price=500),
        an_event("Shipped", source="other", name="4"),
        {"specversion": "1.0", "id": "5", "source": "shop", "type": "Shipped", "data": {}},
    ]

    outcomes = shop().run(events)

    assert ran == [("placed", "o-1"), ("moved", 1), ("expensive", 500), ("moved", 1), ("moved", 1)]
    assert outcomes[0].result == "placed o-1"


def test_the_handler_is_no_part_of_the_key() -> None:
    store = MemoryStore()
    event = an_event("Order Placed", id="o-1")
    Once(store).run([event], lambda event: None)
    once = Once(store)

    @once.on("Order Placed")
    def placed(event: Event) -> None:
        ran.append(("placed", event.id))

    assert kinds(once.run([event])) == ["duplicate"]
    assert placed.key(event) == once.key(event)
    assert ran == []


def test_a_registered_handler_is_a_decorated_one() -> None:
    once = Once("memory:")

    @once.on("Order Placed")
    def placed(event: Event) -> str:
        """Place it."""
        return event.id

    event = an_event("Order Placed")

    assert (placed(event), placed.outcome(event).kind.value, placed.__doc__) == ("1", "duplicate", "Place it.")
    assert kinds(placed.map([event, an_event("Order Placed", name="2")])) == ["duplicate", "processed"]
    assert (placed.forget(event), placed.plain.__name__) == (True, "placed")


def test_without_a_handler_an_event_is_unrouted_and_a_dead_letter() -> None:
    once = shop()

    (outcome,) = once.run([an_event("Cancelled")])

    assert (outcome.kind, outcome.action, outcome.key) == (OutcomeKind.UNROUTED, Action.DEAD_LETTER, None)
    assert isinstance(outcome.error, EventUnrouted)
    assert "no handler takes type 'Cancelled' of source 'shop'; register one with @once.on(...)" in str(outcome.error)


def test_unrouted_events_can_be_skipped() -> None:
    (outcome,) = shop(unrouted="skip").run([an_event("Cancelled")])

    assert (outcome.kind, outcome.action, ran) == (OutcomeKind.UNROUTED, Action.ACK, [])


def test_an_event_that_no_handler_takes_needs_no_key() -> None:
    once = shop(unrouted="skip", key=["detail.id"])

    assert kinds(once.run([an_event("Cancelled"), an_event("Shipped")])) == ["unrouted", "rejected"]
    assert once.preview(an_event("Cancelled")).kind is OutcomeKind.UNROUTED
    assert once.preview(an_event("Order Placed", id="o-1")).kind is OutcomeKind.PROCESSED


def test_an_unrouted_event_does_not_stop_its_group_if_it_is_skipped() -> None:
    """The same as for every event that is dropped."""
    events = [an_event("Cancelled"), an_event("Shipped", name="2")]
    deliveries = [Delivery(msgspec.json.encode(event), group="g") for event in events]

    assert kinds(shop(unrouted="skip").run(deliveries)) == ["unrouted", "processed"]
    assert kinds(shop().run(deliveries)) == ["unrouted", "busy"]


def test_what_a_handler_does_not_take_in_the_data_is_rejected() -> None:
    (outcome,) = shop().run([an_event("Order Placed", id=5)])

    assert (outcome.kind.value, str(outcome.error)) == (
        "rejected",
        "data.id does not fit Order: Expected `str`, got `int`",
    )


def test_a_remembered_result_is_of_the_type_of_its_handler() -> None:
    once = Once("memory:", remember="result")

    @once.on("Order Placed")
    def placed(event: Event) -> Order:
        return Order(event.id)

    @once.on("Shipped")
    def shipped(event: Event) -> str:
        return event.id

    events = [an_event("Order Placed"), an_event("Shipped", name="2")]
    once.run(events)

    assert [outcome.result for outcome in once.run(events)] == [Order("1"), "2"]


def test_async_handlers_are_routed_too() -> None:
    once = Once("memory:")

    @once.on("Order Placed")
    async def placed(event: Event, ctx: Context) -> int:
        await asyncio.sleep(0)
        return ctx.attempt

    outcomes = asyncio.run(once.arun([an_event("Order Placed"), an_event("Cancelled", name="2")]))

    assert kinds(outcomes) == ["processed", "unrouted"]
    assert asyncio.run(placed(an_event("Order Placed", name="3"))) == 1
    with pytest.raises(ConfigError, match=r"async def; use await once.arun"):
        once.run([])


def test_handlers_may_be_functions_objects_and_bound_methods() -> None:
    class Shop:
        def placed(self, event: Event) -> None:
            ran.append(("placed", event.id))

        @staticmethod
        def shipped(event: Event) -> None:
            ran.append(("shipped", event.id))

    once = Once("memory:")
    once.on("Order Placed")(Shop().placed)
    once.on("Shipped")(Shop.shipped)

    once.run([an_event("Order Placed"), an_event("Shipped", name="2")])

    assert ran == [("placed", "1"), ("shipped", "2")]


def test_one_handler_may_be_registered_for_several_conditions() -> None:
    once = Once("memory:")

    @once.on("Order Placed", source="shop")
    @once.on("Bestellt", source="laden")
    def placed(event: Event) -> None:
        ran.append(("placed", event.source))

    once.run([an_event("Order Placed"), an_event("Bestellt", "laden", "2")])

    assert ran == [("placed", "shop"), ("placed", "laden")]


def test_a_module_that_is_loaded_again_replaces_its_handlers() -> None:
    once = Once("memory:")
    for number in (1, 2):
        module = ModuleType("reloaded")
        code = "def placed(event): ran.append(('placed', number))"
        exec(code, module.__dict__ | {"ran": ran, "number": number}, module.__dict__)
        once.on("Order Placed")(module.placed)

    once.run([an_event("Order Placed")])

    assert ran == [("placed", 2)]


# --- a `Once` in place of a handler ---


def test_a_once_may_be_passed_in_place_of_its_handlers() -> None:
    orders, runner = shop(), Once("memory:")

    assert kinds(runner.run([an_event("Order Placed", id="o-1"), an_event("x", name="2")], orders)) == [
        "processed",
        "unrouted",
    ]
    event = an_event("Shipped")
    report = try_handler(orders, event, effects=lambda: {name for name, _ in ran}, reset=ran.clear)
    assert report.good


def test_handlers_that_are_registered_later_are_routed_too() -> None:
    once = shop()
    function = once.aws_lambda()

    @once.on("Cancelled")
    def cancelled(event: Event) -> None:
        ran.append(("cancelled", event.id))

    function(an_event("Cancelled"), None)

    assert ran == [("cancelled", "1")]


def test_a_lambda_function_routes_and_reports_what_is_unrouted() -> None:
    once = shop()
    function = once.aws_lambda()
    body = msgspec.json.encode(an_event("Cancelled")).decode()
    message = {"messageId": "m-1", "body": body, "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:x:1:q"}

    assert function({"Records": [message]}, None) == {"batchItemFailures": [{"itemIdentifier": "m-1"}]}
    with pytest.raises(EventRejected, match="no handler takes type 'Cancelled'"):
        function(an_event("Cancelled"), None)
    assert shop(unrouted="skip").aws_lambda()({"Records": [message]}, None) == {"batchItemFailures": []}


@pytest.fixture
def module() -> Iterator[str]:
    module = ModuleType("routed_orders")
    module.__dict__.update(once=shop(), lenient=shop(unrouted="skip"), empty=Once("memory:"))
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


@pytest.mark.parametrize(("name", "dead"), [("once", 1), ("lenient", 0)])
def test_a_worker_runs_the_handlers_of_a_once(name: str, dead: int, module: str, tmp_path: Path) -> None:
    events = [an_event("Order Placed", id="o-1"), an_event("Cancelled", name="2")]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, events)))
    letters = tmp_path / "dead.jsonl"
    handler = guard(open_sink(f"python:{module}:{name}"), lambda: False)
    with closing(FileSource(str(tmp_path / "in.jsonl"))) as source, closing(DeadFile(str(letters))) as written:
        worker = Worker(Once("memory:"), source, handler, written, batch=10)
        worker.run()

    assert ran == [("placed", "o-1")]
    assert (worker.counts.good, worker.counts.as_dict()["unrouted"]) == (not dead, 1)
    assert worker.counts.as_dict()["dead_lettered"] == dead
    assert b"no handler takes" in letters.read_bytes() if dead else not letters.exists()


# --- how it is counted ---


class Seen(Hook):
    def __init__(self) -> None:
        self.details: list[OutcomeDetails] = []

    def after_settle(self, details: Any) -> None:
        self.details += details


def test_unrouted_events_are_seen_and_counted() -> None:
    hook = Seen()
    outcomes = shop(hooks=[hook]).run([an_event("Cancelled"), an_event("Shipped", name="2")])

    assert [(each.event.type, each.outcome.kind.value) for each in hook.details if each.event is not None] == [
        ("Cancelled", "unrouted"),
        ("Shipped", "processed"),
    ]
    counts = msgspec.json.decode(emf.line("default", "sqs", outcomes, 0))
    assert (counts["unrouted"], counts["processed"], counts["rejected"]) == (1, 1, 0)


def test_a_sender_learns_that_its_event_has_no_handler() -> None:
    response = respond(shop().run([an_event("Cancelled")]), keyed=False, dead_lettered=True)
    skipped = respond(shop(unrouted="skip").run([an_event("Cancelled")]), keyed=False, dead_lettered=True)

    assert (response.status, response.headers["eventonce-outcome"]) == (400, "unrouted")
    assert b"no handler takes" in response.body
    assert (skipped.status, msgspec.json.decode(skipped.body)) == (200, {"outcome": "unrouted"})


# --- what is refused ---


def test_what_does_not_say_which_events_is_refused() -> None:
    once = Once("memory:")

    def handle(event: Event) -> None: ...

    for wrong, reason in (
        ((handle,), "say which events the handler takes, as @once.on"),
        ((), "say which events the handler takes: a type, source= or match="),
        (([],), "say which events"),
        ((5,), "type: 5 is not a non-empty string; for patterns use match="),
        (("",), "type: '' is not a non-empty string"),
        (([{"prefix": "Order"}],), "type: {'prefix': 'Order'} is not a non-empty string; for patterns use match="),
    ):
        with pytest.raises(ConfigError, match=reason.replace("(", r"\(").replace("{", r"\{")):
            once.on(*wrong)
    with pytest.raises(ConfigError, match="source: None is not"):
        once.on("x", source=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"@once.on: match: "):
        once.on(match={"source": "shop"})
    with pytest.raises(ConfigError, match=r"@once.on: match: "):
        once.on(match=5)  # type: ignore[arg-type]


def test_def_and_async_def_are_not_mixed() -> None:
    once = shop()

    with pytest.raises(ConfigError, match="only one of them is async def; write all of them with def, or all with"):

        @once.on("x")
        async def handle(event: Event) -> None: ...


def test_a_handler_of_all_events_and_of_some_are_not_mixed() -> None:
    routed, whole = shop(), Once("memory:")

    @whole
    def handle(event: Event) -> None: ...

    with pytest.raises(ConfigError, match=r"decorates .*handle for all events; write @once.on\(...\) above it as well"):
        whole.on("x")(handle.plain)
    with pytest.raises(ConfigError, match=r"routes its events, as to .*placed; write @once.on\(...\) above .*handle"):
        routed(handle.plain)


def test_methods_lambda_handlers_and_classes_are_refused() -> None:
    once = Once("memory:")

    with pytest.raises(ConfigError, match=r"placed is a method, .*register it bound: once.on\(...\)\(shop.placed\)"):

        class Shop:
            @once.on("x")  # type: ignore[arg-type]  # which a type checker sees, too
            def placed(self, event: Event) -> None: ...

    with pytest.raises(ConfigError, match=r"takes .event, context., as a Lambda handler does"):

        @once.on("x")
        def handle(event: Any, context: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"@once.on: .*Order is a class"):
        once.on("x")(Order)


def test_without_handlers_there_is_nothing_to_run() -> None:
    once = Once("memory:")

    for run in (lambda: once.run([]), once.aws_lambda, lambda: Once("memory:").run([], once)):
        with pytest.raises(ConfigError, match=r"has no handlers; pass one, or register them with @once.on"):
            run()


def test_unrouted_is_one_of_two_words() -> None:
    with pytest.raises(ConfigError, match='unrouted: \'drop\' is not a choice; use "reject" or "skip"'):
        Once("memory:", unrouted="drop")  # type: ignore[arg-type]
