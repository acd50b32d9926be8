"""The webhook under its own server: real sockets, and clients that do not behave."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eventonce import Event, Once, Rule
from eventonce.dead_letters import open_dead_letters
from eventonce.errors import SourceError
from eventonce.webhook import IdempotencyMiddleware, Webhook, body, linger, serve
from eventonce.webhook.address import ListenAddress
from eventonce.webhook.asgi import Receive, Scope, Send
from eventonce.webhook.serve import WebhookServer

EVENT = {"id": "e-1", "source": "shop", "detail-type": "Order", "detail": {"n": 1}, "time": "2026-01-05T09:00:00Z"}
PATIENCE = 60.0


class House:
    """Starts servers on ports of their own, and stops them after the test."""

    def __init__(self, folder: Path) -> None:
        self._dead = open_dead_letters(str(folder / "dead.jsonl"))
        self._once = Once("memory:")
        self._running: list[tuple[WebhookServer, threading.Thread]] = []
        self.left: list[int] = []
        self.seen: list[Event] = []

    def start(
        self, handler: Callable[[Event], Any] | None = None, query: str = "", grace: int = 30_000
    ) -> ListenAddress:
        server = WebhookServer(
            self._once, handler or self.seen.append, f"http://127.0.0.1:0/events?{query}", self._dead
        )
        thread = threading.Thread(target=lambda: self.left.append(server.run(grace)))
        thread.start()
        self._running.append((server, thread))
        return server.address

    def use(self, once: Once) -> None:
        self._once.close()
        self._once = once

    def stop(self) -> None:
        for server, thread in self._running:
            server.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        self._running = []

    def close(self) -> None:
        self.stop()
        self._once.close()
        self._dead.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def post(place: ListenAddress, event: dict[str, Any], **more: Any) -> httpx.Response:
    return httpx.post(str(place), json=event, timeout=PATIENCE, verify=False, **more)


def connected(place: ListenAddress, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection((place.host, place.port), timeout=PATIENCE)
    made.sendall(sent)
    return made


def everything(made: socket.socket) -> bytes:
    """All that the server says until it closes."""
    received = b""
    try:
        while part := made.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    made.close()
    return received


def test_events_come_in_once(house: House) -> None:
    place = house.start()
    with httpx.Client() as client:
        answers = [client.post(str(place), json=EVENT) for _ in range(3)]
        assert client.post(f"{place}/other", json=EVENT).status_code == 404
    assert [answer.headers["eventonce-outcome"] for answer in answers] == ["processed", "duplicate", "duplicate"]
    assert [event.id for event in house.seen] == ["e-1"]


def test_copies_at_the_same_time_run_once(house: House) -> None:
    place = house.start()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: post(place, EVENT), range(64)))
    replies = [answer.headers["eventonce-outcome"] for answer in answers if answer.status_code == 200]
    assert replies.count("processed") == 1
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert len(house.seen) == 1


def test_waiting_clients_get_a_response_before_the_end(house: House) -> None:
    begun, go = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    place = house.start(handle)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(post, place, EVENT)
        assert begun.wait(PATIENCE)
        stopping = pool.submit(house.stop)
        go.set()
        assert waiting.result().status_code == 200
        stopping.result()
    assert house.left == [0]
    with pytest.raises(httpx.ConnectError):
        post(place, EVENT)


def test_a_handler_that_is_stuck_does_not_keep_it_from_ending(house: House) -> None:
    begun, go = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        begun.set()
        go.wait(PATIENCE)

    place = house.start(handle, "deadline=10ms", grace=0)
    assert post(place, EVENT).status_code == 503
    assert begun.wait(PATIENCE)
    house.stop()
    assert house.left == [1]
    go.set()


def test_a_run_that_outlived_its_request_is_waited_for(house: House) -> None:
    begun, go = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        begun.set()
        go.wait(PATIENCE)

    place = house.start(handle, "deadline=10ms")
    assert post(place, EVENT).status_code == 503
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(house.stop)
        go.set()
        stopping.result()
    assert house.left == [0]


def test_a_port_in_use_is_reported(house: House, tmp_path: Path) -> None:
    place = house.start()
    with Once("memory:") as once, pytest.raises(SourceError, match="cannot listen"):
        WebhookServer(once, print, str(place), open_dead_letters(str(tmp_path / "other.jsonl")))


def test_only_the_signed_pass(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    monkeypatch.setenv("HOOK_SECRET", "s-1")
    place = house.start(query="auth=github&secret_env=HOOK_SECRET")
    whole = json.dumps({"action": "opened"}).encode()
    digest = hmac.new(b"s-1", whole, "sha256").hexdigest()
    signed = {"x-hub-signature-256": f"sha256={digest}", "x-github-delivery": "g"}
    answers = [
        httpx.post(str(place), content=content, headers=headers)
        for content, headers in [(whole, {}), (whole + b" ", signed), (whole, signed), (whole, signed)]
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 200, 200]
    assert answers[3].json() == {"outcome": "duplicate"}


def test_a_captured_request_is_the_same_event(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    monkeypatch.setenv("HOOK_SECRET", "s-1")
    body = b'{"id": "order-7"}'
    signature = f"sha256={hmac.new(b's-1', body, 'sha256').hexdigest()}"
    signed = {"x-hub-signature-256": signature, "x-github-delivery": "g-1", "content-type": "application/json"}
    renamed = {**signed, "x-github-delivery": "g-2"}
    forged = {**signed, "ce-specversion": "1.0", "ce-id": "order-8", "ce-source": "/bank", "ce-type": "transfer"}
    for trusted, outcome in (("", "duplicate"), ("&trust_headers=x-github-delivery", "processed")):
        place = house.start(query=f"auth=github&secret_env=HOOK_SECRET{trusted}")
        replies = [httpx.post(str(place), content=body, headers=headers) for headers in (signed, renamed, forged)]
        assert [answer.status_code for answer in replies] == [200, 200, 400]
        assert replies[1].json() == {"outcome": outcome}
    assert [event.id for event in house.seen][1:] == ["g-1", "g-2"]
    assert not [event for event in house.seen if event.source]


def test_a_header_cannot_be_set_in_the_body(house: House) -> None:
    rule = Rule(name="requests", key=['headers."idempotency-key"'])
    with Once("memory:", rules=rule) as once:
        house.use(once)
        place = house.start()
        extension = {"headers": {"idempotency-key": "victim"}}
        assert post(place, extension).status_code == 400
        assert post(place, extension, headers={"idempotency-key": "victim"}).json() == {"outcome": "processed"}
        house.stop()


# --- clients that do not behave ---

HEAD = b"POST /events HTTP/1.1\r\nhost: x\r\n"


def test_huge_headers_and_bodies_and_nonsense_are_refused_and_stop_nobody(house: House) -> None:
    place = house.start(query="max_body=1000")
    everything(connected(place, HEAD + b"x-large: " + b"x" * 100_000))  # closed, perhaps before the response arrives
    assert everything(connected(place, b"\x16\x03\x01 this is not HTTP\r\n\r\n")).startswith(b"HTTP/1.1 400")
    announced = everything(connected(place, HEAD + b"content-length: 1000000000000\r\n\r\n"))
    assert announced.startswith(b"HTTP/1.1 413")
    chunk = b"transfer-encoding: chunked\r\n\r\n800\r\n" + b"x" * 0x800 + b"\r\n"
    assert everything(connected(place, HEAD + chunk)).startswith(b"HTTP/1.1 413")
    assert post(place, EVENT).status_code == 200


MEGABYTE = b"x" * 1_000_000


@contextmanager
def under_uvicorn(app: Any) -> Iterator[ListenAddress]:
    """Somebody's own server, as they would start it."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield ListenAddress("127.0.0.1", listening.getsockname()[1], "/events", None, {})
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def send_all(
    place: ListenAddress, megabytes: int, *, announced: bool, path: str = "", method: str = "POST"
) -> http.client.HTTPResponse:
    """Send a request as most clients do: read nothing before all is sent, and fail on a reset."""
    client = http.client.HTTPConnection(place.host, place.port, timeout=PATIENCE)
    body: Any = MEGABYTE * megabytes if announced else (MEGABYTE for _ in range(megabytes))
    client.request(method, place.path + path, body, {"Idempotency-Key": "k"}, encode_chunked=not announced)
    return client.getresponse()


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize(
    ("megabytes", "path", "method", "status"),
    [
        (2, "", "POST", 413),
        (12, "", "POST", 413),
        (60, "", "POST", 413),
        (12, "/other", "POST", 404),
        (12, "", "PUT", 405),
    ],
)
def test_whoever_sends_too_much_sees_why(
    megabytes: int,
    path: str,
    method: str,
    status: int,
    announced: bool,
    house: House,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linger, "_MAX_SECONDS", PATIENCE)
    place = house.start()
    answer = send_all(place, megabytes, announced=announced, path=path, method=method)
    assert (answer.status, answer.getheader("connection")) == (status, "close")
    assert json.loads(answer.read())["error"]
    assert post(place, EVENT).status_code == 200


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("idempotent", [True, False])
def test_whoever_sends_too_much_sees_why_under_another_server(
    announced: bool, idempotent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "_PAUSE", PATIENCE)
    with Once("memory:") as once:
        hook = Webhook(once, print)
        with under_uvicorn(
            IdempotencyMiddleware(hook, store="memory:", required=True) if idempotent else hook
        ) as place:
            assert send_all(place, 12, announced=announced).status == 413


def test_a_client_that_waits_for_permission_is_refused_at_once(house: House) -> None:
    place = house.start()
    waiting = HEAD + b"expect: 100-continue\r\ncontent-length: 8000000\r\n\r\n"
    assert everything(connected(place, waiting)).startswith(b"HTTP/1.1 413")  # and it has sent nothing
    goes_on = connected(place, HEAD + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n")
    assert goes_on.recv(100).startswith(b"HTTP/1.1 100")
    goes_on.sendall((b"%x\r\n%s\r\n" % (len(MEGABYTE), MEGABYTE)) * 8 + b"0\r\n\r\n")
    assert everything(goes_on).startswith(b"HTTP/1.1 413")


def test_what_is_sent_without_end_after_the_response_is_not_read_forever(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linger, "_MAX_BYTES", 1_000_000)
    place = house.start()
    with connected(place, HEAD + b"content-length: 1000000000000\r\n\r\n") as endless, pytest.raises(ConnectionError):
        endless.sendall(MEGABYTE * 1_000)
    assert post(place, EVENT).status_code == 200


def test_a_server_that_stops_waits_for_nobody_who_only_sends_on(house: House) -> None:
    place = house.start()
    with connected(place, HEAD + b"content-length: 1000000000000\r\n\r\n") as endless:
        assert endless.recv(100).startswith(b"HTTP/1.1 413")
        house.stop()
    assert house.left == [0]


def request_of(size: int, line: bytes) -> bytes:
    """A request whose headers have this size, and whose body is empty."""
    begin = HEAD + b"content-length: 0\r\nconnection: close\r\n"
    lines = line * ((size - len(begin) - 10) // len(line))
    return begin + lines + b"y:" + b"y" * (size - len(begin) - len(lines) - 6) + b"\r\n\r\n"


@pytest.mark.parametrize(("size", "status"), [(32_768, b"400"), (32_769, b"431"), (60_000, b"431"), (200_000, b"431")])
@pytest.mark.parametrize("line", [b"x:x\r\n", b"x:" + b"x" * 30_000 + b"\r\n"])
@pytest.mark.parametrize("pieces", ["one", "several", "behind another request"])
def test_headers_beyond_the_bound_are_refused_however_they_arrive(
    size: int, status: bytes, line: bytes, pieces: str, house: House
) -> None:
    place, sent = house.start(), request_of(size, line)
    assert len(sent) == size
    behind = pieces == "behind another request"
    if behind:
        first = json.dumps(EVENT).encode()
        sent = HEAD + b"content-length: %d\r\n\r\n%s" % (len(first), first) + sent
    made, step = connected(place), 10_000 if pieces == "several" else len(sent)
    with suppress(ConnectionError):  # refused before its end
        for start in range(0, len(sent), step):
            made.sendall(sent[start : start + step])
    replies = everything(made)
    assert replies.startswith(b"HTTP/1.1 200") is behind
    assert b"HTTP/1.1 %s" % status in replies
    assert (b"the headers are larger than the limit of 32,768 bytes" in replies) is (status == b"431")


def test_a_request_whose_body_has_two_lengths_is_refused_and_nothing_behind_it_is_read(house: House) -> None:
    place, hidden = house.start(), json.dumps(EVENT).encode()
    behind = HEAD + b"content-length: %d\r\n\r\n%s" % (len(hidden), hidden)
    for lengths in (
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    ):
        replies = everything(connected(place, HEAD + lengths + b"\r\n\r\n0\r\n\r\n" + behind))
        assert replies.startswith(b"HTTP/1.1 400")
        assert replies.count(b"HTTP/1.1") == 1
    assert house.seen == []


@pytest.mark.parametrize(("size", "status"), [(1, 400), (10, 400), (100, 200), (5_000, 200)])
def test_a_body_in_tiny_chunks_is_refused_when_there_are_a_great_many(size: int, status: int, house: House) -> None:
    place = house.start()
    whole = json.dumps({**EVENT, "detail": {"x": "x" * 100_000}}).encode()
    chunks = [
        b"%x\r\n%s\r\n" % (len(part), part) for part in (whole[at : at + size] for at in range(0, len(whole), size))
    ]
    made = connected(place)
    with suppress(ConnectionError):
        made.sendall(
            HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"
        )
    assert everything(made).startswith(b"HTTP/1.1 %d" % status)
    assert len(house.seen) == (status == 200)
    assert post(place, {**EVENT, "id": "e-2"}).status_code == 200


def test_a_body_that_never_ends_is_given_up(house: House) -> None:
    place = house.start(query="patience=100ms")
    stuck = [connected(place, HEAD + b"content-length: 100\r\n\r\n{") for _ in range(50)]
    assert post(place, EVENT).status_code == 200
    assert all(everything(each).startswith(b"HTTP/1.1 408") for each in stuck)


def test_a_connection_that_asks_nothing_is_closed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_HEADERS", 0.1)
    place = house.start()
    silent = [connected(place, sent) for sent in (b"", b"POST /ev", HEAD) for _ in range(20)]
    assert post(place, EVENT).status_code == 200
    assert [everything(each) for each in silent] == [b""] * 60


def test_a_client_that_sends_without_end_and_never_reads_is_closed(house: House) -> None:
    place = house.start()
    flood = (HEAD + b"content-length: 2\r\n\r\n{}") * 20_000
    with connected(place) as deaf, pytest.raises((ConnectionResetError, BrokenPipeError)):
        deaf.sendall(flood * 100)
    assert post(place, EVENT).status_code == 200


def test_an_answer_that_nobody_takes_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Talkative(Webhook):
        async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            gone = asyncio.ensure_future(receive())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not gone.done():
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            over.set()

    monkeypatch.setattr(serve, "Webhook", Talkative)
    monkeypatch.setattr(serve, "_SENDING", 0.1)
    place = house.start(query="patience=100ms&deadline=100ms")
    with connected(place, HEAD + b"content-length: 0\r\n\r\n"):
        assert over.wait(PATIENCE)


def test_connections_above_the_limit_get_503_and_idle_ones_are_closed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_MAX_CONNECTIONS", 16)
    place = house.start()
    crowd = [connected(place) for _ in range(40)]
    replies = [everything(each) for each in crowd]
    away = [each for each in replies if each.startswith(b"HTTP/1.1 503")]
    assert away
    assert all(b"retry-after: 5" in each for each in away)
    assert set(replies) - set(away) == {b""}
    assert post(place, EVENT).status_code == 200


def test_a_client_that_disconnects_early_leaves_nothing_behind(house: House) -> None:
    place = house.start()
    whole = json.dumps(EVENT).encode()
    for sent in (
        HEAD,
        HEAD + b"content-length: 100\r\n\r\n{",
        HEAD + b"content-length: %d\r\n\r\n%s" % (len(whole), whole),
    ):
        connected(place, sent).close()
    assert post(place, EVENT).status_code == 200
    assert len(house.seen) == 1


def test_beyond_its_bound_it_answers_503_and_goes_on(house: House) -> None:
    go = threading.Event()
    place = house.start(lambda event: go.wait(PATIENCE), "max_waiting=5")
    with ThreadPoolExecutor(20) as pool:
        ended = as_completed(pool.submit(post, place, {**EVENT, "id": f"{number}"}) for number in range(20))
        away = [next(ended).result() for _ in range(15)]
        go.set()
        done = [each.result() for each in ended]
    assert {(answer.status_code, answer.headers["retry-after"]) for answer in away} == {(503, "5")}
    assert [answer.status_code for answer in done] == [200] * 5
    assert post(place, EVENT).status_code == 200


# --- somebody's own endpoints ---


def test_under_a_real_server_callers_with_one_key_are_told_apart() -> None:
    ran: list[str] = []

    async def charge(request: Request) -> Response:
        ran.append(request.headers["host"])
        return JSONResponse({"charge": len(ran)}, 201)

    app = Starlette(routes=[Route("/events", charge, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, store="memory:")
    with under_uvicorn(app) as place:
        senders = [b"host: a\r\n", b"host: b\r\n", b"host: a\r\nauthorization: x\r\nauthorization: y\r\n"]
        senders += [b"host: a\r\nauthorization: x\r\n", b"host: a\r\ncookie: s=1\r\n"]
        end = b"idempotency-key: k\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        for _ in range(2):
            replies = [everything(connected(place, b"POST /events HTTP/1.1\r\n" + each + end)) for each in senders]
            assert [json.loads(each.partition(b"\r\n\r\n")[2])["charge"] for each in replies] == [1, 2, 3, 4, 5]
