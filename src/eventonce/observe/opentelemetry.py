"""Traces for OpenTelemetry: a span around each run, in the event's own trace. They hold no payload."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from eventonce.claims.outcome import OutcomeKind
from eventonce.errors import MissingDriver
from eventonce.event import Event
from eventonce.event.keys import Key
from eventonce.observe.trace_context import trace_context
from eventonce.ports import Attempt, Hook, Seen

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

    The run of one event is a child of the event's own span, so that producer and consumer share a trace. A span that
    was already open is linked. A sink sends events of many traces at once, and its span links to each of them.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("eventonce", tracer_provider=provider)

    @contextmanager
    def running(self, attempts: Sequence[Attempt]) -> Iterator[None]:
        with self._span_of_one(attempts[0]) if len(attempts) == 1 else self._span_of_many(attempts) as span:
            try:
                yield
            except BaseException as error:  # its message is left out: it may quote the event
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise

    def settled(self, seen: Sequence[Seen]) -> None:
        for event, outcome, _ in seen:
            parent = _parent(event)
            if parent is None or outcome.kind is OutcomeKind.PROCESSED:
                continue
            attributes = _attributes(outcome.rule, outcome.key, outcome.attempt)
            attributes |= {"eventonce.outcome": outcome.kind.value, "eventonce.action": outcome.action.value}
            if outcome.first is not None:
                attributes["eventonce.first_at"] = outcome.first.at.isoformat()
            self._tracer.start_span(f"eventonce {outcome.kind}", parent, attributes=attributes).end()

    def _span_of_one(self, attempt: Attempt) -> AbstractContextManager[Span]:
        parent, current = _parent(attempt.event), trace.get_current_span().get_span_context()
        return self._tracer.start_as_current_span(
            f"eventonce process {attempt.rule}",
            parent,
            kind=SpanKind.CONSUMER,
            attributes=_attributes(attempt.rule, attempt.key, attempt.number),
            links=[Link(current)] if parent is not None and current.is_valid else None,
            record_exception=False,
            set_status_on_exception=False,
        )

    def _span_of_many(self, attempts: Sequence[Attempt]) -> AbstractContextManager[Span]:
        links = [
            Link(
                trace.get_current_span(parent).get_span_context(),
                _attributes(attempt.rule, attempt.key, attempt.number),
            )
            for attempt in attempts
            if (parent := _parent(attempt.event)) is not None
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


def _parent(event: Event | None) -> Context | None:
    """Return the context of the event's own trace, if it names a valid one."""
    headers = {} if event is None else trace_context(event)
    if not headers:
        return None
    context = _W3C.extract(headers, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def _attributes(rule: str | None, key: Key | None, attempt: int) -> dict[str, str | int]:
    return {"eventonce.rule": rule or "", "eventonce.key": key.hex() if key else "", "eventonce.attempt": attempt}
