"""The bucket of an S3 store: what to warn of in its settings."""

import json
from typing import Any

from eventonce.stores.aws_client import Denied
from eventonce.stores.s3.client import S3Client

_DAYS = 16  # of the rule that is proposed, for the default window of 14 days
_DAYS_NEEDED = "with at least two days more than the longest window"


def check_bucket(client: S3Client) -> list[str]:
    """Return what to warn of. Raise if the bucket cannot be used."""
    return [*_versioning(client), *_lifecycle(client)]


def _versioning(client: S3Client) -> list[str]:
    try:
        versioning = client.call("get_bucket_versioning") or {}
    except Denied:
        return [f"{client.address()}: its versioning was not checked; s3:GetBucketVersioning is not allowed"]
    if versioning.get("Status") != "Enabled":
        return []
    return [f"{client.address()} has versioning, so old records stay in it and are paid for; use a bucket without"]


def _lifecycle(client: S3Client) -> list[str]:
    try:
        rules = (client.call("get_bucket_lifecycle_configuration") or {}).get("Rules", [])
    except Denied:
        return [f"{client.address()}: its lifecycle was not checked; s3:GetLifecycleConfiguration is not allowed"]
    if any(_deletes(rule, client.prefix) for rule in rules):
        return []
    rule = json.dumps(
        {"ID": "eventonce", "Status": "Enabled", "Filter": {"Prefix": client.prefix}, "Expiration": {"Days": _DAYS}}
    )
    return [f"{client.address()} never deletes expired records; add to its lifecycle rules {rule}, {_DAYS_NEEDED}"]


def _deletes(rule: dict[str, Any], prefix: str) -> bool:
    """Return whether a lifecycle rule deletes every object whose name begins with the prefix."""
    filters = rule.get("Filter", {"Prefix": rule.get("Prefix", "")})
    enabled, deletes = rule.get("Status") == "Enabled", "Days" in rule.get("Expiration", {})
    return enabled and deletes and filters.keys() <= {"Prefix"} and prefix.startswith(filters.get("Prefix", ""))
