"""A poisonous event in Lambda ends where a function has dead letters, and its carrier decides where it has none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eventonce import Once, Rule
from eventonce.claims.outcome import Outcome
from eventonce.claims.protocol import ClaimRequest
from eventonce.dead_letters import open_box
from eventonce.errors import ConfigError, LettersNotKept, SinkError
from eventonce.event import Delivery, Event
from eventonce.redrive import Redrive
from eventonce.stores.memory import MemoryStore
from eventonce.testing import ManualClock
from tests.unit.aws_lambda.test_aws_lambda import (
    Context,
    activemq,
    bridge,
    dynamodb,
    failures,
    firehose,
    kafka,
    kinesis,
    log_batch,
    packed,
    pipe,
    rabbitmq,
    request,
    sqs,
)


class Letters:
    """Dead letters in a list, or an error in their place."""

    name = "the list"

    def __init__(self) -> None:
        self.events: list[str] = []
        self.bodies: list[bytes] = []
        self.error: Exception | None = None

    def write(self, dead: Sequence[tuple[Delivery, Outcome]], now: int) -> None:
        if self.error is not None:
            raise self.error
        self.events += [delivery.event.id if delivery.event else "unreadable" for delivery, _ in dead]
        self.bodies += [delivery.body for delivery, _ in dead]

    def close(self) -> None: ...


class Function:
    """A function with dead letters after two attempts."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        rule = Rule(name="r", key=["id"])
        self.once = Once(self.store, rules=rule, consumer="billing", max_attempts=2, clock=self.clock)
        self.letters = Letters()
        self.ran: list[str] = []
        self.fails: set[str] = set()
        self.handler = self.once.aws_lambda(self._handle, dead_letters=self.letters, **options)

    def _handle(self, event: Event) -> None:
        self.ran.append(event.id)
        if event.id in self.fails:
            raise ValueError(f"no {event.id}")


@pytest.fixture
def function() -> Function:
    return Function()


def test_a_message_that_fails_max_attempts_times_is_a_dead_letter_and_a_success(
    function: Function, caplog: pytest.LogCaptureFixture
) -> None:
    function.fails.add("2")
    assert failures(function.handler(sqs(1, 2, 3), None)) == ["m-2"]
    assert function.letters.events == []
    caplog.clear()
    assert failures(function.handler(sqs(2), None)) == []
    assert function.letters.events == ["2"]
    assert caplog.messages == ["sqs m-1: failed: no 2; its dead letter is in the list"]


def test_a_direct_invocation_succeeds_when_its_event_is_a_dead_letter(function: Function) -> None:
    function.fails.add("1")
    with pytest.raises(ValueError, match="no 1"):
        function.handler(bridge(1), None)
    assert function.handler(bridge(1), None) is None
    assert function.letters.events == ["1"]


def test_an_attempt_that_the_time_out_killed_counts(function: Function) -> None:
    for attempt in range(2):  # each claims, and is killed before it commits
        function.store.claim([ClaimRequest(function.once.key(bridge(1)), 60_000)], bytes([attempt] * 8), 3000)
        assert failures(function.handler(sqs(1), Context(2000))) == ["m-1"]  # busy until its time would have ended
        function.clock.sleep(3001)
    assert failures(function.handler(sqs(1), Context(2000))) == []
    assert function.ran == []
    assert function.letters.events == ["1"]


def test_what_can_never_be_processed_is_a_dead_letter_at_once(function: Function) -> None:
    broken = sqs(1)
    broken["Records"][0]["body"] = '{"no": "id"'
    assert failures(function.handler(broken, None)) == []
    assert function.letters.events == ["unreadable"]
    assert function.letters.bodies == [b'{"no": "id"']


def test_without_dead_letters_the_carrier_decides() -> None:
    function = Function()
    function.fails.add("1")
    handler = function.once.aws_lambda(function._handle)
    for _ in range(5):
        assert failures(handler(sqs(1), None)) == ["m-1"]
    assert len(function.ran) == 5


@pytest.mark.parametrize("stream", [kinesis, dynamodb])
def test_a_stream_goes_on_behind_a_dead_letter_in_the_same_invocation(function: Function, stream: Any) -> None:
    function.fails |= {"2", "4"}
    assert failures(function.handler(stream(1, 2, 3, 4, 5), None)) == ["s-2"]
    assert len(failures(function.handler(stream(2, 3, 4, 5), None))) == 1
    assert failures(function.handler(stream(4, 5), None)) == []
    assert function.letters.events == ["2", "4"]
    assert function.ran == ["1", "2", "2", "3", "4", "4", "5"]


def test_a_group_goes_on_behind_a_dead_letter_and_waits_behind_a_failure(function: Function) -> None:
    function.fails |= {"1", "2"}
    assert failures(function.handler(sqs(1, groups="a"), None)) == ["m-1"]
    # the first is a dead letter now, the second of its group fails for the first time, and the third waits for it
    assert len(failures(function.handler(sqs(1, 2, 3, groups="aaa"), None))) == 2
    assert function.ran == ["1", "1", "2"]
    assert function.letters.events == ["1"]


def test_what_is_redelivered_behind_a_failure_of_its_group_has_no_dead_letter_yet(function: Function) -> None:
    records = kinesis(1, 2)
    records["Records"][1]["kinesis"]["data"] = packed(b'{"no": ')
    function.fails.add("1")
    assert failures(function.handler(records, None)) == ["s-1"]
    assert function.letters.events == []  # the checkpoint redelivers it too
    function.fails.clear()
    assert failures(function.handler(records, None)) == []
    assert function.letters.events == ["unreadable"]


def test_a_batch_that_returns_whole_has_its_dead_letters_when_all_of_it_ends(function: Function) -> None:
    """A partition of Kafka whose mapping reports no failures is redelivered whole, also what has a dead letter."""
    function.fails |= {"1", "3"}
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            function.handler(kafka(1, 2, 3), None)
        assert function.letters.events == []
    assert function.ran == ["1", "1", "2", "3"]
    assert function.handler(kafka(1, 2, 3), None) is None
    assert function.letters.events == ["1", "3"]
    assert function.ran == ["1", "1", "2", "3", "3"]


def test_messages_of_a_broker_end_too(function: Function) -> None:
    function.fails |= {"1"}
    with pytest.raises(ValueError, match="no 1"):
        function.handler(activemq(1, 2), None)
    assert function.handler(activemq(1, 2), None) is None
    assert function.letters.events == ["1"]


def test_a_pipe_and_a_firehose_go_on_without_a_dead_letter() -> None:
    function = Function(enrichment=True)
    function.fails.add("1")
    with pytest.raises(ValueError, match="no 1"):
        function.handler(pipe(1, 2), None)
    assert [item["messageId"] for item in function.handler(pipe(1, 2), None)] == ["m-2"]
    assert function.letters.events == ["1"]
    stream = Function()
    stream.fails.add("1")
    results = [[each["result"] for each in stream.handler(firehose(1), None)["records"]] for _ in range(2)]
    assert results == [["ProcessingFailed"], ["Dropped"]]


def test_a_request_is_answered_as_the_webhook_answers(function: Function) -> None:
    function.fails.add("1")
    body = '{"id": "1", "source": "s", "detail-type": "t", "detail": {}}'
    statuses = [function.handler(request(body), None)["statusCode"] for _ in range(2)]
    assert statuses == [500, 200]
    assert function.letters.bodies == [body.encode()]


@pytest.mark.parametrize("error", [SinkError("the queue is away"), LettersNotKept("too large", [0])])
def test_without_its_dead_letter_a_message_comes_back(
    function: Function, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    function.fails.add("1")
    function.handler(sqs(1), None)
    function.letters.error = error
    assert failures(function.handler(sqs(1, 2), None)) == ["m-1"]
    assert str(error) in caplog.text
    function.letters.error = None
    assert failures(function.handler(sqs(1, 2), None)) == []
    assert function.letters.events == ["1"]


def test_a_dead_letter_of_a_function_is_run_again_by_a_redrive(tmp_path: Path) -> None:
    file, ran = str(tmp_path / "dead.jsonl"), []

    def fail(event: Event) -> None:
        raise ValueError("no")

    with Once(f"sqlite:///{tmp_path}/claims.db", consumer="billing", max_attempts=1) as once:
        handler = once.aws_lambda(fail, dead_letters=file)
        assert failures(handler(sqs("e-1", 2), None)) == []
        assert handler({"id": "3", "detail-type": "\ud800", "source": "s", "detail": {}}, None) is None
    with Once(f"sqlite:///{tmp_path}/claims.db", consumer="billing") as once:
        box = open_box(file)
        Redrive(once, lambda event: ran.append(event.id), box).run(list(box.letters()))
    assert ran == ["m-1", "2"]  # half a character cannot be read from JSON, so the letter of the third stays


@pytest.mark.parametrize(
    "document",
    [
        bridge(1), sqs("no id"), sqs('{"n": 1}'), kinesis(1), kinesis("text"), dynamodb(1), kafka(1), kafka("text"),
        activemq(1), rabbitmq(1), log_batch(1), firehose(1), pipe("no id"), request('{"n": 1}'),
        request('{"n": 1}', headers={"idempotency-key": "k-1"}),
    ],
    ids=[
        "bridge", "sqs", "sqs-json", "kinesis", "kinesis-text", "dynamodb", "kafka", "kafka-text", "activemq",
        "rabbitmq", "logs", "firehose", "pipe", "request", "request-keyed",
    ],
)  # fmt: skip
def test_a_redriven_letter_has_the_key_that_its_event_had(document: Any, tmp_path: Path) -> None:
    file, ran = str(tmp_path / "dead.jsonl"), []

    def fail(event: Event) -> None:
        raise ValueError("no")

    with Once(f"sqlite:///{tmp_path}/claims.db", max_attempts=1) as once:
        once.aws_lambda(fail, dead_letters=file)(document, None)
    with Once(f"sqlite:///{tmp_path}/claims.db") as once:
        box = open_box(file)
        Redrive(once, lambda event: None, box).run(list(box.letters()))
        once.aws_lambda(lambda event: ran.append(event.id))(document, None)
    assert ran == []


def test_what_is_not_a_dead_letter_sink_is_refused(function: Function) -> None:
    with pytest.raises(ConfigError, match="dead_letters: 7 is not a dead-letter sink"):
        function.once.aws_lambda(function._handle, dead_letters=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dead_letter"):
        function.once.aws_lambda(function._handle, dead_letters="ftp://host")
