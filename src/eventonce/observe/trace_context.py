"""The trace that an event names."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from eventonce.event import Event

_XRAY = re.compile(r"Root=1-([0-9a-f]{8})-([0-9a-f]{24});Parent=([0-9a-f]{16})(?:;Sampled=([01]))?")
_XRAY_NAMES = ("AWSTraceHeader", "_X_AMZN_TRACE_ID")


def trace_context(event: Event) -> dict[str, str]:
    """Return the W3C headers of an event's trace, if it names one.

    They come from its attributes, the top of its data, or its request. X-Ray headers are converted.
    """
    for fields in _candidates(event):
        if isinstance(fields.get("traceparent"), str):
            names = ("traceparent", "tracestate")
            return {name: fields[name] for name in names if isinstance(fields.get(name), str)}
        for name in _XRAY_NAMES:
            if match := _XRAY.search(str(fields.get(name, ""))):
                return {"traceparent": f"00-{match[1]}{match[2]}-{match[3]}-0{match[4] or 0}"}
    return {}


def _candidates(event: Event) -> Iterator[Mapping[str, Any]]:
    data = event.data if isinstance(event.data, Mapping) else {}
    own = event.attributes
    for fields in (own, own.get("Metadata"), data, data.get("_datadog"), own.get("headers")):
        if isinstance(fields, Mapping):
            yield fields
