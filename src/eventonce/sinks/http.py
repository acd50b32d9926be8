"""A sink that posts events to a receiver over HTTP."""

import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import httpx

from eventonce.clients.passwords import refuse_blank_password
from eventonce.clock import Clock, SystemClock, duration
from eventonce.errors import ConfigError, EventRejected, SinkDown, SinkError, SinkUnusable
from eventonce.event import Event
from eventonce.sinks.batching import MAX_ATTEMPTS, pause, raise_if_unusable
from eventonce.urls import read_options

_IN_FLIGHT = 8  # requests at a time
_MAX_WAIT = 10_000  # milliseconds that a Retry-After is waited for here; a longer one is left to the engine
_MAX_REST = 3_600_000  # milliseconds; a longer Retry-After counts as this
_MAX_RESPONSE = 65_536  # bytes that are read; then the connection is closed
_MAX_EXCERPT = 200  # characters of a response in an error
_RETRYABLE = {408, 425, 429}  # and all from 500 on
_SINK_DOWN = {429, 503}  # which concern the receiver and not the event
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[ -~]+")
_RESERVED_HEADERS = ("content-type", "idempotency-key")
_OPTIONS = ("timeout", "token_env", "header")


class _RequestResult(NamedTuple):
    """The result of one request."""

    error: Exception | None
    retry_after: int | None = None  # minimum delay before a retry, in ms; None: do not retry
    for_all: bool = False  # whether the receiver is to blame, and not the event


class _Round:
    """One `send` of several events: their token, and the error that stops the remaining ones."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.error: Exception | None = None


class HttpSink:
    """Posts each event in a request of its own, several at a time, with its `Idempotency-Key`.

    The URL is the receiver's, with its query. Our own options follow the `#`, which is never sent:
    `https://api.example.com/events#timeout=5s&token_env=API_TOKEN`.
    """

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        parts = _split(url)
        self.label = _redact_url(url)
        refuse_blank_password(url.partition("?")[0], f"sink: {self.label}")  # the query is the receiver's
        options = self._options(parts.fragment)
        self._timeout = duration(options.get("timeout", "10s"), "sink: timeout")
        if not self._timeout:
            raise ConfigError(f"sink: {self.label}: timeout: 0 leaves no time to respond; use a duration such as 10s")
        self._token_env = options.get("token_env")
        self._header = options.get("header")
        self._target = urlunsplit(parts._replace(netloc=_host(parts), fragment=""))
        self._password = unquote(parts.password or "")
        user = unquote(parts.username or "")
        self._basic = b64encode(f"{user}:{self._password}".encode()).decode()
        self._client = httpx.Client(
            auth=(user, self._password) if parts.username is not None else None,
            headers={"User-Agent": "eventonce", "Accept-Encoding": "identity"},
            timeout=self._timeout / 1000,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_IN_FLIGHT),
            follow_redirects=False,
        )

    def send(self, events: Sequence[Event], idempotency_keys: Sequence[str]) -> Sequence[Exception | None]:
        """Send each event. Raise `SinkUnusable` if none was sent and none can be."""
        one_round = _Round(self._token())
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="eventonce-http") as pool:
            futures = [
                pool.submit(self._deliver, event, key, one_round)
                for event, key in zip(events, idempotency_keys, strict=True)
            ]
        return raise_if_unusable([future.result() for future in futures])

    def check(self) -> list[str]:
        """Raise `SinkUnusable` if there is no token. No request is sent."""
        self._token()
        return []

    def close(self) -> None:
        self._client.close()

    def _deliver(self, event: Event, key: str, one_round: _Round) -> Exception | None:
        """Send one event, with retries. Each has the same key, because the first request may have arrived."""
        if (error := one_round.error) is not None:
            return error if isinstance(error, SinkDown) else SinkDown(f"was not sent, because {error}")
        try:
            body = event.line()
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return EventRejected(f"cannot be written as JSON: {error}")
        headers = {"Content-Type": _content_type(event), "Idempotency-Key": key, **self._authority(one_round.token)}
        result = self._request(body, headers, one_round.token)
        for attempts in range(1, MAX_ATTEMPTS):
            if result.retry_after is None or result.retry_after > _MAX_WAIT:
                break
            self._clock.sleep(result.retry_after + pause(attempts))
            result = self._request(body, headers, one_round.token)
        if result.for_all:
            one_round.error = result.error
        return result.error

    def _request(self, body: bytes, headers: Mapping[str, str], token: str) -> _RequestResult:
        try:
            with self._client.stream("POST", self._target, content=body, headers=headers) as response:
                return self._judge(response, self._read(response), token)
        except httpx.HTTPError as error:
            reason = f"{self.label} did not answer ({type(error).__name__}); trying again later may help"
            unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            return _RequestResult((SinkDown if unreachable else SinkError)(reason), 0, for_all=True)

    def _read(self, response: httpx.Response) -> bytes:
        """Read the start of a response: an excerpt is enough for an error."""
        body, deadline = b"", self._clock.steady() + self._timeout
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) >= _MAX_RESPONSE or self._clock.steady() > deadline:
                    break
        except httpx.HTTPError:  # the status has arrived
            pass
        return body

    def _judge(self, response: httpx.Response, body: bytes, token: str) -> _RequestResult:
        status = response.status_code
        if response.is_success:
            return _RequestResult(None)
        message = f"{self.label} answered {status}{self._excerpt(body, token)}"
        if status in _RETRYABLE or status >= 500:
            kind = SinkDown if status in _SINK_DOWN else SinkError
            return self._retry_later(message, response.headers.get("retry-after"), kind)
        if status == 401:
            return _unusable(f"{message}; fix the credentials and run again (no event was lost)")
        if status >= 400:
            return _RequestResult(EventRejected(message))
        target = _redact_url(response.headers.get("location", "nowhere"))
        return _unusable(
            f"{self.label} answered {status} and redirects to {target}; use the final URL (redirects are not followed)"
        )

    def _retry_later(self, message: str, retry_after: str | None, kind: type[SinkError]) -> _RequestResult:
        wait = 0 if retry_after is None else self._milliseconds(retry_after)
        if wait <= _MAX_WAIT:
            return _RequestResult(kind(message), wait)
        error = kind(f"{message}; it allows no retry for {wait / 1000:.0f} s")
        error.retry_at = self._clock.utc() + min(wait, _MAX_REST)
        return _RequestResult(error, wait)

    def _milliseconds(self, retry_after: str) -> int:
        """Return a `Retry-After` in milliseconds. It is written in seconds, or as a date."""
        try:
            plain = retry_after.strip().isdecimal()
            seconds = int(retry_after) if plain else _seconds(retry_after) - self._clock.utc() / 1000
        except ValueError:
            return 0
        return max(0, round(seconds * 1000))

    # --- secrets ---

    def _token(self) -> str:
        if self._token_env is None:
            return ""
        token = os.environ.get(self._token_env, "").strip()
        if not token:
            raise SinkUnusable(
                f"{self.label}: the environment variable {self._token_env} is not set or blank; set it and run again"
            )
        if not _HEADER_VALUE.fullmatch(token):
            raise SinkUnusable(
                f"{self.label}: the environment variable {self._token_env} holds what no header can carry, such as a "
                "line break or an accent; fix it and run again"
            )
        return token

    def _authority(self, token: str) -> dict[str, str]:
        if not token:
            return {}
        return {self._header: token} if self._header else {"Authorization": f"Bearer {token}"}

    def _excerpt(self, body: bytes, token: str) -> str:
        text = " ".join(body.decode("utf-8", "replace").split())
        for secret in filter(None, (token, self._basic, self._password)):  # some receivers echo what they were sent
            text = text.replace(secret, "***")
        return f": {text[:_MAX_EXCERPT]}" if text else ""

    # --- the URL ---

    def _options(self, fragment: str) -> dict[str, str]:
        options = read_options(fragment, f"sink: {self.label}")
        for name in options:
            if name not in _OPTIONS:
                raise ConfigError(f"sink: {self.label}: unknown option #{name}; use {', '.join(_OPTIONS)}")
        if "header" in options and "token_env" not in options:
            raise ConfigError(
                f"sink: {self.label}: header= has no value; add token_env= with the name of an environment variable"
            )
        if not options.get("token_env", "token").strip():
            raise ConfigError(f"sink: {self.label}: token_env= names no environment variable; write token_env=NAME")
        header = options.get("header", "authorization")
        if not _HEADER_NAME.fullmatch(header) or header.lower() in _RESERVED_HEADERS:
            raise ConfigError(
                f"sink: {self.label}: header={header} is not a valid header for a token; use another name"
            )
        return options


open_url = HttpSink


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        httpx.URL(urlunsplit(parts._replace(netloc=_host(parts))))
    except (ValueError, httpx.InvalidURL) as error:
        raise ConfigError(f"sink: {url.partition('://')[0]}: is not a URL: {error}") from None
    if not parts.hostname:
        raise ConfigError(f"sink: {parts.scheme}: names no host; write {parts.scheme}://HOST/path")
    return parts


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _redact_url(url: str) -> str:
    """Return a URL without the parts that may be secret."""
    scheme, separator, address = url.partition("#")[0].partition("?")[0].rpartition("://")
    host, slash, path = address.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _unusable(reason: str) -> _RequestResult:
    return _RequestResult(SinkUnusable(reason), for_all=True)


def _content_type(event: Event) -> str:
    return "application/cloudevents+json" if event.form == "cloudevents" else "application/json"


def _seconds(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()
