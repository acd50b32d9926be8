"""The claim protocol as pure functions: what is remembered of a key, and how each verb changes it.

            claim (token t, lease)                commit (token t)
  absent ------------------------------> running ------------------> done --(window over)--> absent
     ^                                    |  ^  |
     |        release (token t)           |  |  | lease over: anyone may claim again,
     +------------------------------------+  +--+ with a new token and attempt + 1

Every store acts as if it applied these functions to one key at a time. The embedded stores call them, except that
SQLite answers most batches by its own statements, which a test holds equal to them (`stores/sqlite_rows.py`).
"""

from typing import NamedTuple

from eventonce.event.keys import Key

Token = bytes
TOKEN_BYTES = 8
FAILURES_FOR = 86_400_000  # a day: failed attempts are remembered at least so long, however short the window
LONGEST_LEASE = 86_400_000  # a day: what lives extends its lease, so a longer one only holds up what follows a death
# What ends further off was claimed by a clock that was ahead. The hour is for clocks that differ, or are set back.
FURTHEST_LEASE = LONGEST_LEASE + 3_600_000


# --- what an engine asks ---


class Want(NamedTuple):
    """Ask to run a key. `window` is also how long failed attempts are remembered, if that is over a day.

    `shared` says that the owner claims other keys too and may die before it begins this one, so that an
    abandoned claim is no proof against the event and does not count as an attempt.
    """

    key: Key
    window: int
    version: int | None = None
    refresh: bool = False
    shared: bool = False


class Claim(NamedTuple):
    """The right to run one key."""

    key: Key
    token: Token


class Finish(NamedTuple):
    """The run has taken effect: remember it for the window."""

    key: Key
    token: Token
    window: int
    version: int | None = None
    memo: bytes | None = None


class Release(NamedTuple):
    """Give a claim back: with the error of a failed attempt, or without one as if it had never been claimed."""

    key: Key
    token: Token
    window: int
    error: str | None = None


# --- what a store remembers ---


class Record(NamedTuple):
    """All that is remembered of one key."""

    token: Token
    lease: int  # running until then; 0 when not running
    shared: bool  # the claim was one of several
    tries: int  # attempts so far at what is not done yet, the running one included
    trying: int | None  # the highest version among those attempts
    done_at: int  # when it was last done; 0 if never
    until: int  # the end of the window; 0 if never done
    took: int  # attempts the last done run took
    version: int | None  # the highest version done
    memo: bytes | None
    error: str | None  # of the last failed attempt
    expires: int  # from then on all this may be dropped


# --- what a store answers ---


class Won(NamedTuple):
    """Run it. `attempt` counts from 1; `error` is how the last attempt ended.

    `suspect` says that the last owner never came back: this event may be what killed it, so run it alone.
    """

    attempt: int
    error: str | None = None
    suspect: bool = False


class Done(NamedTuple):
    """It was done before."""

    record: Record


class Busy(NamedTuple):
    """Another owner runs it, at least until then, by the clock of whoever asked, unless it dies."""

    until: int


class Stale(NamedTuple):
    """A higher version was done before."""

    version: int


Answer = Won | Done | Busy | Stale

_NEW = Record(b"", 0, False, 0, None, 0, 0, 0, None, None, None, 0)


# --- how each verb changes a record ---


def live(record: Record | None, now: int) -> Record | None:
    """The record, unless its time is over."""
    return record if record is not None and record.expires > now else None


def running(record: Record, now: int) -> bool:
    """Whether its lease lasts. One that ends further off than any can was made by a clock that was ahead, and is over.

    So a claim whose owner died is free at most a lease after clocks are right again, and not a year later.
    """
    return now < record.lease <= now + FURTHEST_LEASE


def claim(record: Record | None, want: Want, token: Token, lease: int, now: int) -> tuple[Answer, Record | None]:
    """Answer a claim; the second value is the record to keep, or None where nothing changes."""
    if record is None or record.expires <= now:
        return _take(_NEW, want, token, lease, now)
    if record.lease and record.token == token:
        return _again(record, want, lease, now)
    if running(record, now):
        return Busy(record.lease), None
    if record.done_at and record.until > now:
        answer = _seen(record, want.version)
        if answer is not None:
            return answer, _refreshed(record, want, now) if type(answer) is Done else None
    return _take(record, want, token, lease, now)


def _seen(record: Record, version: int | None) -> Done | Stale | None:
    if version is None or record.version is None or version == record.version:
        return Done(record)
    return Stale(record.version) if version < record.version else None


def _refreshed(record: Record, want: Want, now: int) -> Record | None:
    if not want.refresh:
        return None
    until = max(record.until, now + want.window)
    return record._replace(until=until, expires=max(record.expires, until))


def _again(record: Record, want: Want, lease: int, now: int) -> tuple[Won, Record]:
    # The reply to the first claim was lost and the client asks again: it is still the owner.
    kept = record._replace(lease=now + lease, expires=max(record.expires, now + lease + _keep(want.window)))
    return Won(record.tries, record.error), kept


def _take(record: Record, want: Want, token: Token, lease: int, now: int) -> tuple[Won, Record]:
    tries, error, suspect = 1, None, False
    if record.tries and not _higher(want.version, record.trying):
        suspect = record.lease > 0
        tries = record.tries + (0 if suspect and record.shared else 1)
        error = record.error
    kept = record._replace(
        token=token,
        lease=now + lease,
        shared=want.shared,
        tries=tries,
        trying=want.version if tries == 1 else record.trying,
        error=error,
        expires=max(record.until, now + lease + _keep(want.window)),
    )
    return Won(tries, error, suspect), kept


def _higher(version: int | None, other: int | None) -> bool:
    return version is not None and other is not None and version > other


def _keep(window: int) -> int:
    return max(window, FAILURES_FOR)


def extend(record: Record | None, token: Token, lease: int, now: int) -> Record | None:
    """The record with a new lease, or None where the token no longer owns it."""
    record = live(record, now)
    if record is None or not record.lease or record.token != token:
        return None
    end = now + lease
    return record._replace(lease=end, expires=max(record.expires, end))


def commit(record: Record | None, finish: Finish, now: int) -> Record | None:
    """The record marked done, or None where the token no longer owns it."""
    record = live(record, now)
    if record is None or record.token != finish.token:
        return None
    if not record.lease:  # committed before and the reply was lost; or released, and then it is not ours
        return record if record.done_at and not record.tries else None
    until = now + finish.window
    return Record(finish.token, 0, False, 0, None, now, until, record.tries, finish.version, finish.memo, None, until)


def release(record: Record | None, given: Release, now: int) -> tuple[bool, Record | None]:
    """Whether the token owned it, and the record to keep, or None to drop it."""
    record = live(record, now)
    if record is None or record.token != given.token or (not record.lease and not record.tries):
        return False, record
    if not record.lease:  # released before and the reply was lost
        return True, record
    if given.error is not None:
        expires = max(record.until, now + _keep(given.window))
        return True, record._replace(lease=0, error=given.error, expires=expires)
    tries = record.tries - 1
    if not tries and not record.done_at:
        return True, None
    # Without a token nothing that the old owner still sends can touch what is kept.
    trying, expires = (record.trying, record.expires) if tries else (None, record.until)
    return True, record._replace(token=b"", lease=0, tries=tries, trying=trying, expires=expires)
