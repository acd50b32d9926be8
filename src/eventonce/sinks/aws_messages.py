"""Messages: events as SQS and SNS take them."""

from typing import Any

from eventonce.aws import Place
from eventonce.event import Event
from eventonce.sinks.group import Group, group_name
from eventonce.sinks.parcel import NO_ANSWER, Entry, Parcel, Refusal, Taken

KEY = "eventonce-key"  # the attribute that carries the idempotency key where there is no deduplication id


class Message:
    """How an event becomes a message: with a deduplication id and a group where the name ends in `.fifo`."""

    def __init__(self, place: Place, body: str) -> None:
        self._body = body  # what the API calls it
        fifo = place.name.endswith(".fifo")
        if "group" in place.options and not fifo:
            raise place.wrong("group is for what keeps order, and such names end in .fifo; leave it out")
        self._group = Group(place) if fifo else None

    def entry(self, event: Event, parcel: Parcel) -> Entry:
        """The event as an entry of a batch."""
        line = event.line()
        text, size = line.decode(), len(line)
        if self._group is None:
            attribute = {"DataType": "String", "StringValue": parcel.key}
            size += len(KEY) + sum(map(len, attribute.values()))
            return Entry({self._body: text, "MessageAttributes": {KEY: attribute}}, size)
        group = group_name(parcel.group) if parcel.group else self._group.of(event)
        return Entry({self._body: text, "MessageDeduplicationId": parcel.key, "MessageGroupId": group}, size, group)


def numbered(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With an id each, by which the answer names them."""
    return [{"Id": str(number), **body} for number, body in enumerate(bodies)]


def said(answer: dict[str, Any], count: int) -> list[Taken | Refusal]:
    """What was said of each; one that is not spoken of was not taken."""
    found: dict[str, Taken | Refusal] = {
        each["Id"]: Taken(each.get("MessageId")) for each in answer.get("Successful", ())
    }
    found |= {each["Id"]: Refusal(each["Code"], each.get("Message", "")) for each in answer.get("Failed", ())}
    return [found.get(str(number), NO_ANSWER) for number in range(count)]
