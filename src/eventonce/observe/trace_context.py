"""The trace that an event belongs to, as it says itself."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from eventonce.event import Event

_XRAY = re.compile(r"Root=1-([0-9a-f]{8})-([0-9a-f]{24});Parent=([0-9a-f]{16})(?:;Sampled=([01]))?")
_XRAY_NAMES = ("AWSTraceHeader", "_X_AMZN_TRACE_ID")


def trace_context(event: Event) -> dict[str, str]:
    """The W3C headers of its trace: from its attributes, the top of its data or the request it came in; X-Ray's are
    rewritten. Else empty."""
    for place in _places(event):
        if isinstance(place.get("traceparent"), str):
            names = ("traceparent", "tracestate")
            return {name: place[name] for name in names if isinstance(place.get(name), str)}
        for name in _XRAY_NAMES:
            if found := _XRAY.search(str(place.get(name, ""))):
                return {"traceparent": f"00-{found[1]}{found[2]}-{found[3]}-0{found[4] or 0}"}
    return {}


def _places(event: Event) -> Iterator[Mapping[str, Any]]:
    data = event.data if isinstance(event.data, Mapping) else {}
    own = event.attributes
    for place in (own, own.get("Metadata"), data, data.get("_datadog"), own.get("headers")):
        if isinstance(place, Mapping):
            yield place
