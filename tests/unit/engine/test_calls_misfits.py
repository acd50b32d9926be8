"""What cannot be decorated or called is refused in one sentence that names the remedy."""

import asyncio
import functools
import operator
import pickle
from typing import Any

import pytest

from eventonce import ConfigError, Context, Once
from eventonce.errors import CallRejected
from tests.unit.conftest import Bench


class Thing:
    def __call__(self, n: int) -> None: ...
    def method(self, n: int) -> None: ...


class Task:
    """As Celery makes one."""

    name = "tasks.charge"

    def __call__(self, n: int) -> None: ...
    def delay(self, n: int) -> None: ...
    def apply_async(self, n: int) -> None: ...


def one(n: int, m: Any = 2) -> None: ...


def generator(n: int) -> Any:
    yield n


async def async_generator(n: int) -> Any:
    yield n


async def coroutine(n: int) -> int:
    return n


KEY = r"^@once\(key=\.\.\.\): "


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Thing, KEY + ".*Thing is a class; decorate one of its methods, or a function that makes it"),
        (functools.partial(one, 1), KEY + ".* is a partial, whose arguments would be in no key; write a def function"),
        (Thing().method, KEY + ".*Thing.method is bound to one instance; decorate the method in its class"),
        (Thing(), KEY + ".*Thing object at .* is an object that can be called; write a def function that calls it"),
        (Task(), KEY + r"tasks.charge is a Celery task; put @app.task above @once\(key=...\)"),
        (generator, KEY + ".*generator is a generator, which runs later if at all; return a list instead of yield"),
        (async_generator, KEY + ".*async_generator is a generator"),
        (5, KEY + "5 is not a function; write one with def"),
        (operator.itemgetter(1), KEY + ".*itemgetter"),
        (iter, "^builtins.iter has no signature that Python can read; write a def function that calls it"),
    ],
)
def test_what_cannot_be_a_call(bench: Bench, function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench.once()(key="n")(function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Thing, "^@once: .*Thing is a class; decorate one of its methods"),
        (Task(), "^@once: tasks.charge is a Celery task; put @app.task above @once$"),
        (generator, "^@once: .*generator is a generator"),
        (5, "^@once: 5 is not a function; write one with def"),
        (Once("memory:")(key="n", name="one")(one), "^@once: .*one is decorated already; decorate its plain function"),
    ],
)
def test_what_cannot_be_a_handler(bench: Bench, function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench.once()(function)


def test_a_decorated_function_is_not_decorated_again(bench: Bench) -> None:
    decorated: Any = bench.once()(key="n", name="one")(one)
    with pytest.raises(ConfigError, match=r"one is decorated already; decorate its plain function"):
        bench.once()(key="n")(decorated)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "order.id"}, "one: key: 'order.id' begins with 'order', and its parameters are n, m"),
        ({"key": ["n", "id"]}, "one: key: 'id' begins with 'id', and its parameters are n, m"),
        ({"key": "n[0]"}, r"one: key: 'n\[0\]' is not a path; write names with dots between, or a function as key"),
        ({"key": 5}, "one: key: 5 is neither a path"),
        ({"key": []}, "one: key: .* is neither a path"),
        ({"key": [5]}, "one: key: .* is neither a path"),
        ({"key": lambda order: order}, "one: key: the function takes 'order', and the parameters of the call are n, m"),
        ({"key": coroutine}, "one: key: the function is async def, and a key is made before anything is awaited"),
        ({"key": iter}, "one: key: the function has no signature"),
        ({"key": "n", "ignore": ["m"]}, 'one: ignore only means something with key="content"'),
        ({"key": "content", "ignore": "m"}, "one: ignore: 'm' is not a list of paths"),
        ({"key": "content", "ignore": ["x"]}, "one: ignore: 'x' begins with 'x', and its parameters are n, m"),
        ({"key": "content", "ignore": ["m..x"]}, "one: ignore: 'm..x' is not a path at character 3"),
        ({"key": "content", "ignore": None}, "one: ignore: None is not a list of paths"),
        ({"key": "content", "ignore": 5}, "one: ignore: 5 is not a list of paths"),
        ({"key": "n", "name": "\ud800"}, r"one: name: '\\ud800' is not a non-empty string"),
        ({"key": "n", "replaces": "\ud800"}, "one: replaces: use the old name"),
        ({"key": '"\ud800"'}, "one: key: .* is not a path"),
        ({"key": lambda *args: args}, r"one: key: the function takes \*args, and it gets the arguments that it names"),
        ({"key": "n", "max_attempts": True}, "one: max_attempts: True is not a whole number from 1 on"),
        ({"key": "n", "version": "x"}, "one: version: 'x' begins with 'x'"),
        ({"key": "n", "window": "5 apples"}, "window: '5 apples' is not a duration"),
        ({"key": "n", "remember": "results"}, "remember: 'results' is not one of seen, note, result"),
        ({"key": "n", "lease": "2d"}, "lease: 2d is longer than a day"),
        ({"key": "n", "max_attempts": 0}, "one: max_attempts: 0 is not a whole number from 1 on"),
        ({"key": "n", "name": ""}, "one: name: '' is not a non-empty string"),
        ({"key": "n", "replaces": {"old": 1}}, "one: replaces: use the old name, or a table of name and key"),
        ({"key": "n", "name": "a", "replaces": "a"}, "one: replaces: the name and the key are those that it has now"),
        ({"key": "n", "remembr": "result"}, "^@once: unknown option 'remembr'; use key, ignore, window"),
        ({"window": "1d"}, '^@once: key is missing; say what makes two calls the same, as key="order.id"'),
    ],
)
def test_what_cannot_be_an_option(bench: Bench, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench.once()(**options)(one)


def test_a_default_without_a_spelling_is_refused_for_content_alone(bench: Bench) -> None:
    def local(n: int, session: Any = object()) -> None: ...  # noqa: B008

    message = 'local: the default of session cannot be in a key: session is of type object, .*; add "session" to ignore'
    with pytest.raises(ConfigError, match=message):
        bench.once()(key="content")(local)

    def huge(n: int, m: int = 10**5000) -> None: ...

    with pytest.raises(ConfigError, match=r"the default of m cannot be in a key: holds an integer of more than"):
        bench.once()(key="content")(huge)
    bench.once()(key="content", ignore=["session"])(local)
    bench.once()(key="n")(local)
    bench.once()(key="n", remember="note")(local)


def test_numbers_of_a_once_are_numbers() -> None:
    for name, value in (("max_attempts", True), ("max_attempts", "3"), ("concurrency", 0)):
        with pytest.raises(ConfigError, match=f"^{name}: {value!r} is not a whole number from 1 on$"):
            Once("memory:", **{name: value})  # type: ignore[arg-type]


def test_once_without_a_function_is_refused(bench: Bench) -> None:
    once: Any = bench.once()
    for use in (once, lambda: once(one, key="n")):
        with pytest.raises(ConfigError, match=r"write @once above a handler of events, or @once\(key=...\) above any"):
            use()


class LambdaContext:
    """As AWS Lambda's own types call it."""


def handler(event: Any, context: Any) -> None: ...
def typed(event: Any, ctx: LambdaContext) -> None: ...
def quoted(event: Any, ctx: "LambdaContext") -> None: ...
def ours(event: Any, context: Context) -> None: ...


def test_a_lambda_handler_names_the_lambda_door(bench: Bench) -> None:
    for function in (handler, typed, quoted):
        with pytest.raises(
            ConfigError, match=r"takes \(event, \w+\), as a Lambda handler does; write handler = once.aws"
        ):
            bench.once()(function)
    assert bench.once()(ours)({"id": "1"}) is None


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"^one\(\) missing 1 required positional argument: 'n'$"),
        ((1, 2, 3), {}, r"^one\(\) takes from 1 to 2 positional arguments but 3 were given$"),
        ((1,), {"o": 2}, r"^one\(\) got an unexpected keyword argument 'o'"),
    ],
)
def test_arguments_that_do_not_fit(bench: Bench, args: Any, kwargs: Any, message: str) -> None:
    call: Any = bench.once()(key="n", name="one")(one)
    for use in (call, call.outcome, call.bind, call.key, call.forget):
        with pytest.raises(TypeError, match=message) as raised:
            use(*args, **kwargs)
        assert type(raised.value) is CallRejected


def test_what_is_no_call_is_refused_by_map_and_a_bound_call_stays_here(bench: Bench) -> None:
    call: Any = bench.once()(key="n", name="one")(one)
    later: Any = bench.once()(key="n", name="later")(coroutine)
    uses: list[Any] = [lambda: call.map(None), lambda: asyncio.run(later.map(5))]
    for use in uses:
        with pytest.raises(ConfigError, match="run and map take many events, not"):
            use()
    handles: Any = bench.once()(ours)
    with pytest.raises(ConfigError, match="run and map take many events, not None; pass a list of them first"):
        handles.map(None)
    with pytest.raises(CallRejected, match="a bound call of one is for map in this process; send its arguments"):
        pickle.dumps(call.bind(1))


def test_a_decorator_that_adds_arguments_is_named(bench: Bench) -> None:
    def injects(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function("injected", *args, **kwargs)

        return inner

    call: Any = bench.once()(key="m", name="one")(injects(one))
    with pytest.raises(CallRejected, match=r"missing 1 required .* 'n'; if a decorator under @once adds arguments"):
        call(m=1)
