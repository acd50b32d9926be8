"""Events to a receiver over HTTP."""

import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

import httpx

from eventonce.clock import Clock, SystemClock, duration
from eventonce.errors import ConfigError, EventRejected, SinkDown, SinkError, SinkUnusable
from eventonce.event import Event
from eventonce.sinks.batching import MAX_ATTEMPTS, pause, raise_if_unusable

_IN_FLIGHT = 8  # requests at a time
_LONGEST_WAIT = 10_000  # that a receiver may ask for; a longer one is left to the engine
_LONGEST_REST = 3_600_000  # and no receiver can ask for more
_READ = 65_536  # of an answer; beyond that the connection is given up
_SHOWN = 200
_LATER = {408, 425, 429}  # and all from 500 on
_OVERRUN = {429, 503}  # which speak of the receiver and not of the event
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header
_TEXT = re.compile(r"[ -~]+")  # that a header can carry
_OURS = ("content-type", "idempotency-key")
_OPTIONS = ("timeout", "token_env", "header")


class _Try(NamedTuple):
    """How one request ended."""

    error: Exception | None
    again: int | None = None  # after how many milliseconds at least another may be made; None: that is no use
    for_all: bool = False  # whether it is the receiver and not the event that is to blame


class _Round:
    """One sending of several events: the token they carry, and what keeps the rest of them from being sent."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.trouble: Exception | None = None


class HttpSink:
    """Each event in a POST request of its own, several at a time, with its `Idempotency-Key`.

    The URL is the receiver's own, query and all. What we need beside it stands behind the `#`, which is never sent:
    `https://api.example.com/events#timeout=5s&token_env=API_TOKEN`.
    """

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        parts = _split(url)
        self.label = _shown(url)
        options = self._options(parts.fragment)
        self._timeout = duration(options.get("timeout", "10s"), "sink: timeout")
        if not self._timeout:
            raise ConfigError(f"sink: {self.label}: timeout: 0 leaves no time to answer; write it like 10s")
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
        """Send each; raises `SinkError` where nothing can be sent until someone acts."""
        one_round = _Round(self._token())
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="eventonce-http") as pool:
            futures = [
                pool.submit(self._deliver, event, key, one_round)
                for event, key in zip(events, idempotency_keys, strict=True)
            ]
        return raise_if_unusable([future.result() for future in futures])

    def close(self) -> None:
        self._client.close()

    def _deliver(self, event: Event, key: str, one_round: _Round) -> Exception | None:
        """Send one, and again where that may help: always with the same key, because it may have arrived before."""
        if (trouble := one_round.trouble) is not None:
            return trouble if isinstance(trouble, SinkDown) else SinkDown(f"was not sent, because {trouble}")
        try:
            body = event.line()
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return EventRejected(f"cannot be written as JSON: {error}")
        headers = {"Content-Type": _content_type(event), "Idempotency-Key": key, **self._authority(one_round.token)}
        end = self._request(body, headers, one_round.token)
        for attempts in range(1, MAX_ATTEMPTS):
            if end.again is None or end.again > _LONGEST_WAIT:
                break
            self._clock.sleep(end.again + pause(attempts))
            end = self._request(body, headers, one_round.token)
        if end.for_all:
            one_round.trouble = end.error
        return end.error

    def _request(self, body: bytes, headers: Mapping[str, str], token: str) -> _Try:
        try:
            with self._client.stream("POST", self._target, content=body, headers=headers) as response:
                return self._judge(response, self._read(response), token)
        except httpx.HTTPError as error:
            why = f"{self.label} did not answer ({type(error).__name__}); trying again later may help"
            nobody_there = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            return _Try((SinkDown if nobody_there else SinkError)(why), 0, for_all=True)

    def _read(self, response: httpx.Response) -> bytes:
        """What it says, up to a bound: what was said first is enough for us."""
        body, until = b"", self._clock.steady() + self._timeout
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) >= _READ or self._clock.steady() > until:
                    break
        except httpx.HTTPError:  # the status was whole
            pass
        return body

    def _judge(self, response: httpx.Response, body: bytes, token: str) -> _Try:
        status = response.status_code
        if response.is_success:
            return _Try(None)
        said = f"{self.label} answered {status}{self._excerpt(body, token)}"
        if status in _LATER or status >= 500:
            return self._later(said, response.headers.get("retry-after"), SinkDown if status in _OVERRUN else SinkError)
        if status == 401:
            return _unusable(f"{said}; mend the credentials and run again, nothing is lost")
        if status >= 400:
            return _Try(EventRejected(said))
        there = _shown(response.headers.get("location", "nowhere"))
        return _unusable(
            f"{self.label} answered {status} and points to {there}; redirects are not followed, so name "
            "the right place in the sink's URL"
        )

    def _later(self, said: str, asked: str | None, kind: type[SinkError]) -> _Try:
        wait = 0 if asked is None else self._wait(asked)
        if wait <= _LONGEST_WAIT:
            return _Try(kind(said), wait)
        error = kind(f"{said}; it asks to be left alone for {wait / 1000:.0f} s")
        error.retry_at = self._clock.utc() + min(wait, _LONGEST_REST)
        return _Try(error, wait)

    def _wait(self, asked: str) -> int:
        """A `Retry-After` in milliseconds: it is written in seconds, or as a date."""
        try:
            seconds = int(asked) if asked.strip().isdecimal() else _seconds(asked) - self._clock.utc() / 1000
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
                f"{self.label}: the environment variable {self._token_env} is not set; set it and run again"
            )
        if not _TEXT.fullmatch(token):
            raise SinkUnusable(
                f"{self.label}: the environment variable {self._token_env} holds what no header can carry, such as a "
                "line break or an accent; mend it and run again"
            )
        return token

    def _authority(self, token: str) -> dict[str, str]:
        if not token:
            return {}
        return {self._header: token} if self._header else {"Authorization": f"Bearer {token}"}

    def _excerpt(self, body: bytes, token: str) -> str:
        text = " ".join(body.decode("utf-8", "replace").split())
        for secret in filter(None, (token, self._basic, self._password)):  # some receivers repeat what they were sent
            text = text.replace(secret, "***")
        return f": {text[:_SHOWN]}" if text else ""

    # --- the URL ---

    def _options(self, fragment: str) -> dict[str, str]:
        found = dict(parse_qsl(fragment, keep_blank_values=True))
        for name in found:
            if name not in _OPTIONS:
                raise ConfigError(f"sink: {self.label}: #{name} is not known; it takes {', '.join(_OPTIONS)}")
        if "header" in found and "token_env" not in found:
            raise ConfigError(f"sink: {self.label}: header= needs token_env=, which names the variable with its value")
        header = found.get("header", "authorization")
        if not _NAME.fullmatch(header) or header.lower() in _OURS:
            raise ConfigError(f"sink: {self.label}: header={header} is no name that a header for a token can have")
        return found


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


def _shown(url: str) -> str:
    """A URL without what may be secret in it."""
    scheme, found, rest = url.partition("#")[0].partition("?")[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{found}{host.rpartition('@')[2]}{slash}{path}"


def _unusable(why: str) -> _Try:
    return _Try(SinkUnusable(why), for_all=True)


def _content_type(event: Event) -> str:
    return "application/cloudevents+json" if event.form == "cloudevents" else "application/json"


def _seconds(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()
