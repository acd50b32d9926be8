"""Traces for OpenTelemetry: a span around each run, linked to the event's own trace. They hold no payload."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from eventonce.claims.outcome import OutcomeKind
from eventonce.errors import MissingDriver
from eventonce.event import Event
from eventonce.event.keys import Key
from eventonce.observe.trace_context import trace_context
from eventonce.ports import AttemptDetails, Hook, OutcomeDetails

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise MissingDriver('traces need opentelemetry-api; pip install "eventonce[opentelemetry]"') from error

_W3C = TraceContextTextMapPropagator()


class OpenTelemetryHook(Hook):
    """A span for each run of a handler, and a short one for each event that was not processed.

    A span is a child of the one that is open here, or begins a trace. It links to the span that the event names. A
    sender writes any `traceparent`: as a parent it would decide whether the run is sampled, and put the run into any
    trace. So the sampler of this process decides.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("eventonce", tracer_provider=provider)

    @contextmanager
    def around_run(self, attempts: Sequence[AttemptDetails]) -> Iterator[None]:
        with self._span_of_one(attempts[0]) if len(attempts) == 1 else self._span_of_many(attempts) as span:
            try:
                yield
            except BaseException as error:  # its message is left out: it may quote the event
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise

    def after_settle(self, seen: Sequence[OutcomeDetails]) -> None:
        for event, outcome, _ in seen:
            links = _links(event)
            if not links or outcome.kind is OutcomeKind.PROCESSED:
                continue
            attributes = _attributes(outcome.rule, outcome.key, outcome.attempt)
            attributes |= {"eventonce.outcome": outcome.kind.value, "eventonce.action": outcome.action.value}
            if outcome.first is not None:
                attributes["eventonce.first_at"] = outcome.first.at.isoformat()
            self._tracer.start_span(f"eventonce {outcome.kind}", attributes=attributes, links=links).end()

    def _span_of_one(self, attempt: AttemptDetails) -> AbstractContextManager[Span]:
        return self._tracer.start_as_current_span(
            f"eventonce process {attempt.rule}",
            kind=SpanKind.CONSUMER,
            attributes=_attributes(attempt.rule, attempt.key, attempt.number),
            links=_links(attempt.event),
            record_exception=False,
            set_status_on_exception=False,
        )

    def _span_of_many(self, attempts: Sequence[AttemptDetails]) -> AbstractContextManager[Span]:
        links = [
            link
            for attempt in attempts
            for link in _links(attempt.event, _attributes(attempt.rule, attempt.key, attempt.number))
        ]
        return self._tracer.start_as_current_span(
            "eventonce send",
            kind=SpanKind.PRODUCER,
            attributes={"messaging.batch.message_count": len(attempts)},
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        )


def goes_nowhere() -> bool:
    """Return whether no tracer provider has been set up."""
    return isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _links(event: Event | None, attributes: dict[str, str | int] | None = None) -> list[Link]:
    """Return a link to the span that the event names, if it names a valid one."""
    headers = {} if event is None else trace_context(event)
    context = trace.get_current_span(_W3C.extract(headers, Context())).get_span_context()
    return [Link(context, attributes)] if context.is_valid else []


def _attributes(rule: str | None, key: Key | None, attempt: int) -> dict[str, str | int]:
    return {"eventonce.rule": rule or "", "eventonce.key": key.hex() if key else "", "eventonce.attempt": attempt}
