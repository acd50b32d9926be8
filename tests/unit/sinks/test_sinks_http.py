"""The HTTP sink against a real receiver: what is sent, what is tried again, and what each answer means."""

import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from eventonce.claims.outcome import OutcomeKind
from eventonce.errors import ConfigError, EventRejected, SinkDown, SinkError
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.sinks import open_sink
from eventonce.sinks.batching import MAX_ATTEMPTS
from eventonce.sinks.http import HttpSink
from eventonce.testing.clock import ManualClock
from tests.unit.conftest import Bench

NOW = 1_767_225_600_000  # 2026-01-01, where the clock stands


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int = 200
    headers: dict[str, str] | None = None
    body: bytes = b""


class Server(ThreadingHTTPServer):
    """Says nothing of clients that hang up."""

    daemon_threads = True
    request_queue_size = 128  # or a connection that nobody has accepted yet counts as nobody there

    def handle_error(self, *args: Any) -> None:
        pass


class Receiver:
    """Keeps what it gets, and answers by script: the next answer, or the last one again and again."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[Answer | None] = [Answer()]  # None: no answer, and the connection is cut
        self.by_key: dict[str, Answer] = {}
        self.hanging = False
        self.free = threading.Event()
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.serve(self, Request(self.path, headers, body))

            def log_message(self, *args: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def serve(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            answer = self.by_key.get(request.headers["idempotency-key"], self.answers[0])
            if len(self.answers) > 1:
                self.answers.pop(0)
        if self.hanging:
            self.free.wait()
        if answer is None or self.hanging:
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **(answer.headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.body)

    def close(self) -> None:
        self.free.set()
        self.server.shutdown()
        self.server.server_close()


class Watch(ManualClock):
    """A clock that notes how long it was asked to sleep."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.slept: list[int] = []

    def sleep(self, duration: int) -> None:
        self.slept.append(duration)
        super().sleep(duration)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def clock() -> Watch:
    return Watch()


@pytest.fixture
def opened(clock: Watch) -> Iterator[Callable[[str], HttpSink]]:
    made: list[HttpSink] = []

    def make(url: str) -> HttpSink:
        made.append(HttpSink(url, clock))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def sink(receiver: Receiver, opened: Callable[[str], HttpSink]) -> HttpSink:
    return opened(receiver.url)


def event(number: int = 1) -> Event:
    return read_event(b'{"id": "%d", "amount": 5}' % number)


def send(sink: HttpSink, count: int = 1) -> list[Exception | None]:
    return list(sink.send([event(number) for number in range(count)], [f"key-{number}" for number in range(count)]))


# --- what is sent ---


def test_an_event_is_posted_as_it_came_with_its_key(sink: HttpSink, receiver: Receiver) -> None:
    assert sink.send([read_event(b'{"id":"1",  "amount":5}')], ["abc"]) == [None]

    (request,) = receiver.requests
    assert request.path == "/events"
    assert request.body == b'{"id":"1",  "amount":5}'
    assert request.headers["idempotency-key"] == "abc"
    assert request.headers["content-type"] == "application/json"
    assert "authorization" not in request.headers


def test_a_cloudevent_has_its_content_type(sink: HttpSink, receiver: Receiver) -> None:
    sink.send([read_event({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"})], ["abc"])

    assert receiver.requests[0].headers["content-type"] == "application/cloudevents+json"


def test_the_query_is_the_receivers_and_what_is_behind_the_hash_is_ours(
    receiver: Receiver, opened: Callable[[str], HttpSink]
) -> None:
    send(opened(f"{receiver.url}?timeout=never&a=%2F#timeout=5s"))

    assert receiver.requests[0].path == "/events?timeout=never&a=%2F"


def test_a_token_comes_from_the_environment(
    receiver: Receiver, opened: Callable[[str], HttpSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret\n")
    send(opened(f"{receiver.url}#token_env=API_TOKEN"))
    send(opened(f"{receiver.url}#token_env=API_TOKEN&header=x-api-key"))

    bearer, named = receiver.requests
    assert bearer.headers["authorization"] == "Bearer s3cret"
    assert named.headers["x-api-key"] == "s3cret"
    assert "authorization" not in named.headers


@pytest.mark.parametrize("token", [None, "", " \n"])
def test_a_token_that_is_not_there_stops_everything(
    token: str | None, receiver: Receiver, opened: Callable[[str], HttpSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("API_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("API_TOKEN", token)
    sink = opened(f"{receiver.url}#token_env=API_TOKEN")

    with pytest.raises(SinkError, match="environment variable API_TOKEN is not set or blank"):
        send(sink)
    assert receiver.requests == []


@pytest.mark.parametrize("token", ["sécret", "se\ncret"])
def test_a_token_that_no_header_can_carry_stops_everything(
    token: str, receiver: Receiver, opened: Callable[[str], HttpSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", token)

    with pytest.raises(SinkDown, match="TOKEN holds what no header can carry") as caught:
        send(opened(f"{receiver.url}#token_env=TOKEN"))
    assert token not in str(caught.value)
    assert receiver.requests == []


def test_credentials_that_the_receiver_repeats_are_not_shown(
    receiver: Receiver, opened: Callable[[str], HttpSink]
) -> None:
    receiver.answers = [Answer(400, body=b"Basic bWU6c2VjcmV0 is wrong")]
    (error,) = send(opened(receiver.url.replace("://", "://me:secret@")))

    assert str(error).endswith("answered 400: Basic *** is wrong")


def test_a_user_and_password_in_the_url_are_sent_and_not_shown(
    receiver: Receiver, opened: Callable[[str], HttpSink], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.answers = [Answer(400, body=b"you said p@ss and that is wrong")]
    (error,) = send(opened(receiver.url.replace("://", "://me:p%40ss@")))

    assert receiver.requests[0].headers["authorization"] == "Basic bWU6cEBzcw=="
    assert str(error) == f"{receiver.url} answered 400: you said *** and that is wrong"
    assert "p@ss" not in caplog.text
    assert "p%40ss" not in caplog.text


def test_many_are_sent_each_with_its_own_key(sink: HttpSink, receiver: Receiver) -> None:
    assert send(sink, 40) == [None] * 40

    assert sorted(request.headers["idempotency-key"] for request in receiver.requests) == sorted(
        f"key-{number}" for number in range(40)
    )


def test_nothing_is_sent_for_nothing(sink: HttpSink, receiver: Receiver) -> None:
    assert send(sink, 0) == []
    assert receiver.requests == []


# --- what is tried again ---


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again_with_the_same_key(
    status: int, sink: HttpSink, receiver: Receiver, clock: Watch
) -> None:
    receiver.answers = [Answer(status), Answer(status), Answer(202)]

    assert send(sink) == [None]
    assert [request.headers["idempotency-key"] for request in receiver.requests] == ["key-0"] * 3
    assert len({request.body for request in receiver.requests}) == 1
    first, second = clock.slept
    assert 125 <= first <= 250 <= second <= 500


def test_it_is_given_up_after_some_tries(sink: HttpSink, receiver: Receiver) -> None:
    receiver.answers = [Answer(500, body=b"  come\n back  ")]
    (error,) = send(sink)

    assert type(error) is SinkError
    assert str(error) == f"{receiver.url} answered 500: come back"
    assert len(receiver.requests) == MAX_ATTEMPTS


def test_an_answer_that_is_lost_is_asked_for_again(sink: HttpSink, receiver: Receiver) -> None:
    receiver.answers = [None, Answer()]

    assert send(sink) == [None]
    assert [request.headers["idempotency-key"] for request in receiver.requests] == ["key-0"] * 2


@pytest.mark.parametrize(
    ("retry_after", "slept"),
    [("3", 3000), ("0", 0), ("Thu, 01 Jan 2026 00:00:04 GMT", 4000), ("Wed, 31 Dec 2025 00:00:00 GMT", 0), ("soon", 0)],
)
def test_a_retry_after_is_honoured(
    retry_after: str, slept: int, sink: HttpSink, receiver: Receiver, clock: Watch
) -> None:
    receiver.answers = [Answer(429, {"Retry-After": retry_after}), Answer()]

    assert send(sink) == [None]
    assert slept < clock.slept[0] <= slept + 250


def test_a_wish_to_wait_for_long_is_left_to_the_engine(sink: HttpSink, receiver: Receiver, clock: Watch) -> None:
    receiver.answers = [Answer(503, {"Retry-After": "120"})]
    (error,) = send(sink)

    assert isinstance(error, SinkDown)
    assert str(error) == f"{receiver.url} answered 503; it allows no retry for 120 s"
    assert error.retry_at == clock.utc() + 120_000
    assert len(receiver.requests) == 1
    assert clock.slept == []


# --- what is not ---


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 413, 422])
def test_other_refusals_reject_the_event(status: int, sink: HttpSink, receiver: Receiver) -> None:
    receiver.answers = [Answer(status, body=b"x" * 1000)]
    (error,) = send(sink)

    assert isinstance(error, EventRejected)
    assert str(error) == f"{receiver.url} answered {status}: {'x' * 200}"
    assert len(receiver.requests) == 1


def test_one_refused_event_does_not_keep_the_others_back(sink: HttpSink, receiver: Receiver) -> None:
    receiver.by_key = {"key-3": Answer(422), "key-5": Answer(500)}
    answers = send(sink, 20)

    assert isinstance(answers.pop(3), EventRejected)
    assert type(answers.pop(4)) is SinkError
    assert answers == [None] * 18


def test_wrong_credentials_stop_everything(sink: HttpSink, receiver: Receiver) -> None:
    receiver.answers = [Answer(401, body=b"who are you")]

    with pytest.raises(SinkError, match=r"answered 401: who are you; fix the credentials"):
        send(sink, 50)
    assert len(receiver.requests) < 50


def test_what_was_sent_before_the_credentials_ended_counts_as_sent(sink: HttpSink, receiver: Receiver) -> None:
    receiver.by_key = {"key-0": Answer(200)}
    receiver.answers = [Answer(401)]
    first, *others = send(sink, 20)

    assert first is None
    assert all(isinstance(answer, SinkError) for answer in others)


@pytest.mark.parametrize(
    ("headers", "there"),
    [({"Location": "https://me:pw@new.example.com/in?key=1"}, "https://new.example.com/in"), ({}, "nowhere")],
)
def test_redirects_are_reported_and_not_followed(
    headers: dict[str, str], there: str, sink: HttpSink, receiver: Receiver
) -> None:
    receiver.answers = [Answer(308, headers)]

    with pytest.raises(SinkError, match=f"answered 308 and redirects to {there}; use the final URL"):
        send(sink)
    assert len(receiver.requests) == 1


def test_a_token_that_the_receiver_repeats_is_not_shown(
    receiver: Receiver, opened: Callable[[str], HttpSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    receiver.answers = [Answer(400, body=b'{"authorization": "Bearer s3cret"}')]
    (error,) = send(opened(f"{receiver.url}?key=hidden#token_env=API_TOKEN"))

    assert str(error) == f'{receiver.url} answered 400: {{"authorization": "Bearer ***"}}'


def test_an_event_that_has_no_json_form_is_rejected(sink: HttpSink, receiver: Receiver) -> None:
    good, bad = sink.send([event(), Event(id="1", data={"what": object()})], ["a", "b"])

    assert good is None
    assert isinstance(bad, EventRejected)


# --- receivers in trouble ---


def test_a_receiver_that_hangs_is_not_waited_for(receiver: Receiver, opened: Callable[[str], HttpSink]) -> None:
    receiver.hanging = True
    (error,) = send(opened(f"{receiver.url}#timeout=50ms"))

    assert type(error) is SinkError
    assert str(error) == f"{receiver.url} did not answer (ReadTimeout); trying again later may help"
    assert [request.headers["idempotency-key"] for request in receiver.requests] == ["key-0"] * MAX_ATTEMPTS


def test_a_receiver_that_hangs_does_not_get_all_of_a_batch(
    receiver: Receiver, opened: Callable[[str], HttpSink]
) -> None:
    receiver.hanging = True
    answers = send(opened(f"{receiver.url}#timeout=400ms"), 100)

    sent = {request.headers["idempotency-key"] for request in receiver.requests}
    assert len(sent) < 100
    for number, answer in enumerate(answers):  # what was never sent cannot be to blame
        assert type(answer) is (SinkError if f"key-{number}" in sent else SinkDown)


@pytest.mark.parametrize("answer", [Answer(429, {"Retry-After": "60"}), Answer(503)])
def test_a_receiver_that_has_too_much_to_do_costs_no_event_its_attempts(
    answer: Answer, bench: Bench, sink: HttpSink, receiver: Receiver
) -> None:
    receiver.answers = [answer]
    once = bench.once(max_attempts=2)
    outcomes = [once.run([{"id": "1"}], sink)[0] for _ in range(5)]

    assert [(outcome.kind, outcome.final) for outcome in outcomes] == [(OutcomeKind.FAILED, False)] * 5
    receiver.answers = [Answer()]
    assert once.run([{"id": "1"}], sink)[0].kind is OutcomeKind.PROCESSED


def test_an_unreachable_receiver(receiver: Receiver, opened: Callable[[str], HttpSink], clock: Watch) -> None:
    receiver.close()
    (error,) = send(opened(receiver.url))

    assert type(error) is SinkDown
    assert "did not answer (ConnectError)" in str(error)
    assert len(clock.slept) == MAX_ATTEMPTS - 1


def test_an_endless_answer_is_read_to_a_bound_only(sink: HttpSink, receiver: Receiver) -> None:
    receiver.answers = [Answer(200, {"Content-Length": "1000000000000"}, b"x" * 200_000)]

    assert send(sink) == [None]


# --- opening ---


def test_it_is_opened_by_url_and_connects_to_nothing() -> None:
    sink = open_sink("https://nobody.invalid/in#timeout=1s")

    assert isinstance(sink, HttpSink)
    sink.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https:///in", "names no host"),
        ("https://host:port/in", "is not a URL"),
        ("https://[1/in", "is not a URL"),
        ("https://me:pw@host/in?key=1#retries=3", "https://host/in: unknown option #retries; use timeout"),
        ("https://host/in#timeout=fast", "timeout: 'fast' is not a duration"),
        ("https://host/in#timeout=0", "timeout: '0' is not a duration"),
        ("https://host/in#timeout=0s", "timeout: 0 leaves no time"),
        ("https://host/in#header=x-api-key", "header= has no value; add token_env="),
        ("https://host/in#token_env=", "token_env= names no environment variable; write token_env=NAME"),
        ("https://host/in#token_env=T&header=x api", "header=x api is not a valid header"),
        ("https://host/in#token_env=T&header=Idempotency-Key", "header=Idempotency-Key is not a valid header"),
    ],
)
def test_a_wrong_url_is_reported_without_its_secrets(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_sink(url)
    assert reason in str(caught.value)
    assert "pw" not in str(caught.value)
    assert "key=1" not in str(caught.value)


# --- with the engine ---


def test_every_event_arrives_once(bench: Bench, sink: HttpSink, receiver: Receiver) -> None:
    events = [{"id": str(number % 5)} for number in range(15)]
    once = bench.once()
    kinds = [outcome.kind for outcome in once.run(events, sink)]
    again = [outcome.kind for outcome in once.run(events, sink)]

    assert kinds == [OutcomeKind.PROCESSED] * 5 + [OutcomeKind.DUPLICATE] * 10
    assert again == [OutcomeKind.DUPLICATE] * 15
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == len(receiver.requests) == 5


def test_a_failed_event_has_the_same_key_when_it_is_redelivered(
    bench: Bench, sink: HttpSink, receiver: Receiver
) -> None:
    receiver.answers = [*[Answer(500)] * MAX_ATTEMPTS, Answer(200)]
    once = bench.once()

    assert [once.run([{"id": "1"}], sink)[0].kind for _ in range(3)] == [
        OutcomeKind.FAILED,
        OutcomeKind.PROCESSED,
        OutcomeKind.DUPLICATE,
    ]
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 1


def test_a_refused_event_is_rejected_by_the_engine(bench: Bench, sink: HttpSink, receiver: Receiver) -> None:
    receiver.answers = [Answer(422, body=b"no amount")]
    (outcome,) = bench.once().run([{"id": "1"}], sink)

    assert outcome.kind is OutcomeKind.REJECTED
    assert str(outcome.error).endswith("answered 422: no amount")
