"""A bus of EventBridge's new kind, which no emulator has: PutEvents over the wire, as botocore's model describes it."""

import threading
import uuid
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eventonce.clock import Clock, SystemClock
from eventonce.closing import Closing
from tests import cbor

ARN = "arn:aws:events:us-east-1:123456789012:event-busv2/orders/abcdefghijklmnopqrstuvwxy"
WINDOW = 300_000
_PATH = "/service/AWSEventsV2/operation/PutEvents"
_ERRORS = {
    "AccessDeniedException": 403, "ResourceNotFoundException": 404, "InvalidStateException": 409,
    "ThrottlingException": 429, "InvalidInputException": 400, "InternalException": 500,
}  # fmt: skip


class NewBus(Closing):
    """Takes events and drops a deduplication id that its group had within five minutes, by its clock.

    `trouble` is what happens to the next calls: the name of an error for the whole call, "lost" for an answer that does
    not come though the events are taken, or codes by the place of an entry. Which id AWS gives an event that it had
    already is not documented; here it is the id of the first.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._seen: dict[tuple[str, str], tuple[str, int]] = {}  # by group and deduplication id
        self._lock = threading.Lock()
        self.trouble: deque[str | dict[int, str] | None] = deque()
        self.calls: list[list[dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []  # those that are on the bus
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, options: str = "") -> str:
        """How a sink or a publisher names it."""
        return f"events://{ARN}?endpoint=http://127.0.0.1:{self._server.server_port}{options}"

    def put(self, path: str, asked: Any) -> tuple[int, dict[str, Any]] | None:
        """Answer a call; None where the answer gets lost."""
        with self._lock:
            wrong = _wrong(path, asked)
            trouble = self.trouble.popleft() if self.trouble else None
            code = "InvalidInputException" if wrong else str(trouble)
            if code in _ERRORS:
                return _ERRORS[code], {"__type": f"com.amazonaws.eventbridgev2#{code}", "message": wrong or "as told"}
            self.calls.append(asked["Entries"])
            codes = trouble if isinstance(trouble, dict) else {}
            said = [self._entry(entry, codes.get(number)) for number, entry in enumerate(asked["Entries"])]
            failed = sum("ErrorCode" in each for each in said)
            return None if trouble == "lost" else (200, {"FailedEntryCount": failed, "Entries": said})

    def _entry(self, entry: dict[str, Any], code: str | None) -> dict[str, Any]:
        if code is not None:
            return {"ErrorCode": code, "ErrorMessage": "as told"}
        system = entry.get("SystemMetadata", {})
        name = (system.get("EventGroupId", ""), system.get("DeduplicationId") or uuid.uuid4().hex)
        first, until = self._seen.get(name, ("", 0))
        if self._clock.utc() < until:
            return {"EventId": first, "SuccessCode": "DEDUPLICATED"}
        made = str(uuid.uuid4())
        self._seen[name] = (made, self._clock.utc() + WINDOW)
        self.events.append({"id": made, **entry})
        return {"EventId": made, "SuccessCode": "PUBLISHED"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _wrong(path: str, asked: Any) -> str | None:
    """What the model does not allow."""
    if path != _PATH or asked.get("EventBusArn") != ARN:
        return f"{path} of {asked.get('EventBusArn')} is not here"
    if not 1 <= len(asked["Entries"]) <= 100:
        return "1 to 100 entries"
    for entry in asked["Entries"]:
        system = entry.get("SystemMetadata", {})
        sized = [(entry.get("Source"), 256), (entry.get("DetailType"), 128)]
        sized += [(system[name], 128) for name in ("EventGroupId", "DeduplicationId") if name in system]
        if not all(isinstance(value, str) and 1 <= len(value) <= most for value, most in sized):
            return "a name is missing or too long"
    return None


def _handler(bus: NewBus) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = bus.put(self.path, cbor.decode(body))
            if answer is None:
                self.close_connection = True
                return
            said = cbor.encode(answer[1])
            self.send_response(answer[0])
            self.send_header("Content-Type", "application/cbor")
            self.send_header("smithy-protocol", "rpc-v2-cbor")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    return Handler
