"""Everything that reads input from outside, each as a function of bytes. It may refuse its input with the error that it
promises. Any other exception is a finding, as is a hang or memory without bound (the runner limits those)."""

import asyncio
import contextlib
import hmac
import io
import json
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from eventonce import Once
from eventonce.auth import Bearer, Sns, Stripe, github
from eventonce.claims.outcome import OutcomeKind
from eventonce.cli.main import cli
from eventonce.clock import duration
from eventonce.dead_letters import open_dead_letters
from eventonce.dead_letters.letter import letter_deliveries, read_letter
from eventonce.errors import ConfigError, EventOnceError, EventRejected
from eventonce.event import Event
from eventonce.event.formats import Carried, gateway, read_binary, read_event, read_events, read_message
from eventonce.event.keys import KEY_BYTES
from eventonce.event.paths import getter, ignored_path
from eventonce.requests.refusal import RequestRefused
from eventonce.rules import Rulebook, identity
from eventonce.rules.pattern import Pattern, PatternError
from eventonce.rules.rule import Rule
from eventonce.settings import rulebook, settings
from eventonce.sinks import open_sink
from eventonce.sources.documents import Splitter
from eventonce.stores import open_store
from eventonce.webhook import Webhook

MAX_BYTES = 65_536
STATUSES = {200, 400, 401, 404, 405, 409, 413, 415, 422, 503}
SEPARATOR = b"\n---\n"  # between the files of a command
_OPTIONS = (  # those that read a value and touch nothing
    ["advise", "--horizon"], ["key", "--key"], ["presets", "--"], ["template", "--"],
    *([command, "--store", "memory:", "--"] for command in ("forget", "peek", "explain")),
)  # fmt: skip
_TOPIC = "arn:aws:sns:eu-west-1:123456789012:orders"
_CARRIERS = ("sqs", "kinesis", "sns", "dynamodb", "http")
_BOOK = Rulebook(
    "fuzz",
    [
        Rule(
            name="some",
            match={"source": ["shop"]},
            key=["detail.id || id", "floor_time(time, '1s')"],
            otherwise="content",
        )
    ],
    identity("1d", "retry"),
)


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode("utf-8", "replace")


def halves(data: bytes) -> tuple[bytes, bytes]:
    first, _, second = data.partition(b"\n")
    return first, second


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def check_event(result: Event | EventRejected) -> None:
    """An event can be keyed and written, and an error has a reason."""
    if isinstance(result, EventRejected):
        assert str(result)
        return
    with contextlib.suppress(EventRejected):
        assert len(_BOOK.key(result).key) == KEY_BYTES
    json.loads(result.line())


def one_event(data: bytes) -> None:
    with contextlib.suppress(EventRejected):
        check_event(read_event(data, MAX_BYTES))


def many_events(data: bytes) -> None:
    for each in read_events(data, MAX_BYTES):
        check_event(each)


def message(data: bytes) -> None:
    first, body = halves(data)
    carrier = _CARRIERS[len(first) % len(_CARRIERS)]
    for each in read_message(Carried(body, carrier, text(first[:40])), MAX_BYTES):
        check_event(each)


def binary_cloudevent(data: bytes) -> None:
    headers, body = parsed(halves(data)[0]), halves(data)[1]
    named = {str(name): str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}
    with contextlib.suppress(EventRejected):
        check_event(
            read_binary({"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", **named}, body)
        )


def documents(data: bytes) -> None:
    """A file has the same documents however it is divided into reads."""
    assert _split(data, 7) == _split(data, len(data) or 1)


def _split(data: bytes, size: int) -> list[Any]:
    splitter = Splitter()
    parts = [part for start in range(0, len(data), size) for part in splitter.feed(data[start : start + size])]
    return [(part.body, part.unreadable) for part in [*parts, *splitter.end()]]


def pattern(data: bytes) -> None:
    rule, event = map(parsed, halves(data))
    with contextlib.suppress(PatternError):
        result = Pattern(rule).matches(event if isinstance(event, dict) else {})
        assert result in (True, False)


def pipeline(data: bytes) -> None:
    try:
        table = tomllib.loads(text(data))
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    with contextlib.suppress(ConfigError):
        rulebook(settings(table, "fuzz.toml"))


def paths(data: bytes) -> None:
    first, second = halves(data)
    document = parsed(second)
    with contextlib.suppress(ConfigError, EventRejected):
        getter(text(first))(document if isinstance(document, dict) else {})
    with contextlib.suppress(ConfigError):
        ignored_path(text(first))


def durations(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        assert duration(text(data)) >= 0


def urls(data: bytes) -> None:
    """Nothing connects, and a wrong URL raises nothing but an error of ours."""
    url = text(data)
    if url.startswith(("memory:", "redis:", "rediss:", "dynamodb:", "postgresql:")):
        with contextlib.suppress(EventOnceError):
            open_store(url).close()
    for open_url in (open_sink, open_dead_letters):
        if url.startswith(("http://", "https://", "sqs://", "sns://", "events://", "kinesis://")):
            with contextlib.suppress(EventOnceError):
                open_url(url).close()  # type: ignore[union-attr]


def invocation(data: bytes) -> None:
    """A function returns or refuses whatever it is invoked with, and a request always gets a response."""
    document = parsed(data)
    auth = (None, github("secret"))[len(data) % 2]
    with Once("memory:") as once, contextlib.redirect_stdout(io.StringIO()):
        handler = once.aws_lambda(lambda event: None, auth=auth)
        if isinstance(document, dict) and gateway.recognises(document):
            assert handler(document, None)["statusCode"] in STATUSES
            return
        with contextlib.suppress(EventOnceError):
            handler(document, None)


def notice(data: bytes) -> None:
    """Nobody can sign these, so each is refused and fetches nothing but a certificate of SNS."""
    fetched: list[str] = []

    def fetch(url: str) -> bytes:
        fetched.append(url)
        raise OSError("not there")

    body = data.replace(b"{", b'{"TopicArn": "%s", ' % _TOPIC.encode(), 1)
    with contextlib.suppress(RequestRefused):
        asyncio.run(Sns(_TOPIC, fetch=fetch, tolerance="36500d").admit({}, body))
        raise AssertionError(body)
    assert all(url.startswith("https://sns.eu-west-1.amazonaws.com/") for url in fetched)


def letter(data: bytes) -> None:
    """A damaged letter says so, and any other can be run."""
    dead_letter = read_letter(data)
    events = [] if dead_letter.unreadable else letter_deliveries(dead_letter)
    with Once("memory:") as once:
        assert len(once.run(events, lambda event: None)) == len(events)


def engine(data: bytes) -> None:
    """A run returns an outcome for each event and never raises, whatever the input."""
    with Once("memory:", rules=Rule(name="all", key="content", ignore=["**.at"])) as once:
        outcomes = once.run([data, data], lambda event: None)
        kinds = {outcome.kind for outcome in outcomes}
        assert kinds in ({OutcomeKind.REJECTED}, {OutcomeKind.PROCESSED, OutcomeKind.DUPLICATE})


def command(data: bytes) -> None:
    """A command that reads a pipeline file and recorded events ends with an exit code, or with an error of ours."""
    file, _, events = data.partition(SEPARATOR)
    with tempfile.TemporaryDirectory() as folder:
        pipeline_file, traffic = Path(folder, "pipeline.toml"), Path(folder, "traffic.jsonl")
        pipeline_file.write_bytes(file)
        traffic.write_bytes(events)
        commands = (
            ["check", str(pipeline_file), "--samples", str(traffic)],
            ["key", "-p", str(pipeline_file), str(traffic)],
            ["key", "--compare", str(traffic), str(pipeline_file)],
            ["audit", "-p", str(pipeline_file), "--json", str(traffic)],
            ["advise", str(traffic)],
        )
        with contextlib.suppress(EventOnceError):
            done = CliRunner().invoke(cli, commands[len(data) % len(commands)], catch_exceptions=False)
            assert done.exit_code in (0, 1, 2)


def options(data: bytes) -> None:
    """Whatever is written on the command line, nothing but a usage error or an error of ours comes of it."""
    value, name = text(data).replace("\0", ""), _OPTIONS[len(data) % len(_OPTIONS)]
    with contextlib.suppress(EventOnceError):
        done = CliRunner().invoke(cli, [*name, value], input=b"{}", catch_exceptions=False)
        assert done.exit_code in (0, 1, 2)


def webhook(data: bytes) -> None:
    head, body = halves(data)
    document = parsed(head)
    pairs = document.items() if isinstance(document, dict) else ()
    headers = [(str(n).lower().encode("utf-8", "replace"), str(v).encode("utf-8", "replace")) for n, v in pairs]
    headers.append((b"x-hub-signature-256", b"sha256=" + hmac.digest(b"secret", body, "sha256").hex().encode()))
    auths = (None, Bearer("secret"), github("secret"), Stripe("secret"))
    with Once("memory:") as once:
        app = Webhook(once, lambda event: None, auth=auths[len(head) % 4])
        try:
            assert asyncio.run(_ask(app, headers, body)) in STATUSES
        finally:
            app.close()


async def _ask(app: Any, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    messages: list[Any] = []
    parts: Iterator[Any] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        return next(parts, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    status: int = messages[0]["status"]
    return status


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (
        one_event, many_events, message, binary_cloudevent, documents, pattern, pipeline, paths, durations, urls,
        invocation, notice, letter, engine, webhook, command, options,
    )
}  # fmt: skip
