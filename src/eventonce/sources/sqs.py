"""Messages of an SQS queue, standard or FIFO, each hidden from other workers for as long as it is in hand."""

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
from eventonce.sources.visibility import BATCH, LONGEST, Visibility, VisibilityChange

_LONGEST_WAIT = "20s"  # that a queue lets a poll wait
_TRIES = 3  # to delete a message
_PAUSE = 200  # milliseconds between them
_CONNECTIONS = 50
MOVED_FROM = "DeadLetterQueueSourceArn"  # of a message that SQS itself has moved, and of no other
_XRAY, _TRACE = "AWSTraceHeader", ("traceparent", "tracestate")  # how a message names its trace
_NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId")


class QueueAway(SourceError):
    """The queue did not answer; try again later."""

    retryable = True


class SqsSource:
    """A queue as `sqs://NAME` or `sqs://ACCOUNT/NAME`. It never ends: an empty receive says that nothing came.

    What is received stays hidden until it is acked or retried. Threads may share it.
    """

    # What is asked for beside the body: of SQS, and of the sender.
    system_attributes: Sequence[str] = ("ApproximateReceiveCount", "MessageGroupId", "SentTimestamp", MOVED_FROM, _XRAY)
    attributes: Sequence[str] = _TRACE

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._place, self._wait, visibility = read_url(url)
        self._name = f"sqs://{self._place.name}"
        self._clock = clock or SystemClock()
        self._fifo = self._place.name.endswith(".fifo")
        self._lock = threading.Lock()  # for new clients
        self._connect()
        try:
            self._url = self._find()
            self._arn = self._named()
            self._timeout = visibility or self._own_timeout()
        except SourceError:
            self._polls.close()
            self._calls.close()
            raise
        self._outage = Outage(self._name, self._clock)
        self._visibility = Visibility(self._change, self._timeout, self._clock)

    # --- the source ---

    def receive(self, limit: int) -> Sequence[Delivery]:
        """What one long poll brings, and what more there is at once; perhaps nothing."""
        found = self._first_poll(min(limit, BATCH))
        while found and len(found) % BATCH == 0 and len(found) < limit:
            try:
                more = self._poll(min(limit - len(found), BATCH), 0)
            except QueueAway:  # the next receive says so again
                break
            if not more:
                break
            found += more
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete these. What cannot be deleted comes again, and is a duplicate then."""
        handles = list(dict.fromkeys(delivery.handle for delivery in deliveries))
        for start in range(0, len(handles), BATCH):
            self._delete(handles[start : start + BATCH])
        self._visibility.drop(handles)

    def retry(self, delivery: Delivery, delay: int) -> None:
        """Have it offered again after the delay."""
        self._visibility.let_go(delivery.handle, min(delay, LONGEST))

    def close(self) -> None:
        """Let go what is to be retried. What is still in hand shows up again when its visibility timeout is over."""
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
                self._renew(client)
            raise

    def _poll(self, limit: int, wait: int) -> list[Delivery]:
        asked: dict[str, Any] = {"ReceiveRequestAttemptId": uuid.uuid4().hex} if self._fifo else {}
        answer = self._ask(
            self._polls.receive_message,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait,
            VisibilityTimeout=self._timeout // 1000,
            MessageSystemAttributeNames=list(self.system_attributes),
            MessageAttributeNames=list(self.attributes),
            **asked,  # the same in the client's own retries: a lost answer does not block its groups
        )
        messages = answer.get("Messages", ())
        if messages:
            self._visibility.hold(message["ReceiptHandle"] for message in messages)
        return [self._delivery(message) for message in messages]

    def _delivery(self, message: dict[str, Any]) -> Delivery:
        attributes = message.get("Attributes", {})
        return Delivery(
            body=message["Body"].encode("utf-8", "surrogatepass"),
            origin={
                "source": self._name,
                "arn": attributes.get(MOVED_FROM, self._arn),  # a message keeps its id when it is moved
                "message": message["MessageId"],
                **_said(message),
            },
            receive_count=int(attributes.get("ApproximateReceiveCount", 1)),
            # On a standard queue a group is a matter of fairness, not of order.
            group=attributes.get("MessageGroupId") if self._fifo else None,
            handle=message["ReceiptHandle"],
        )

    def _delete(self, handles: list[str]) -> None:
        for _ in range(_TRIES):
            entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
            try:
                answer = self._ask(self._calls.delete_message_batch, Entries=entries)
            except QueueAway:  # after the client's own retries
                return
            failed = answer.get("Failed", ())
            handles = [handles[int(each["Id"])] for each in failed if not each["SenderFault"]]
            if not handles:
                return
            self._clock.sleep(_PAUSE)
        self._outage.failed(QueueAway(f"{len(handles)} messages could not be deleted: {_entries(failed)}"))

    def _change(self, changes: Sequence[VisibilityChange]) -> set[str]:
        entries = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
            for number, (handle, seconds) in enumerate(changes)
        ]
        failed = self._ask(self._calls.change_message_visibility_batch, Entries=entries).get("Failed", ())
        if any(not each["SenderFault"] for each in failed):
            self._outage.failed(error := QueueAway(f"messages could not be kept hidden: {_entries(failed)}"))
            raise error
        return {changes[int(each["Id"])].handle for each in failed}

    def _ask(self, call: Any, **asked: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = call(QueueUrl=self._url, **asked)
        except Exception as error:  # of the network, of credentials, of an answer that is none: botocore has many
            away = QueueAway(f"{self._name}: {error}")
            self._outage.failed(away)
            raise away from error
        self._outage.worked()
        return answer

    # --- how it begins ---

    def _connect(self) -> None:
        """Two clients: what keeps messages hidden must not wait as long as a poll may."""
        self._polls = self._place.client("sqs", connections=_CONNECTIONS, extra_timeout=self._wait * 1000)
        self._calls = self._place.client("sqs", connections=_CONNECTIONS)

    def _renew(self, expired: Any) -> None:
        """Connect anew, unless another thread has: where the credentials come from, there may be new ones."""
        with self._lock:
            if self._polls is expired:
                old = (self._polls, self._calls)
                self._connect()
                for each in old:
                    each.close()  # calls under way end by themselves

    def _find(self) -> str:
        account, _, name = self._place.name.rpartition("/")
        owner = {"QueueOwnerAWSAccountId": account} if account else {}
        url: str = self._first(self._calls.get_queue_url, QueueName=name, **owner)["QueueUrl"]
        return url

    def _named(self) -> str:
        """The queue's ARN, which its URL spells out; to ask for it would need a right."""
        account, name = urlsplit(self._url).path.rstrip("/").split("/")[-2:]
        meta = self._calls.meta
        return f"arn:{meta.partition}:sqs:{meta.region_name}:{account}:{name}"

    def _own_timeout(self) -> int:
        asked = ["VisibilityTimeout"]
        answer = self._first(self._calls.get_queue_attributes, QueueUrl=self._url, AttributeNames=asked)
        timeout = int(answer.get("Attributes", {}).get("VisibilityTimeout", 30)) * 1000
        if not timeout:
            raise SourceError(f"{self._name}: its visibility timeout is 0; set it to 30 s, or add ?visibility=30s")
        return timeout

    def _first(self, call: Any, **asked: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = call(**asked)
        except Exception as error:
            remedy = (
                "check its name, region and account, or have eventonce setup make it"
                if code(error) in _NO_QUEUE
                else "check network, credentials and rights"
            )
            kind = QueueAway if is_away(error) else SourceError
            raise kind(f"{self._name}: cannot be read: {error}; {remedy}") from error
        return answer


def read_url(url: str) -> tuple[AwsUrl, int, int | None]:
    """The queue, how many seconds a poll waits, and for how long a message is hidden, or None as the queue says."""
    place = AwsUrl(url, "source", "wait", "visibility")
    wait = duration(place.options.get("wait", _LONGEST_WAIT), "source: wait")
    if not 1000 <= wait <= 20_000:
        raise place.wrong("wait: a poll waits between 1s and 20s")
    if "visibility" not in place.options:
        return place, wait // 1000, None
    visibility = duration(place.options["visibility"], "source: visibility") // 1000 * 1000
    if not 1000 <= visibility <= LONGEST:
        raise place.wrong("visibility: a message can be hidden for between 1s and 12h")
    return place, wait // 1000, visibility


def _said(message: Mapping[str, Any]) -> dict[str, str]:
    """When it was sent, and the trace that it belongs to."""
    system, named = message.get("Attributes", {}), message.get("MessageAttributes", {})
    said = {_XRAY: system.get(_XRAY), **{name: named.get(name, {}).get("StringValue") for name in _TRACE}}
    if "SentTimestamp" in system:
        said["sent"] = to_datetime(int(system["SentTimestamp"])).isoformat(timespec="milliseconds")
    return {name: value for name, value in said.items() if value}


def _entries(failed: Iterable[Any]) -> str:
    return ", ".join(sorted({str(each.get("Code")) for each in failed}))
