"""Messages and records as services of AWS take them: their format, their groups, and the results of a call."""

import hashlib
import re
from typing import Any

from eventonce.clients.aws import AwsUrl
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.keys import canonical
from eventonce.event.paths import getter
from eventonce.ports import BatchEntry, EntryAccepted, EntryRefusal, Sendable
from eventonce.sinks.batching import NO_RESULT

KEY = "eventonce-key"  # the attribute with the idempotency key, for messages without a deduplication id
_PLAIN = re.compile(r"[!-~]{1,128}")  # what AWS accepts: letters, digits and punctuation


class MessageFormat:
    """The form of messages of SQS and SNS: with a deduplication id and a group if the name ends in `.fifo`."""

    def __init__(self, address: AwsUrl, body: str) -> None:
        self._body = body  # the name of the field in the API
        fifo = address.name.endswith(".fifo")
        if "group" in address.options and not fifo:
            raise address.wrong("group is only for FIFO names, which end in .fifo; leave it out")
        self._group = GroupPath(address) if fifo else None

    def entry(self, event: Event, item: Sendable) -> BatchEntry:
        """Return the event as an entry of a batch."""
        line = event.line()
        text, size = line.decode(), len(line)
        if self._group is None:
            attribute = {"DataType": "String", "StringValue": item.key}
            size += len(KEY) + sum(map(len, attribute.values()))
            return BatchEntry({self._body: text, "MessageAttributes": {KEY: attribute}}, size)
        group = group_name(item.group) if item.group else self._group.of(event)
        return BatchEntry({self._body: text, "MessageDeduplicationId": item.key, "MessageGroupId": group}, size, group)


# --- groups, within which events keep their order ---


class GroupPath:
    """Groups events by the value at a path, or by their source if there is no path."""

    def __init__(self, address: AwsUrl) -> None:
        self._path = address.options.get("group", "source || 'eventonce'")
        self._get = getter(self._path, f"{address.label}: group")

    def of(self, event: Event) -> str:
        """Return the group of an event."""
        value = self._get(event.document())
        if value is None:
            raise EventRejected(f"has nothing at {self._path}, which names its group in the sink")
        return group_name(value)


def group_name(value: Any) -> str:
    """Return the name of a group for a value, in characters that AWS accepts."""
    text = value if isinstance(value, str) else canonical(value).decode()
    return text if _PLAIN.fullmatch(text) else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# --- the results of a call: an entry without one is refused ---


def with_ids(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries with ids, by which the response names them."""
    return [{"Id": str(number), **body} for number, body in enumerate(bodies)]


def results_by_id(response: dict[str, Any], count: int) -> list[EntryAccepted | EntryRefusal]:
    """Return one result per entry of `with_ids`."""
    results: dict[str, EntryAccepted | EntryRefusal] = {
        item["Id"]: EntryAccepted(item.get("MessageId")) for item in response.get("Successful", ())
    }
    results |= {item["Id"]: EntryRefusal(item["Code"], item.get("Message", "")) for item in response.get("Failed", ())}
    return [results.get(str(number), NO_RESULT) for number in range(count)]


def results_in_order(items: list[dict[str, Any]], count: int, id_name: str) -> list[EntryAccepted | EntryRefusal]:
    """Return one result per entry of a response in the order of the request."""
    results: list[EntryAccepted | EntryRefusal] = [
        EntryRefusal(item["ErrorCode"], item.get("ErrorMessage", ""))
        if item.get("ErrorCode")
        else EntryAccepted(item.get(id_name), item.get("SuccessCode") == "DEDUPLICATED")
        for item in items[:count]
    ]
    return results + [NO_RESULT] * (count - len(results))
