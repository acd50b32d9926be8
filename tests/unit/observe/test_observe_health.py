"""Health over HTTP, with real sockets."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest

from eventonce import ConfigError, Once, StoreError
from eventonce.observe.health import Health, listen_address
from eventonce.observe.status import Status
from eventonce.testing import ManualClock
from tests.unit.conftest import Bench, Faulty

Start = Callable[..., Health]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda *args, **named: stack.enter_context(Health(*args, **named))


def get(health: Health, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", health.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def probe_of(once: Once) -> Callable[[], object]:
    return lambda: once.peek([once.key({"id": "a"})])


def test_a_worker_lives_and_is_ready(bench: Bench, start: Start) -> None:
    status = Status("billing")
    once = bench.once(hooks=[status])
    health = start(status, probe_of(once))

    assert get(health, "/healthz") == (200, "alive\n")
    assert get(health, "/readyz") == (200, "ready\n")  # it was never asked before, so it is asked now
    assert status.snapshot().store_calls == {"peek": 1}
    assert get(health, "/readyz?x=1") == (200, "ready\n")
    assert status.snapshot().store_calls == {"peek": 1}  # that was lately


def test_an_answer_of_long_ago_is_asked_for_again(bench: Bench, start: Start) -> None:
    clock = ManualClock()
    status = Status(clock=clock)
    once = bench.once(hooks=[status])
    health = start(status, probe_of(once))

    get(health, "/readyz")
    clock.sleep(11_000)
    get(health, "/readyz")

    assert status.snapshot().store_calls == {"peek": 2}


def test_it_is_not_ready_while_the_store_does_not_answer(bench: Bench, start: Start) -> None:
    store, status = Faulty("claim", "release"), Status()
    once = bench.once(store, hooks=[status])
    down = True

    def probe() -> None:
        if down:
            raise StoreError("no\nanswer")
        once.peek([once.key({"id": "a"})])

    health = start(status, probe)
    once.run([{"id": "a"}], lambda event: None)

    assert get(health, "/readyz") == (503, "not ready: no answer\n")
    assert get(health, "/healthz") == (200, "alive\n")
    down = False
    assert get(health, "/readyz") == (200, "ready\n")


def test_a_store_that_hangs_is_asked_by_one_only(start: Start) -> None:
    probed, answer = threading.Event(), threading.Event()

    def probe() -> None:
        probed.set()
        answer.wait(30)

    health = start(Status(), probe)
    first: list[tuple[int, str]] = []
    waiting = threading.Thread(target=lambda: first.append(get(health, "/readyz")))
    waiting.start()
    assert probed.wait(30)

    assert get(health, "/readyz") == (503, "not ready: the store has not answered yet\n")
    answer.set()
    waiting.join()
    assert first == [(200, "ready\n")]


def test_the_numbers_of_a_worker(bench: Bench, start: Start) -> None:
    status = Status("billing")
    once = bench.once(hooks=[status])
    health = start(status, probe_of(once))
    inside: list[int] = []

    once.run([{"id": "a"}, {"id": "a"}, b"{"], lambda event: inside.append(status.snapshot().in_flight))

    code, body = get(health, "/status.json")
    numbers = json.loads(body)
    assert code == 200
    assert inside == [1]
    assert (numbers["consumer"], numbers["in_flight"], numbers["runs"], numbers["dead_letters"]) == ("billing", 0, 1, 1)
    assert numbers["outcomes"] == {"id": {"processed": 1, "duplicate": 1}, "-": {"rejected": 1}}
    assert (numbers["store_errors"], numbers["last_store_error"], numbers["lag_seconds"]) == ({}, None, None)


def test_metrics_where_there_are_any(start: Start) -> None:
    assert get(start(Status(), lambda: None, metrics=lambda: b"x 1\n"), "/metrics") == (200, "x 1\n")
    assert get(start(Status(), lambda: None), "/metrics")[0] == 404


def test_other_pages_and_methods(start: Start) -> None:
    health = start(Status(), lambda: None)

    assert get(health, "/") == (404, "/healthz, /readyz, /status.json, /metrics\n")
    assert get(health, "/healthz", "POST")[0] == 501


# --- by which name it is reached ---


def get_as(health: Health, host: str | None, path: str = "/status.json") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", health.port, timeout=10)
    try:
        connection.putrequest("GET", path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9090", "10.1.2.3:9090", "10.1.2.3", "[::1]:9090", "[fd00::7]", "localhost", "LOCALHOST.:9090",
        "a.localhost", "worker-7:9090", "Metrics.Internal", None,
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/status.json", "/metrics"])
def test_addresses_loopback_names_and_allowed_names_are_served(start: Start, host: str | None, path: str) -> None:
    health = start(Status(), lambda: None, metrics=lambda: b"x", allowed=["worker-7", "metrics.internal"])

    assert get_as(health, host, path)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example:9090", "127.0.0.1.evil.example", "localhost.evil.example", "", "x\x1b]0;"]
)
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/status.json", "/metrics"])
def test_a_page_whose_name_resolves_to_this_address_reads_nothing(start: Start, host: str, path: str) -> None:
    status, body = get_as(start(Status(), lambda: None, metrics=lambda: b"x"), host, path)

    assert status == 403
    assert "use the IP address, or start with --allow-host NAME\n" in body
    assert body.removesuffix("\n").isprintable()


def test_the_configured_name_is_served(start: Start) -> None:
    health = start(Status(), lambda: None, host="localhost")

    assert health.url == f"http://localhost:{health.port}"
    assert get_as(health, f"localhost:{health.port}")[0] == 200


def test_a_client_that_says_nothing_holds_up_nobody(start: Start) -> None:
    health = start(Status(), lambda: None)

    with socket.create_connection(("127.0.0.1", health.port)) as silent:
        silent.sendall(b"GET /hea")
        assert get(health, "/healthz")[0] == 200


def test_a_page_that_breaks_is_logged(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bytes:
        raise RuntimeError("x")

    health = start(Status(), lambda: None, metrics=broken)

    with pytest.raises(ConnectionError):
        get(health, "/metrics")
    assert get(health, "/healthz")[0] == 200
    assert "could not be answered" in caplog.text


def test_a_port_in_use_is_reported(start: Start) -> None:
    health = start(Status(), lambda: None)

    with pytest.raises(ConfigError, match="Address already in use; choose another"):
        start(Status(), lambda: None, port=health.port)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("9090", ("127.0.0.1", 9090)),
        (":9090", ("127.0.0.1", 9090)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9090", ("::1", 9090)),
    ],
)
def test_listen_addresses(text: str, place: tuple[str, int]) -> None:
    assert listen_address(text) == place


@pytest.mark.parametrize("text", ["", "here", "host:", "host:http", "host:99999", ":-1"])
def test_invalid_listen_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        listen_address(text)
