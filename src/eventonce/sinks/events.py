"""Events onto a bus of EventBridge, Classic or new."""

import logging
from typing import Any

import msgspec
from botocore.exceptions import ClientError
from botocore.session import Session

from eventonce.clients.aws import AwsUrl
from eventonce.clock import Clock
from eventonce.errors import EventRejected, MissingDriver
from eventonce.event import Event
from eventonce.ports import BatchEntry, CallLimits, EntryAccepted, EntryRefusal, Sendable
from eventonce.sinks.aws_batch import MIB, AwsBatchSink
from eventonce.sinks.aws_messages import GroupPath, group_name, results_in_order

_RESERVED = "aws."  # the prefix of the sources of AWS and its partners
_NEW = ":event-busv2/"
_log = logging.getLogger("eventonce")


def open_url(url: str) -> AwsBatchSink:
    """Open `events://BUS`: a Classic bus by name or ARN, or a new bus by its ARN."""
    return NewBusSink(url) if _NEW in url else ClassicSink(url)


class _BusSink(AwsBatchSink):
    def __init__(self, url: str, clock: Clock | None, *options: str) -> None:
        super().__init__(AwsUrl(url, "sink", "source", "detail-type", *options), clock)
        self._source = self.address.options.get("source", "")
        self._type = self.address.options.get("detail-type", "")
        if self._source.startswith(_RESERVED):
            raise self.address.wrong(f"source={self._source} is reserved; choose one that does not begin with aws.")

    def _entry(self, event: Event, item: Sendable) -> BatchEntry:
        own = "" if event.source.startswith(_RESERVED) else event.source
        body: dict[str, Any] = {
            "Source": self._check_name(own or self._source, "source of its own", "source"),
            "DetailType": self._check_name(event.type or self._type, "type", "detail-type"),
            "Detail": _detail(event),
        }
        if event.time is not None:
            body["Time"] = event.time
        if resources := _resources(event):
            body["Resources"] = resources
        return BatchEntry(body, _size(body))

    def _check_name(self, value: str, label: str, option: str) -> str:
        max_length = 128 if option == "detail-type" else 256
        if not value:
            raise EventRejected(f"has no {label}, which an event on a bus needs; add {option}= to the sink's URL")
        if len(value) > max_length:  # Classic accepts such a type, and drops the event
            raise EventRejected(f"has a {option} of {len(value)} characters, and EventBridge takes {max_length}")
        return value


class ClassicSink(_BusSink):
    """A Classic bus. It has no deduplication: if a response is lost, the bus may have an event twice."""

    service = "events"
    limits = CallLimits(10, 1_000_000, MIB)  # AWS says "less than 1 MB", and not which megabyte

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(url, clock)

    def _prepare(self) -> None:
        """Raise if the bus is missing. PutEvents would accept the events and drop them.

        https://github.com/aws/aws-sdk/issues/186
        """
        if self.address.name == "default":
            return
        try:
            self.client().describe_event_bus(Name=self.address.name)
        except ClientError as error:
            if not error.response.get("Error", {}).get("Code", "").startswith("AccessDenied"):
                raise
            _log.warning(
                "%s: no permission for events:DescribeEventBus, so it is not checked whether the bus exists; grant it, "
                "as EventBridge drops events for a missing bus without an error",
                self.label,
            )

    def _put(self, bodies: list[dict[str, Any]]) -> list[EntryAccepted | EntryRefusal]:
        entries = [{"EventBusName": self.address.name, **body} for body in bodies]
        return _results(self.client().put_events(Entries=entries), len(bodies))


class NewBusSink(_BusSink):
    """A new bus. It drops a repeated deduplication id for five minutes, and reports it as a success."""

    service = "eventbridgev2"
    limits = CallLimits(100, 1_000_000, MIB)
    denies_together = True

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__(url, clock, "group")
        self._group = GroupPath(self.address) if "group" in self.address.options else None
        if self.service not in Session().get_available_services():
            raise MissingDriver(f"{self.label}: needs a boto3 that knows {self.service}; pip install --upgrade boto3")

    def _entry(self, event: Event, item: Sendable) -> BatchEntry:
        body, size, *_ = super()._entry(event, item)
        group = group_name(item.group) if item.group else self._group_of(event)
        order = {"EventGroupId": group} if group else {}
        return BatchEntry({**body, "SystemMetadata": {"DeduplicationId": item.key, **order}}, size, group)

    def _group_of(self, event: Event) -> str | None:
        return None if self._group is None else self._group.of(event)

    def _put(self, bodies: list[dict[str, Any]]) -> list[EntryAccepted | EntryRefusal]:
        return _results(self.client().put_events(EventBusArn=self.address.name, Entries=bodies), len(bodies))


def _results(response: dict[str, Any], count: int) -> list[EntryAccepted | EntryRefusal]:
    return results_in_order(response.get("Entries", []), count, "EventId")


def _detail(event: Event) -> str:
    """Return the detail of an event: its data, or a whole CloudEvent in its structured form."""
    if event.form == "cloudevents":
        return event.line().decode()
    return msgspec.json.encode(event.data if isinstance(event.data, dict) else {"data": event.data}).decode()


def _resources(event: Event) -> list[str]:
    resources = event.attributes.get("resources") if event.form == "eventbridge" else None
    return [resource for resource in resources if isinstance(resource, str)] if isinstance(resources, list) else []


def _size(body: dict[str, Any]) -> int:
    """Return the entry's size as AWS counts it."""
    texts = [body["Source"], body["DetailType"], body["Detail"], *body.get("Resources", ())]
    return sum(len(text.encode()) for text in texts) + (14 if "Time" in body else 0)
