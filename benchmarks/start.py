"""The cost of a cold start: the imports of a Lambda function with DynamoDB as its store, without the AWS SDK's own.

`python -X importtime` measures it. The quickest import of each module in all rounds counts, since an interrupted one
says nothing. Modules that the SDK imports first are not counted for either side. Those imported before it are. In the
second row the SDK is imported before all.
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
# Without a package that is installed here for Powertools. A function that has only us does not have it.
_ALONE = "import sys; sys.modules['typing_extensions'] = None; "
IMPORTS = {
    OURS: f"{_ALONE}from eventonce import Once; import eventonce.stores.dynamodb.store",
    LIMIT: f"{_ALONE}import msgspec, hashlib, threading, logging, json",
    NAME: "from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, idempotent_function",
}
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \| ( *)(\S+)")
_SDK = re.compile(r"(boto3|botocore)(\.|$)")


def modules(statement: str) -> dict[str, int]:
    """Return the microseconds of each module by itself, without the SDK and what it imports."""
    command = [sys.executable, "-X", "importtime", "-c", statement]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    imports = [(len(spaces), name, int(micros)) for micros, spaces, name in _LINE.findall(done.stderr)]
    start = next(index for index, (_, name, _) in enumerate(imports) if name == "site") + 1
    counted: dict[str, int] = {}
    sdk_depth: int | None = None
    for depth, name, micros in reversed(imports[start:]):  # a module is listed after those that it imports
        if sdk_depth is not None and depth > sdk_depth:
            continue
        sdk_depth = depth if _SDK.match(name) else None
        if sdk_depth is None:
            counted[name] = micros
    return counted


def rows(scale: Scale) -> Iterator[Row]:
    compileall.compile_dir(str(Path(eventonce.__file__).parent), quiet=1)  # as an installed package is
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds = _rounds("", scale)
    yield _row("cold import", "at most 0.5", rounds, OURS)
    yield _row(LIMIT, "", rounds, LIMIT)
    yield _row("cold import, after the SDK's", "", _rounds("import boto3, botocore.config; ", scale), OURS)


def _rounds(before: str, scale: Scale) -> list[dict[str, dict[str, int]]]:
    return [{name: modules(before + imports) for name, imports in IMPORTS.items()} for _ in range(2 * scale.rounds)]


def _row(what: str, target: str, rounds: list[dict[str, dict[str, int]]], name: str) -> Row:
    ratios = sorted(sum(turn[name].values()) / sum(turn[NAME].values()) for turn in rounds)
    best, other = (_quickest([turn[side] for turn in rounds]) for side in (name, NAME))
    ours, theirs = f"{best / 1000:.1f} ms", f"{other / 1000:.1f} ms"
    return Row(SUBJECT, what, NAME, target, best / other, ratios[0], ratios[-1], None, "wall", ours, theirs)


def _quickest(turns: list[dict[str, int]]) -> int:
    return sum(min(turn[name] for turn in turns if name in turn) for name in turns[0])
