"""Traces: spans that link to the event's own trace, and say nothing of its payload."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from eventonce import Event
from eventonce.event import Delivery
from eventonce.event.formats import read_events
from eventonce.event.reading import split_events
from eventonce.observe.opentelemetry import OpenTelemetryHook
from eventonce.observe.trace_context import trace_context
from eventonce.requests.reading import deliveries
from tests.unit.conftest import Bench

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
SECRET = "card 4111"


class Traces:
    """A provider that keeps its spans."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.hook = OpenTelemetryHook(self.provider)

    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()


def traced(name: str = "a") -> dict[str, Any]:
    return {"specversion": "1.0", "id": name, "source": "s", "type": "t", "traceparent": PARENT, "data": SECRET}


def ids(span: ReadableSpan) -> tuple[str, str | None]:
    assert span.context is not None
    return format(span.context.trace_id, "032x"), format(span.parent.span_id, "016x") if span.parent else None


def linked(span: ReadableSpan) -> list[tuple[str, str]]:
    return [(format(link.context.trace_id, "032x"), format(link.context.span_id, "016x")) for link in span.links]


def test_a_run_links_to_the_events_own_span(bench: Bench) -> None:
    traces, inside = Traces(), []

    def handle(event: Event) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)

    (outcome,) = bench.once(hooks=[traces.hook]).run([traced()], handle)

    (span,) = traces.spans()
    assert linked(span) == [(TRACE, SPAN)]
    assert span.parent is None
    assert [format(each, "032x") for each in inside] == [ids(span)[0]] != [TRACE]
    assert (span.name, span.kind) == ("eventonce process id", SpanKind.CONSUMER)
    assert outcome.key is not None
    assert dict(span.attributes or {}) == {
        "eventonce.rule": "id",
        "eventonce.key": outcome.key.hex(),
        "eventonce.attempt": 1,
    }


def test_async_runs_have_a_span_each(bench: Bench) -> None:
    traces = Traces()

    async def handle(event: Event) -> None:
        await asyncio.sleep(0)

    asyncio.run(bench.once(hooks=[traces.hook]).arun([traced("a"), traced("b"), {"id": "c"}], handle))

    assert sorted(linked(span) == [(TRACE, SPAN)] for span in traces.spans()) == [False, True, True]


def test_a_span_that_was_open_before_is_the_parent(bench: Bench) -> None:
    traces = Traces()

    with traces.provider.get_tracer("test").start_as_current_span("request") as request:
        bench.once(hooks=[traces.hook]).run([traced()], lambda event: None)

    span = traces.spans()[0]
    assert span.parent == request.get_span_context()
    assert linked(span) == [(TRACE, SPAN)]


@pytest.mark.parametrize("flag", ["00", "01"])
@pytest.mark.parametrize("sampled", [True, False])
def test_a_sender_decides_nothing_about_sampling(bench: Bench, flag: str, *, sampled: bool) -> None:
    traces = Traces(ParentBased(ALWAYS_ON if sampled else ALWAYS_OFF))
    event = {**traced(), "traceparent": f"00-{TRACE}-{SPAN}-{flag}"}
    once = bench.once(hooks=[traces.hook])

    once.run([event, event], lambda event: None)  # a run, and a duplicate

    assert len(traces.spans()) == (2 if sampled else 0)


def test_without_a_trace_of_its_own_it_joins_the_open_one(bench: Bench) -> None:
    traces = Traces()

    with traces.provider.get_tracer("test").start_as_current_span("request") as request:
        bench.once(hooks=[traces.hook]).run([{"id": "a"}], lambda event: None)

    span = traces.spans()[0]
    assert span.parent == request.get_span_context()
    assert list(span.links) == []


def test_a_failure_is_recorded_by_its_type_and_not_by_its_message(bench: Bench) -> None:
    def fail(event: Event) -> None:
        raise ValueError(event.data)

    traces = Traces()

    bench.once(hooks=[traces.hook]).run([traced()], fail)

    run, end = traces.spans()
    assert run.status.status_code is StatusCode.ERROR
    assert (run.attributes or {})["error.type"] == "ValueError"
    assert (end.attributes or {})["eventonce.outcome"] == "failed"
    assert SECRET not in "".join(span.to_json() for span in traces.spans())


def test_a_duplicate_links_to_its_trace(bench: Bench) -> None:
    traces = Traces()
    once = bench.once(hooks=[traces.hook])

    once.run([traced(), traced(), {"id": "b"}, {"id": "b"}], lambda event: None)

    (end,) = [span for span in traces.spans() if span.name == "eventonce duplicate"]  # no new trace for the other
    assert linked(end) == [(TRACE, SPAN)]
    assert (end.attributes or {})["eventonce.outcome"] == "duplicate"
    assert "eventonce.first_at" in (end.attributes or {})


def test_a_sink_links_to_all_it_sends(bench: Bench) -> None:
    class Sink:
        def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]:
            return [None] * len(events)

        def close(self) -> None:
            """Nothing to close."""

    traces = Traces()

    bench.once(hooks=[traces.hook]).run([traced("a"), traced("b"), {"id": "c"}], Sink())

    (span,) = traces.spans()
    assert (span.name, span.kind) == ("eventonce send", SpanKind.PRODUCER)
    assert [format(link.context.span_id, "016x") for link in span.links] == [SPAN, SPAN]
    assert (span.attributes or {})["messaging.batch.message_count"] == 3


@pytest.mark.parametrize(
    "event",
    [
        Event(data={"traceparent": PARENT}),
        Event(data={"_datadog": {"traceparent": PARENT}}),
        Event(data=None, attributes={"traceparent": PARENT}),
        Event(data=None, attributes={"Metadata": {"traceparent": PARENT}}),
        Event(data=None, attributes={"headers": {"traceparent": PARENT}}),
        Event(data={"_X_AMZN_TRACE_ID": f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Sampled=1"}),
        Event(data=None, attributes={"AWSTraceHeader": f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Sampled=1"}),
    ],
)
def test_where_an_event_names_its_trace(event: Event) -> None:
    assert trace_context(event) == {"traceparent": PARENT}


XRAY = f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Sampled=1"
BODY = '{"id": "a", "n": 1}'
NOTICE = {"Type": "Notification", "TopicArn": "arn", "MessageId": "m", "Message": BODY}
SQS = {"eventSource": "aws:sqs", "messageId": "m", "body": BODY}
REQUEST = {"requestContext": {}, "rawPath": "/", "body": BODY}


@pytest.mark.parametrize(
    "carried",
    [
        {**SQS, "attributes": {"AWSTraceHeader": XRAY}},
        {**SQS, "messageAttributes": {"traceparent": {"stringValue": PARENT, "dataType": "String"}}},
        {"ReceiptHandle": "r", "Body": BODY, "MessageAttributes": {"traceparent": {"StringValue": PARENT}}},
        {**NOTICE, "MessageAttributes": {"traceparent": {"Type": "String", "Value": PARENT}}},
        {**SQS, "body": "text", "attributes": {"AWSTraceHeader": XRAY}},
        {**REQUEST, "headers": {"Traceparent": PARENT}},
        {
            **REQUEST,
            "headers": {"Traceparent": PARENT, "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0"},
        },
    ],
)
def test_what_carries_an_event_may_name_its_trace(carried: dict[str, Any]) -> None:
    (event,) = read_events(carried)
    assert isinstance(event, Event)
    assert trace_context(event) == {"traceparent": PARENT}
    assert TRACE.encode() not in event.line()


def test_the_events_own_trace_overrides_that_of_its_carrier() -> None:
    own = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "traceparent": PARENT}
    (event,) = read_events({**SQS, "body": json.dumps(own), "messageAttributes": {"traceparent": {"stringValue": "x"}}})
    assert isinstance(event, Event)
    assert trace_context(event) == {"traceparent": PARENT}


def test_the_trace_of_a_message_in_a_queue() -> None:
    where = {"source": "sqs://in", "message": "m", "traceparent": PARENT}
    (delivery,) = split_events(Delivery(b'{"n": 1}', where, handle="h"))
    assert delivery.event is not None
    assert trace_context(delivery.event) == {"traceparent": PARENT}


def test_the_trace_of_a_request() -> None:
    headers = {"content-type": "application/json", "traceparent": PARENT, "tracestate": "a=1"}
    (delivery,) = deliveries(headers, b'{"id": "a"}', 10_000, "http")
    assert delivery.event is not None
    assert trace_context(delivery.event) == {"traceparent": PARENT, "tracestate": "a=1"}


def test_the_state_of_a_trace_comes_along() -> None:
    event = Event(data=None, attributes={"traceparent": PARENT, "tracestate": "a=1"})

    assert trace_context(event) == {"traceparent": PARENT, "tracestate": "a=1"}


@pytest.mark.parametrize(
    "trace_value",
    [7, "", "nonsense", f"00-{'0' * 32}-{SPAN}-01", ["x"], None],
    ids=lambda trace_value: str(trace_value)[:8],
)
def test_an_invalid_trace_context_starts_a_trace(bench: Bench, trace_value: Any) -> None:
    traces = Traces()

    bench.once(hooks=[traces.hook]).run([{"id": "a", "traceparent": trace_value}], lambda event: None)

    (span,) = traces.spans()
    assert span.parent is None
