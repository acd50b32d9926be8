"""What a cold start costs: the imports of a Lambda function with DynamoDB as its store, but for those of the AWS SDK.

As `python -X importtime` tells it: of each module the quickest of all rounds counts, since one that is interrupted says
nothing. What the SDK brings in first is not counted for either side, what comes before it is; in the second row the SDK
comes before all.
"""

import compileall
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import eventonce
from benchmarks.harness import Row, Scale

SUBJECT = "start"
OURS, NAME, LIMIT = "eventonce", "Powertools idempotency", "limit: its parser, hash, threads, log"
# Without what is installed here for Powertools, and not where a function has only us.
_ALONE = "import sys; sys.modules['typing_extensions'] = None; "
IMPORTS = {
    OURS: f"{_ALONE}from eventonce import Once; import eventonce.stores.dynamodb.store",
    LIMIT: f"{_ALONE}import msgspec, hashlib, threading, logging, json",
    NAME: "from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, idempotent_function",
}
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \| ( *)(\S+)")
_SDK = re.compile(r"(boto3|botocore)(\.|$)")


def modules(statement: str) -> dict[str, int]:
    """Microseconds of each module by itself, but for the SDK and what is below it."""
    told = [sys.executable, "-X", "importtime", "-c", statement]
    done = subprocess.run(told, capture_output=True, text=True, check=True)  # noqa: S603
    found = [(len(spaces), name, int(own)) for own, spaces, name in _LINE.findall(done.stderr)]
    begin = next(at for at, each in enumerate(found) if each[1] == "site") + 1
    counted: dict[str, int] = {}
    inside: int | None = None
    for depth, name, own in reversed(found[begin:]):  # a module stands below those that it imports
        if inside is not None and depth > inside:
            continue
        inside = depth if _SDK.match(name) else None
        if inside is None:
            counted[name] = own
    return counted


def rows(scale: Scale) -> Iterator[Row]:
    compileall.compile_dir(str(Path(eventonce.__file__).parent), quiet=1)  # as an installed package is
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found = _turns("", scale)
    yield _row("cold import", "at most 0.5", found, OURS)
    yield _row(LIMIT, "", found, LIMIT)
    yield _row("cold import, after the SDK's", "", _turns("import boto3, botocore.config; ", scale), OURS)


def _turns(before: str, scale: Scale) -> list[dict[str, dict[str, int]]]:
    return [{name: modules(before + imports) for name, imports in IMPORTS.items()} for _ in range(2 * scale.rounds)]


def _row(what: str, target: str, found: list[dict[str, dict[str, int]]], name: str) -> Row:
    each = sorted(sum(turn[name].values()) / sum(turn[NAME].values()) for turn in found)
    best, other = (_quickest([turn[side] for turn in found]) for side in (name, NAME))
    ours, theirs = f"{best / 1000:.1f} ms", f"{other / 1000:.1f} ms"
    return Row(SUBJECT, what, NAME, target, best / other, each[0], each[-1], None, "wall", ours, theirs)


def _quickest(turns: list[dict[str, int]]) -> int:
    return sum(min(turn[name] for turn in turns if name in turn) for name in turns[0])
