"""The webhook as an ASGI application: what it reads, what it tells, and what it does under load."""

import asyncio
import gzip
import json
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventonce import Event, EventRejected, Once, Rule
from eventonce.dead_letters.file import DeadFile
from eventonce.dead_letters.queue import DeadQueue
from eventonce.errors import ConfigError, SinkError
from eventonce.event.formats.text import read_json
from eventonce.requests import reading
from eventonce.requests.refusal import Refusals, RequestRefused
from eventonce.rules.rulebook import CompiledRule
from eventonce.testing import ManualClock
from eventonce.webhook import Bearer, IdempotencyMiddleware, Webhook, body
from eventonce.webhook.asgi import App, Message
from tests.unit.conftest import Bench, Faulty

BRIDGE = {"id": "e-1", "source": "shop", "detail-type": "Order", "detail": {"n": 1}, "time": "2026-01-05T09:00:00Z"}
CLOUD = {"specversion": "1.0", "id": "c-1", "source": "/shop", "type": "order", "data": {"n": 1}}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


async def forever() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def ask(app: App, body: object, path: str = "/", method: str = "POST", **headers: str) -> Reply:
    """One request, as a server would hand it on, in two parts."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    header_fields = {
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    parts: list[Message] = [
        {"type": "http.request", "body": raw[:10], "more_body": True},
        {"type": "http.request", "body": raw[10:], "more_body": False},
    ]
    responses: list[Message] = []

    async def receive() -> Message:
        return parts.pop(0) if parts else await forever()

    async def send(message: Message) -> None:
        responses.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in header_fields.items()]
    await app({"type": "http", "method": method, "path": path, "query_string": b"", "headers": encoded}, receive, send)
    start, rest = responses
    answered = {name.decode(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], answered, json.loads(rest["body"]))


class Hooks:
    """Makes webhooks, and closes them after the test."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._made: list[Webhook] = []
        self.seen: list[Event] = []

    def make(self, handler: Any = None, once: Once | None = None, **settings: Any) -> Webhook:
        made = Webhook(once or self._bench.once(), handler or self.seen.append, **settings)
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close()


@pytest.fixture
def hooks(bench: Bench) -> Iterator[Hooks]:
    hooks = Hooks(bench)
    yield hooks
    hooks.close()


def send_event(app: App, body: object, **more: Any) -> Reply:
    return asyncio.run(ask(app, body, **more))


# --- what is refused while more of it comes ---


def refuse(app: App, headers: dict[str, str], part: bytes = b"x" * 1_000_000) -> tuple[int, int, list[str]]:
    """The status of a request whose body never ends, how many parts of it were taken, and what it went by."""
    received, order = 0, []
    responses: list[Message] = []

    async def receive() -> Message:
        nonlocal received
        received += 1
        order.append("received")
        return {"type": "http.request", "body": part, "more_body": True} if part else await forever()

    async def send(message: Message) -> None:
        responses.append(message)
        order.append("sent")

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": encoded}

    async def request() -> None:
        await app(scope, receive, send)

    asyncio.run(request())
    return responses[0]["status"], received, order[-2:]


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_is_refused_is_drained_within_bounds_before_the_answer(
    idempotent: bool, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: App = hooks.make()
    if idempotent:
        app = IdempotencyMiddleware(app, store="memory:")
    key = {"idempotency-key": "k"}
    assert refuse(app, key) == (413, 2 + 17, ["sent", "sent"])
    assert refuse(app, {**key, "content-length": "2000000"}) == (413, 17, ["sent", "sent"])
    assert refuse(app, {**key, "content-length": "20000000"}) == (413, 0, ["sent", "sent"])
    assert refuse(app, {**key, "content-length": "2000000", "expect": "100-Continue"}) == (413, 0, ["sent", "sent"])
    assert refuse(app, {**key, "expect": "100-continue"}) == (413, 2 + 17, ["sent", "sent"])
    monkeypatch.setattr(body, "_PAUSE", 0.01)
    assert refuse(app, {**key, "content-length": "2000000"}, b"") == (413, 1, ["sent", "sent"])


# --- what is read ---


def test_gzip_unpacks_to_no_more_than_a_body_may_have(hooks: Hooks) -> None:
    app = hooks.make(max_body=10_000)
    fits, bomb = ({**BRIDGE, "detail": {"x": "x" * size}} for size in (9_000, 11_000))
    assert send_event(app, gzip.compress(json.dumps(fits).encode())).status == 200
    response = send_event(app, gzip.compress(json.dumps(bomb).encode()))
    assert (response.status, response.body["error"]) == (400, "unpacks to more than the limit of 10,000 bytes")


def test_all_gzip_in_a_request_unpacks_to_no_more_than_a_body_may_have(hooks: Hooks) -> None:
    app = hooks.make(max_body=10_000)
    packed = [
        gzip.compress(json.dumps({**BRIDGE, "id": f"e-{n}", "detail": {"x": "x" * 4_000}}).encode()) for n in range(5)
    ]
    records = [
        {"eventSource": "aws:kinesis", "eventID": "1", "kinesis": {"data": b64encode(p).decode()}} for p in packed
    ]
    response = send_event(app, {"Records": records})
    assert response.body["outcomes"] == ["processed", "processed", "rejected"]  # what cannot be read is kept as one
    assert [event.id for event in hooks.seen] == ["e-0", "e-1"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_large_bodies_are_read_and_keyed_beside_the_loop(
    packed: bool, large: bool, hooks: Hooks, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: dict[str, threading.Thread] = {}
    read, key = read_json, CompiledRule.key

    def reading(*args: Any) -> Any:
        at["read"] = threading.current_thread()
        return read(*args)

    def keying(*args: Any) -> Any:
        at["key"] = threading.current_thread()
        return key(*args)

    async def handle(event: Event) -> None: ...

    monkeypatch.setattr("eventonce.event.formats.reader.read_json", reading)
    monkeypatch.setattr(CompiledRule, "key", keying)
    body = json.dumps({**BRIDGE, "detail": {"x": "x" * (100_000 if large else 1_000)}}).encode()
    assert send_event(hooks.make(handle), gzip.compress(body) if packed else body).status == 200
    loop = threading.main_thread()
    assert (at["read"] is loop, at["key"] is loop) == (not (large or packed), not large)


def test_a_body_that_is_whole_is_in_memory_once() -> None:
    """While its event runs, and as long as that takes."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 100_000, "more_body": False}

    bodies = body.Bodies(1024 * 1024, 10.0)
    with bodies.open() as one:
        assert len(asyncio.run(bodies.read(one, "", receive))) == 100_000
        assert (len(one.buffer), one.room) == (0, 100_000 - 64 * 1024)


def test_the_room_of_bodies_counts_what_becomes_of_them(hooks: Hooks) -> None:
    """A list of a few bytes becomes an object of dozens."""
    body = json.dumps({**BRIDGE, "detail": {"x": [[]] * 20_000}}).encode()
    assert reading.size(reading.deliveries({}, body, 1024 * 1024, "http")) > 60 * 20_000


HIDDEN = b"[" + b",".join([b"[]"] * 15_000) + b"]"


@pytest.mark.parametrize("large", [True, False], ids=["many", "none"])
@pytest.mark.parametrize("where", ["data_base64", "data_base64 of 0.3", "binary", "text with escapes"])
def test_the_room_of_bodies_counts_values_that_are_hidden(where: str, large: bool) -> None:
    """The body does not show values in base64, or in a string of JSON with escaped brackets."""
    raw = HIDDEN if large else json.dumps("x" * len(HIDDEN)).encode()
    headers = {"content-type": "application/cloudevents+json"}
    body = json.dumps({**CLOUD, "data": None, "data_base64": b64encode(raw).decode()}).encode()
    if where == "data_base64 of 0.3":
        body = json.dumps({**CLOUD, "data": b64encode(raw).decode(), "datacontentencoding": "base64"}).encode()
    elif where == "binary":
        headers, body = {f"ce-{name}": str(value) for name, value in CLOUD.items() if name != "data"}, raw
    elif where == "text with escapes":
        escaped = "".join(f"\\u{byte:04x}" for byte in b'{"a":' + raw + b"}")
        body = b'{"id": "1", "source": "s", "detail-type": "t", "detail": "%s"}' % escaped.encode()
    size = reading.size(reading.deliveries(headers, body, 1024 * 1024, "http"))
    assert (size > 60 * 15_000) == large


def test_done_and_duplicate_are_both_fine_and_told_apart(hooks: Hooks) -> None:
    app = hooks.make()
    first, second = send_event(app, BRIDGE), send_event(app, BRIDGE)
    assert (first.status, first.headers["eventonce-outcome"], first.body) == (
        200,
        "processed",
        {"outcome": "processed"},
    )
    assert (second.status, second.headers["eventonce-outcome"]) == (200, "duplicate")
    assert [event.id for event in hooks.seen] == ["e-1"]


def test_an_async_handler_runs_in_the_servers_loop(hooks: Hooks) -> None:
    loops = []

    async def handle(event: Event) -> None:
        loops.append(asyncio.get_running_loop())

    app = hooks.make(handle)

    async def twice() -> list[str]:
        outcomes = [(await ask(app, BRIDGE)).body["outcome"] for _ in range(2)]
        assert loops == [asyncio.get_running_loop()]
        return outcomes

    assert asyncio.run(twice()) == ["processed", "duplicate"]


def test_cloudevents_in_every_mode_are_one_event(hooks: Hooks) -> None:
    app = hooks.make()
    responses = [
        send_event(app, CLOUD, content_type="application/cloudevents+json; charset=utf-8"),
        send_event(app, [CLOUD], content_type="application/cloudevents-batch+json"),
        send_event(app, {"n": 1}, ce_specversion="1.0", ce_id="c-1", ce_source="/shop", ce_type="order"),
        send_event(
            app, b"n=1", ce_specversion="1.0", ce_id="c-1", ce_source="/shop", ce_type="order", content_type="text/x"
        ),
    ]
    assert [each.body["outcome"] for each in responses] == ["processed", "duplicate", "duplicate", "duplicate"]
    assert hooks.seen[0].data == {"n": 1}


def test_a_batch_gets_the_status_of_its_worst_outcome(hooks: Hooks) -> None:
    def handle(event: Event) -> None:
        if event.id == "bad":
            raise ValueError

    app, kind = hooks.make(handle), "application/cloudevents-batch+json"
    response = send_event(app, [CLOUD, {**CLOUD, "id": "bad"}], content_type=kind)
    assert (response.status, response.body) == (500, {"outcome": "failed", "outcomes": ["processed", "failed"]})
    response = send_event(app, [CLOUD, {**CLOUD, "id": "new"}], content_type=kind)
    assert (response.status, response.body) == (200, {"outcome": "processed", "outcomes": ["duplicate", "processed"]})
    assert send_event(app, [], content_type=kind).status == 200
    response = send_event(app, [CLOUD, 7], content_type=kind)
    assert (response.status, response.body["outcomes"]) == (400, ["duplicate", "rejected"])


def test_gzip_and_messages_of_sns_are_unpacked(hooks: Hooks) -> None:
    app = hooks.make()
    notice = {"Type": "Notification", "TopicArn": "arn", "MessageId": "m-1", "Message": json.dumps(BRIDGE)}
    assert send_event(app, gzip.compress(json.dumps(BRIDGE).encode()), content_encoding="gzip").status == 200
    response = send_event(app, notice, content_type="text/plain; charset=UTF-8")
    assert response.body == {"outcome": "duplicate"}


@pytest.mark.parametrize(
    ("body", "headers", "status", "why"),
    [
        (b"{", {}, 400, "not JSON"),
        (b"", {}, 400, "is empty"),
        (b" ", {"content_type": "text/plain"}, 400, "is empty"),
        (b"payload=1", {}, 400, "not JSON"),
        (b"payload=1", {"idempotency_key": "k"}, 400, "not JSON"),
        (b"7", {"webhook_id": "w"}, 400, "is a number, not a JSON object"),
        (gzip.compress(b'"text"', mtime=0), {"webhook_id": "w"}, 400, "is a string, not a JSON object"),
        (b"[%s{}]" % (b"{}," * 10_000), {}, 400, "more than 10,000 events"),
        (gzip.compress(b"[%s1]" % (b"1," * 100_000)), {}, 400, "more than 10,000 events"),
        (BRIDGE, {"x_amz_sns_message_type": "SubscriptionConfirmation"}, 400, "auth=sns"),
        (BRIDGE, {"idempotency_key": ""}, 400, "1 to 255"),
        (BRIDGE, {"idempotency_key": '""'}, 400, "1 to 255"),
        (BRIDGE, {"idempotency_key": "k" * 256}, 400, "1 to 255"),
        (b"[]", {}, 400, "empty list"),
        (b'["PayloadS3Pointer", {"s3BucketName": "b", "s3Key": "k"}]', {}, 400, "read it with that client and pass"),
        (b"[" * 5000, {}, 400, "nested"),
        ({"n": 1}, {}, 400, "has no id"),
        ({"n": 1}, {"ce_specversion": "1.0"}, 400, "ce-id"),
        (b"payload=%7B%7D", {"content_type": "application/x-www-form-urlencoded"}, 415, "send application/json"),
        (BRIDGE, {"content_encoding": "br"}, 415, "gzip"),
    ],
)
def test_the_response_to_bad_input_says_what_is_wrong(
    body: object, headers: Mapping[str, str], status: int, why: str, hooks: Hooks
) -> None:
    response = send_event(hooks.make(), body, **headers)
    assert response.status == status
    assert why in response.body["error"]
    assert hooks.seen == []


def test_two_idempotency_keys_are_refused(hooks: Hooks) -> None:
    app, responses = hooks.make(), []
    headers = [(b"content-type", b"application/json"), (b"idempotency-key", b"a"), (b"idempotency-key", b"b")]

    async def send(message: Message) -> None:
        responses.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    asyncio.run(app(scope, forever, send))
    assert responses[0]["status"] == 400


def test_text_may_be_an_event_where_it_is_called_so(hooks: Hooks) -> None:
    assert send_event(hooks.make(), b"done", content_type="text/plain", webhook_id="w").status == 200
    assert [event.data for event in hooks.seen] == ["done"]


def test_what_is_refused_is_logged_and_does_not_fill_the_log(hooks: Hooks, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    responses = ["http: a request was refused with 401: the signature is wrong"]
    for _ in range(3):
        refusals.add(RequestRefused(401, "the signature is wrong"))
    assert caplog.messages == responses
    refusals.add(RequestRefused(413, "too large"))
    clock.sleep(60_000)
    refusals.add(RequestRefused(401, "the signature is wrong"))
    assert caplog.messages[1:] == [
        "http: a request was refused with 413: too large",
        responses[0] + " (and 2 earlier ones)",
    ]
    assert send_event(hooks.make(auth=Bearer("one")), BRIDGE).status == 401
    assert "no valid token" in caplog.messages[-1]


def test_other_paths_and_methods(hooks: Hooks) -> None:
    app = hooks.make(path="/events")
    assert send_event(app, BRIDGE, path="/events").status == 200
    assert send_event(app, BRIDGE, path="/other").status == 404
    response = send_event(app, BRIDGE, path="/events", method="GET")
    assert (response.status, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused(announced: bool, hooks: Hooks) -> None:
    length = {"content_length": "101"} if announced else {}
    response = send_event(hooks.make(max_body=100), b"x" * 101, **length)
    assert (response.status, response.headers["connection"]) == (413, "close")


def test_only_who_is_known_may_send(hooks: Hooks) -> None:
    app = hooks.make(auth=Bearer("one", "two"))
    assert send_event(app, BRIDGE).status == 401
    assert send_event(app, BRIDGE, authorization="Bearer three").headers["www-authenticate"] == "Bearer"
    assert send_event(app, BRIDGE, authorization="Bearer two").status == 200


# --- headers ---


def test_the_senders_name_for_a_delivery_overrides_an_id_in_the_content(hooks: Hooks) -> None:
    app, order = hooks.make(), {"id": 7, "total": 1}
    responses = [send_event(app, {**order, "total": each}, x_shopify_webhook_id=f"w-{each}") for each in (1, 2, 2)]
    assert [each.body["outcome"] for each in responses] == ["processed", "processed", "duplicate"]
    assert [event.id for event in hooks.seen] == ["w-1", "w-2"]
    assert [event.data["id"] for event in hooks.seen] == [7, 7]
    assert [event.line() for event in hooks.seen] == [json.dumps({**order, "total": each}).encode() for each in (1, 2)]


@pytest.mark.parametrize("name", ["", "w" * 513])
def test_a_name_that_cannot_serve_does_not_give_way_to_the_id_of_the_thing(name: str, hooks: Hooks) -> None:
    response = send_event(hooks.make(), {"id": 7}, webhook_id=name)
    assert (response.status, hooks.seen) == (400, [])
    assert response.body["error"].startswith("the header webhook-id names this delivery, and is empty or too long")


def test_an_envelope_keeps_its_own_id(hooks: Hooks) -> None:
    app = hooks.make()
    responses = [send_event(app, event, idempotency_key="k-1") for event in (BRIDGE, {**BRIDGE, "id": "e-2"}, CLOUD)]
    assert [each.body["outcome"] for each in responses] == ["processed"] * 3


def test_several_events_of_one_delivery_have_names_of_their_own(hooks: Hooks) -> None:
    response = send_event(hooks.make(), [{"n": 1}, {"n": 2}], webhook_id="w")
    assert response.body["outcomes"] == ["processed", "processed"]
    assert [event.id for event in hooks.seen] == ["w/1", "w/2"]
    assert [event.line() for event in hooks.seen] == [b'{"n":1}', b'{"n":2}']


def test_rules_see_ids_and_never_secrets(bench: Bench, hooks: Hooks) -> None:
    once = bench.once(key=['headers."x-github-delivery"'])
    app = hooks.make(once=once)
    secret = {"authorization": "Bearer x", "cookie": "c", "x_hub_signature_256": "s", "x_gitlab_token": "t"}
    assert send_event(app, {"n": 1}, x_github_delivery="g-1", **secret).status == 200
    assert send_event(app, {"n": 2}, x_github_delivery="g-1").body == {"outcome": "duplicate"}
    assert hooks.seen[0].attributes["headers"] == {"x-github-delivery": "g-1"}
    response = send_event(app, {"n": 2}, x_github_delivery="g" * 600)
    assert (response.status, "x-github-delivery" in response.body["error"]) == (400, True)


SAID = {"idempotency-key": "victim", "x-github-event": "push"}
NESTED = {"version": "2.0", "rawPath": "/", "requestContext": {}, "headers": SAID}
SAYING: dict[str, dict[str, Any]] = {
    "plain": {"n": 1, "headers": SAID},
    "EventBridge": {**BRIDGE, "headers": SAID},
    "CloudEvents": {**CLOUD, "headers": SAID},
    "a request": {**NESTED, "body": '{"n": 1}'},
    "a request that says it": {**NESTED, "headers": {}, "body": json.dumps({"n": 1, "headers": SAID})},
    "a message": {"eventSource": "aws:sqs", "messageId": "m", "body": json.dumps({"n": 1, "headers": SAID})},
    "a notice": {"Type": "Notification", "TopicArn": "t", "Message": json.dumps({"headers": SAID})},
    "the new bus": {"Data": json.dumps({"headers": SAID}), "SystemMetadata": {}, "headers": SAID},
}


@pytest.mark.parametrize("body", SAYING.values(), ids=SAYING)
@pytest.mark.parametrize(
    "rule",
    [
        Rule(name="by key", key=['headers."idempotency-key"']),
        Rule(name="by match", match={"headers": {"x-github-event": ["push"]}}, key=['headers."idempotency-key"']),
    ],
    ids=lambda rule: rule.name,
)
def test_headers_are_those_of_the_request_and_never_the_bodys(
    rule: Rule, body: dict[str, Any], bench: Bench, hooks: Hooks
) -> None:
    """Else a sender could satisfy a rule on a header without it, and take the name of another's request."""
    app = hooks.make(once=bench.once(rules=[rule, Rule(name="rest", key=["headers"])]))
    response = send_event(app, body)
    assert (response.status, "headers" in response.body["error"]) == (400, True)
    assert send_event(app, {"n": 1}, **{name.replace("-", "_"): value for name, value in SAID.items()}).status == 200
    assert [event.attributes["headers"] for event in hooks.seen] == [SAID]


def test_a_header_of_a_cloudevent_is_not_one_of_the_request(bench: Bench, hooks: Hooks) -> None:
    app = hooks.make(once=bench.once(key=["headers"]))
    binary = {"ce_specversion": "1.0", "ce_id": "c-1", "ce_source": "/shop", "ce_type": "order", "ce_headers": "x"}
    assert send_event(app, {"n": 1}, **binary).status == 400


def test_the_idempotency_key_is_honoured_as_the_draft_says(bench: Bench, hooks: Hooks) -> None:
    once = bench.once(rules=Rule(name="requests", key=['headers."idempotency-key"'], remember="note"))
    app = hooks.make(once=once)
    assert send_event(app, {"n": 1}).status == 400
    assert send_event(app, {"n": 1}, idempotency_key='"k-1"').status == 200
    assert send_event(app, {"n": 1}, idempotency_key='"k-1"').body == {"outcome": "duplicate"}
    assert send_event(app, {"n": 2}, idempotency_key='"k-1"').status == 422


# --- trouble ---


class Slow:
    """A handler that waits to be let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        self.begun.set()
        assert self.go.wait(60)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 503),
        ({"idempotency_key": "k"}, 409),
        ({"idempotency_key": "k", "user_agent": "Amazon/EventBridge/ApiDestinations"}, 503),
    ],
)
def test_the_sender_of_an_event_in_progress_must_retry(
    headers: Mapping[str, str], status: int, bench: Bench, hooks: Hooks
) -> None:
    slow, once = Slow(), bench.once()
    first, second = hooks.make(slow, once), hooks.make(once=once)

    async def both() -> tuple[Reply, Reply]:
        running = asyncio.create_task(ask(first, BRIDGE))
        await asyncio.to_thread(slow.begun.wait, 60)
        busy = await ask(second, BRIDGE, **headers)
        slow.go.set()
        return await running, busy

    done, busy = asyncio.run(both())
    assert done.status == 200
    assert (busy.status, busy.body, busy.headers["retry-after"]) == (status, {"outcome": "busy"}, "5")


@pytest.mark.parametrize("sender", ["somebody", "Amazon/EventBridge/ApiDestinations"])
def test_a_run_outlives_its_deadline_and_is_a_duplicate_then(
    sender: str, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.webhook.app._API_DESTINATION_DEADLINE", 10)
    slow = Slow()
    app = hooks.make(slow, deadline="10ms" if sender == "somebody" else "60s")

    async def late() -> tuple[Reply, Reply]:
        response = await ask(app, BRIDGE, user_agent=sender)
        slow.go.set()
        while app.in_progress:
            await asyncio.sleep(0.01)
        return response, await ask(app, BRIDGE)

    response, again = asyncio.run(late())
    assert (response.status, response.body, response.headers["retry-after"]) == (503, {"outcome": "busy"}, "5")
    assert again.body == {"outcome": "duplicate"}


def test_above_the_bound_others_get_503_at_once(hooks: Hooks) -> None:
    slow = Slow()
    app = hooks.make(slow, max_waiting=3, threads=1)

    async def crowd() -> list[Reply]:
        waiting = [asyncio.create_task(ask(app, {**BRIDGE, "id": f"{number}"})) for number in range(10)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(slow.begun.wait, 60)
        slow.go.set()
        return await asyncio.gather(*waiting)

    response = asyncio.run(crowd())
    assert sorted(each.status for each in response) == [200] * 3 + [503] * 7
    assert {each.headers.get("retry-after") for each in response if each.status == 503} == {"5"}
    assert send_event(app, BRIDGE).status == 200


def test_a_batch_larger_than_the_bound_passes_when_nothing_else_waits(hooks: Hooks) -> None:
    events = [{**CLOUD, "id": f"{number}"} for number in range(5)]
    assert (
        send_event(hooks.make(max_waiting=3), events, content_type="application/cloudevents-batch+json").status == 200
    )


def test_what_waits_is_run_together(hooks: Hooks) -> None:
    store, slow = Faulty(), Slow()
    app = hooks.make(slow, once=Once(store), threads=1)

    async def crowd() -> list[Reply]:
        tasks = [asyncio.create_task(ask(app, {**BRIDGE, "id": f"{number}"})) for number in range(50)]
        while app.in_progress < 50:
            await asyncio.sleep(0.01)
        slow.go.set()
        return await asyncio.gather(*tasks)

    assert {response.status for response in asyncio.run(crowd())} == {200}
    assert store.calls.count("claim") < 10


def test_large_bodies_share_their_room_and_small_ones_need_none(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    app = hooks.make(slow, deadline="10ms")
    monkeypatch.setattr(app._bodies, "_room", 100_000)
    large = {**BRIDGE, "detail": "x" * 150_000}

    async def three() -> list[int]:
        responses = [await ask(app, large), await ask(app, {**large, "id": "2"}), await ask(app, {**BRIDGE, "id": "3"})]
        slow.go.set()
        await at_rest()
        responses.append(await ask(app, large))
        await at_rest()  # its deadline may be over before it is
        return [each.status for each in responses]

    async def at_rest() -> None:
        while app.in_progress:
            await asyncio.sleep(0.01)

    # The first still runs though its sender has gone; what is beyond its room is refused, and later it is free again.
    assert asyncio.run(three())[:2] == [503, 503]
    assert app._bodies._room == 100_000


def test_gzip_needs_the_room_that_it_unpacks_to(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    app = hooks.make(slow, deadline="10ms")
    monkeypatch.setattr(app._bodies, "_room", 1_000_000)
    monkeypatch.setattr(app._bodies, "_max_room", 1_000_000)
    bombs = [gzip.compress(json.dumps({**BRIDGE, "id": n, "detail": "x" * 900_000}).encode()) for n in ("1", "2")]

    async def both() -> list[Any]:
        responses = [(await ask(app, bomb)).body for bomb in bombs]
        slow.go.set()
        while app.in_progress:
            await asyncio.sleep(0.01)
        return responses

    assert asyncio.run(both()) == [{"outcome": "busy"}, {"error": "too many large bodies at a time"}]
    assert app._bodies._room == 1_000_000


def test_what_is_larger_than_all_the_room_passes_alone(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    app = hooks.make()
    monkeypatch.setattr(app._bodies, "_room", 1000)
    monkeypatch.setattr(app._bodies, "_max_room", 1000)
    assert send_event(app, gzip.compress(json.dumps({**BRIDGE, "detail": "x" * 900_000}).encode())).status == 200
    assert app._bodies._room == 1000


def test_a_client_that_is_slow_with_its_body_is_given_up(hooks: Hooks) -> None:
    app, responses = hooks.make(patience="10ms"), []

    async def send(message: Message) -> None:
        responses.append(message)

    asyncio.run(app({"type": "http", "method": "POST", "path": "/", "headers": []}, forever, send))
    assert responses[0]["status"] == 408


def test_a_client_that_disconnects_gets_no_response(hooks: Hooks) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    asyncio.run(hooks.make()({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send))


def test_a_store_that_does_not_answer_is_not_a_failure_of_the_event(hooks: Hooks) -> None:
    response = send_event(hooks.make(once=Once(Faulty("claim"))), BRIDGE)
    assert (response.status, response.body, response.headers["retry-after"]) == (503, {"outcome": "unknown"}, "5")


def test_a_sink_that_cannot_be_used_fails_all(hooks: Hooks) -> None:
    class Broken:
        def send(self, events: Any, keys: Any) -> Any:
            raise SinkError("no such queue")

        def close(self) -> None:
            """Nothing."""

    response = send_event(hooks.make(Broken()), BRIDGE)
    assert (response.status, response.headers["retry-after"]) == (503, "5")
    assert "queue" not in str(response.body)


def test_a_letter_that_its_queue_cannot_hold_does_not_affect_others(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    """They run in one batch. Only the sender of what cannot be kept must send it again."""
    begun, go_on = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        begun.set()
        assert go_on.wait(60)

    letters = DeadQueue("sqs://dead?region=eu-west-1")
    app = hooks.make(handle, threads=1, dead_letters=letters)
    noise = b"{" + b"".join(sha256(b"%d" % each).digest() for each in range(30_000))

    async def together() -> list[Reply]:
        first = asyncio.create_task(ask(app, BRIDGE))
        await asyncio.to_thread(begun.wait)
        others = [asyncio.create_task(ask(app, each)) for each in (noise, {**BRIDGE, "id": "e-2"})]
        while app.in_progress < 3:
            await asyncio.sleep(0.01)
        go_on.set()
        return list(await asyncio.gather(first, *others))

    response = asyncio.run(together())
    letters.close()
    assert [(each.status, each.body["outcome"]) for each in response] == [
        (200, "processed"),
        (503, "unknown"),
        (200, "processed"),
    ]
    assert "bytes even when compressed, over the 1,047,552 of a message" in caplog.text


def test_a_handler_that_wants_to_end_the_process_only_ends_its_batch(hooks: Hooks) -> None:
    def handle(event: Event) -> None:
        if event.id == "bad":
            raise SystemExit

    app = hooks.make(handle, threads=1)
    assert send_event(app, {**BRIDGE, "id": "bad"}).status == 503
    assert send_event(app, BRIDGE).status == 200


@pytest.mark.parametrize("bound", ["max_body", "max_waiting", "threads", "batch"])
def test_nothing_fits_into_nothing(bound: str, hooks: Hooks) -> None:
    with pytest.raises(ConfigError, match=bound):
        hooks.make(None, None, **{bound: 0})


def test_a_failure_is_reported_without_details(hooks: Hooks) -> None:
    def handle(event: Event) -> None:
        raise ValueError("the password is 1234")

    response = send_event(hooks.make(handle), BRIDGE)
    assert (response.status, response.body) == (500, {"outcome": "failed"})


# --- dead letters ---


def test_what_fails_for_good_is_kept_and_need_not_be_redelivered(bench: Bench, hooks: Hooks, tmp_path: Path) -> None:
    def handle(event: Event) -> None:
        raise ValueError("never")

    dead = DeadFile(str(tmp_path / "dead.jsonl"))
    app = hooks.make(handle, bench.once(max_attempts=2), dead_letters=dead)
    responses = [send_event(app, BRIDGE, x_github_delivery="g-1") for _ in range(2)]
    dead.close()
    assert [(each.status, each.body["outcome"]) for each in responses] == [(500, "failed"), (200, "failed")]
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert (letter["outcome"], letter["attempts"], json.loads(letter["body"])) == ("failed", 2, BRIDGE)
    assert letter["headers"] == {"x-github-delivery": "g-1"}


def test_what_is_rejected_is_kept_and_reported(hooks: Hooks, tmp_path: Path) -> None:
    async def handle(event: Event) -> None:
        raise EventRejected("of no use")

    dead, watched = DeadFile(str(tmp_path / "dead.jsonl")), []
    app = hooks.make(handle, dead_letters=dead, watch=lambda delivery, outcome: watched.append(outcome.kind))
    response = send_event(app, {"n": 1}, ce_specversion="1.0", ce_id="c-1", ce_source="/shop", ce_type="order")
    dead.close()
    assert (response.status, response.body) == (400, {"outcome": "rejected", "error": "of no use"})
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert json.loads(letter["body"]) == {**CLOUD, "datacontenttype": "application/json"}
    assert watched == ["rejected"]


@pytest.mark.parametrize("body", [b'{"n": ', b"[1, 2]", b"[[]]"])
def test_what_cannot_be_read_at_all_is_kept_too(body: bytes, hooks: Hooks, tmp_path: Path) -> None:
    dead = DeadFile(str(tmp_path / "dead.jsonl"))
    response = send_event(hooks.make(dead_letters=dead), body)
    dead.close()
    assert (response.status, response.headers["eventonce-outcome"]) == (400, "rejected")
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert letter["body"].encode() == body
    assert letter["reason"] == response.body["error"]


def test_a_request_is_kept_once_however_much_of_it_cannot_be_read(hooks: Hooks, tmp_path: Path) -> None:
    dead = DeadFile(str(tmp_path / "dead.jsonl"))
    response = send_event(hooks.make(dead_letters=dead), [1, CLOUD, *range(1000)])
    dead.close()
    assert response.status == 400
    assert [event.id for event in hooks.seen] == ["c-1"]
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert json.loads(letter["body"]) == [1, CLOUD, *range(1000)]
    assert "1,000 more" in letter["reason"]


# --- the server's own protocol ---


def test_it_starts_and_stops_with_its_server(hooks: Hooks) -> None:
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    responses: list[str] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        responses.append(message["type"])

    asyncio.run(hooks.make()({"type": "lifespan"}, receive, send))
    assert responses == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_scope_that_is_not_a_request_is_ignored(hooks: Hooks) -> None:
    async def never(*_: Any) -> Any:
        raise AssertionError

    asyncio.run(hooks.make()({"type": "websocket"}, never, never))


def test_threads_share_the_work_of_a_slow_handler(hooks: Hooks) -> None:
    together = threading.Barrier(4, timeout=60)

    def handle(event: Event) -> None:
        together.wait()

    app = hooks.make(handle, threads=4)

    async def crowd() -> list[Reply]:
        return await asyncio.gather(*(ask(app, {**BRIDGE, "id": f"{number}"}) for number in range(8)))

    assert {response.status for response in asyncio.run(crowd())} == {200}
