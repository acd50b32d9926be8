"""The DynamoDB store: throttling, lost replies, transactions, existing tables, Powertools."""

import io
import json
import logging
import multiprocessing
import os
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import boto3
import pytest
from botocore.awsrequest import AWSResponse, HeadersDict

from eventonce import Event, Once, Rule, open_store
from eventonce.claims import protocol
from eventonce.claims.outcome import OutcomeKind
from eventonce.claims.protocol import Busy, Claim, ClaimRequest, Commit, Done, Release, Won
from eventonce.clock import SystemClock
from eventonce.errors import ConfigError, LeaseLost, StoreError, StoreUnusable
from eventonce.event.keys import Key
from eventonce.stores.dynamodb.layout import Layout
from eventonce.stores.dynamodb.store import DynamoDBStore
from eventonce.stores.dynamodb.transaction import TransactionRefused, Writes, size
from eventonce.stores.server_time import ServerTime
from eventonce.testing import FaultProxy, ManualClock
from eventonce.testing.contract import LONG, SHORT, claim, finish, key, keys, release
from eventonce.testing.faults import Skewed
from eventonce.testing.proxy import free_port
from tests.interrupts import interrupt_before_the_commit
from tests.meddler import Answer, Meddler, error, times
from tests.servers import Dynoxide


def statement_error(code: str) -> dict[str, Any]:
    return {"Error": {"Code": code, "Message": "as told"}}


BOTH = pytest.mark.parametrize("server", ["dynoxide", pytest.param("ministack", marks=pytest.mark.long)], indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Dynoxide:
    """Return the server of a test: dynoxide, unless it has a parameter."""
    server: Dynoxide = request.getfixturevalue(getattr(request, "param", "dynoxide"))
    return server


@pytest.fixture
def table(server: Dynoxide) -> str:
    name = f"claims-{uuid.uuid4().hex[:12]}"
    store = at(server, name)
    store.create_table()
    store.close()
    return name


@pytest.fixture
def client(server: Dynoxide) -> Iterator[Any]:
    client = boto3.client("dynamodb", endpoint_url=server.endpoint(), region_name="us-east-1")
    yield client
    client.close()


@pytest.fixture
def meddler(server: Dynoxide) -> Iterator[Meddler]:
    meddler = Meddler(server)
    yield meddler
    meddler.close()


@pytest.fixture
def store(server: Dynoxide, table: str, meddler: Meddler) -> Iterator[DynamoDBStore]:
    """A store that is connected through the meddler."""
    store = at(server, table, meddler.port)
    yield store
    store.close()


def at(server: Dynoxide, table: str, port: int | None = None, more: str = "", clock: Any = None) -> DynamoDBStore:
    store = open_store(server.url(table, port) + more, clock)
    assert isinstance(store, DynamoDBStore)
    return store


def items(client: Any, table: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.scan(TableName=table, ConsistentRead=True)["Items"]
    return items


def claim_all(store: DynamoDBStore, count: int, token: bytes = b"token--1", lease: int = LONG) -> list[Any]:
    return store.claim([ClaimRequest(each, LONG) for each in keys(count)], token, lease)


# --- opening ---


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("dynamodb://", "names no table"),
        ("dynamodb://t", "is not the name of a table; one has 3 to 255"),
        ("dynamodb://table/more", "names no table"),
        ("dynamodb://KEY:SECRET@table", "credentials do not belong in the URL"),
        ("dynamodb://table?endpoint=http://KEY:SECRET@host", "credentials do not belong in the URL"),
        ("dynamodb://table?endpoint=localhost:8000", "endpoint is not an address"),
        ("dynamodb://table?endpoint=http://localhost:80000", "endpoint is not an address"),
        ("dynamodb://table?colour=red", "unknown option 'colour'"),
        ("dynamodb://table?timeout=soon", "timeout"),
        ("dynamodb://table?timeout=0s", "no server time to answer"),
        ("dynamodb://table?in_flight=0", "whole number above 0"),
        ("dynamodb://table?layout=other", "neither eventonce nor powertools"),
        ("dynamodb://table?layout=powertools", "belong together"),
        ("dynamodb://table?function=f", "belong together"),
        ("dynamodb://table?layout=powertools&function=f&sort=sk", "partition= is for"),
        ("dynamodb://table?key=token", "would be used twice"),
        ("dynamodb://table?key=pk&ttl=pk", "would be used twice"),
        ("dynamodb://table?key=p%27k", "not a valid attribute name"),
    ],
)
def test_a_wrong_url_is_refused_without_its_secrets(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(url)
    assert "SECRET" not in str(caught.value)


def test_opening_calls_nothing() -> None:
    store = open_store(f"dynamodb://absent?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}")
    store.close()


def test_a_store_can_be_used_again_after_it_was_closed(store: DynamoDBStore) -> None:
    claim(store, 1)
    store.close()
    assert finish(store, 1)


# --- the table ---


def test_a_table_that_we_created_has_no_warnings(store: DynamoDBStore) -> None:
    assert store.check() == []


def test_a_missing_table_is_reported_with_the_command_that_creates_it(dynoxide: Dynoxide) -> None:
    store = at(dynoxide, "absent", more="&key=pk&sort=sk")
    for call in (store.check, lambda: claim(store, 1), lambda: claim_all(store, 30), lambda: store.peek(keys(1))):
        with pytest.raises(StoreUnusable, match="does not exist") as caught:
            call()
        assert (
            "aws dynamodb create-table --table-name absent --billing-mode PAY_PER_REQUEST --attribute-definitions "
            "AttributeName=pk,AttributeType=S AttributeName=sk,AttributeType=S --key-schema "
            "AttributeName=pk,KeyType=HASH AttributeName=sk,KeyType=RANGE --region us-east-1"
        ) in str(caught.value)
    store.close()


def make(client: Any, *names: tuple[str, str], **more: Any) -> str:
    table = f"theirs-{uuid.uuid4().hex[:12]}"
    client.create_table(
        TableName=table,
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in names],
        KeySchema=[
            {"AttributeName": name, "KeyType": part} for (name, _), part in zip(names, ("HASH", "RANGE"), strict=False)
        ],
        **(more or {"BillingMode": "PAY_PER_REQUEST"}),
    )
    return table


@BOTH
def test_a_table_with_another_key_is_refused_with_the_options_to_set(server: Dynoxide, client: Any) -> None:
    store = at(server, make(client, ("pk", "S"), ("sk", "S")))
    with pytest.raises(StoreUnusable, match="add key=pk&sort=sk to the URL"):
        store.check()
    with pytest.raises(StoreUnusable, match="has another key"):
        claim(store, 1)
    store.close()
    numbers = at(server, make(client, ("id", "N")))
    with pytest.raises(StoreUnusable, match="strings"):
        numbers.check()
    numbers.close()


def test_low_capacity_and_records_that_never_expire_are_warned_of(dynoxide: Dynoxide, client: Any) -> None:
    table = make(client, ("id", "S"), ProvisionedThroughput={"ReadCapacityUnits": 2, "WriteCapacityUnits": 2})
    store = at(dynoxide, table)
    low, forever = store.check()
    assert "2 writes a second" in low
    assert "--time-to-live-specification Enabled=true,AttributeName=expiration" in forever
    client.update_time_to_live(
        TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": "gone_after"}
    )
    assert "set ttl=gone_after" in store.check()[1]
    store.close()


def test_a_role_that_may_not_look_at_the_table_is_warned_of(store: DynamoDBStore, meddler: Meddler) -> None:
    meddler.instead = times(1, error("AccessDeniedException"), "DescribeTimeToLive")
    assert "dynamodb:DescribeTimeToLive is not allowed" in store.check()[0]
    meddler.instead = times(1, error("AccessDeniedException"), "DescribeTable")
    assert "dynamodb:DescribeTable is not allowed" in store.check()[0]


@BOTH
def test_an_existing_table_is_used_with_its_own_names(server: Dynoxide, client: Any) -> None:
    table = make(client, ("pk", "S"), ("sk", "S"))
    client.put_item(TableName=table, Item={"pk": {"S": "customer#1"}, "sk": {"S": "a"}})
    store = at(server, table, more="&key=pk&sort=sk&ttl=gone_after&prefix=once%23")
    assert claim_all(store, 30) == [Won(1)] * 30
    assert claim(store, 1, b"token--2") is not Won(1)
    assert store.extend([Claim(each, b"token--1") for each in keys(30)], LONG) == [True] * 30
    assert finish(store, 1, memo=b"m")
    assert isinstance(claim(store, 1, b"token--2"), Done)
    assert release(store, 2, error="no")
    assert claim(store, 2, b"token--2") == Won(2, "no")
    assert store.release([Release(key(3), b"token--1", LONG)]) == [True]
    assert store.forget(keys(4)) == [True, True, True, False]
    ours = [item for item in items(client, table) if item["pk"]["S"].startswith("once#")]
    assert len(ours) == 26
    assert {item["sk"]["S"] for item in ours} == {"eventonce"}
    assert all("gone_after" in item for item in ours)
    store.close()


# --- moto ---

MOTO = r"is moto, which .* use ministack or dynoxide in its place, or the store memory: in unit tests$"
OPERATIONS: list[Callable[[DynamoDBStore], Any]] = [
    lambda store: claim(store, 1),
    lambda store: claim_all(store, 30),
    lambda store: store.peek(keys(1)),
    lambda store: store.check(),
]


class Moto(BaseHTTPRequestHandler):
    """A server that answers as moto 5 does when it runs as a server."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        content = b'{"Responses": {}, "UnprocessedKeys": {}}'
        self.send_response_only(200)
        self.send_header("Server", "Werkzeug/3.1.9 Python/3.11.7, amazon.com")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


def test_a_server_of_moto_is_refused() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Moto) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"dynamodb://claims?region=eu-west-1&endpoint=http://127.0.0.1:{server.server_port}"
        for operation in OPERATIONS:
            with closing(cast(DynamoDBStore, open_store(url))) as store, pytest.raises(StoreUnusable, match=MOTO):
                operation(store)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("status", [200, 400])
def test_moto_in_this_process_is_refused(operation: Callable[[DynamoDBStore], Any], status: int) -> None:
    """moto answers in place of the connection, in an event of botocore."""

    def answer(request: Any, **_: Any) -> AWSResponse:
        body = io.BytesIO(b'{"Responses": {}, "UnprocessedKeys": {}}')
        body.stream = lambda **_: iter([body.read()])  # type: ignore[attr-defined]
        return AWSResponse(request.url, status, cast(Any, HeadersDict({"server": "amazon.com"})), body)

    store = cast(DynamoDBStore, open_store("dynamodb://claims?region=eu-west-1"))
    store._client.client().meta.events.register("before-send.dynamodb.*", answer)
    with closing(store), pytest.raises(StoreUnusable, match=rf"^DynamoDB table 'claims' in eu-west-1 {MOTO}"):
        operation(store)


# --- credentials ---


@pytest.mark.parametrize(
    "code", ["AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "AccessDenied"]
)
def test_what_only_a_person_can_fix_is_reported_and_not_retried(
    store: DynamoDBStore, meddler: Meddler, code: str
) -> None:
    claim(store, 1)
    meddler.requests.clear()
    meddler.instead = lambda *_: error(code)
    with pytest.raises(StoreUnusable, match=f"{code}.*; (allow|check)"):
        finish(store, 1)
    assert len(meddler.requests) == 1


def test_a_statement_that_is_not_allowed_is_reported(store: DynamoDBStore, meddler: Meddler) -> None:
    claim(store, 1)
    meddler.instead = lambda *_: (200, {"Responses": [statement_error("AccessDenied")]})
    with pytest.raises(StoreUnusable, match="IAM policy"):
        finish(store, 1)


def test_missing_credentials_and_regions_are_reported(
    dynoxide: Dynoxide, table: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = at(dynoxide, table)
    with pytest.raises(StoreUnusable, match="no AWS credentials"):
        claim(store, 1)
    nowhere = open_store(f"dynamodb://{table}")
    with pytest.raises(StoreUnusable, match=r"^DynamoDB table '[^']+': no AWS region is set; add \?region=REGION"):
        claim(nowhere, 1)


@pytest.mark.parametrize(
    ("profile", "message", "passes"),
    [
        ("sso_session = s\nsso_account_id = 1\nsso_role_name = r", "the AWS login has expired .*aws sso login", False),
        ("role_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = /none", "No such file.*AWS credentials", True),
        ("credential_process = false", "retrieving credentials", False),
    ],
)
def test_unavailable_credentials_are_reported(
    dynoxide: Dynoxide,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    profile: str,
    message: str,
    passes: bool,
) -> None:
    login = "[sso-session s]\nsso_region = us-east-1\nsso_start_url = https://example.awsapps.com/start\n"
    (tmp_path / "config").write_text(f"[profile p]\nregion = us-east-1\n{profile}\n{login}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "p")
    with Once(at(dynoxide, table), lease="0.2s") as once:
        (outcome,) = once.run([{"id": "1"}], lambda event: pytest.fail("ran"))
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert isinstance(outcome.error, StoreError)
    assert re.search(message, str(outcome.error))
    assert outcome.error.retryable is passes


def test_a_call_with_an_expired_session_is_retried(store: DynamoDBStore, meddler: Meddler) -> None:
    meddler.instead = times(1, error("ExpiredTokenException"))
    assert claim(store, 1) == Won(1)


# --- throttling and errors ---


@pytest.mark.parametrize(
    "answer",
    [
        error("ProvisionedThroughputExceededException"),
        error("ThrottlingException"),
        error("RequestLimitExceeded"),
        error("TransactionConflictException"),
        error("InternalServerError", 500),
        (503, {"message": "Service Unavailable"}),
    ],
)
@pytest.mark.parametrize("count", [1, 40])
def test_a_retryable_error_is_waited_for(store: DynamoDBStore, meddler: Meddler, answer: Answer, count: int) -> None:
    claim(store, 999)
    meddler.instead = times(4, answer)  # once more than botocore retries by itself
    assert claim_all(store, count) == [Won(1)] * count
    meddler.instead = times(4, answer)  # once more than botocore retries by itself
    assert store.commit([Commit(each, b"token--1", LONG) for each in keys(count)]) == [True] * count


@BOTH
def test_throttling_is_counted_and_warned_of_once(
    store: DynamoDBStore, meddler: Meddler, caplog: pytest.LogCaptureFixture
) -> None:
    claim(store, 999)
    meddler.instead = times(4, error("ThrottlingException"))
    with caplog.at_level(logging.WARNING, "eventonce"):
        assert claim(store, 1) == Won(1)
    assert store.throttled == 4
    assert sum("throttles" in record.message for record in caplog.records) == 1


@BOTH
def test_a_lasting_error_is_unknown_and_loses_nothing(store: DynamoDBStore, meddler: Meddler) -> None:
    claim(store, 999)
    meddler.instead = lambda *_: error("ProvisionedThroughputExceededException")
    ran: list[str] = []
    with Once(store, lease="0.4s", clock=ManualClock()) as once:  # for the retries of the store only
        (outcome,) = once.run([{"id": "1"}], lambda event: ran.append(event.id))
        assert (outcome.kind, ran) == (OutcomeKind.UNKNOWN, [])
        meddler.instead = lambda *_: None
        assert [outcome.kind for outcome in once.run([{"id": "1"}], ran.append)] == [OutcomeKind.PROCESSED]


def throttle_key(number: int, code: str = "ThrottlingError") -> Callable[[str, Any, dict[str, Any]], dict[str, Any]]:
    """Throttle the statements on one key. The server has run them, but the store's next calls undo that."""

    def after(operation: str, request: Any, answer: dict[str, Any]) -> dict[str, Any]:
        for each, statement in enumerate(request.get("Statements", ())):
            if key(number).hex() in json.dumps(statement):
                answer["Responses"][each] = statement_error(code)
        return answer

    return after


@BOTH
def test_a_hot_key_does_not_delay_the_others(server: Dynoxide, table: str, meddler: Meddler) -> None:
    store = at(server, table, meddler.port, clock=ManualClock())  # so that retries end in virtual time
    claim(store, 999)
    meddler.after = throttle_key(7)
    answers = claim_all(store, 60, lease=1000)
    assert [number for number, answer in enumerate(answers) if answer != Won(1)] == [7]
    assert isinstance(answers[7], Busy)
    assert store.throttled > 1
    again = [request["Statements"] for operation, request in meddler.requests if operation == "BatchExecuteStatement"]
    assert sorted(map(len, again))[:-3] == [1] * (len(again) - 3)  # only the hot one was sent again
    store.close()


def test_a_hot_key_does_not_make_its_neighbours_look_lost(store: DynamoDBStore, meddler: Meddler) -> None:
    claim_all(store, 60)
    meddler.after = throttle_key(7)
    extended = store.extend([Claim(each, b"token--1") for each in keys(60)], 1000)
    assert [number for number, owned in enumerate(extended) if not owned] == [7]


def test_a_hot_key_is_committed_as_soon_as_it_can_be(store: DynamoDBStore, meddler: Meddler) -> None:
    claim_all(store, 60)
    left = [3]

    def after(operation: str, request: Any, answer: dict[str, Any]) -> dict[str, Any]:
        left[0] -= 1
        return throttle_key(7, "ProvisionedThroughputExceeded")(operation, request, answer) if left[0] >= 0 else answer

    meddler.after = after
    assert store.commit([Commit(each, b"token--1", LONG) for each in keys(60)]) == [True] * 60


@pytest.mark.parametrize("code", ["InternalServerError", "TransactionConflict", "RequestLimitExceeded"])
def test_a_statement_that_reports_a_failure_but_succeeded_is_ours(
    store: DynamoDBStore, meddler: Meddler, code: str
) -> None:
    claim(store, 999)
    left = [1]

    def after(operation: str, request: Any, answer: dict[str, Any]) -> dict[str, Any]:
        left[0] -= 1
        return throttle_key(7, code)(operation, request, answer) if left[0] == 0 else answer

    meddler.after = after
    assert claim_all(store, 20) == [Won(1)] * 20
    left[0] = 1
    assert store.commit([Commit(each, b"token--1", LONG) for each in keys(20)]) == [True] * 20
    assert all(isinstance(answer, Done) for answer in claim_all(store, 20, b"token--2"))


def test_keys_that_were_not_read_are_read_again(store: DynamoDBStore, meddler: Meddler) -> None:
    claim_all(store, 50)
    left = [2]

    def after(operation: str, request: Any, answer: dict[str, Any]) -> dict[str, Any]:
        if operation == "BatchGetItem" and left[0]:
            left[0] -= 1
            ((name, table_request),) = request["RequestItems"].items()
            half = table_request["Keys"][: len(table_request["Keys"]) // 2]
            answer["UnprocessedKeys"] = {name: {**table_request, "Keys": half}}
            processed = [item for item in answer["Responses"][name] if {"id": item["id"]} not in half]
            answer["Responses"][name] = processed
        return answer

    meddler.after = after
    assert all(record is not None for record in store.peek(keys(50)))
    assert store.throttled == 2


def test_a_truncated_answer_is_requested_again(store: DynamoDBStore, meddler: Meddler) -> None:
    claim(store, 999)
    meddler.halved = 2
    assert claim(store, 1) == Won(1)
    meddler.halved = 5  # more than botocore retries by itself
    assert claim_all(store, 30) == [Won(1)] * 30
    meddler.halved = 5
    assert store.commit([Commit(each, b"token--1", LONG) for each in keys(30)]) == [True] * 30


# --- lost replies, and requests that arrive twice ---


@pytest.fixture
def proxy(dynoxide: Dynoxide) -> Iterator[FaultProxy]:
    with FaultProxy(dynoxide.port) as proxy:
        yield proxy


@pytest.fixture
def far(dynoxide: Dynoxide, table: str, proxy: FaultProxy) -> Iterator[DynamoDBStore]:
    store = at(dynoxide, table, proxy.port)
    claim(store, 999)
    yield store
    store.close()


@pytest.mark.parametrize("count", [1, 5])
def test_a_takeover_whose_reply_is_lost_is_ours_and_still_suspect(
    far: DynamoDBStore, proxy: FaultProxy, count: int
) -> None:
    claim_all(far, count, lease=SHORT)
    time.sleep(0.1)
    if count == 1:  # the first call is refused, the second is the takeover
        existing = far._items.read(keys(1), LONG)[key(0)]
        proxy.cut_answers()
        assert far._decide(ClaimRequest(key(0), LONG), b"token--2", LONG, existing) == Won(2, None, suspect=True)
    else:
        proxy.cut_answers(3)
        answers = claim_all(far, count, b"token--2")
        assert [answer.attempt for answer in answers] == [2] * count
    assert proxy.cut
    assert store_is_held(far, count, b"token--2")


def store_is_held(store: DynamoDBStore, count: int, token: bytes) -> bool:
    return store.extend([Claim(each, token) for each in keys(count)], LONG) == [True] * count


def test_an_unused_release_with_its_reply_lost_leaves_no_record(far: DynamoDBStore, proxy: FaultProxy) -> None:
    claim(far, 1)
    proxy.cut_answers()
    release(far, 1)
    assert proxy.cut == 1
    assert far.peek([key(1)]) == [None]


def test_forgetting_with_its_reply_lost_forgets(far: DynamoDBStore, proxy: FaultProxy) -> None:
    claim(far, 1)
    proxy.cut_answers()
    far.forget([key(1)])
    assert far.peek([key(1)]) == [None]


def test_a_peek_whose_reply_is_lost_is_repeated(far: DynamoDBStore, proxy: FaultProxy) -> None:
    claim(far, 1)
    proxy.cut_answers(4)  # more than botocore retries by itself
    assert far.peek([key(1)])[0] is not None


@BOTH
def test_requests_that_arrive_twice_do_nothing_twice(
    store: DynamoDBStore, meddler: Meddler, client: Any, table: str
) -> None:
    meddler.twice = True
    runs: list[str] = []

    def handle(event: Any, ctx: Any) -> None:
        runs.append(event.id)
        if event.id == "fails" and ctx.attempt == 1:
            raise ValueError("no")
        ctx.tx.update_item(
            TableName=table,
            Key={"id": "counter"},
            UpdateExpression="ADD hits :one",
            ExpressionAttributeValues={":one": 1},
        )

    events = [{"id": str(number)} for number in range(10)] + [{"id": "fails"}]
    with Once(store) as once:
        once.run(events, handle)
        kinds = [outcome.kind for outcome in once.run(events, handle)]
        assert kinds == [OutcomeKind.DUPLICATE] * 10 + [OutcomeKind.PROCESSED]
    assert sorted(runs) == sorted([str(number) for number in range(10)] + ["fails"] * 2)
    assert client.get_item(TableName=table, Key={"id": {"S": "counter"}})["Item"]["hits"] == {"N": "11"}


def test_a_late_copy_of_an_extension_does_not_shorten_a_later_one(
    store: DynamoDBStore, meddler: Meddler, client: Any
) -> None:
    claim(store, 1)
    store.extend([Claim(key(1), b"token--1")], LONG)
    late = [request for operation, request in meddler.requests if operation == "BatchExecuteStatement"][-1]
    store.extend([Claim(key(1), b"token--1")], 5 * LONG)
    before = store.peek([key(1)])
    client.batch_execute_statement(
        Statements=[
            {
                **statement,
                "Parameters": [
                    {"B": b"token--1"} if "B" in value else value for value in statement["Parameters"]
                ],  # base64 on the wire
            }
            for statement in late["Statements"]
        ]
    )
    assert store.peek([key(1)]) == before


def test_two_owners_of_one_key_in_one_call_have_their_own_answers(store: DynamoDBStore) -> None:
    """A process that lost a key may have taken it over itself."""
    claim(store, 1, lease=SHORT)
    time.sleep(0.1)
    claim(store, 1, b"token--2")
    claims = [Claim(key(1), b"token--1"), Claim(key(1), b"token--2"), Claim(key(1), b"token--1")]
    assert store.extend(claims, LONG) == [False, True, False]
    assert store.release([Release(*each, LONG, "late") for each in claims[::-2]]) == [False, False]
    assert store.commit([Commit(*each, LONG) for each in claims]) == [False, True, False]


def test_a_killed_server_in_a_big_batch_costs_nothing(dynoxide: Dynoxide, table: str) -> None:
    store = at(dynoxide, table, more="&timeout=1s")
    claim(store, 9999)
    killer = threading.Timer(0.15, dynoxide.restart)
    killer.start()
    assert claim_all(store, 1000) == [Won(1)] * 1000
    killer.join()
    assert store.commit([Commit(each, b"token--1", LONG) for each in keys(1000)]) == [True] * 1000
    store.close()


# --- sizes ---


def test_five_thousand_keys_in_one_call(dynoxide: Dynoxide, table: str) -> None:
    store = at(dynoxide, table)
    assert claim_all(store, 5000) == [Won(1)] * 5000
    assert all(isinstance(answer, Busy) for answer in claim_all(store, 5000, b"token--2"))
    assert all(record is not None for record in store.peek(keys(5000)))
    store.close()


def test_large_memos_are_sent_in_smaller_calls(store: DynamoDBStore, meddler: Meddler) -> None:
    claim_all(store, 60)
    memos = [os.urandom(40_000) for _ in range(60)]
    meddler.requests.clear()
    assert (
        store.commit([Commit(each, b"token--1", LONG, None, memo) for each, memo in zip(keys(60), memos, strict=True)])
        == [True] * 60
    )
    assert max(len(json.dumps(request)) for _, request in meddler.requests) < 1_000_000
    records = store.peek(keys(60))
    assert [record.memo for record in records if record] == memos


def test_a_result_too_large_for_an_item_is_not_kept_but_the_run_is(store: DynamoDBStore) -> None:
    rule = Rule(name="r", key="id", remember="result")
    with Once(store, rules=rule, max_result=10_000_000) as once:
        first, second = once.run([{"id": "1"}, {"id": "2"}], lambda event: "x" * (500_000 if event.id == "1" else 9))
        assert (first.kind, second.kind) == (OutcomeKind.PROCESSED, OutcomeKind.PROCESSED)
        first, second = once.run([{"id": "1"}, {"id": "2"}], lambda event: "again")
        assert (first.kind, second.result) == (OutcomeKind.DUPLICATE, "x" * 9)
        assert "too many for a DynamoDB item" in str(first.error)


@BOTH
def test_an_item_without_a_memo_is_below_1_kb(store: DynamoDBStore, client: Any, table: str) -> None:
    claim(store, 1, version=2**63 - 1, shared=True)
    finish(store, 1, version=2**63 - 1)
    claim(store, 1, b"token--2", version=2**63 - 1 + 0)
    release(store, 1, b"token--2")
    claim(store, 2, version=-(2**63) + 1, shared=True)
    release(store, 2, error="ü€😀" * 200)
    for item in items(client, table):
        assert size(item) < 1024
    record = store.peek([key(2)])[0]
    assert record is not None
    assert str(record.error).startswith("ü€😀ü€😀")


@BOTH
def test_dynamodb_may_remove_an_item_only_after_it_has_expired(store: DynamoDBStore, client: Any, table: str) -> None:
    claim(store, 1)
    claim(store, 2)
    finish(store, 1, window=LONG + 500)
    for number, item in enumerate(sorted(items(client, table), key=lambda item: str(item["id"]["S"])), 1):
        record = store.peek([key(number)])[0]
        assert record is not None
        assert 0 <= int(item["expiration"]["N"]) * 1000 - record.expires < 1000


def test_a_claim_that_is_extended_for_days_is_kept(dynoxide: Dynoxide, table: str, meddler: Meddler) -> None:
    meddler.dated = False  # so that the store uses this clock
    clock = ManualClock()
    store = at(dynoxide, table, meddler.port, clock=clock)
    assert claim(store, 1) == Won(1)
    for _ in range(3):
        clock.sleep(LONG // 2)
        clock.sleep(86_400_000 - LONG)
        assert store.extend([Claim(key(1), b"token--1")], 2 * 86_400_000) == [True]
        item = store._items.read([key(1)], LONG)[key(1)]
        assert int(item["expiration"]["N"]) * 1000 >= int(item["in_progress_expiration"]["N"])
    assert finish(store, 1)
    store.close()


# --- what it costs ---


@BOTH
def test_an_event_costs_two_write_units_and_a_duplicate_one(server: Dynoxide, table: str, meddler: Meddler) -> None:
    store = at(server, table, meddler.port, "&timeout=120s")  # no call is repeated because the machine is slow

    def spent() -> float:
        spent, meddler.units = meddler.units, 0.0
        return spent

    events = [{"id": str(number)} for number in range(100)]
    with closing(store), Once(store) as once:
        once.run(events, lambda event: None)
        assert spent() == 200
        once.run(events, lambda event: None)
        assert spent() == 100
        once.run([{"id": "alone"}], lambda event: None)
        assert spent() == 2
        meddler.requests.clear()
        once.run([{"id": "alone"}], lambda event: None)
        assert spent() == 1
        assert [operation for operation, _ in meddler.requests] == ["PutItem"]  # which also returned the existing item


# --- clocks ---


def test_the_servers_time_is_learned_from_its_answers() -> None:
    clock = ManualClock()
    known = ServerTime(clock)
    known.learn(None, 0)
    known.learn("no date", 0)
    assert known.offset == 0

    def answer(ahead: int) -> None:
        at_server = (clock.utc() + ahead) // 1000
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at_server))
        known.learn(date, 0)

    for step in range(20):
        answer(300)
        clock.sleep(100 + step)
    assert known.offset == 0  # a clock that is right is not corrected
    for step in range(20):
        answer(30_300)
        clock.sleep(100 + step)
    assert abs(known.offset - 30_300) < 1000
    answer(-45_000)  # a clock has been set
    assert abs(known.offset + 45_000) < 2000
    answer(0)
    assert known.offset == 0


class Jumping(SystemClock):
    """A clock that can be set."""

    def __init__(self) -> None:
        self.ahead = 0

    def utc(self) -> int:
        return super().utc() + self.ahead


@pytest.mark.parametrize("jump", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_between_two_calls_is_noticed_before_the_next_write(
    dynoxide: Dynoxide, table: str, jump: int
) -> None:
    right = at(dynoxide, table)

    def set_after_an_answer() -> DynamoDBStore:
        clock = Jumping()
        store = at(dynoxide, table, clock=clock)
        assert isinstance(claim(store, 99), Won | Done)  # an answer with the server's time
        finish(store, 99)
        clock.ahead = jump
        return store

    one, many = set_after_an_answer(), set_after_an_answer()
    assert claim(one, 1) == Won(1)
    first, second, third = claim_all(many, 3, b"token--2")
    assert first == third == Won(1)
    assert isinstance(second, Busy)
    for number in range(3):
        assert isinstance(claim(right, number, b"token--3"), Busy), "a lease that was over when it was written"

    late = set_after_an_answer()
    assert late.extend([Claim(key(1), b"token--1")], LONG) == [True]
    assert isinstance(claim(right, 1, b"token--3"), Busy)

    done = set_after_an_answer()
    now = SystemClock().utc()
    assert finish(done, 1, window=LONG)
    (record,) = right.peek([key(1)])
    assert record is not None
    assert abs(record.until - now - LONG) < 60_000
    for store in (right, one, many, late, done):
        store.close()


def test_a_busy_key_comes_back_by_our_own_clock(dynoxide: Dynoxide, table: str) -> None:
    right, ahead = at(dynoxide, table), at(dynoxide, table, clock=Skewed(30_000))
    began = Skewed(30_000).utc()
    claim(right, 1)
    ended = Skewed(30_000).utc()
    answer = claim(ahead, 1, b"token--2")
    assert isinstance(answer, Busy)
    assert began - 5000 < answer.until - LONG < ended + 5000
    right.close()
    ahead.close()


def test_a_server_without_dates_is_assumed_to_have_our_time(store: DynamoDBStore, meddler: Meddler) -> None:
    meddler.dated = False
    assert claim(store, 1) == Won(1)
    assert store._client.time.offset == 0
    reads = sum(operation == "BatchGetItem" for operation, _ in meddler.requests)
    claim(store, 2)
    assert sum(operation == "BatchGetItem" for operation, _ in meddler.requests) == reads == 1


# --- forks ---


def _in_child(store: DynamoDBStore, answers: Any) -> None:
    answers.put([claim_all(store, 60, b"token--2"), finish(store, 1)])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_uses_connections_of_its_own(dynoxide: Dynoxide, table: str) -> None:
    store = at(dynoxide, table)
    claim_all(store, 60)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(store, answers))
    child.start()
    theirs, finished = answers.get(timeout=60)
    child.join()
    assert all(isinstance(answer, Busy) for answer in theirs)
    assert finished
    assert all(isinstance(answer, Busy | Done) for answer in claim_all(store, 60, b"token--3"))
    store.close()


# --- transactions ---


@pytest.fixture
def ledger(client: Any) -> str:
    return make(client, ("account", "S"))


@BOTH
def test_plain_values_are_written_with_the_record(store: DynamoDBStore, client: Any, ledger: str) -> None:
    client.put_item(TableName=ledger, Item={"account": {"S": "old"}})
    client.put_item(TableName=ledger, Item={"account": {"S": "open"}, "state": {"S": "open"}})

    def handle(event: Any, ctx: Any) -> None:
        ctx.tx.put_item(TableName=ledger, Item={"account": "new", "cents": 5, "rate": Decimal("1.5"), "tags": ["a"]})
        ctx.tx.update_item(
            TableName=ledger,
            Key={"account": "sum"},
            UpdateExpression="ADD #c :c",
            ExpressionAttributeNames={"#c": "cents"},
            ExpressionAttributeValues={":c": 5},
        )
        ctx.tx.delete_item(TableName=ledger, Key={"account": "old"})
        ctx.tx.condition_check(
            TableName=ledger,
            Key={"account": "open"},
            ConditionExpression="#s = :s",
            ExpressionAttributeNames={"#s": "state"},
            ExpressionAttributeValues={":s": "open"},
        )

    with Once(store) as once:
        kinds = [outcome.kind for _ in range(2) for outcome in once.run([{"id": "1"}], handle)]
    assert kinds == [OutcomeKind.PROCESSED, OutcomeKind.DUPLICATE]
    by_account = {item["account"]["S"]: item for item in items(client, ledger)}
    assert sorted(by_account) == ["new", "open", "sum"]
    assert by_account["sum"]["cents"] == {"N": "5"}


def run_one(
    store: DynamoDBStore,
    handle: Callable[[Any], None],
    lease: str = "60s",
    name: str = "1",
    clock: ManualClock | None = None,
) -> Any:
    with Once(store, lease=lease, clock=clock) as once:
        (outcome,) = once.run([{"id": name}], lambda event, ctx: handle(ctx.tx))
        return outcome


@pytest.mark.parametrize("jump", [-86_400_000, 20 * 86_400_000])
def test_a_clock_that_is_set_inside_a_transaction_loses_nothing(
    dynoxide: Dynoxide, table: str, client: Any, ledger: str, jump: int
) -> None:
    clock = Jumping()

    def handle(event: Any, ctx: Any) -> None:
        ctx.tx.put_item(TableName=ledger, Item={"account": "a"})
        clock.ahead = jump  # by more than the record of the claim lasts

    began = SystemClock().utc()
    with Once(at(dynoxide, table, clock=clock)) as once:
        (outcome,) = once.run([{"id": "1"}], handle)
        (record,) = once.peek([once.key({"id": "1"})])
    assert outcome.kind is OutcomeKind.PROCESSED
    assert items(client, ledger) == [{"account": {"S": "a"}}]
    assert record is not None
    assert abs(record.until - began - 14 * 86_400_000) < 600_000


def test_a_refused_transaction_is_never_taken_for_a_committed_one(
    dynoxide: Dynoxide, table: str, client: Any, ledger: str
) -> None:
    """If the condition of the record fails although the claim is still ours, nothing was written."""
    store = at(dynoxide, table)
    assert claim(store, 1) == Won(1)
    transaction = store.begin(Claim(key(1), b"token--1"))
    transaction.handle.put_item(TableName=ledger, Item={"account": "a"})
    store._client.time.offset = 20 * 86_400_000  # the answer corrects it
    assert not transaction.commit(Commit(key(1), b"token--1", LONG))
    assert items(client, ledger) == []
    store.close()


@BOTH
def test_a_condition_that_does_not_hold_fails_the_event(store: DynamoDBStore, client: Any, ledger: str) -> None:
    client.put_item(TableName=ledger, Item={"account": {"S": "a"}})

    def handle(tx: Any) -> None:
        tx.put_item(TableName=ledger, Item={"account": "b"})
        tx.put_item(
            TableName=ledger, Item={"account": "a", "x": 1}, ConditionExpression="attribute_not_exists(account)"
        )

    outcome = run_one(store, handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert isinstance(outcome.error, TransactionRefused)
    assert f"the Put on table {ledger!r} was refused" in str(outcome.error)
    assert "attribute_not_exists(account)" in str(outcome.error)
    assert items(client, ledger) == [{"account": {"S": "a"}}]
    assert run_one(store, lambda tx: None).attempt == 2


def test_writes_that_dynamodb_refuses_fail_the_event(store: DynamoDBStore, ledger: str) -> None:
    bad = [
        lambda tx: tx.put_item(TableName=ledger, Item={"no": "key"}),
        lambda tx: tx.put_item(TableName="absent", Item={"account": "a"}),
        lambda tx: tx.update_item(TableName=ledger, Key={"account": "a"}, UpdateExpression="NONSENSE"),
        lambda tx: [tx.put_item(TableName=ledger, Item={"account": "a", "n": n}) for n in (1, 2)],
        lambda tx: tx.put_item(TableName="", Item={"account": "a"}),  # which boto3 itself refuses
        lambda tx: tx.delete_item(
            TableName=ledger, Key={"account": "a"}, ConditionExpression="#a", ExpressionAttributeNames={"#a": 1}
        ),
    ]
    for number, handle in enumerate(bad):
        outcome = run_one(store, handle, name=str(number))
        assert outcome.kind is OutcomeKind.FAILED, outcome
        assert isinstance(outcome.error, TransactionRefused)


def test_invalid_writes_are_refused_at_the_call_if_possible() -> None:
    tx = Writes()
    tx.touch("claims", {"id": {"S": "ours"}})
    with pytest.raises(TransactionRefused, match="400 KB"):
        tx.put_item(TableName="t", Item={"id": "1", "text": "x" * 400 * 1024})
    with pytest.raises(TypeError, match="Float types are not supported"):
        tx.put_item(TableName="t", Item={"id": "1", "price": 1.5})
    with pytest.raises(TransactionRefused, match="written twice"):
        tx.put_item(TableName="claims", Item={"id": "ours", "status": "mine"})
    tx.delete_item(TableName="t", Key={"id": "1"})
    with pytest.raises(TransactionRefused, match="written twice"):
        tx.update_item(TableName="t", Key={"id": "1"}, UpdateExpression="SET a = :a")
    with pytest.raises(TransactionRefused, match="written twice"):
        tx.put_item(TableName="t", Item={"id": "1", "more": 1})
    with pytest.raises(ConfigError, match="use a string"):
        tx.condition_check(TableName="t", Key={"id": "2"}, ConditionExpression=object())  # type: ignore[arg-type]
    for number in range(2, 100):
        tx.put_item(TableName="t", Item={"id": str(number)})
    with pytest.raises(TransactionRefused, match="99 writes"):
        tx.put_item(TableName="t", Item={"id": "100"})
    big = Writes()
    for number in range(13):
        big.put_item(TableName="t", Item={"id": str(number), "bytes": bytes(310_000)})
    with pytest.raises(TransactionRefused, match="4 MB"):
        big.put_item(TableName="t", Item={"id": "14", "bytes": bytes(310_000)})
    big.end()
    with pytest.raises(ConfigError, match="has ended"):
        big.delete_item(TableName="t", Key={"id": "0"})


def test_sizes_are_not_underestimated() -> None:
    values = {"s": {"S": "ü" * 10}, "n": {"N": "123456"}, "b": {"B": b"12"}, "t": {"BOOL": True}, "z": {"NULL": True}}
    assert size(values) >= 5 + 20 + 4 + 2 + 1 + 1
    nested = {"l": {"L": [{"M": values}]}, "ss": {"SS": ["a", "bc"]}, "ns": {"NS": ["1"]}, "bs": {"BS": [b"1"]}}
    assert size(nested) >= size(values) + 3 + 3 + 3 + 3 + 3


@BOTH
def test_ninety_nine_writes_fit(store: DynamoDBStore, client: Any, ledger: str) -> None:
    def handle(tx: Any) -> None:
        for number in range(99):
            tx.put_item(TableName=ledger, Item={"account": str(number)})

    assert run_one(store, handle).kind is OutcomeKind.PROCESSED
    assert len(items(client, ledger)) == 99


def test_a_transaction_without_writes_commits_plainly(store: DynamoDBStore, meddler: Meddler) -> None:
    assert run_one(store, lambda tx: None).kind is OutcomeKind.PROCESSED
    assert "TransactWriteItems" not in [operation for operation, _ in meddler.requests]


def cancelled(*codes: str) -> Answer:
    reasons = [{"Code": code, **({} if code == "None" else {"Message": "as told"})} for code in codes]
    return 400, {
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": f"Transaction cancelled, please refer cancellation reasons [{', '.join(codes)}]",
        "CancellationReasons": reasons,
    }


@pytest.mark.parametrize(
    "answer",
    [
        cancelled("TransactionConflict", "None"),
        cancelled("None", "TransactionConflict"),
        cancelled("None", "ProvisionedThroughputExceeded"),
        cancelled("ThrottlingError", "None"),
        error("TransactionInProgressException"),
        error("InternalServerError", 500),
    ],
)
def test_a_conflict_is_retried(
    store: DynamoDBStore, meddler: Meddler, client: Any, ledger: str, answer: Answer
) -> None:
    meddler.instead = times(4, answer, "TransactWriteItems")
    assert run_one(store, lambda tx: tx.put_item(TableName=ledger, Item={"account": "a"})).kind is OutcomeKind.PROCESSED
    assert len(items(client, ledger)) == 1


def test_a_lasting_conflict_is_unknown_and_writes_nothing(
    store: DynamoDBStore, meddler: Meddler, client: Any, ledger: str
) -> None:
    meddler.instead = lambda operation, _: (
        cancelled("None", "TransactionConflict") if operation == "TransactWriteItems" else None
    )
    # The store retries for half of the lease. On the engine's clock the lease does not expire.
    write = lambda tx: tx.put_item(TableName=ledger, Item={"account": "a"})  # noqa: E731
    outcome = run_one(store, write, lease="1s", clock=ManualClock())
    assert outcome.kind is OutcomeKind.UNKNOWN
    assert "TransactionConflict" in str(outcome.error)
    assert items(client, ledger) == []
    meddler.instead = lambda *_: None
    assert run_one(store, write).kind is OutcomeKind.PROCESSED


@BOTH
@pytest.mark.parametrize("lost", [1, 4])
def test_a_transaction_whose_reply_is_lost_is_made_once(
    store: DynamoDBStore, meddler: Meddler, client: Any, ledger: str, lost: int
) -> None:
    left = [lost]

    def after(operation: str, request: Any, answer: dict[str, Any]) -> dict[str, Any] | None:
        if operation != "TransactWriteItems" or not left[0]:
            return answer
        left[0] -= 1
        return None

    def handle(tx: Any) -> None:
        tx.update_item(
            TableName=ledger,
            Key={"account": "a"},
            UpdateExpression="ADD hits :one",
            ExpressionAttributeValues={":one": 1},
        )

    meddler.after = after
    assert run_one(store, handle).kind is OutcomeKind.PROCESSED
    assert items(client, ledger) == [{"account": {"S": "a"}, "hits": {"N": "1"}}]


@BOTH
def test_our_own_earlier_commit_is_not_taken_for_a_lost_claim(
    store: DynamoDBStore, meddler: Meddler, client: Any, ledger: str
) -> None:
    """This holds also after DynamoDB has forgotten the token of the request, which it does after ten minutes."""
    claim(store, 1)
    done = Commit(key(1), b"token--1", LONG)
    for expected in (True, True):
        transaction = store.begin(Claim(key(1), b"token--1"))
        transaction.handle.put_item(TableName=ledger, Item={"account": "a"})
        request = transaction._request(done)
        request["ClientRequestToken"] = uuid.uuid4().hex
        assert transaction._send(request, done) is expected
    claim(store, 2, lease=SHORT)
    time.sleep(0.1)
    claim(store, 2, b"token--2")
    transaction = store.begin(Claim(key(2), b"token--1"))
    transaction.handle.put_item(TableName=ledger, Item={"account": "b"})
    assert transaction.commit(Commit(key(2), b"token--1", LONG)) is False
    assert [item["account"]["S"] for item in items(client, ledger)] == ["a"]


@BOTH
def test_a_worker_that_lost_its_lease_writes_nothing(store: DynamoDBStore, client: Any, ledger: str) -> None:
    def handle(event: Any, ctx: Any) -> None:
        ctx.tx.put_item(TableName=ledger, Item={"account": "late"})
        store.forget([once.key(event)])

    with Once(store) as once:
        (outcome,) = once.run([{"id": "1"}], handle)
    assert outcome.kind is OutcomeKind.FAILED
    assert isinstance(outcome.error, LeaseLost)
    assert items(client, ledger) == []


def test_threads_that_race_for_the_same_effect_make_it_once(
    dynoxide: Dynoxide, table: str, client: Any, ledger: str
) -> None:
    def handle(event: Any, ctx: Any) -> None:
        ctx.tx.update_item(
            TableName=ledger,
            Key={"account": event.id},
            UpdateExpression="ADD hits :one",
            ExpressionAttributeValues={":one": 1},
        )

    def work() -> None:
        store = at(dynoxide, table)
        with Once(store, busy_wait="20s") as once:
            once.run([{"id": str(number)} for number in range(20)], handle)
        store.close()

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {item["hits"]["N"] for item in items(client, ledger)} == {"1"}
    assert len(items(client, ledger)) == 20


# --- Powertools for AWS Lambda ---

WORKER = "&layout=powertools&function=billing"
ORDERS = Rule(name="orders", key=["detail.orderId"], digest="powertools", remember="result")


class LambdaContext:
    def __init__(self, remaining: int = 60_000) -> None:
        self._remaining = remaining

    def get_remaining_time_in_millis(self) -> int:
        return self._remaining


def order(number: object) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "source": "shop",
        "detail-type": "Order",
        "time": "2026-01-31T12:00:00Z",
        "detail": {"orderId": number, "region": "ü"},
    }


def powertools(
    client: Any,
    table: str,
    work: Callable[[Any], Any],
    path: str = "detail.orderId",
    remaining: int = 60_000,
    **more: Any,
) -> Callable[[Any], Any]:
    """A function that Powertools makes idempotent, in the same table and under the same name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from aws_lambda_powertools.utilities.idempotency import (
            DynamoDBPersistenceLayer,
            IdempotencyConfig,
            idempotent_function,
        )

    config = IdempotencyConfig(event_key_jmespath=path)
    config.register_lambda_context(LambdaContext(remaining))  # type: ignore[arg-type]
    layer = DynamoDBPersistenceLayer(table_name=table, boto3_client=client, **more)

    decorate: Any = idempotent_function
    function = decorate(
        work,
        data_keyword_argument="event",
        persistence_store=layer,
        config=config,
        key_prefix="billing",
    )
    return lambda event: function(event=event)


@pytest.fixture
def switching(server: Dynoxide, table: str) -> Iterator[Once]:
    with Once(server.url(table) + WORKER, rules=ORDERS) as once:
        yield once


@BOTH
def test_eventonce_skips_what_powertools_did_and_has_its_result(switching: Once, client: Any, table: str) -> None:
    function = powertools(client, table, lambda event: {"charged": event["detail"]["orderId"], "list": [1, None, "ü"]})
    events = [order("o-1"), order("o-2"), order(7)]
    results = [function(event) for event in events]
    ran: list[str] = []
    outcomes = switching.run([*map(order, ("o-1", "o-2", 7)), order("o-3")], lambda event: ran.append(event.id))
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DUPLICATE] * 3 + [OutcomeKind.PROCESSED]
    assert [outcome.result for outcome in outcomes[:3]] == results
    assert len(ran) == 1


@pytest.mark.parametrize("result", [None, 0, "text", [1, {"a": None}], {"statusCode": 200}])
def test_powertools_skips_what_eventonce_did_and_has_its_result(
    switching: Once, client: Any, table: str, result: Any
) -> None:
    ran: list[Any] = []
    (outcome,) = switching.run([order("o-1")], lambda event: result)
    assert outcome.kind is OutcomeKind.PROCESSED
    function = powertools(client, table, ran.append)
    assert function(order("o-1")) == (result or None)  # it returns None for a false result, also for its own
    assert ran == []
    assert [outcome.result for outcome in switching.run([order("o-1")], ran.append)] == [result]


def test_powertools_waits_for_what_eventonce_runs(switching: Once, client: Any, table: str) -> None:
    from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError

    ran: list[Any] = []
    function = powertools(client, table, ran.append)

    def handle(event: Any) -> None:
        with pytest.raises(IdempotencyAlreadyInProgressError):
            function(order("o-1"))

    (outcome,) = switching.run([order("o-1")], handle)
    assert (outcome.kind, outcome.error, ran) == (OutcomeKind.PROCESSED, None, [])


def test_eventonce_waits_for_what_powertools_runs(switching: Once, client: Any, table: str) -> None:
    ran: list[Any] = []

    def work(event: Any) -> str:
        outcomes = switching.run([order("o-1"), order("o-1")], ran.append)
        assert [outcome.kind for outcome in outcomes] == [OutcomeKind.BUSY] * 2
        return "done"

    assert powertools(client, table, work)(order("o-1")) == "done"
    (outcome,) = switching.run([order("o-1")], ran.append)
    assert (outcome.kind, outcome.result, ran) == (OutcomeKind.DUPLICATE, "done", [])


def test_a_run_that_powertools_abandoned_is_taken_over_after_its_lease(
    switching: Once, client: Any, table: str
) -> None:
    class Died(BaseException):
        pass

    def die(event: Any) -> None:
        raise Died

    with pytest.raises(Died):
        powertools(client, table, die, remaining=0)(order("o-1"))
    time.sleep(0.01)
    (outcome,) = switching.run([order("o-1")], lambda event: "mine")
    assert (outcome.kind, outcome.attempt) == (OutcomeKind.PROCESSED, 2)
    assert powertools(client, table, die)(order("o-1")) == "mine"


def test_what_failed_with_eventonce_may_run_with_powertools(switching: Once, client: Any, table: str) -> None:
    def fail(event: Any) -> None:
        raise ValueError("no")

    assert [outcome.kind for outcome in switching.run([order("o-1")], fail)] == [OutcomeKind.FAILED]
    assert powertools(client, table, lambda event: "theirs")(order("o-1")) == "theirs"
    (outcome,) = switching.run([order("o-1")], fail)
    assert (outcome.kind, outcome.result) == (OutcomeKind.DUPLICATE, "theirs")


def test_a_powertools_function_that_finishes_late_fences_us(switching: Once, client: Any, table: str) -> None:
    """It commits without checking the owner of the record. Then our own run must not count as recorded."""
    proceed, began = threading.Event(), threading.Event()

    def slow(event: Any) -> str:
        began.set()
        proceed.wait(30)
        return "late"

    late = threading.Thread(target=powertools(client, table, slow, remaining=0), args=(order("o-1"),))
    late.start()
    began.wait(30)
    time.sleep(0.01)

    def handle(event: Any) -> None:
        proceed.set()
        late.join()

    (outcome,) = switching.run([order("o-1")], handle)
    assert outcome.kind is OutcomeKind.FAILED
    (outcome,) = switching.run([order("o-1")], handle)
    assert (outcome.kind, outcome.result) == (OutcomeKind.DUPLICATE, "late")


def test_records_of_powertools_expire_by_its_rules() -> None:
    layout = Layout(prefix="billing#", results=True)
    base = {"id": {"S": "billing#00"}, "expiration": {"N": "100"}}
    done = layout.record({**base, "status": {"S": "COMPLETED"}}, 0)
    assert (done.until, done.expires, done.lease) == (101_000, 101_000, 0)
    running = layout.record({**base, "status": {"S": "INPROGRESS"}, "in_progress_expiration": {"N": "50000"}}, 0)
    assert (running.lease, running.expires) == (50_001, 101_000)
    endless = layout.record({**base, "status": {"S": "INPROGRESS"}}, 0)
    assert endless.lease == endless.expires == 101_000
    for_a_year = {**base, "status": {"S": "INPROGRESS"}, "expiration": {"N": str(365 * 86_400)}}
    answer, _ = protocol.claim(layout.record(for_a_year, 0), ClaimRequest(Key(bytes(16)), 1000), b"token--1", 1000, 0)
    assert isinstance(answer, Busy)
    with pytest.raises(StoreUnusable, match="another program"):
        layout.record({**base, "status": {"S": "PAID"}}, 0)


def test_several_key_parts_meet_as_a_list(dynoxide: Dynoxide, client: Any, table: str) -> None:
    rule = Rule(name="r", key=["source", "detail.orderId"], digest="powertools")
    powertools(client, table, lambda event: None, "[source, detail.orderId]")(order({"b": 1.5, "a": ["ü"]}))
    with Once(dynoxide.url(table) + WORKER, rules=rule) as once:
        (outcome,) = once.run([order({"a": ["ü"], "b": 1.5})], lambda event: None)
        assert outcome.kind is OutcomeKind.DUPLICATE


def test_a_table_with_a_sort_key_is_shared_too(dynoxide: Dynoxide, client: Any) -> None:
    table = make(client, ("pk", "S"), ("sk", "S"))
    names: dict[str, Any] = {
        "key_attr": "pk",
        "sort_key_attr": "sk",
        "static_pk_value": "idempotency#f",
        "expiry_attr": "ttl",
    }
    function = powertools(client, table, lambda event: "theirs", **names)
    function(order("o-1"))
    url = dynoxide.url(table) + WORKER + "&key=pk&sort=sk&partition=idempotency%23f&ttl=ttl"
    with Once(url, rules=ORDERS) as once:
        kinds = [outcome.kind for outcome in once.run([order("o-1"), order("o-2")], lambda event: "ours")]
    assert kinds == [OutcomeKind.DUPLICATE, OutcomeKind.PROCESSED]
    assert function(order("o-2")) == "ours"


def test_the_old_digest_still_counts_after_the_switch(dynoxide: Dynoxide, client: Any, table: str) -> None:
    powertools(client, table, lambda event: None)(order("o-1"))
    rule = Rule(name="orders", key=["detail.orderId"], replaces={"name": "orders", "digest": "powertools"})
    with Once(dynoxide.url(table) + WORKER, rules=rule) as once:
        kinds = [outcome.kind for outcome in once.run([order("o-1"), order("o-2")], lambda event: None)]
    assert kinds == [OutcomeKind.DUPLICATE, OutcomeKind.PROCESSED]


def test_a_digest_of_powertools_needs_paths() -> None:
    for wrong in (
        {"key": "content"},
        {"key": "id"},
        {"key": ["a"], "otherwise": "id"},
        {"key": ["a"], "digest": "md5"},
    ):
        with pytest.raises(ConfigError, match="digest"):
            Rule(name="r", **{"digest": "powertools", **wrong})  # type: ignore[arg-type]


@pytest.mark.long
def test_an_interrupt_anywhere_before_the_commit_strands_nothing(
    store: DynamoDBStore, client: Any, ledger: str
) -> None:
    def insert(event: Event, ctx: Any) -> None:
        ctx.tx.update_item(
            TableName=ledger,
            Key={"account": event.id},
            UpdateExpression="ADD written :one",
            ExpressionAttributeValues={":one": 1},
        )

    def written(name: str) -> int:
        item = client.get_item(TableName=ledger, Key={"account": {"S": name}}).get("Item", {})
        return int(item.get("written", {"N": "0"})["N"])

    with Once(store) as once:
        assert interrupt_before_the_commit(once, insert, written) > 15
