"""Authentication of the requests to a function, with the same signers as the webhook."""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eventonce.clock import Clock
from eventonce.errors import EventRejected
from eventonce.event.formats import gateway
from eventonce.event.formats.headers import IDEMPOTENCY_KEY
from eventonce.ports import Admitted
from eventonce.requests.reading import idempotency_key
from eventonce.requests.refusal import Refusals, RequestRefused
from eventonce.rules.rule import Rule

if TYPE_CHECKING:
    from eventonce.auth import Auth

Wait = Callable[[Coroutine[Any, Any, Admitted | str]], Admitted | str]
_log = logging.getLogger("eventonce")


class Gate:
    """Admits the requests that `auth` accepts, or all of them without `auth`."""

    def __init__(self, auth: "Auth | None", wait: Wait, clock: Clock, rules: Sequence[Rule]) -> None:
        self._auth = auth
        self._wait = wait
        self._refusals = Refusals(clock)
        self._warned = False
        if auth is not None:
            from eventonce.auth import cautions  # not in the cold start of a function without requests

            for caution in cautions(auth, rules):
                _log.warning("http: %s", caution)

    @property
    def is_open(self) -> bool:
        """True if anybody may send."""
        return self._auth is None

    def admit(self, document: Mapping[str, Any]) -> Admitted | str:
        """Return what may be read of a request, or a word if it holds no event.

        Raise `RequestRefused` if `auth` does not accept its sender.
        """
        headers, body = _request(document)
        if self._auth is None:
            self._warn(document)
            return Admitted(headers, body)
        from eventonce.auth import Signer

        if isinstance(self._auth, Signer):
            return self._auth.verify(headers, body)
        return self._wait(self._auth.admit(headers, body))

    def refused(self, refusal: RequestRefused) -> None:
        """Log a refused request."""
        self._refusals.add(refusal)

    def _warn(self, document: Mapping[str, Any]) -> None:
        context = document.get("requestContext")
        if self._warned or (isinstance(context, Mapping) and context.get("authorizer")):
            return
        self._warned = True
        _log.warning("http: the function accepts unauthenticated requests; add auth= or an authenticating proxy")


def _request(document: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a request. Raise `RequestRefused` if they cannot be read."""
    headers = gateway.headers(document)
    key = headers.get(IDEMPOTENCY_KEY)
    if key is not None:
        idempotency_key([key] * (2 if gateway.repeated(document, IDEMPOTENCY_KEY) else 1))
    try:
        return headers, gateway.body(document)
    except EventRejected as error:
        raise RequestRefused(400, str(error)) from None
