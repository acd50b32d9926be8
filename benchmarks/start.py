"""What a cold start costs: the imports of a Lambda function with DynamoDB as its store, without those of the AWS SDK."""

import re
import subprocess
import sys
from collections.abc import Iterator

from harness import Row, Rounds, Scale, Spent, costs

SUBJECT = "start"
OURS, NAME = "eventonce", "Powertools idempotency"
IMPORTS = {
    OURS: "from eventonce import Once; import eventonce.stores.dynamodb.store",
    NAME: "from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, idempotent_function",
}
_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| ( *)(\S+)")
_SDK = re.compile(r"(boto3|botocore)(\.|$)")


def seconds(statement: str) -> float:
    """What Python says that the imports took, but for those of the SDK and what these brought in."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement], capture_output=True, text=True, check=True
    )
    found = [(len(spaces), name, int(total)) for _, total, spaces, name in _LINE.findall(done.stderr)]
    found = found[next(at for at, each in enumerate(found) if each[1] == "site") + 1 :]
    micros, inside = 0, None  # a module stands below those that it imports, so that we read upwards
    for depth, name, total in reversed(found):
        if inside is not None and depth > inside:
            continue
        inside = None
        micros += total if depth == 0 else 0
        if _SDK.match(name):
            micros -= total
            inside = depth
    return micros / 1e6


def rows(scale: Scale) -> Iterator[Row]:
    spent: Rounds = {name: [] for name in IMPORTS}
    for _ in range(scale.rounds + 1):
        for name, statement in IMPORTS.items():
            took = seconds(statement)
            spent[name].append(Spent(took, took))
    yield costs(
        SUBJECT, "cold import", "at most 0.5", {name: each[1:] for name, each in spent.items()}, OURS, NAME, "wall"
    )
