"""The middleware: somebody's own endpoint, made idempotent with one line."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from eventonce.errors import ConfigError
from eventonce.stores.memory import MemoryStore
from eventonce.webhook import IdempotencyMiddleware
from eventonce.webhook.asgi import Receive, Scope, Send
from tests.unit.conftest import Faulty

KEY = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}


class Shop:
    """An application of somebody's own, which counts what it does."""

    def __init__(self) -> None:
        self.charges: list[Any] = []
        self.afterwards: list[str] = []
        self.status = 201
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def charge(self, request: Request) -> Response:
        self.charges.append(await request.body())
        self.begun.set()
        await self.go.wait()
        answer = JSONResponse({"charge": len(self.charges)}, self.status, headers={"x-request": str(len(self.charges))})
        answer.set_cookie("session", "of-the-first")
        return answer

    async def move(self, request: Request) -> Response:
        self.charges.append("moved")
        return RedirectResponse("/charges/1", 303)

    async def nothing(self, request: Request) -> Response:
        self.charges.append("nothing")
        return Response(status_code=204)

    async def report(self, request: Request) -> Response:
        self.charges.append("report")
        return StreamingResponse(iter([b"x" * 50_000] * 3))

    async def crash(self, request: Request) -> Response:
        self.charges.append("crash")
        raise ValueError("the database is away")

    async def later(self, request: Request) -> Response:
        self.charges.append("later")
        return PlainTextResponse("accepted", 202, background=BackgroundTask(self.afterwards.append, "done"))

    def app(self, store: Any = None, **settings: Any) -> Starlette:
        names = ("charge", "move", "nothing", "report", "crash", "later")
        routes = [Route(f"/{name}", getattr(self, name), methods=["GET", "POST", "PUT"]) for name in names]
        app = Starlette(routes=routes)
        app.add_middleware(IdempotencyMiddleware, store=MemoryStore() if store is None else store, **settings)
        return app


class Client:
    """Sends one request after the other, each in a loop of its own."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self._ask("POST", path, **more)

    def put(self, path: str, **more: Any) -> httpx.Response:
        return self._ask("PUT", path, **more)

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def client(shop: Shop) -> Client:
    return Client(shop.app())


def test_a_copy_gets_the_first_ones_answer(shop: Shop, client: Client) -> None:
    first = client.post("/charge", json={"cents": 5}, headers=KEY)
    second = client.post("/charge", json={"cents": 5}, headers={"Idempotency-Key": KEY["Idempotency-Key"].strip('"')})
    assert len(shop.charges) == 1
    assert (first.status_code, first.json()) == (second.status_code, second.json()) == (201, {"charge": 1})
    assert second.headers["x-request"] == "1"
    assert [each.headers["eventonce-outcome"] for each in (first, second)] == ["processed", "duplicate"]
    assert ("set-cookie" in first.headers, "set-cookie" in second.headers) == (True, False)


def test_another_key_is_another_request(shop: Shop, client: Client) -> None:
    answers = [client.post("/charge", json={}, headers={"Idempotency-Key": key}).json() for key in "abab"]
    assert answers == [{"charge": 1}, {"charge": 2}] * 2


def test_without_a_key_and_for_other_methods_it_stays_out_of_the_way(shop: Shop, client: Client) -> None:
    assert [client.post("/charge").json()["charge"] for _ in range(2)] == [1, 2]
    assert [client.put("/charge", headers=KEY).json()["charge"] for _ in range(2)] == [3, 4]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/charge", {"json": {"cents": 6}}),
        ("/charge?currency=EUR", {"json": {"cents": 5}}),
        ("/move", {"json": {"cents": 5}}),
        ("/charge", {"content": b'{"cents":5}', "headers": {**KEY, "Content-Type": "text/plain"}}),
    ],
)
def test_the_same_key_for_something_else_is_422(path: str, more: dict[str, Any], shop: Shop, client: Client) -> None:
    client.post("/charge", json={"cents": 5}, headers=KEY)
    answer = client.post(path, **{"headers": KEY, **more})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert "Idempotency-Key" in answer.json()["title"]
    assert len(shop.charges) == 1


SENDERS: dict[str, tuple[str, str]] = {
    "host": ("Host", "tenant-b.example"),
    "host behind a proxy": ("X-Forwarded-Host", "tenant-b.example"),
    "token": ("Authorization", "Bearer b"),
    "API key": ("X-Api-Key", "b"),
    "cookie": ("Cookie", "session=b"),
    "certificate": ("Client-Cert", ":b:"),
    "certificate of Envoy": ("X-Forwarded-Client-Cert", "Hash=b"),
    "certificate of a load balancer": ("X-Amzn-Mtls-Clientcert", "b"),
    "certificate of a load balancer that checks it": ("X-Amzn-Mtls-Clientcert-Leaf", "b"),
    "subject of a load balancer": ("X-Amzn-Mtls-Clientcert-Subject", "CN=b"),
    "certificate of Traefik": ("X-Forwarded-Tls-Client-Cert", "b"),
    "subject of Traefik": ("X-Forwarded-Tls-Client-Cert-Info", "b"),
    "certificate of ingress-nginx": ("Ssl-Client-Cert", "b"),
    "subject of ingress-nginx": ("Ssl-Client-Subject-Dn", "CN=b"),
    "certificate of nginx": ("X-Ssl-Client-Cert", "b"),
    "fingerprint of HAProxy": ("X-Ssl-Client-Sha1", "b"),
    "certificate of a proxy": ("X-Client-Cert", "b"),
    "certificate of Azure": ("X-ARR-ClientCert", "b"),
    "token for a proxy": ("Proxy-Authorization", "Basic b"),
    "token of a service": ("X-Auth-Token", "b"),
    "user of a proxy": ("X-Forwarded-User", "b"),
    "user of oauth2-proxy": ("X-Auth-Request-Email", "b@tenant.example"),
    "claims of a load balancer": ("X-Amzn-Oidc-Data", "b"),
    "user of a load balancer": ("X-Amzn-Oidc-Identity", "b"),
    "user of Azure": ("X-Ms-Client-Principal-Id", "b"),
    "user of Google": ("X-Goog-Authenticated-User-Id", "b"),
    "user of Cloudflare": ("Cf-Access-Jwt-Assertion", "b"),
    "consumer of Kong": ("X-Consumer-Id", "b"),
}


@pytest.mark.parametrize(("name", "value"), SENDERS.values(), ids=SENDERS)
def test_nobody_gets_what_another_was_answered_nor_blocks_their_keys(
    name: str, value: str, shop: Shop, client: Client
) -> None:
    first = {"Host": "tenant-a.example", "Authorization": "Bearer a", "Cookie": "session=a", **KEY}
    other = {**first, name: value}
    answers = [client.post("/charge", json={"cents": 5}, headers=headers) for headers in (first, other) * 2]
    assert [answer.json()["charge"] for answer in answers] == [1, 2, 1, 2]
    assert client.post("/charge", json={"cents": 6}, headers=other).status_code == 422
    assert len(shop.charges) == 2


def test_all_headers_that_name_a_sender_count(shop: Shop, client: Client) -> None:
    key = ("Idempotency-Key", "k")
    senders = [["a"], ["b"], ["a", "b"], ["b", "a"], ["a, b"], []]
    for _ in range(2):
        numbers = [
            client.post("/charge", headers=[key, *(("Authorization", one) for one in each)]).json()["charge"]
            for each in senders
        ]
        assert numbers == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["X-Ssl-Session-Id", "X-Ssl-Cipher", "X-Request-Id", "X-Forwarded-For"])
def test_what_changes_with_each_connection_makes_no_other_sender(name: str, client: Client) -> None:
    answers = [client.post("/charge", headers={**KEY, name: value}) for value in ("a", "b")]
    assert [answer.json()["charge"] for answer in answers] == [1, 1]


def test_a_sender_is_the_same_in_other_spellings(shop: Shop, client: Client) -> None:
    key = ("Idempotency-Key", "k")
    for headers in (
        [("Host", "Shop.Example"), ("Cookie", "a=1; b=2")],
        [("Host", "shop.example"), ("Cookie", "a=1"), ("Cookie", "b=2")],  # as HTTP/2 may send it
    ):
        assert client.post("/charge", headers=[key, *headers]).json() == {"charge": 1}


def test_the_certificate_of_a_client_is_whose_key_it_is_and_the_application_sees_it(shop: Shop) -> None:
    app, seen = shop.app(), []

    def of(certificate: str | None) -> Client:
        tls = {"client_cert_chain": [certificate] if certificate else [], "client_cert_name": None}

        async def connected(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "extensions": {"tls": tls, "http.response.pathsend": {}}}, receive, send)

        return Client(connected)

    async def look(request: Request) -> Response:
        seen.append(dict(request.scope["extensions"]))
        return Response()

    app.add_route("/look", look, methods=["POST"])
    numbers = [of(each).post("/charge", headers=KEY).json()["charge"] for each in ("ann", "bob", None, "ann", "bob")]
    assert numbers == [1, 2, 3, 1, 2]
    of("ann").post("/look", headers={"Idempotency-Key": "other"})
    assert seen == [{"tls": {"client_cert_chain": ["ann"], "client_cert_name": None}}]


def test_one_name_space_of_keys_for_all_paths(shop: Shop, client: Client) -> None:
    assert client.post("/charge", headers=KEY).status_code == 201
    assert client.post("/nothing", headers=KEY).status_code == 422


def test_callers_have_keys_of_their_own(shop: Shop) -> None:
    def who(scope: Any) -> str:
        return str(dict(scope["headers"])[b"x-user"], "latin-1")

    client = Client(shop.app(caller=who))
    users = ("ann", "bob", "ann")
    answers = [client.post("/charge", headers={**KEY, "X-User": user, "Authorization": user}) for user in users]
    refreshed = client.post("/charge", headers={**KEY, "X-User": "ann", "Authorization": "new token"})
    assert [answer.json()["charge"] for answer in (*answers, refreshed)] == [1, 2, 1, 1]


@pytest.mark.parametrize("caller", [None, "", " ", 0, b"ann"])
def test_a_caller_without_a_name_shares_no_keys(caller: Any, shop: Shop) -> None:
    client = Client(shop.app(caller=lambda scope: caller))
    with pytest.raises(ConfigError, match=r"^caller: .* is not a non-empty string"):
        client.post("/charge", headers=KEY)
    assert shop.charges == []
    assert client.post("/charge").status_code == 201


@pytest.mark.parametrize("key", [None, "", '""', "x" * 256])
def test_a_missing_or_wrong_key_is_400_where_one_is_required(key: str | None, shop: Shop) -> None:
    client = Client(shop.app(required=True))
    answer = client.post("/charge", headers={} if key is None else {"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["status"]) == (400, 400)
    assert "Idempotency-Key" in answer.json()["title"]
    assert shop.charges == []


def test_two_keys_are_refused(client: Client) -> None:
    assert client.post("/charge", headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]).status_code == 400


@pytest.mark.parametrize("status", [400, 409, 500, 503])
def test_an_error_is_not_remembered(status: int, shop: Shop, client: Client) -> None:
    shop.status = status
    answers = [client.post("/charge", json={}, headers=KEY) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {status}
    shop.status = 200
    assert [client.post("/charge", json={}, headers=KEY).json() for _ in range(2)] == [{"charge": 13}] * 2


def test_a_crash_is_the_applications_own_and_may_be_tried_again(shop: Shop, client: Client) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="database"):
            client.post("/crash", headers=KEY)
    assert len(shop.charges) == 2


def test_redirects_and_empty_answers_are_remembered(shop: Shop, client: Client) -> None:
    for path, key, status in (("/move", "a", 303), ("/nothing", "b", 204)):
        answers = [client.post(path, headers={"Idempotency-Key": key}, follow_redirects=False) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [status, status]
        assert answers[0].headers.get("location") == answers[1].headers.get("location")
    assert shop.charges == ["moved", "nothing"]


def test_an_answer_that_is_too_long_goes_through_and_is_not_made_twice(shop: Shop, client: Client) -> None:
    first, second = (client.post("/report", headers=KEY) for _ in range(2))
    assert (first.status_code, len(first.content)) == (200, 150_000)
    assert second.status_code == 409
    assert "too long" in second.json()["title"]
    assert shop.charges == ["report"]


def test_what_is_done_after_the_answer_is_done_once(shop: Shop, client: Client) -> None:
    assert [client.post("/later", headers=KEY).text for _ in range(2)] == ["accepted"] * 2
    assert shop.afterwards == ["done"]


def test_one_line_is_enough_for_fastapi() -> None:
    ran: list[int] = []
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, store=MemoryStore())

    @app.post("/charges", status_code=201)
    def charge(cents: Annotated[int, Body(embed=True)]) -> dict[str, int]:  # in a thread, as FastAPI runs a `def`
        ran.append(cents)
        return {"charged": cents}

    client = Client(app)
    answers = [client.post("/charges", json={"cents": cents}, headers=KEY) for cents in (5, 5, 6)]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert answers[1].json() == {"charged": 5}
    assert client.post("/charges", json={"cents": "many"}, headers={"Idempotency-Key": "k-2"}).status_code == 422
    assert ran == [5]


def test_an_answer_from_a_file_is_remembered_under_servers_that_send_files_themselves(tmp_path: Path) -> None:
    (tmp_path / "bill.txt").write_text("5 cents")

    async def bill(request: Request) -> Response:
        return FileResponse(tmp_path / "bill.txt")

    app = Starlette(routes=[Route("/bill", bill, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, store=MemoryStore())

    async def with_extension(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "extensions": {"http.response.pathsend": {}}}, receive, send)

    answers = [Client(with_extension).post("/bill", headers=KEY) for _ in range(2)]
    assert [(answer.status_code, answer.text) for answer in answers] == [(200, "5 cents")] * 2


def test_a_body_beyond_the_bound_is_413(shop: Shop) -> None:
    client = Client(shop.app(max_body=10))
    assert client.post("/charge", content=b"x" * 11, headers=KEY).status_code == 413
    assert client.post("/charge", content=b"x" * 11).status_code == 201


def test_a_store_that_does_not_answer_is_503_and_nothing_runs(shop: Shop) -> None:
    client = Client(shop.app(store=Faulty("claim")))
    answer = client.post("/charge", headers=KEY)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert shop.charges == []


def test_an_answer_that_could_not_be_remembered_is_not_given(shop: Shop) -> None:
    client = Client(shop.app(store=Faulty("commit")))
    assert client.post("/charge", headers=KEY).status_code == 503


def test_while_the_first_is_in_progress_a_copy_gets_409(shop: Shop) -> None:
    app = shop.app()

    async def ask() -> tuple[int, dict[str, str], Any]:
        sent: list[Any] = []
        parts = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> Any:
            return parts.pop(0) if parts else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/charge", "query_string": b""}
        await app({**scope, "headers": [(b"idempotency-key", b"k")]}, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, json.loads(sent[1]["body"])

    async def both() -> None:
        shop.go.clear()
        first = asyncio.create_task(ask())
        await shop.begun.wait()
        status, headers, _ = await ask()
        assert (status, headers["retry-after"]) == (409, "5")
        shop.go.set()
        assert (await first)[0] == 201
        assert (await ask())[1]["eventonce-outcome"] == "duplicate"

    asyncio.run(both())
    assert len(shop.charges) == 1


def test_it_ends_with_the_application(shop: Shop) -> None:
    sent: list[str] = []

    async def live() -> None:
        messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await shop.app()({"type": "lifespan"}, receive, send)

    asyncio.run(live())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
