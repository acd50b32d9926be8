"""Counts for CloudWatch: one log line of JSON in the embedded metric format."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from eventonce.claims.outcome import Outcome, OutcomeKind

NAMESPACE = "eventonce"


def line(consumer: str, carrier: str, outcomes: Sequence[Outcome], now: int) -> str:
    """Return the log line of a batch, which also holds its metrics: the events and their outcomes."""
    counts = Counter(outcome.kind for outcome in outcomes)
    values = {"events": len(outcomes), **{str(kind): counts[kind] for kind in OutcomeKind}}
    metrics = [{"Name": name, "Unit": "Count"} for name in values]
    metadata = {"Namespace": NAMESPACE, "Dimensions": [["consumer"]], "Metrics": metrics}
    fields = {"_aws": {"Timestamp": now, "CloudWatchMetrics": [metadata]}, "consumer": consumer, "carrier": carrier}
    return msgspec.json.encode({**fields, **values}).decode()
