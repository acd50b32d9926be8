"""A source that receives from an SQS queue, standard or FIFO. A message is hidden from others until it is settled."""

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from eventonce.clients.aws import AwsUrl, code, is_away
from eventonce.clock import Clock, SystemClock, duration, to_datetime
from eventonce.errors import SourceError
from eventonce.event import Delivery
from eventonce.observe.outage import Outage
from eventonce.sources.visibility import BATCH, MAX_VISIBILITY, Visibility, VisibilityChange
from eventonce.text import counted

_MAX_WAIT = "20s"  # of a poll
_DELETE_ATTEMPTS = 3
_PAUSE = 200  # milliseconds between two of them
_CONNECTIONS = 50
MOVED_FROM = "DeadLetterQueueSourceArn"  # an attribute of messages that SQS itself moved, and of no others
_XRAY, _TRACE = "AWSTraceHeader", ("traceparent", "tracestate")  # attributes that name a message's trace
_NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId")


class QueueAway(SourceError):
    """The queue did not answer. A retry may help."""

    retryable = True


class SqsSource:
    """Receives from `sqs://NAME` or `sqs://ACCOUNT/NAME`. It never ends: an empty receive means that nothing came.

    A message stays hidden until it is acked or retried. Threads may share it.
    """

    # Requested beside the body: attributes that SQS sets, and attributes of the sender.
    system_attributes: Sequence[str] = ("ApproximateReceiveCount", "MessageGroupId", "SentTimestamp", MOVED_FROM, _XRAY)
    attributes: Sequence[str] = _TRACE

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._address, self._wait, visibility = read_url(url)
        self._name = f"sqs://{self._address.name}"
        self._clock = clock or SystemClock()
        self._fifo = self._address.name.endswith(".fifo")
        self._lock = threading.Lock()  # for new clients
        self._connect()
        try:
            self._url = self._find_url()
            self._arn = self._build_arn()
            self._timeout = visibility or self._default_timeout()
        except SourceError:
            self._polls.close()
            self._calls.close()
            raise
        self._outage = Outage(self._name, self._clock)
        self._visibility = Visibility(self._change, self._timeout, self._clock)

    # --- the source ---

    def receive(self, limit: int) -> Sequence[Delivery]:
        """Return the deliveries of one long poll, and more that are available at once. There may be none."""
        deliveries = self._first_poll(min(limit, BATCH))
        while deliveries and len(deliveries) % BATCH == 0 and len(deliveries) < limit:
            try:
                more = self._poll(min(limit - len(deliveries), BATCH), 0)
            except QueueAway:  # the next receive raises it
                break
            if not more:
                break
            deliveries += more
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete messages. One that cannot be deleted is redelivered, and is a duplicate then."""
        handles = list(dict.fromkeys(delivery.handle for delivery in deliveries))
        for start in range(0, len(handles), BATCH):
            self._delete(handles[start : start + BATCH])
        self._visibility.drop(handles)

    def retry(self, delivery: Delivery, delay: int) -> None:
        """Redeliver after the delay."""
        self._visibility.retry(delivery.handle, min(delay, MAX_VISIBILITY))

    def close(self) -> None:
        """Return the messages to retry. All others are redelivered when their visibility timeout expires."""
        self._visibility.stop()
        self._polls.close()
        self._calls.close()

    # --- its calls ---

    def _first_poll(self, limit: int) -> list[Delivery]:
        client = self._polls
        try:
            return self._poll(limit, self._wait)
        except QueueAway as error:
            if code(error.__cause__) in _EXPIRED:
                self._reconnect(client)
            raise

    def _poll(self, limit: int, wait: int) -> list[Delivery]:
        attempt: dict[str, Any] = {"ReceiveRequestAttemptId": uuid.uuid4().hex} if self._fifo else {}
        response = self._call(
            self._polls.receive_message,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait,
            VisibilityTimeout=self._timeout // 1000,
            MessageSystemAttributeNames=list(self.system_attributes),
            MessageAttributeNames=list(self.attributes),
            **attempt,  # the same in the client's own retries, so that a lost response does not block its groups
        )
        messages = response.get("Messages", ())
        if messages:
            self._visibility.hold(message["ReceiptHandle"] for message in messages)
        return [self._delivery(message) for message in messages]

    def _delivery(self, message: dict[str, Any]) -> Delivery:
        attributes = message.get("Attributes", {})
        return Delivery(
            body=message["Body"].encode("utf-8", "surrogatepass"),
            origin={
                "source": self._name,
                "arn": attributes.get(MOVED_FROM, self._arn),  # a moved message keeps its id
                "message": message["MessageId"],
                **_sent_fields(message),
            },
            receive_count=int(attributes.get("ApproximateReceiveCount", 1)),
            # On a standard queue a group is for fairness, not for order.
            group=attributes.get("MessageGroupId") if self._fifo else None,
            handle=message["ReceiptHandle"],
        )

    def _delete(self, handles: list[str]) -> None:
        for _ in range(_DELETE_ATTEMPTS):
            entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
            try:
                response = self._call(self._calls.delete_message_batch, Entries=entries)
            except QueueAway:  # after the client's own retries
                return
            failed = response.get("Failed", ())
            handles = [handles[int(entry["Id"])] for entry in failed if not entry["SenderFault"]]
            if not handles:
                return
            self._clock.sleep(_PAUSE)
        self._outage.failed(QueueAway(f"{counted(len(handles), 'message')} could not be deleted: {_codes(failed)}"))

    def _change(self, changes: Sequence[VisibilityChange]) -> set[str]:
        entries = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for number, (handle, seconds) in enumerate(changes)
        ]
        failed = self._call(self._calls.change_message_visibility_batch, Entries=entries).get("Failed", ())
        if any(not entry["SenderFault"] for entry in failed):
            self._outage.failed(error := QueueAway(f"messages could not be kept hidden: {_codes(failed)}"))
            raise error
        return {changes[int(entry["Id"])].handle for entry in failed}

    def _call(self, operation: Any, **arguments: Any) -> dict[str, Any]:
        try:
            response: dict[str, Any] = operation(QueueUrl=self._url, **arguments)
        except Exception as error:  # network, credentials, invalid responses: botocore has many
            away = QueueAway(f"{self._name}: {error}")
            self._outage.failed(away)
            raise away from error
        self._outage.worked()
        return response

    # --- opening ---

    def _connect(self) -> None:
        """Create two clients: a call that keeps messages hidden must not wait as long as a poll may."""
        self._polls = self._address.client("sqs", connections=_CONNECTIONS, extra_timeout=self._wait * 1000)
        self._calls = self._address.client("sqs", connections=_CONNECTIONS)

    def _reconnect(self, expired: Any) -> None:
        """Create new clients, unless another thread has. They may get new credentials."""
        with self._lock:
            if self._polls is expired:
                old = (self._polls, self._calls)
                self._connect()
                for client in old:
                    client.close()  # running calls end by themselves

    def _find_url(self) -> str:
        account, _, name = self._address.name.rpartition("/")
        owner = {"QueueOwnerAWSAccountId": account} if account else {}
        url = self._first_call(self._calls.get_queue_url, QueueName=name, **owner).get("QueueUrl")
        if not isinstance(url, str):  # a proxy that answers for everything
            raise QueueAway(f"{self._name}: the answer has no QueueUrl; is something else at this endpoint?")
        return url

    def _build_arn(self) -> str:
        """Build the queue's ARN from its URL. To request it would need a permission."""
        account, name = urlsplit(self._url).path.rstrip("/").split("/")[-2:]
        meta = self._calls.meta
        return f"arn:{meta.partition}:sqs:{meta.region_name}:{account}:{name}"

    def _default_timeout(self) -> int:
        name = "VisibilityTimeout"
        response = self._first_call(self._calls.get_queue_attributes, QueueUrl=self._url, AttributeNames=[name])
        timeout = int(response.get("Attributes", {}).get(name, 30)) * 1000
        if not timeout:
            raise SourceError(f"{self._name}: its visibility timeout is 0; set it to 30 s, or add ?visibility=30s")
        return timeout

    def _first_call(self, operation: Any, **arguments: Any) -> dict[str, Any]:
        try:
            response: dict[str, Any] = operation(**arguments)
        except Exception as error:
            remedy = (
                "check its name, region and account, or create it with eventonce setup"
                if code(error) in _NO_QUEUE
                else "check network, credentials and permissions"
            )
            kind = QueueAway if is_away(error) else SourceError
            raise kind(f"{self._name}: cannot be read: {error}; {remedy}") from error
        return response


def read_url(url: str) -> tuple[AwsUrl, int, int | None]:
    """Return the queue, the seconds that a poll waits, and the visibility timeout if the URL has one."""
    address = AwsUrl(url, "source", "wait", "visibility")
    wait = duration(address.options.get("wait", _MAX_WAIT), "source: wait")
    if not 1000 <= wait <= 20_000:
        raise address.wrong("wait is out of range; use 1s to 20s")
    if "visibility" not in address.options:
        return address, wait // 1000, None
    visibility = duration(address.options["visibility"], "source: visibility") // 1000 * 1000
    if not 1000 <= visibility <= MAX_VISIBILITY:
        raise address.wrong("visibility is out of range; use 1s to 12h")
    return address, wait // 1000, visibility


def _sent_fields(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the time at which a message was sent, and the trace that it belongs to."""
    system, attributes = message.get("Attributes", {}), message.get("MessageAttributes", {})
    fields = {_XRAY: system.get(_XRAY), **{name: attributes.get(name, {}).get("StringValue") for name in _TRACE}}
    if "SentTimestamp" in system:
        fields["sent"] = to_datetime(int(system["SentTimestamp"])).isoformat(timespec="milliseconds")
    return {name: value for name, value in fields.items() if value}


def _codes(failed: Iterable[Any]) -> str:
    return ", ".join(sorted({str(entry.get("Code")) for entry in failed}))
