"""A proxy between the DynamoDB store and its server, for responses that only AWS gives, and for write costs."""

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers import Dynoxide

Answer = tuple[int, dict[str, Any]]


class Meddler:
    """A proxy that can answer instead of the server, or change the server's answers.

    `instead(operation, request)` returns an answer, or None to forward the request. `after(operation, request, answer)`
    returns the answer for the store, or None to cut the connection. `twice` forwards every request twice, `halved` is
    the number of answers to cut in half, and `units` are the write units that the server reports.
    """

    def __init__(self, server: Dynoxide) -> None:
        self.instead: Callable[[str, Any], Answer | None] = lambda *_: None
        self.after: Callable[[str, Any, dict[str, Any]], dict[str, Any] | None] = lambda *arguments: arguments[2]
        self.twice = False
        self.dated = True
        self.halved = 0
        self.units = 0.0
        self.requests: list[tuple[str, Any]] = []
        self._server = server
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(meddler) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                answer = meddler._answer(self.headers["x-amz-target"].partition(".")[2], body, dict(self.headers))
                if answer is None:
                    self.close_connection = True
                    return
                status, date, content = answer
                self.send_response_only(status)
                self.send_header("content-type", "application/x-amz-json-1.0")
                self.send_header("content-length", str(len(content)))
                if meddler.dated and date:
                    self.send_header("date", date)
                self.end_headers()
                if meddler.halved:
                    meddler.halved -= 1
                    content = content[: len(content) // 2]
                    self.close_connection = True
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _answer(self, operation: str, body: bytes, headers: dict[str, str]) -> tuple[int, str | None, bytes] | None:
        request = json.loads(body)
        self.requests.append((operation, request))
        replacement = self.instead(operation, request)
        if replacement is not None:
            return replacement[0], None, json.dumps(replacement[1]).encode()
        status, date, content = self._forward(request, headers)
        if self.twice:
            self._forward(request, headers)
        if status != 200:
            self.units += b"ConditionalCheckFailed" in content  # which costs one unit, and does not report it
            return status, date, content
        changed = self.after(operation, request, json.loads(content))
        return None if changed is None else (status, date, json.dumps(changed).encode())

    def _forward(self, request: Any, headers: dict[str, str]) -> tuple[int, str | None, bytes]:
        body = json.dumps({**request, "ReturnConsumedCapacity": "TOTAL"})
        forwarded_headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port)
        connection.request("POST", "/", body, forwarded_headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if "Get" not in headers["X-Amz-Target"]:
            answer = json.loads(content)
            used = answer.get("ConsumedCapacity") or [{"CapacityUnits": "Error" in part} for part in _responses(answer)]
            self.units += sum(part["CapacityUnits"] for part in (used if isinstance(used, list) else [used]))
        return response.status, response.headers["date"], content


def _responses(answer: dict[str, Any]) -> list[Any]:
    return answer.get("Responses") or []


def error(code: str, status: int = 400) -> Answer:
    return status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "from the meddler"}


def times(count: int, answer: Answer, of: str = "") -> Callable[[str, Any], Answer | None]:
    """Return a function for `instead` that gives this answer `count` times."""
    remaining = [count]

    def instead(operation: str, request: Any) -> Answer | None:
        if of not in operation or not remaining[0]:
            return None
        remaining[0] -= 1
        return answer

    return instead
