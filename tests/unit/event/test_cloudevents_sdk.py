"""CloudEvents of the official SDK: checked, published whole inside detail, and read back as the same event."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import Stubber
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v03.event import CloudEvent as OldCloudEvent
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as FirstCloudEvent

from eventonce import Once, Rule
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_event, to_sdk
from eventonce.event.stamp import add_stamp, identity_of
from eventonce.outbox import Message, Publisher, PublishKind
from eventonce.rules import Rulebook, identity
from eventonce.testing.clock import ManualClock

NAMED = {"source": "/shop", "type": "com.example.order.placed"}
MADE = {**NAMED, "id": "o-1", "time": datetime(2026, 1, 31, 12, tzinfo=UTC), "subject": "order/1", "tenant": "t-7"}
RULES = [
    None,
    Rule(name="r", key="content"),
    Rule(name="r", key=["source", "detail.order"]),
    Rule(name="r", match={"source": ["/shop"], "detail-type": [NAMED["type"]]}, key="id"),
]


def cloud(data: Any = None, **attributes: Any) -> CloudEvent:
    return CloudEvent({**MADE, **attributes}, {"order": 1} if data is None else data)


def put(*events: Any, url: str = "events://default?region=us-east-1", count: int = 1) -> tuple[list[Any], list[Any]]:
    """Publish events. Return the results, and the entries that were sent."""
    with Publisher(url, clock=ManualClock()) as publisher:
        client: Any = publisher._carrier.client()  # type: ignore[attr-defined]
        sent: list[Any] = []
        client.meta.events.register(
            "provide-client-params.events.PutEvents", lambda params, **_: sent.extend(params["Entries"])
        )
        with Stubber(client) as stub:
            stub.add_response("put_events", {"FailedEntryCount": 0, "Entries": [{"EventId": "aws-1"}] * count})
            return publisher.send(events), sent


def arrived(entry: dict[str, Any], name: str = "aws-1") -> bytes:
    """An entry as EventBridge delivers it."""
    detail = json.loads(entry["Detail"])
    envelope = {"version": "0", "id": name, "account": "123456789012", "region": "us-east-1", "resources": []}
    named = {"source": entry["Source"], "detail-type": entry["DetailType"], "time": "2026-02-01T00:00:00Z"}
    return json.dumps({**envelope, **named, "detail": detail}).encode()


def key(event: Event, rule: Rule | None) -> bytes:
    return Rulebook("c", [rule] if rule else [], identity("1d", "retry")).key(event).key


def test_it_is_whole_inside_detail() -> None:
    (result,), (entry,) = put(cloud())

    assert (result.kind, result.identity, result.id) == (PublishKind.PUBLISHED, "o-1", "aws-1")
    assert (entry["Source"], entry["DetailType"]) == ("/shop", "com.example.order.placed")
    assert entry["Time"] == MADE["time"]
    assert json.loads(entry["Detail"]) == {
        **MADE,
        "specversion": "1.0",
        "time": "2026-01-31T12:00:00Z",
        "data": {"order": 1},
        "_eventonce": {"id": "o-1", "attempt": 1},
    }


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "source",
    [
        cloud(),
        cloud("some text", datacontenttype="text/plain"),
        cloud(b"\x00\xff", datacontenttype="application/octet-stream"),
        cloud(b'{"order": 1}', datacontenttype="application/json"),
        CloudEvent({**NAMED, "id": "none"}),
    ],
    ids=["object", "text", "bytes", "bytes of JSON", "no data"],
)
def test_it_is_read_back_as_the_same_event_with_the_same_key(source: CloudEvent, rule: Rule | None) -> None:
    """The same as if it had come without a bus, by HTTP or in a queue."""
    _, (entry,) = put(source)
    straight, back = read_event(JSONFormat().write(source)), read_event(arrived(entry))

    assert to_sdk(back).get_attributes() == source.get_attributes()
    assert to_sdk(back).get_data() == to_sdk(straight).get_data()
    for name in ("id", "source", "type", "time", "data", "form"):
        assert getattr(back, name) == getattr(straight, name)
    assert {**straight.attributes, "_eventonce": {"id": source.get_id(), "attempt": 1}} == back.attributes
    if rule is None or not isinstance(rule.key, list) or straight.data == {"order": 1}:
        assert key(back, rule) == key(straight, rule)


def test_a_text_comes_back_as_a_text_and_bytes_as_bytes() -> None:
    for data, kind in (("some text", "text/plain"), (b"\x00\xff", "application/octet-stream")):
        _, (entry,) = put(cloud(data, datacontenttype=kind))
        assert to_sdk(read_event(arrived(entry))).get_data() == data


def test_a_retry_is_a_copy_also_where_the_sdk_made_another_id() -> None:
    _, entries = put(*(Message(CloudEvent(dict(NAMED), {"order": 1}), identity="order-1") for _ in range(2)), count=2)
    copies = [arrived(entry, f"aws-{number}") for number, entry in enumerate(entries)]

    assert len({json.loads(entry["Detail"])["id"] for entry in entries}) == 2
    kinds = [outcome.kind.value for outcome in Once("memory:").run(copies, lambda event: None)]
    assert kinds == ["processed", "duplicate"]


def test_a_replay_is_known_by_its_name() -> None:
    _, (entry,) = put(cloud())
    replayed = {**json.loads(arrived(entry)), "replay-name": "again"}

    assert read_event(replayed).replay == "again"


@pytest.mark.parametrize("change", [{"source": "other"}, {"detail-type": "other"}])
def test_an_envelope_with_something_else_is_left_as_it_is(change: dict[str, str]) -> None:
    _, (entry,) = put(cloud())
    event = read_event({**json.loads(arrived(entry)), **change})

    assert event.form == "eventbridge"
    assert event.data["data"] == {"order": 1}


def test_a_detail_that_only_looks_like_one_is_left_as_it_is() -> None:
    for odd in ({"id": 7}, {"id": None}):
        body = {
            "id": "1",
            "source": "s",
            "detail-type": "t",
            "detail": {"specversion": "1.0", "source": "s", "type": "t"},
        }
        body["detail"] |= odd  # type: ignore[operator]
        assert read_event(body).form == "eventbridge"


# --- shapes of the SDK ---


def old() -> Any:
    return OldCloudEvent({**NAMED, "id": "o-1", "specversion": "0.3"}, {"order": 1})


def first() -> Any:
    return FirstCloudEvent({**NAMED, "id": "o-1"}, {"order": 1})


def mapping() -> Any:
    return {"specversion": "1.0", **NAMED, "id": "o-1", "data": {"order": 1}}


def text() -> Any:
    return json.dumps(mapping())


def event() -> Any:
    return read_event(mapping())


@pytest.mark.parametrize("make", [cloud, old, first, mapping, text, event])
def test_every_form_of_a_cloudevent(make: Callable[[], Any]) -> None:
    (result,), (entry,) = put(make())

    assert (result.kind, result.identity) == (PublishKind.PUBLISHED, "o-1")
    assert json.loads(entry["Detail"])["data"] == {"order": 1}
    assert read_event(make()).form == "cloudevents"  # consumers take them too


def test_consumers_run_objects_of_the_sdk_once() -> None:
    kinds = [outcome.kind.value for outcome in Once("memory:").run([cloud(), cloud()], lambda event: None)]
    assert kinds == ["processed", "duplicate"]


# --- what is wrong with them ---


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": ""}, "invalid CloudEvent: id is missing"),
        ({"id": None}, "invalid CloudEvent: id is missing"),
        ({"id": 7}, "Attribute 'id' must be a"),
        ({"source": ""}, "source is missing"),
        ({"type": ""}, "type is missing"),
        ({"specversion": "9"}, "invalid CloudEvent"),
        ({"time": "yesterday"}, "invalid CloudEvent"),
        ({"time": "2026-01-31T12:00:00"}, "Attribute 'time' must be timezone aware"),
        ({"subject": ""}, "Attribute 'subject' must not be empty"),
        ({"Tenant_Id": "x"}, "should only contain lowercase letters and numbers"),
        ({"data": object()}, "which has no spelling in JSON"),
    ],
)
def test_attributes_are_checked(change: dict[str, Any], reason: str) -> None:
    (result,), sent = put({**mapping(), **change})

    assert result.kind is PublishKind.REFUSED
    assert reason in str(result.error)
    assert sent == []


def test_an_id_is_never_made_up() -> None:
    fields = mapping()
    del fields["id"]
    (result,), _ = put(fields)

    assert str(result.error) == "invalid CloudEvent: id is missing"


def test_data_without_a_json_form_is_refused() -> None:
    (result,), _ = put(CloudEvent(dict(MADE), {"what": object()}))

    assert result.kind is PublishKind.REFUSED
    assert "cannot be written as JSON" in str(result.error)


def test_another_event_is_not_made_a_cloudevent() -> None:
    with pytest.raises(EventRejected, match="is not a CloudEvent"):
        to_sdk(read_event({"id": "1"}))


def test_a_time_is_never_made_up() -> None:
    assert to_sdk(read_event(mapping())).get_time() is None


def test_the_stamp_stands_beside_the_attributes_and_the_sdk_never_sees_it() -> None:
    published = add_stamp(read_event(mapping()), "mine", 3)

    assert identity_of(published) == identity_of(read_event(published.line())) == "mine"
    assert to_sdk(published).get_attributes() == to_sdk(read_event(mapping())).get_attributes()


def test_one_that_was_read_back_may_be_published_again() -> None:
    _, (entry,) = put(Message(cloud(), identity="theirs"))
    (result,), (second,) = put(read_event(arrived(entry)))

    assert (result.kind, result.identity) == (PublishKind.PUBLISHED, "o-1")
    assert json.loads(second["Detail"]) == {**json.loads(entry["Detail"]), "_eventonce": {"id": "o-1", "attempt": 1}}


def test_without_the_sdk_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['cloudevents'] = None\n"
        "from eventonce.outbox import Publisher\n"
        "event = {'specversion': '1.0', 'id': '1', 'source': 's', 'type': 't'}\n"
        "Publisher('events://default?region=us-east-1').send([event])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "install it with pip install 'eventonce[cloudevents]'" in done.stderr
