"""The S3 store: answers that only AWS gives, servers that ignore conditions, objects of others, and its bucket."""

import json
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse, HeadersDict

from eventonce import Once, OutcomeKind, open_store
from eventonce.claims.protocol import Busy, Claim, ClaimRequest, Commit, Done, Record, Won
from eventonce.clock import SystemClock
from eventonce.errors import ConfigError, StoreError, StoreUnusable
from eventonce.stores.s3.record import LARGEST_BODY, LARGEST_MEMO, decode, encode
from eventonce.stores.s3.store import S3Store
from eventonce.testing import ManualClock
from eventonce.testing.contract import LONG, claim, finish, key, keys, release
from eventonce.testing.faults import Skewed
from tests.contract.test_s3_store import bucket_at, client_of, url_of
from tests.servers import Ministack

SECRET = "hunter2"
RECORD = Record(b"token--1", 1, True, 2, 3, 4, 5, 6, 7, b"memo", "ü", 8)


class Body:
    """The body of an answer, as botocore reads it."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.content


class Interceptor:
    """Answers requests in place of the server. `instead(method, path)` returns a status and a code, or None."""

    def __init__(self, store: S3Store) -> None:
        self.instead: Callable[[str, str], tuple[int, str] | None] = lambda *_: None
        self.requests: list[str] = []
        store._client.client().meta.events.register("before-send.s3", self._answer)

    def times(self, count: int, method: str, status: int, code: str) -> None:
        """Answer so many requests with an error."""
        remaining = [count]

        def instead(its_method: str, _: str) -> tuple[int, str] | None:
            if its_method != method or not remaining[0]:
                return None
            remaining[0] -= 1
            return status, code

        self.instead = instead

    def _answer(self, request: Any, **_: Any) -> AWSResponse | None:
        self.requests.append(request.method)
        answer = self.instead(request.method, request.url)
        if answer is None:
            return None
        content = f"<Error><Code>{answer[1]}</Code><Message>from the test</Message></Error>" if answer[1] else ""
        raw: Any = Body(content.encode())
        headers: Any = HeadersDict({"content-length": str(len(content))})
        return AWSResponse(request.url, answer[0], headers, raw)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore repeats a call without pauses. The store pauses on the clock of the test."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))


@pytest.fixture
def bucket(ministack: Ministack) -> str:
    return bucket_at(ministack)


@pytest.fixture
def client(ministack: Ministack) -> Iterator[Any]:
    client = client_of(ministack)
    yield client
    client.close()


@pytest.fixture
def url(ministack: Ministack, bucket: str) -> str:
    return url_of(ministack, bucket)


@pytest.fixture
def store(url: str) -> Iterator[S3Store]:
    store = open_store(url, ManualClock())
    assert isinstance(store, S3Store)
    yield store
    store.close()


@pytest.fixture
def interceptor(store: S3Store) -> Interceptor:
    store.peek(keys(1))
    return Interceptor(store)


# --- what it costs ---


def test_an_event_costs_two_writes_and_a_read_and_a_duplicate_one_of_each(
    store: S3Store, interceptor: Interceptor
) -> None:
    claim(store, 1)
    finish(store, 1)
    assert interceptor.requests == ["PUT", "GET", "PUT"]
    interceptor.requests.clear()
    assert isinstance(claim(store, 1, b"token--2"), Done)
    assert interceptor.requests == ["PUT", "GET"]


def test_a_key_is_one_object_without_a_payload(store: S3Store, client: Any, bucket: str) -> None:
    claim(store, 1)
    finish(store, 1)
    names = [each["Key"] for each in client.list_objects_v2(Bucket=bucket, Prefix="eventonce/0")["Contents"]]
    assert names == [f"eventonce/{key(1).hex()}"]
    body = client.get_object(Bucket=bucket, Key=names[0])["Body"].read()
    assert json.loads(body)["eventonce"] == 1
    assert store.peek([key(1)]) == [decode(body)]


# --- answers of AWS ---


@pytest.mark.parametrize("count", [1, 3])
def test_a_conflict_of_two_requests_is_decided_by_what_is_stored(
    store: S3Store, interceptor: Interceptor, count: int
) -> None:
    interceptor.times(count, "PUT", 409, "ConditionalRequestConflict")
    assert claim(store, 1) == Won(1)
    interceptor.times(count, "PUT", 409, "ConditionalRequestConflict")
    assert finish(store, 1)
    assert isinstance(claim(store, 1, b"token--2"), Done)


def test_an_object_that_vanishes_before_its_change_is_created(
    store: S3Store, interceptor: Interceptor, client: Any, bucket: str
) -> None:
    claim(store, 1)
    release(store, 1, error="failed")
    writes: list[str] = []

    def instead(method: str, path: str) -> None:
        if method == "PUT":
            writes.append(path)
            if len(writes) == 2:  # the one with If-Match
                client.delete_object(Bucket=bucket, Key=f"eventonce/{key(1).hex()}")

    interceptor.instead = instead
    assert claim(store, 1, b"token--2") == Won(1)
    assert finish(store, 1, b"token--2")


@pytest.mark.parametrize(
    ("method", "change", "answer"),
    [
        ("PUT", lambda store: finish(store, 1), False),
        ("PUT", lambda store: release(store, 1, error="failed"), False),
        ("DELETE", lambda store: release(store, 1), False),
        ("PUT", lambda store: store.extend([Claim(key(1), b"token--1")], 2 * LONG), [False]),
    ],
)
def test_an_owner_that_is_replaced_between_its_read_and_its_write_changes_nothing(
    store: S3Store, interceptor: Interceptor, url: str, method: str, change: Callable[[S3Store], Any], answer: Any
) -> None:
    other = open_store(url)
    claim(store, 1)

    def replace(its_method: str, _: str) -> None:
        if its_method == method:
            interceptor.instead = lambda *_: None
            other.forget([key(1)])
            assert claim(other, 1, b"token--2") == Won(1)

    interceptor.instead = replace
    assert change(store) == answer
    assert finish(other, 1, b"token--2")
    other.close()


def test_a_claim_that_another_takes_over_between_our_read_and_our_write_is_the_others(
    store: S3Store, interceptor: Interceptor, url: str
) -> None:
    other = open_store(url)
    claim(store, 1)
    release(store, 1, error="failed")
    writes: list[str] = []

    def take_over(method: str, path: str) -> None:
        if method == "PUT":
            writes.append(path)
            if len(writes) == 2:  # the one with If-Match
                assert claim(other, 1, b"token--2") == Won(2, "failed")

    interceptor.instead = take_over
    assert isinstance(claim(store, 1, b"token--3"), Busy)
    assert finish(other, 1, b"token--2")
    other.close()


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (400, "RequestTimeout")])
def test_trouble_that_passes_is_waited_out(
    store: S3Store, interceptor: Interceptor, caplog: pytest.LogCaptureFixture, status: int, code: str
) -> None:
    interceptor.times(5, "PUT", status, code)
    assert claim(store, 1) == Won(1)
    interceptor.times(5, "PUT", status, code)
    assert finish(store, 1)
    assert store.throttled == (10 if code == "SlowDown" else 0)
    assert caplog.text.count("throttles") == (1 if code == "SlowDown" else 0)


def test_a_key_that_stays_throttled_is_busy_and_the_others_of_its_batch_run(
    store: S3Store, interceptor: Interceptor
) -> None:
    interceptor.instead = lambda _, path: (503, "SlowDown") if key(1).hex() in path else None
    wants = [ClaimRequest(each, LONG) for each in keys(3)]
    won, busy, won_too = store.claim(wants, b"token--1", 300)
    assert (won, won_too) == (Won(1), Won(1))
    assert isinstance(busy, Busy)
    with pytest.raises(StoreError, match=r"did not do get_object \(SlowDown: from the test\)"):
        store.commit([Commit(each, b"token--1", LONG) for each in keys(3)])
    interceptor.instead = lambda *_: (503, "SlowDown")
    with pytest.raises(StoreError, match="trying again later may help"):
        store.claim(wants, b"token--2", 300)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (403, "AccessDenied", "allow s3:GetObject, s3:PutObject and s3:DeleteObject on the objects, and s3:ListBucket"),
        (403, "InvalidAccessKeyId", "check the AWS credentials"),
        (403, "SignatureDoesNotMatch", "check the AWS credentials"),
        (400, "AuthorizationHeaderMalformed", "set region= in the URL"),
        (404, "NoSuchBucket", "does not exist; check its name, or create it: aws s3 mb s3://claims-"),
        (400, "KMS.DisabledException", "refused get_object"),
    ],
)
def test_what_only_a_person_can_fix_stops_the_worker(
    url: str, monkeypatch: pytest.MonkeyPatch, status: int, code: str, reason: str
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    store = open_store(url)
    assert isinstance(store, S3Store)
    store.peek(keys(1))
    Interceptor(store).instead = lambda *_: (status, code)
    with pytest.raises(StoreUnusable, match=re.escape(reason)) as caught:
        store.peek(keys(1))
    assert SECRET not in str(caught.value)
    with Once(store) as once:
        (outcome,) = once.run([{"id": "1"}], lambda event: pytest.fail("ran"))
    assert outcome.kind is OutcomeKind.UNKNOWN
    store.close()


def test_a_missing_bucket_is_reported(ministack: Ministack) -> None:
    store = open_store(url_of(ministack, "no-such-bucket"))
    with pytest.raises(StoreUnusable, match=r"create it: aws s3 mb s3://no-such-bucket$"):
        claim(store, 1)
    store.close()


# --- servers that are not AWS ---


@pytest.mark.parametrize(
    ("header", "method", "reason"),
    [
        ("If-None-Match", "PUT", "IfNoneMatch in put_object"),
        ("If-Match", "PUT", "IfMatch in put_object"),
        ("If-Match", "DELETE", "IfMatch in delete_object"),
    ],
)
def test_a_server_that_ignores_conditions_is_refused(store: S3Store, header: str, method: str, reason: str) -> None:
    def ignore(request: Any, **_: Any) -> AWSResponse | None:
        if request.method != method or header not in request.headers:
            return None
        headers: Any = HeadersDict()
        raw: Any = Body(b"")
        return AWSResponse(request.url, 200, headers, raw)

    store._client.client().meta.events.register("before-send.s3", ignore)
    with pytest.raises(StoreUnusable, match=f"ignores {reason}, so that two claims of a key could win"):
        claim(store, 1)


def test_a_boto3_without_conditional_writes_is_refused(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = store._client.client().meta.service_model.operation_model("PutObject").input_shape
    store.peek(keys(1))
    monkeypatch.delitem(shape.members, "IfNoneMatch")
    with pytest.raises(StoreUnusable, match=r"install boto3 1\.36 or newer"):
        claim(store, 1)


def test_aws_itself_is_not_probed() -> None:
    store = open_store("s3://claims/p?region=eu-west-1")
    assert isinstance(store, S3Store)
    requests = Interceptor(store)
    requests.instead = lambda *_: (404, "NoSuchKey")
    assert store.peek(keys(1)) == [None]
    assert set(requests.requests) == {"GET"}
    store.close()


# --- objects ---


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        RECORD._replace(memo=None, version=None, trying=None, error=None, shared=False),
        RECORD._replace(token=b"", version=-(2**63), memo=bytes(range(256))),
    ],
)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode(encode(record)) == record


def test_a_result_that_is_too_large_is_not_remembered_but_its_run_is() -> None:
    record = decode(encode(RECORD._replace(memo=bytes(LARGEST_MEMO + 1))))
    assert record.memo is not None
    assert "too many for the S3 store" in json.loads(record.memo)["not_kept"]
    assert len(encode(RECORD._replace(memo=bytes(LARGEST_MEMO)))) < LARGEST_BODY


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"a photo",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100_000,
        encode(RECORD).replace(b'"eventonce":1', b'"eventonce":2'),
        encode(RECORD).replace(b'"lease":1', b'"lease":"1"'),
        encode(RECORD).replace(b'"lease":1', b'"lease":true'),
        encode(RECORD).replace(b'"lease":1,', b""),
        encode(RECORD).replace(b'"token":"', b'"token":"x'),
        encode(RECORD).replace(b'"memo":"', b'"memo":"!'),
    ],
)
def test_an_object_of_another_program_is_refused(store: S3Store, client: Any, bucket: str, body: bytes) -> None:
    client.put_object(Bucket=bucket, Key=f"eventonce/{key(1).hex()}", Body=body)
    with pytest.raises(StoreUnusable, match=r"is not a record of eventonce .*; use another prefix"):
        claim(store, 1)
    assert client.get_object(Bucket=bucket, Key=f"eventonce/{key(1).hex()}")["Body"].read() == body


def test_an_object_that_is_too_large_is_not_read(store: S3Store, client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key=f"eventonce/{key(1).hex()}", Body=bytes(LARGEST_BODY + 1))
    with pytest.raises(StoreUnusable, match="too many for a record of eventonce"):
        claim(store, 1)


def test_two_prefixes_of_a_bucket_are_two_stores(store: S3Store, url: str) -> None:
    other = open_store(url.replace("/eventonce", "/other/one/"))
    assert claim(store, 1) == Won(1)
    assert claim(other, 1, b"token--2") == Won(1)
    other.close()


# --- clocks ---


def test_a_clock_that_is_set_while_we_work_is_noticed(url: str) -> None:
    clock = Skewed(0)
    store, other = open_store(url, clock), open_store(url, SystemClock())
    assert claim(other, 1, b"token--2", lease=20_000) == Won(1)
    claim(store, 2)
    clock._skew = 3_600_000
    assert isinstance(claim(store, 1, b"token--1"), Busy)
    for each in (store, other):
        each.close()


# --- the bucket ---


def test_check_says_what_to_set(store: S3Store, client: Any, bucket: str) -> None:
    (warning,) = store.check()
    assert "never deletes expired records; add to its lifecycle rules {" in warning
    rule = json.loads(warning[warning.index("{") : warning.rindex("}") + 1])
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    assert store.check() == []
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    (warning,) = store.check()
    assert "has versioning" in warning


@pytest.mark.parametrize(
    "change",
    [
        {"Status": "Disabled"},
        {"Filter": {"Prefix": "other/"}},
        {"Filter": {"Tag": {"Key": "a", "Value": "b"}}},
        {"Expiration": {"Date": "2026-01-01T00:00:00Z"}},
    ],
)
def test_a_rule_for_other_objects_does_not_count(
    store: S3Store, client: Any, bucket: str, change: dict[str, Any]
) -> None:
    rule = {"ID": "a", "Status": "Enabled", "Filter": {"Prefix": "event"}, "Expiration": {"Days": 16}}
    put = client.put_bucket_lifecycle_configuration
    put(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    assert store.check() == []
    put(Bucket=bucket, LifecycleConfiguration={"Rules": [{**rule, **change}]})
    assert len(store.check()) == 1


def test_a_role_that_may_not_look_is_warned(store: S3Store, interceptor: Interceptor) -> None:
    interceptor.instead = lambda *_: (403, "AccessDenied")
    assert [re.sub(r".*: its", "its", warning) for warning in store.check()] == [
        "its versioning was not checked; s3:GetBucketVersioning is not allowed",
        "its lifecycle was not checked; s3:GetLifecycleConfiguration is not allowed",
    ]


# --- URLs ---


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://", "names no bucket; use s3://BUCKET/PREFIX"),
        ("s3://B/p", "names no bucket"),
        ("s3://claims", "names no prefix for its objects"),
        ("s3://claims/", "names no prefix for its objects"),
        ("s3://claims/a%0Ab", "names no prefix for its objects"),
        (f"s3://claims/{'a' * 901}", "names no prefix for its objects"),
        (f"s3://key:{SECRET}@claims/p", "credentials do not belong in the URL"),
        (f"s3://claims/p?endpoint=http://a:{SECRET}@host", "credentials do not belong in the URL"),
        ("s3://claims/p?endpoint=host", "endpoint is not an address"),
        ("s3://claims/p?in_flight=0", "in_flight='0' is not a whole number above 0"),
        ("s3://claims/p?timeout=0s", "timeout=0 would give no server time to answer"),
        ("s3://claims/p?ttl=1", "unknown option 'ttl'; use region, endpoint, timeout, in_flight"),
    ],
)
def test_a_wrong_url_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)


def test_a_store_has_no_transactions(url: str) -> None:
    with Once(url) as once:
        (outcome,) = once.run([{"id": "1"}], lambda event, ctx: ctx.tx)
    assert isinstance(outcome.error, ConfigError)
