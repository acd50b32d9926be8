"""Calls: `@once(key=...)` for functions and methods, and what stands on every decorated function."""

import asyncio
import copy
import importlib
import inspect
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import create_autospec

import pytest

from eventonce import ConfigError, Event, EventBusy, EventRejected, Once, OutcomeKind, TooManyAttempts, current
from eventonce.claims.protocol import ClaimRequest
from eventonce.engine.calls.binder import make_binder
from eventonce.engine.calls.keys import key_parts
from eventonce.errors import CallRejected
from eventonce.event.keys import Key, part
from eventonce.ports import Hook, OutcomeDetails
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock
from tests.unit.conftest import Bench


@dataclass
class Order:
    id: Any
    total: int = 1

    def method(self) -> None: ...


class _Array:
    """As numpy's: it is compared item by item."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return [False]

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


ran: list[Any] = []
once = Once("memory:")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@once(key="order.id", remember="result", name="module.charge")
def charge(order: Order, retries: int = 3) -> str:
    """Charge an order."""
    ran.append((order.id, retries))
    return f"charged {order.id}"


@once(key="n", name="module.later")
async def later(n: int) -> int:
    return n


class Mailer:
    def __init__(self, account: str) -> None:
        self.account = account

    @once(key=["self.account", "customer"], remember="result")
    def send(self, customer: int, template: str = "x") -> str:
        ran.append((self.account, customer))
        return f"{self.account} {customer}"

    @once(key="customer")
    async def asend(self, customer: int) -> str:
        return f"{self.account} {customer}"

    @once(key="content", remember="result")
    def content(self, customer: int) -> int:
        ran.append(customer)
        return customer

    @once(key="n", remember="result")
    @staticmethod
    def static_under(n: int) -> int:
        return n

    @staticmethod
    @once(key="n", remember="result")
    def static_over(n: int) -> int:
        return n

    @once(key="n", remember="result")
    @classmethod
    def class_under(cls, n: int) -> str:
        return f"{cls.__name__} {n}"

    @classmethod
    @once(key="n", remember="result")
    def class_over(cls, n: int) -> str:
        return f"{cls.__name__} {n}"


class Slow(Mailer):
    def send(self, customer: int, template: str = "x") -> str:  # type: ignore[override]
        return super().send(customer, template)


# --- a call ---


def test_a_call_takes_effect_once(bench: Bench) -> None:
    @bench.once()(key="order.id", remember="result")
    def charge(order: Order, retries: int = 3) -> str:
        ran.append((order.id, retries))
        return f"charged {order.id}"

    assert charge(Order(1)) == charge(Order(1, total=2), retries=5) == "charged 1"
    assert charge(order=Order(2)) == "charged 2"
    assert ran == [(1, 3), (2, 3)]


def test_a_duplicate_returns_none_if_the_result_is_not_remembered(bench: Bench) -> None:
    @bench.once()(key="n")
    def one(n: int) -> int:
        return n

    assert [one(1), one(1)] == [1, None]


def test_an_async_call_takes_effect_once(bench: Bench) -> None:
    @bench.once()(key="n", remember="result")
    async def one(n: int) -> int:
        ran.append(n)
        return n

    async def main() -> list[Any]:
        first = await one(1)
        outcomes = await one.map([one.bind(2), one.bind(1), one.bind(3), one.bind(3)])
        kinds = [outcome.kind.value for outcome in outcomes]
        return [
            first,
            await one(1),
            (await one.outcome(1)).result,
            kinds,
            await one.forget(1),
            await one.forget(1),
        ]

    assert asyncio.run(main()) == [1, 1, 1, ["processed", "duplicate", "processed", "duplicate"], True, False]
    assert ran == [1, 2, 3]


def test_outcome_key_forget_and_bind() -> None:
    first = charge.outcome(Order("o"))
    assert (first.kind, first.result, first.rule, first.attempt) == ("processed", "charged o", "module.charge", 1)
    assert first.key == charge.key(Order("o"), 7)
    assert charge.outcome(Order("o")).kind is OutcomeKind.DUPLICATE
    assert [charge.forget(Order("o")), charge.forget(Order("o"))] == [True, False]
    assert charge(Order("o")) == "charged o"
    assert charge.plain(Order("o")) == "charged o"
    assert len(ran) == 3


def test_many_calls_are_one_claim(bench: Bench) -> None:
    store = _Counting()

    @bench.once(store)(key="content")
    def one(n: int, /, *rest: int, flag: bool = False, **more: int) -> int:
        if n == 3:
            raise ValueError(n)
        return n

    outcomes = one.map([one.bind(1), one.bind(1, 2), one.bind(1), one.bind(3), one.bind(1, n=4, flag=True)])
    assert [outcome.kind for outcome in outcomes] == ["processed", "processed", "duplicate", "failed", "processed"]
    assert [outcome.result for outcome in outcomes] == [1, 1, None, None, 1]
    assert store.claims == 1
    assert one.map(one.bind(number) for number in range(10, 1300))[-1].result == 1299
    with pytest.raises(CallRejected, match="map takes calls that its own bind returned, not 5"):
        one.map([5])  # type: ignore[list-item]
    with pytest.raises(CallRejected, match="map takes calls that its own bind returned"):
        one.map([charge.bind(Order(1))])  # type: ignore[list-item]


class _Counting(MemoryStore):
    claims = 0

    def claim(self, *args: Any) -> Any:
        self.claims += 1
        return super().claim(*args)


def test_a_call_raises_what_the_function_raised_and_is_attempted_again(bench: Bench) -> None:
    @bench.once()(key="n", max_attempts=2)
    def fail(n: int) -> None:
        ran.append(current().attempt)
        raise LookupError(n)

    for _ in range(2):
        with pytest.raises(LookupError, match="5"):
            fail(5)
    with pytest.raises(TooManyAttempts, match="failed 2 times; the last one ended with LookupError: 5"):
        fail(5)
    assert ran == [1, 2]
    assert fail.outcome(6).error.args == (6,)  # type: ignore[union-attr]


def test_the_options_of_a_once_are_the_defaults_of_its_calls() -> None:
    clock = ManualClock()

    @Once(MemoryStore(clock=clock), clock=clock, window="10s")(key="n")
    def one(n: int) -> int:
        return n

    @Once(MemoryStore(clock=clock), clock=clock, window="10s")(key="n", window="1h")
    def two(n: int) -> int:
        return n

    assert [one(1), two(1)] == [1, 1]
    clock.sleep(20_000)
    assert [one(1), two(1)] == [1, None]


@dataclass
class Receipt:
    order: Any
    at: datetime


def test_a_remembered_result_comes_back_as_annotated(bench: Bench) -> None:
    once, receipt = bench.once(), Receipt(5, datetime(2026, 1, 1, tzinfo=UTC))

    @once(key="n", remember="result")
    def one(n: int) -> Receipt:
        return receipt

    @once(key="n", remember="result")
    async def later(n: int) -> list[Receipt]:
        return [receipt]

    async def main() -> list[Any]:
        return [await later(1), await later(1)]

    assert one(1) is receipt
    assert [one(1), one.outcome(1).result, one.map([one.bind(1)])[0].result] == [receipt] * 3
    assert asyncio.run(main()) == [[receipt]] * 2

    def kept(n: int) -> Thread:
        return Thread()

    with pytest.raises(ConfigError, match=r"kept: a remembered Thread cannot come back as one"):
        once(key="n", remember="result")(kept)
    once(key="n", name="not kept")(kept)


def test_a_newer_version_runs(bench: Bench) -> None:
    @bench.once()(key="order.id", version="order.total")
    def one(order: Order) -> int:
        return order.total

    kinds = [one.outcome(Order(1, total)).kind.value for total in (1, 1, 3, 2)]
    assert kinds == ["processed", "duplicate", "processed", "stale"]


def test_a_note_tells_copies_with_other_arguments_apart(bench: Bench) -> None:
    @bench.once()(key="order.id", remember="note")
    def one(order: Order, session: object) -> None: ...

    one(Order(1), object())
    differs = [one.outcome(Order(1, total), object()).first.differs for total in (1, 2)]  # type: ignore[union-attr]
    assert differs == [False, True]


def test_a_function_of_another_name_takes_over_with_replaces(bench: Bench) -> None:
    once = bench.once()
    once(key="n", name="old")(ran_with)(1)
    renamed: Any = once(key="n", name="new", replaces="old")(ran_with)
    other: Any = once(key="content", name="newest", replaces={"name": "new", "key": "n"})(ran_with)
    assert [renamed.outcome(1).kind, renamed.outcome(2).kind] == ["duplicate", "processed"]
    assert [other.outcome(2).kind, other.outcome(3).kind] == ["duplicate", "processed"]
    assert [renamed.forget(2), renamed.forget(2)] == [True, False]


def test_claims_of_a_call_have_the_lease_of_its_function(bench: Bench) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    extended: list[int] = []
    store.extend = lambda claims, lease: extended.append(lease) or [True] * len(claims)  # type: ignore[method-assign, func-returns-value]
    once = bench.once(store, clock=clock, lease="60s")
    keeper = once._engine.keeper
    keeper._start = lambda: None  # type: ignore[method-assign]

    @once(key="n", lease="9s", name="short")
    def short(n: int) -> float:
        record = store.peek([short.key(n)])[0]
        assert record is not None
        for _ in range(4):
            clock.sleep(2000)
            keeper.tick()
        return record.lease - clock.utc()

    @once
    def handle(event: Any) -> None:
        short(1)
        clock.sleep(41_000)
        keeper.tick()

    handle({"id": "1"})
    assert extended == [9000, 9000, 60_000]
    assert keeper.pause() == 0.2


# --- keys ---


def parts(function: Callable[..., Any], key: Any, *args: Any, ignore: Any = (), **kwargs: Any) -> Any:
    signature = inspect.signature(function)
    receiver = next((name for name in signature.parameters if name in ("self", "cls")), None)
    made = key_parts("f", signature, receiver, key, ignore)
    return list(made.make(make_binder(signature, "f")(*args, **kwargs)))


def test_a_path_leads_into_mappings_by_item_and_into_anything_else_by_attribute() -> None:
    def one(order: Any, more: Any = None) -> None: ...

    assert parts(one, "order.id", Order(1)) == [part(1)]
    assert parts(one, "order.items", {"items": 2}) == [part(2)]
    assert parts(one, ["order.id.a", "more"], Order({"a": "x"})) == [part("x"), part(None)]
    assert parts(one, ["order.id", "more"], Order(1), "m") != parts(one, ["order.id", "more"], Order(1), "n")


def test_all_arguments_but_those_spelt_like_their_defaults_are_the_content() -> None:
    def one(a: Any, b: Any = 2, /, *rest: Any, flag: Any = True, **more: Any) -> None: ...

    assert parts(one, "content", 1) == parts(one, "content", 1, 2, flag=True) == [part({"a": 1})]
    assert parts(one, "content", 1, 2.0) == [part({"a": 1})]  # the same number in JSON
    assert parts(one, "content", 1, flag=1) == [part({"a": 1, "flag": 1})]  # though True == 1
    assert parts(one, "content", 1, 3, 4, a=5) == [part({"a": 1, "b": 3, "rest": [4], "more": {"a": 5}})]
    assert parts(one, "content", [1], "é") == [part({"a": [1], "b": "é"})]


def test_a_new_parameter_with_a_default_keeps_the_keys() -> None:
    def before(order: Any) -> None: ...
    def after(order: Any, currency: str = "EUR", *, notes: Any = None) -> None: ...

    assert parts(before, "content", {"id": 1}) == parts(after, "content", {"id": 1})


def test_what_is_ignored_needs_no_spelling() -> None:
    def one(self: Any, order: Any, session: Any = None, *, at: Any = object()) -> None: ...  # noqa: B008

    ignore = ["session", "at", "order.at", "**.trace"]
    first = parts(one, "content", object(), {"id": 1, "at": 5}, object(), ignore=ignore)
    assert first == parts(one, "content", None, {"id": 1, "x": {"trace": 1}}, ignore=[*ignore, "order.x"])
    assert first == [part({"order": {"id": 1}})]


@pytest.mark.parametrize("ignore", ["kw.trace", "**.trace", "kw.*"])
def test_starred_arguments_that_are_all_ignored_are_as_if_none_had_come(ignore: str) -> None:
    def one(n: int, *args: Any, **kw: Any) -> None: ...

    assert parts(one, "content", 1, ignore=[ignore]) == parts(one, "content", 1, trace="a", ignore=[ignore])
    assert parts(one, "content", 1, ignore=["args[*]"]) == parts(one, "content", 1, 2, 3, ignore=["args[*]"])
    assert parts(one, "content", 1, other=1, ignore=["kw.trace"]) != parts(one, "content", 1, ignore=["kw.trace"])


def test_a_function_as_key_gets_the_arguments_that_it_names() -> None:
    def one(self: Any, order: Any, /, retries: int = 3, *, currency: str = "EUR") -> None: ...

    assert parts(one, lambda order, currency: (order.id, currency), None, Order(1)) == [part([1, "EUR"])]
    assert parts(one, lambda **all_of_it: sorted(all_of_it), None, 1) == [
        part(["currency", "order", "retries", "self"])
    ]


@pytest.mark.parametrize(
    ("key", "args", "message"),
    [
        ("order.id", (Order(None),), "has no order.id, which is in its key"),
        ("order.id", (Order(""),), "has no order.id"),
        ("order.id", ({},), "has no order.id"),
        ("order.nothing", (Order(1),), "has no order.nothing"),
        ("order.method", (Order(1),), "has a function as order.method, which is in its key; use a path to a value"),
        ("order", (object(),), "order is of type object, which has no spelling"),
        ("content", ({"a": [object()]},), r"order\.a\[0\] is of type object, which has no spelling"),
        ("order.id", (Order(_Array()),), "order.id is of type _Array, which has no spelling"),
        ("order.id", (Order("  "),), "has no order.id"),
        ("order.id", (Order([]),), "has no order.id"),
        ("order", ({"id": None},), "has no order, which is in its key"),
        (lambda order: None, (1,), "has no key: its key function returned None; return a value that identifies"),
        (lambda order: " ", (1,), "has no key: its key function returned ' '; return"),
        (lambda order: [], (1,), r"has no key: its key function returned \[\]; return"),
        (lambda order: {"id": order.get("none")}, ({},), "has no key: its key function returned {'id': None}; return"),
        (lambda order: ("t", order.get("none")), ({},), r"has no key: its key function returned \('t', None\); return"),
        (lambda order: order.nothing, (1,), "its key cannot be made: AttributeError: 'int' object"),
    ],
)
def test_a_call_without_a_key_is_rejected(bench: Bench, key: Any, args: Any, message: str) -> None:
    @bench.once()(key=key, name="f")
    def one(order: Any) -> None:
        ran.append(order)

    with pytest.raises(EventRejected, match=f"^f: {message}"):
        one(*args)
    assert one.outcome(*args).kind is OutcomeKind.REJECTED
    with pytest.raises(EventRejected, match=f"^f: {message}"):
        one.key(*args)
    outcomes = one.map([one.bind(*args), one.bind({"id": 1, "nothing": 1, "method": 1})])
    assert outcomes[0].kind is OutcomeKind.REJECTED
    assert len(ran) <= 1


def test_one_bound_call_is_not_many(bench: Bench) -> None:
    one = bench.once()(key="n", name="f")(lambda n: n)
    with pytest.raises(CallRejected, match=r"map takes many calls; pass a list, such as \[fn.bind\(...\)\]"):
        one.map(one.bind(1))


def test_keys_of_calls_and_of_rules_never_meet(bench: Bench) -> None:
    one: Any = bench.once()(key="content", name="r")(lambda event: None)
    assert one.key(event=1) != bench.once(key="content").key({"event": 1})
    other: Any = bench.once(consumer="other")(key="content", name="r")(lambda event: None)
    by_path: Any = bench.once()(key="event", name="r")(lambda event: None)
    assert len({each.key(1) for each in (one, other, by_path)}) == 3


# --- methods ---


def test_a_method_is_bound_with_all_that_stands_on_it() -> None:
    red, blue = Mailer("red"), Mailer("blue")
    assert [red.send(1), red.send(1, "y"), blue.send(1), Mailer.send(red, 1)] == ["red 1", "red 1", "blue 1", "red 1"]
    assert ran == [("red", 1), ("blue", 1)]
    assert red.send.outcome(1).kind is OutcomeKind.DUPLICATE
    assert red.send.key(1) == Mailer("red").send.key(1) == Mailer.send.key(red, 1) != blue.send.key(1)
    assert [outcome.kind for outcome in red.send.map(red.send.bind(n) for n in (1, 9))] == ["duplicate", "processed"]
    assert [red.send.forget(9), red.send.plain(9)] == [True, "red 9"]
    assert asyncio.run(red.asend(1)) == "red 1"
    assert asyncio.run(red.asend.outcome(1)).kind is OutcomeKind.DUPLICATE


def test_self_is_no_part_of_the_content() -> None:
    assert [Mailer("red").content(70), Mailer("blue").content(70)] == [70, 70]
    assert ran == [70]


def test_class_and_static_methods_in_either_order() -> None:
    for name in ("static_under", "static_over"):
        assert [getattr(Mailer, name)(1), getattr(Mailer(""), name)(1)] == [1, 1]
        assert getattr(Mailer, name).outcome(1).kind is OutcomeKind.DUPLICATE
    for name in ("class_under", "class_over"):
        assert [getattr(each, name)(1) for each in (Mailer, Mailer(""), Slow)] == ["Mailer 1", "Mailer 1", "Slow 1"]
        assert getattr(Mailer, name).outcome(1).kind is OutcomeKind.DUPLICATE


def test_a_class_method_that_was_never_bound_says_how_to_bind_it() -> None:
    unbound: Any = vars(Mailer)["class_over"].__func__  # as from 3.13 on in Mailer.class_over.outcome
    with pytest.raises(CallRejected, match="class_over takes its class first, and 1 is not one; put @once above"):
        unbound.outcome(1)
    with pytest.raises(CallRejected, match="put @once above @classmethod"):
        unbound.key(1, 2)


def test_a_method_runs_once_for_each_class_that_it_is_used_on() -> None:
    other: Any = type("Other", (Mailer,), {"__module__": __name__})
    assert Mailer("a").send.key(1) != other("a").send.key(1)
    assert Mailer.send.key(other("a"), 1) == other("a").send.key(1)
    assert Slow("slow").send(1) == "slow 1"  # through super(), in the scope of Mailer.send of Slow
    assert Slow("slow").send(1) == "slow 1"
    assert ran == [("slow", 1)]


class Base:
    def __init__(this, number: int) -> None:  # noqa: N805
        this.number = number

    @once(key="n", name="base.send")
    def send(this, n: int) -> str:  # noqa: N805
        return type(this).__name__

    @classmethod
    @once(key="n", name="base.of")
    def of(klass, n: int) -> str:  # noqa: N804
        return klass.__name__

    @staticmethod
    @once(key="n", name="base.static")
    def static(n: Any) -> Any:
        return n


class First(Base):
    def send(this, n: int) -> Any:  # type: ignore[override]  # noqa: N805
        return Base.send(this, n)


class Second(Base):
    def send(this, n: int) -> Any:  # type: ignore[override]  # noqa: N805
        return Base.send(this, n)


class Plain(Base): ...


@once(key="n", name="tick")
def tick(self: Any, n: int) -> str:
    return type(self).__name__


class Clock:
    tick = tick


def test_the_class_of_use_counts_whatever_the_receiver_is_called() -> None:
    assert [First(1).send(1), Second(1).send(1), First(2).send(1)] == ["First", "Second", None]
    assert Plain(1).send.key(2) == Plain.send.key(Plain(1), 2) == Base.send.key(n=2, this=Plain(1))
    assert Base(1).send.key(2) == Base.send.key(Base(1), 2) != Plain(1).send.key(2)
    assert Clock().tick.key(1) == Clock.tick.key(Clock(), 1) == tick.key(Clock(), 1) != tick.key(5, 1)
    unbound: Any = vars(Base)["of"].__func__
    assert Plain.of.key(1) == unbound.key(Plain, 1) != Base.of.key(1)
    assert [Base.static(5), Plain.static.key(First(1).number)] == [5, Base.static.key(1)]


def test_a_class_that_gets_the_function_later_has_it_as_its_method(bench: Bench) -> None:
    late: Any = bench.once()(key="n", name="late")(tick.plain)
    cls: Any = type("Late", (), {})
    cls.late = late
    assert cls.late.key(cls(), 1) == cls().late.key(1) != late.key(5, 1)


def test_two_classes_of_one_name_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        return type("Channel", (Base,), {"__module__": __name__})

    assert make()(1).send(7) == "Channel"
    with pytest.raises(ConfigError, match=r"Base.send is used on two classes that are called .*Channel, which"):
        make()(1).send(7)
    anew: list[Any] = []
    for _ in range(2):  # as when a module is reloaded
        anew.append(type("Anew", (Base,), {"__module__": __name__}))
        monkeypatch.setitem(globals(), "Anew", anew[-1])
        anew[-1](1).send(7)
    assert anew[0](1).send.key(7) == anew[1](1).send.key(7)


def test_a_class_whose_name_means_nothing_elsewhere_is_refused_on_a_store_that_outlives_the_process(
    bench: Bench,
) -> None:
    @bench.once(bench.url)(key="n", name="local.send")
    def send(self: Any, n: int) -> None: ...

    local: Any = type("Local", (), {"__qualname__": "f.<locals>.Local", "send": send})
    message = (
        "is used on .*Local, whose name means nothing in another process; define that class at the top of a module"
    )
    with pytest.raises(ConfigError, match=message):
        local().send(1)


# --- names ---


SCRIPT = """
from eventonce import Once
once = Once("{store}")
@once(key="n"{name})
def one(n): return n
print(one.key(1).hex(), one(1), one(1))
"""


def test_a_script_needs_names_on_a_store_that_outlives_it(tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/store.db"
    assert "1 None" in run_script(tmp_path, SCRIPT.format(store="memory:", name=""))
    assert "1 None" in run_script(tmp_path, SCRIPT.format(store=file, name=', name="one"'))
    failed = run_script(tmp_path, SCRIPT.format(store=file, name=""))
    assert "ConfigError: __main__.one is a function whose name means nothing in another process; give it" in failed


def run_script(folder: Path, text: str) -> str:
    (folder / "script.py").write_text(text)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_module_that_python_runs_has_the_name_by_which_others_import_it(tmp_path: Path) -> None:
    for name in ("tasks", "tasks/inner/__main__"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(SCRIPT.format(store=f"sqlite:///{tmp_path}/{name[-1]}.db", name=""))
    for module, imported in (("tasks", "tasks"), ("pkg", "pkg.__main__")):
        if module == "pkg":
            (tmp_path / "pkg").mkdir()
            (tmp_path / "pkg/__init__.py").write_text("")
            text = SCRIPT.format(store=f"sqlite:///{tmp_path}/pkg.db", name="")
            (tmp_path / "pkg/__main__.py").write_text(text)
        run = [sys.executable, "-m", module]
        first = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        code = [sys.executable, "-c", f"import {imported}"]
        again = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert first.split()[1:] == ["1", "None"]
        assert again.split() == [first.split()[0], "None", "None"]


def test_local_functions_and_lambdas_need_names_on_a_store_that_outlives_the_process(bench: Bench) -> None:
    once = bench.once(bench.url)

    def local(n: int) -> None: ...

    for function in (local, lambda n: n):
        with pytest.raises(ConfigError, match="whose name means nothing in another process"):
            once(key="n")(function)
    named: Any = once(key="n", name="local")(local)
    assert named.outcome(1).rule == "local"
    for cls in (Mailer, type("Local", (Mailer,), {"__qualname__": "f.<locals>.Local"})):
        send: Any = once(key="customer")(Mailer.send.plain)
        if cls is Mailer:
            assert send(cls("a"), 1) == "a 1"
        else:
            with pytest.raises(ConfigError, match=r"Mailer.send is used on .*Local, whose name means nothing"):
                send(cls("a"), 1)


def test_two_functions_of_one_name_are_refused_and_one_that_is_defined_anew_is_not(bench: Bench) -> None:
    once = bench.once()
    first: Any = once(key="n")(lambda n: "first")
    with pytest.raises(ConfigError, match="another function of this Once is called"):
        once(key="order", name=first.outcome(1).rule)(charge.plain)
    once(key="n", name="one")(len_of)
    with pytest.raises(
        ConfigError, match="another function of this Once is called 'one'; give each a name= of its own"
    ):
        once(key="order.id", name="one")(charge.plain)
    anew: Any = once(key="n", name="one")(len_of)
    assert anew(1) == 1
    for number in range(2):
        again: Any = once(key="n", name=f"loop {number}")(lambda n: "again")
        assert again(1) == "again"


SHARED = """
import functools
from eventonce import Once
once = Once("memory:")

@functools.singledispatch
def pay(by, order): ...

def notify(order): ...

def by(channel):
    @functools.wraps(notify)
    def wrapper(order): return channel
    return wrapper

def factory(kind):
    @once(key="x", name="go")
    def go(x): return kind
    return go

def handlers(kind):
    @once
    def handle(event): return kind
    return handle

def same(n): return n
"""
DISPATCHED = """
@pay.register
@once(key="order")
def _(by: int, order): ...

@pay.register
@once(key="order")
def _(by: str, order): ...
"""


def module_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Any:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(name)


@pytest.mark.parametrize(
    "use",
    [
        DISPATCHED,
        'mail, sms = (once(key="order")(by(channel)) for channel in ("mail", "sms"))',
        'mail, sms = factory("mail"), factory("sms")',
        'mail, sms = handlers("mail"), handlers("sms")',
        'def _(n): ...\none = once(key="n")(_)\ndef _(n): ...\ntwo = once(key="n")(_)',
    ],
)
def test_two_live_functions_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    name = f"shared_{abs(hash(use))}"
    message = "this Once decorates" if "handlers(" in use else "give each a name= of its own"
    with pytest.raises(ConfigError, match=message):
        module_of(tmp_path, monkeypatch, name, SHARED + use)


def test_a_function_that_is_defined_anew_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "the_once.py").write_text('from eventonce import Once\nonce = Once("memory:")\n')
    text = (
        "import functools\nfrom the_once import once\nfrom the_wraps import passing\n{}"
        '@once(key="n", remember="result")\ndef one(n): return n\n'
        '@once(key="n", remember="result")\n@passing\ndef two(n): return n\n'
    )
    (tmp_path / "the_wraps.py").write_text(
        "import functools\ndef passing(function):\n"
        "    @functools.wraps(function)\n    def inner(*args, **kwargs): return function(*args, **kwargs)\n"
        "    return inner\n"
    )
    module = module_of(tmp_path, monkeypatch, "reloaded_calls", text.format(""))
    before = module.one, module.two
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "reloaded_calls.py").write_text(text.format("# another line\n"))
    importlib.invalidate_caches()
    importlib.reload(module)
    assert module.one is not before[0]
    assert [module.one.key(1), module.two.key(1)] == [before[0].key(1), before[1].key(1)]
    again: dict[str, Any] = {"once": module.once, "__name__": "streamlit"}
    code = compile('@once(key="n", name="cell")\ndef cell(n, m=1): return n\n', "cell", "exec")
    exec(code, again)
    first = again["cell"]
    exec(code, again)
    exec(compile('@once(key="n", name="cell")\ndef cell(n, m=1): return -n\n', "cell", "exec"), again)
    assert first.key(1) == again["cell"].key(1)
    with pytest.raises(ConfigError, match="another function of this Once is called 'cell'"):
        exec(compile('\n@once(key="n", name="cell")\ndef cell(n): ...\n', "cell", "exec"), again)


def test_a_function_that_is_gone_leaves_its_name(bench: Bench) -> None:
    once = bench.once()

    def define(result: int) -> Any:
        @once(key="n", name="one")
        def one(n: int) -> Any:
            return result if n else one(n)

        return one

    define(1)
    first = define(2)
    with pytest.raises(ConfigError, match="another function of this Once is called 'one'"):
        define(3)
    assert first(1) == 2


def ran_with(n: int) -> None:
    ran.append(n)


def len_of(n: int) -> int:
    return n


def child(connection: Any) -> None:
    connection.send(charge.key(Order(1)))


def test_a_spawned_process_has_the_same_keys() -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=child, args=(theirs,))
    process.start()
    assert ours.recv() == charge.key(Order(1))
    process.join()


# --- a decorated function passes for a function ---


def test_a_decorated_function_looks_like_the_function() -> None:
    assert inspect.signature(charge) == inspect.signature(charge.plain)
    assert str(inspect.signature(Mailer("a").send)) == "(customer: int, template: str = 'x') -> str"
    assert (charge.__name__, charge.__doc__, charge.__module__) == ("charge", "Charge an order.", __name__)
    assert [inspect.iscoroutinefunction(each) for each in (charge, later, Mailer("a").asend)] == [False, True, True]
    assert asyncio.iscoroutinefunction(later)
    assert asyncio.iscoroutinefunction(Mailer("a").asend)
    assert repr(charge).startswith(f"<once {__name__}.charge")


def test_a_decorated_function_is_pickled_and_copied_by_its_name() -> None:
    for each in (charge, later, Mailer.send, Mailer.static_under, handle_order):
        assert pickle.loads(pickle.dumps(each)) is each
        assert copy.copy(each) is copy.deepcopy(each) is each
    bound = Mailer("a").send
    assert pickle.loads(pickle.dumps(bound)).key(1) == bound.key(1)


def test_bound_methods_are_equal_if_their_instances_are_the_same() -> None:
    red, blue = Mailer("red"), Mailer("red")
    assert red.send == red.send != blue.send
    assert len({red.send, red.send, blue.send, Mailer.send, red.content}) == 4
    assert red.send != red
    assert not hasattr(red.send, "no_such_thing")


def test_autospec_makes_a_mock_of_a_decorated_function() -> None:
    mock = create_autospec(charge, return_value="x")
    assert mock(Order(1)) == "x"
    assert asyncio.run(create_autospec(later, return_value=5)(1)) == 5
    mailer = create_autospec(Mailer, instance=True)
    mailer.send(1)
    mailer.send.assert_called_once_with(1)


def test_fastapi_takes_a_decorated_function_as_route_and_dependency(bench: Bench) -> None:
    import httpx
    from fastapi import Depends, FastAPI

    app, once = FastAPI(), bench.once()

    @once(key="token", remember="result", name="account")
    def account(token: str) -> str:
        ran.append(token)
        return f"of {token}"

    @app.post("/orders/{order}")
    @once(key=["order", "account"], remember="result", name="route")
    async def place(order: int, account: str = Depends(account), note: str = "") -> dict[str, Any]:
        ran.append(order)
        return {"order": order, "account": account}

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
            for _ in range(2):
                response = await client.post("/orders/5?token=t")
                assert response.json() == {"order": 5, "account": "of t"}
            assert (await client.post("/orders/x?token=t")).status_code == 422

    asyncio.run(main())
    assert ran == ["t", 5]


def test_a_task_queue_that_binds_its_task_as_self_has_it_in_no_key(bench: Bench) -> None:
    """Celery makes a class of a task, whose method is the function."""

    def run(self: Any, order: int) -> int:
        ran.append(order)
        return order

    task = type("charge_task", (), {"run": bench.once()(key="content", name="task")(run), "__module__": __name__})
    assert [task().run(1), task().run(1)] == [1, None]


# --- inside a call ---


def test_current_is_the_context_of_the_innermost_run(bench: Bench) -> None:
    once = bench.once()

    @once(key="n")
    def inner(n: int) -> Key:
        return Key(bytes.fromhex(current().idempotency_key))

    @once(key="n")
    def outer(n: int) -> tuple[Key | None, str]:
        return inner(n), current().idempotency_key

    key = inner.key(1)
    assert outer(1) == (key, outer.key(1).hex())
    with pytest.raises(ConfigError, match=r"eventonce.current\(\) is for code that a decorated function"):
        current()


@pytest.mark.parametrize("hooks", [(), (Hook(),)])
def test_current_is_the_context_of_an_event(bench: Bench, hooks: Any) -> None:
    once = bench.once(hooks=hooks)

    @once
    def handle(event: Any) -> str:
        return current().idempotency_key

    def take(event: Any, ctx: Any) -> bool:
        return current() is ctx

    async def take_async(event: Any, ctx: Any) -> bool:
        await asyncio.sleep(0)
        return current() is ctx

    events = [{"id": "1"}, {"id": "2"}]
    assert handle(events[0]) == once.key(events[0]).hex()
    assert [outcome.result for outcome in bench.once(hooks=hooks).run(events, take)] == [True, True]
    assert [outcome.result for outcome in asyncio.run(bench.once(hooks=hooks).arun(events, take_async))] == [True, True]
    with pytest.raises(ConfigError):
        current()


def test_an_effect_in_the_store_s_own_database_commits_with_the_call(bench: Bench) -> None:
    once = bench.once(bench.url)
    once(key="n", name="create")(lambda n: current().tx.execute("CREATE TABLE ledger (n INTEGER)"))(0)

    @once(key="n", remember="result", name="book")
    def book(n: int, fails: bool = False) -> int:
        current().tx.execute("INSERT INTO ledger VALUES (?)", (n,))
        if fails:
            raise ValueError(n)
        return n

    with pytest.raises(ValueError, match="5"):
        book(5, fails=True)
    assert [book(5), book(5), book.map([book.bind(6), book.bind(5)])[0].result] == [5, 5, 6]
    counted: Any = once(key="n", name="count")(lambda n: current().tx.execute("SELECT n FROM ledger").fetchall())
    assert [row[0] for row in counted(1)] == [5, 6]


def test_a_call_inside_that_is_busy_costs_the_run_no_attempt(bench: Bench) -> None:
    store = MemoryStore()
    once = bench.once(store, busy_wait="0s")
    inner: Any = once(key="n", name="inner")(lambda n: "inner")
    outer: Any = once(key="n", name="outer", max_attempts=1, remember="result")(lambda n: [inner(n), current().attempt])
    store.claim([ClaimRequest(inner.key(1), 1000)], b"another!", 60_000)
    for _ in range(2):
        outcome = outer.outcome(1)
        assert (outcome.kind, type(outcome.error), outcome.action) == ("failed", EventBusy, "retry")
    store.forget([inner.key(1)])
    assert outer(1) == ["inner", 1]


# --- handlers of events ---


handlers = Once("memory:")


@handlers
def handle_order(event: Event) -> str:
    ran.append(event.id)
    return event.id


class Consumer:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_order(self, event: Event) -> str:
        self.seen.append(event.id)
        return event.id

    def on_order_with(self, event: Event, ctx: Any) -> int:
        return int(ctx.attempt)

    async def later(self, event: Event, *, ctx: Any) -> int:
        return int(ctx.attempt)

    @classmethod
    def of_class(cls, event: Event) -> str:
        return f"{cls.__name__} {event.id}"


def test_what_stands_on_a_decorated_handler() -> None:
    one, two = {"id": "one"}, {"id": "two"}
    assert handle_order.outcome(one).kind is OutcomeKind.PROCESSED
    assert [outcome.kind for outcome in handle_order.map([one, two])] == ["duplicate", "processed"]
    assert handle_order.key(one) == handlers.key(one)
    assert [handle_order.forget(one), handle_order.forget(one)] == [True, False]
    assert handle_order.plain(Event(data=None, id="three")) == "three"
    assert not hasattr(handle_order, "bind")
    with pytest.raises(ConfigError, match=r"run and map take many events; pass a list, such as \[event\]"):
        handle_order.map(one)


def test_the_one_event_is_taken_by_any_name() -> None:
    """Powertools' batch processor calls its record handler with record=."""
    assert handle_order(record={"id": "by name"}) == "by name"
    assert handle_order(event={"id": "by name"}) is None
    for args, kwargs in (((), {}), (({"id": "1"}, object()), {}), (({"id": "1"},), {"context": 1})):
        with pytest.raises(CallRejected, match=r"handle_order takes one event, and \d arguments came; for a Lambda"):
            handle_order(*args, **kwargs)


def test_powertools_processes_a_batch_with_a_decorated_record_handler(bench: Bench) -> None:
    from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

    @bench.once(key="id")
    def record_handler(record: Any) -> None:
        ran.append(record.id)
        if "bad" in record.id:
            raise ValueError(record.id)

    body = '{"id": "%s", "source": "s", "detail-type": "t", "detail": {}}'
    records: list[Any] = [
        {"messageId": name, "body": body % name, "eventSource": "aws:sqs", "receiptHandle": name, "attributes": {}}
        for name in ("one", "bad", "one")
    ]
    processor = BatchProcessor(event_type=EventType.SQS)
    response = process_partial_response({"Records": records}, record_handler, processor, None)
    assert response == {"batchItemFailures": [{"itemIdentifier": "bad"}]}
    assert ran == ["one", "bad"]


def test_methods_handle_events(bench: Bench) -> None:
    one = {"id": "one"}
    for name, result in (("on_order", "one"), ("on_order_with", 1), ("later", 1), ("of_class", "Consumer one")):
        made = type("Consumer", (Consumer,), {name: bench.once()(vars(Consumer)[name])})
        bound: Any = getattr(made(), name)
        if name == "later":
            assert [asyncio.run(bound(one)), asyncio.run(bound.outcome(one)).kind] == [result, "duplicate"]
        else:
            assert [bound(one), bound.outcome(one).kind, bound.map([one])[0].kind] == [result, "duplicate", "duplicate"]


def test_a_function_of_one_event_takes_no_instance_wherever_it_is() -> None:
    holder = type("Holder", (), {"handle": handle_order})
    assert holder().handle({"id": "in a class"}) == "in a class"


def test_a_call_through_an_instance_is_not_a_second_handler(bench: Bench) -> None:
    once = bench.once()
    once(handle_order.plain)
    once(key="order.id")(charge.plain)
    with pytest.raises(ConfigError, match=r"this Once decorates .*handle_order already, and .*on_order would split"):
        once(Consumer.on_order)


def test_hooks_see_calls_by_the_name_of_their_function_and_none_of_their_arguments(bench: Bench) -> None:
    class Settled(Hook):
        def after_settle(self, details: Any) -> None:
            ran.extend(details)

    one: Any = bench.once(hooks=[Settled()])(key="n", name="one")(lambda n: n)
    one("secret")
    one.map([one.bind("secret"), one.bind(None)])
    kinds = [each.outcome.kind.value for each in ran]
    assert kinds == ["processed", "duplicate", "rejected"]
    assert isinstance(ran[0], OutcomeDetails)
    assert ran[0].event is not None
    assert (ran[0].event.type, ran[0].event.data) == ("one", None)


def test_a_cold_start_imports_nothing_of_calls() -> None:
    code = (
        "from eventonce import Once; Once('memory:').run([{'id': '1'}], print); import sys; print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "eventonce.engine.steps" in done
    assert "eventonce.engine.calls" not in done
