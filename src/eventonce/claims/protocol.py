"""The claim protocol as pure functions: the record of a key, and how each verb changes it.

            claim (token t, lease)                commit (token t)
  absent ------------------------------> running ------------------> done --(window expired)--> absent
     ^                                    |  ^  |
     |        release (token t)           |  |  | lease expired: anyone may claim again,
     +------------------------------------+  +--+ with a new token and attempt + 1

Every store acts as if it applied these to one key at a time. The memory store and the journal apply them record by
record. SQLite has a fast path in SQL (`stores/sqlite_rows.py`), which a test holds equal to them.
"""

from typing import NamedTuple

from eventonce.event.keys import Key

Token = bytes
TOKEN_BYTES = 8
FAILURES_FOR = 86_400_000  # a day: failed attempts are remembered at least this long, however short the window
LONGEST_LEASE = 86_400_000  # a day: a live owner extends its lease, so a longer one only delays the next after a crash
# A lease that ends later was claimed by a clock that was ahead. The hour is for clocks that differ, or are set back.
FURTHEST_LEASE = LONGEST_LEASE + 3_600_000


# --- requests ---


class Want(NamedTuple):
    """Ask to run a key. `window` is also how long failed attempts are remembered, if it is longer than a day.

    `shared` says that the owner claims other keys too and may die before it starts this one. An abandoned claim then
    proves nothing against the event and does not count as an attempt.
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
    """Record a run that has taken effect, for the window."""

    key: Key
    token: Token
    window: int
    version: int | None = None
    memo: bytes | None = None


class Release(NamedTuple):
    """Release a claim: with the error of a failed attempt, or without one as if it had never been claimed."""

    key: Key
    token: Token
    window: int
    error: str | None = None


# --- records ---


class Record(NamedTuple):
    """What a store remembers of one key."""

    token: Token
    lease: int  # running until then; 0 when not running
    shared: bool  # the claim was one of several
    tries: int  # attempts so far, the running one included; 0 once done
    trying: int | None  # the highest version among those attempts
    done_at: int  # when it was last done; 0 if never
    until: int  # the end of the window; 0 if never done
    attempts: int  # of the run that is done
    version: int | None  # the highest version done
    memo: bytes | None
    error: str | None  # of the last failed attempt
    expires: int  # from then on the record may be deleted


# --- answers ---


class Won(NamedTuple):
    """Run it. `attempt` counts from 1. `error` is the error of the last attempt.

    `suspect` says that the last owner's lease expired. This event may have killed it, so it runs alone.
    """

    attempt: int
    error: str | None = None
    suspect: bool = False


class Done(NamedTuple):
    """It was done before."""

    record: Record


class Busy(NamedTuple):
    """Another owner runs it, at least until then unless it dies, by the clock of the caller."""

    until: int


class Stale(NamedTuple):
    """A higher version was done before."""

    version: int


Answer = Won | Done | Busy | Stale

_NEW = Record(b"", 0, False, 0, None, 0, 0, 0, None, None, None, 0)


# --- how each verb changes a record ---


def live(record: Record | None, now: int) -> Record | None:
    """Return the record, unless it has expired."""
    return record if record is not None and record.expires > now else None


def running(record: Record, now: int) -> bool:
    """Return whether its lease has not expired. A lease that ends later than any can, by a clock ahead, has expired.

    So a claim whose owner died is free at most a lease after clocks are right again, and not a year later.
    """
    return now < record.lease <= now + FURTHEST_LEASE


def claim(record: Record | None, want: Want, token: Token, lease: int, now: int) -> tuple[Answer, Record | None]:
    """Return the answer to a claim, and the record to store, or None if nothing changes."""
    if record is None or record.expires <= now:
        return _take(_NEW, want, token, lease, now)
    if record.lease and record.token == token:
        return _confirm(record, want, lease, now)
    if running(record, now):
        return Busy(record.lease), None
    if record.done_at and record.until > now:
        answer = _compare_version(record, want.version)
        if answer is not None:
            return answer, _refresh(record, want, now) if type(answer) is Done else None
    return _take(record, want, token, lease, now)


def _compare_version(record: Record, version: int | None) -> Done | Stale | None:
    if version is None or record.version is None or version == record.version:
        return Done(record)
    return Stale(record.version) if version < record.version else None


def _refresh(record: Record, want: Want, now: int) -> Record | None:
    if not want.refresh:
        return None
    until = max(record.until, now + want.window)
    return record._replace(until=until, expires=max(record.expires, until))


def _confirm(record: Record, want: Want, lease: int, now: int) -> tuple[Won, Record]:
    # The answer to the first claim was lost and the client repeats it: it is still the owner.
    updated = record._replace(lease=now + lease, expires=max(record.expires, now + lease + _retention(want.window)))
    return Won(record.tries, record.error), updated


def _take(record: Record, want: Want, token: Token, lease: int, now: int) -> tuple[Won, Record]:
    tries, error, suspect = 1, None, False
    if record.tries and not _higher(want.version, record.trying):
        suspect = record.lease > 0
        tries = record.tries + (0 if suspect and record.shared else 1)
        error = record.error
    updated = record._replace(
        token=token,
        lease=now + lease,
        shared=want.shared,
        tries=tries,
        trying=want.version if tries == 1 else record.trying,
        error=error,
        expires=max(record.until, now + lease + _retention(want.window)),
    )
    return Won(tries, error, suspect), updated


def _higher(version: int | None, other: int | None) -> bool:
    return version is not None and other is not None and version > other


def _retention(window: int) -> int:
    return max(window, FAILURES_FOR)


def extend(record: Record | None, token: Token, lease: int, now: int) -> Record | None:
    """Return the record with a new lease, or None if the token no longer owns it."""
    record = live(record, now)
    if record is None or not record.lease or record.token != token:
        return None
    end = now + lease
    return record._replace(lease=end, expires=max(record.expires, end))


def commit(record: Record | None, finish: Finish, now: int) -> Record | None:
    """Return the record marked done, or None if the token no longer owns it."""
    record = live(record, now)
    if record is None or record.token != finish.token:
        return None
    if not record.lease:  # committed before and the answer was lost; or released, and then it is not ours
        return record if record.done_at and not record.tries else None
    until = now + finish.window
    return Record(finish.token, 0, False, 0, None, now, until, record.tries, finish.version, finish.memo, None, until)


def release(record: Record | None, release: Release, now: int) -> tuple[bool, Record | None]:
    """Return whether the token owned the claim, and the record to store, if any."""
    record = live(record, now)
    if record is None or record.token != release.token or (not record.lease and not record.tries):
        return False, record
    if not record.lease:  # released before and the answer was lost
        return True, record
    if release.error is not None:
        expires = max(record.until, now + _retention(release.window))
        return True, record._replace(lease=0, error=release.error, expires=expires)
    tries = record.tries - 1
    if not tries and not record.done_at:
        return True, None
    # Without a token nothing that the old owner still sends can change the record.
    trying, expires = (record.trying, record.expires) if tries else (None, record.until)
    return True, record._replace(token=b"", lease=0, tries=tries, trying=trying, expires=expires)
