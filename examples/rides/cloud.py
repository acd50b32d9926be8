"""Bus, topic and queues on AWS, or as here on an emulator that the environment names."""

import json
import random
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import boto3
from check import rows
from parts import EVENTONCE, HERE, finish, wait_until

from eventonce.cli.tour.emulator import Emulator
from eventonce.outbox import Message, Publisher

CONSUMERS = ("billing", "readmodel")


class Cloud:
    """`relay -> bus -> rule -> queue -> fanout -> topic -> two FIFO queues -> consumers`."""

    bus = "events://rides"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._emulator = Emulator(folder)
        self.copies = 0

    def prepare(self) -> None:
        """Start the emulator, and create in it everything that the pipelines name."""
        self._emulator.start()  # which sets AWS_ENDPOINT_URL in the environment
        self._sqs: Any = boto3.client("sqs")
        self._sns: Any = boto3.client("sns")
        for name in ("fanout", *CONSUMERS):
            finish(self._folder, "setup", [*EVENTONCE, "setup", str(HERE / f"{name}.toml"), "--yes"])
        self._topic = self._sns.create_topic(Name="rides.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
        for name in CONSUMERS:
            self._subscribe(f"{name}.fifo")

    def commands(self) -> dict[str, list[str]]:
        return {name: [*EVENTONCE, "run", str(HERE / f"{name}.toml")] for name in ("fanout", *CONSUMERS)}

    def repeat(self) -> None:
        """Repeat events that were sent before, some of them after later events of their ride.

        They are repeated on the bus, as a relay does that died before it could note what it had sent. And they are
        repeated on the topic under a new deduplication id, as a copy after the five minutes that SNS and SQS remember.
        """
        published = rows(self._folder / "rides.db", "SELECT identity, event FROM eventonce_outbox_published")
        repeated = [
            (identity, json.loads(event)) for identity, event in random.sample(published, min(5, len(published)))
        ]
        with Publisher(self.bus) as publisher:
            publisher.send([Message(event, identity) for identity, event in repeated])
        for identity, event in repeated:
            event["detail"]["_eventonce"] = {"id": identity, "attempt": 1}
            self._sns.publish(
                TopicArn=self._topic,
                Message=json.dumps(event),
                MessageGroupId=event["detail"]["rideId"],
                MessageDeduplicationId=uuid.uuid4().hex,
            )
        self.copies += 2 * len(repeated)

    def settle(self) -> None:
        """Wait until all queues are empty, in the order in which events go through them."""
        for name in ("fanout", *(f"{name}.fifo" for name in CONSUMERS)):
            wait_until(partial(self._is_empty, name), f"an empty queue {name}")

    def close(self) -> None:
        self._emulator.stop()

    def _subscribe(self, queue: str) -> None:
        """Let the topic send to a queue. In raw delivery the body of a message is the event."""
        url = self._url(queue)
        arn = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        allow = {
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": self._topic}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        self._sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        raw = {"RawMessageDelivery": "true"}
        self._sns.subscribe(TopicArn=self._topic, Protocol="sqs", Endpoint=arn, Attributes=raw)

    def _is_empty(self, queue: str) -> bool:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes = self._sqs.get_queue_attributes(QueueUrl=self._url(queue), AttributeNames=names)["Attributes"]
        return all(number == "0" for number in attributes.values())

    def _url(self, queue: str) -> str:
        return str(self._sqs.get_queue_url(QueueName=queue)["QueueUrl"])
