"""The tour on AWS: a bus, a rule, a queue, two workers and a table, over the wire, and one worker killed half-way."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventonce.cli.tour.tour import Charges
from eventonce.cli.tour.traffic import DemoTraffic
from eventonce.clients.aws import client
from eventonce.errors import EventOnceError
from eventonce.text import counted

_PIPELINE = """\
consumer    = "billing"
store       = "dynamodb://billing-claims"
source      = "sqs://billing?visibility=4s&wait=1s"
sink        = "python:eventonce.cli.tour.handler:charge_in_dynamodb"
dead_letter = "dead.jsonl"
lease       = "4s"                 # short, so that the killed worker's orders are soon free
batch       = 10

[aws]
bus = "shop"

[[rule]]
name  = "orders"
match = { source = ["com.example.shop"] }
key   = "content"                  # EventBridge gives every copy a new id
"""
_PATIENCE = 120.0  # seconds


class CloudTour:
    """Two workers on one queue, fed by an EventBridge rule, on the AWS that the environment names."""

    def __init__(self, folder: Path, stream: DemoTraffic) -> None:
        self._folder = folder
        self._orders = stream.orders
        self._dynamodb = client("dynamodb")
        self._sqs = client("sqs")
        (folder / "pipeline.toml").write_text(_PIPELINE)
        (folder / "orders.jsonl").write_text("\n".join(stream.first + stream.second) + "\n")

    def run(self, say: Callable[[str], None], show: Callable[[int], None]) -> Charges:
        """Set everything up, publish, kill one worker half-way, start it again, and count the charges."""
        self._run_verb("setup", "pipeline.toml", "--yes")
        self._make_charges()
        say("eventonce setup created the bus, the rule, the queue, its dead letters and the table of claims")
        workers = [self._start("a"), self._start("b")]
        try:
            say(f"workers a (pid {workers[0].pid}) and b (pid {workers[1].pid}) started on sqs://billing")
            publisher = self._popen("publisher", "send", "orders.jsonl", "--to", "events://shop")
            workers.append(publisher)
            self._until(lambda: self.charges().rows >= self._orders // 2, show)
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()
            say(f"worker a killed with SIGKILL half-way, after {counted(self.charges().rows, 'charge')}")
            workers[0] = self._start("a")
            say(f"worker a started again (pid {workers[0].pid})")
            self._until(lambda: publisher.poll() is not None and self._queue_is_empty(), show)
            for worker in workers:
                worker.terminate()
                worker.wait(60)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return self.charges()

    def charges(self) -> Charges:
        """Count the charges in their table."""
        pages = self._dynamodb.get_paginator("scan").paginate(TableName="charges", ConsistentRead=True)
        times = [int(item["times"]["N"]) for page in pages for item in page["Items"]]
        return Charges(len(times), sum(count > 1 for count in times), sum(times))

    def _make_charges(self) -> None:
        self._dynamodb.create_table(
            TableName="charges",
            KeySchema=[{"AttributeName": "order", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "order", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def _queue_is_empty(self) -> bool:
        url = self._sqs.get_queue_url(QueueName="billing")["QueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes: dict[str, Any] = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return all(number == "0" for number in attributes.values())

    def _until(self, done: Callable[[], bool], show: Callable[[int], None]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not done():
            show(self.charges().rows)
            if time.monotonic() > deadline:
                raise EventOnceError(f"the workers did not finish in time; see their logs in {self._folder}")
            time.sleep(0.2)
        show(self.charges().rows)

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        return self._popen(f"worker-{name}", "run", "pipeline.toml")

    def _popen(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "eventonce", *arguments],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _run_verb(self, *arguments: str) -> None:
        process = subprocess.run(
            [sys.executable, "-m", "eventonce", *arguments],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            raise EventOnceError(f"eventonce {arguments[0]} failed: {process.stderr.strip()}")
