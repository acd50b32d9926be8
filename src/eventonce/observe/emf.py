"""Counts as CloudWatch reads them from a log: one line of JSON in the embedded metric format."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from eventonce.claims.outcome import Outcome, OutcomeKind

NAMESPACE = "eventonce"


def line(consumer: str, carrier: str, outcomes: Sequence[Outcome], now: int) -> str:
    """One line that is both the log of a batch and its metrics: how many events came, and what became of them."""
    counts = Counter(outcome.kind for outcome in outcomes)
    found = {"events": len(outcomes), **{str(kind): counts[kind] for kind in OutcomeKind}}
    metrics = [{"Name": name, "Unit": "Count"} for name in found]
    described = {"Namespace": NAMESPACE, "Dimensions": [["consumer"]], "Metrics": metrics}
    told = {"_aws": {"Timestamp": now, "CloudWatchMetrics": [described]}, "consumer": consumer, "carrier": carrier}
    return msgspec.json.encode({**told, **found}).decode()
