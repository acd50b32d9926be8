"""The results of a turn, noted as they happen: an interrupt must find what has taken effect."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterable, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from eventonce.claims.protocol import Commit
from eventonce.engine.jobs import Chain, Effect, Failure, Job, Runnable
from eventonce.engine.keeper import OpenClaim, OpenClaims
from eventonce.errors import ConfigError, EventOnceError, StoreError
from eventonce.ports import Transaction
from eventonce.text import one_line

if TYPE_CHECKING:
    from eventonce.engine.hooks import Hooks

_CAUSES = 10  # how many causes of an error to follow
_NOT_RUN = (Awaitable, AsyncGenerator, Generator, map, filter, zip, enumerate)  # created, and not run yet
_LISTS = (list, tuple, set, frozenset)
_log = logging.getLogger("eventonce")


class Results:
    """The effects and failures of one turn so far."""

    def __init__(self, claims: OpenClaims, max_result: int, hooks: "Hooks | None") -> None:
        self.effects: list[Effect] = []
        self.failures: list[Failure] = []
        self.memos: dict[Job, bytes | None] = {}
        self.in_transaction: dict[Job, bool] = {}  # whether its own transaction was committed; False means fenced
        # What has just come back. It is stored in the statement of the call: no interrupt can come between the two.
        self.returning: tuple[Runnable, Any] | None = None  # from a handler, with its result
        self.sent: tuple[Sequence[Runnable], Sequence[Exception | None]] | None = None  # from a sink, with its errors
        self._claims = claims
        self._max_result = max_result
        self._hooks = hooks
        self._chains: Sequence[Chain] = ()

    def expect(self, chains: Sequence[Chain]) -> None:
        """Note what is about to run."""
        self._chains = chains

    # --- while they run ---

    def returned(self, runnable: Runnable, result: Any) -> bool:
        """Note that a handler has returned. Return whether those behind it in its chain may run."""
        context = runnable.context
        if context is not None:
            context.ended = True
            if context.transaction is not None:
                _check_has_run(result)
                return self._commit(Effect(runnable, result), context.transaction)
        effect = Effect(runnable, result)
        self.effects.append(effect)  # first of all: an interrupt may come at any line
        _check_has_run(result)
        self._record(effect)
        return True

    def raised(self, runnable: Runnable, error: Exception) -> bool:
        """Note that a handler has raised, so that those behind it in its chain must not run."""
        if self.effects and self.effects[-1].runnable is runnable:  # it returned what cannot be accepted
            self.effects.pop()
        if _has_transaction(runnable):
            error = _store_error_behind(error)
        self.failures.append(Failure(runnable, error))
        _roll_back(runnable)
        return False

    # --- when they have run, or were interrupted ---

    def without_effect(self) -> list[Job]:
        """Return the claimed jobs that were to run and have no effect: they failed, or were behind one that did."""
        if not self.failures and not self.in_transaction:
            return []
        happened = {effect.runnable for effect in self.effects}
        claimed = [each for chain in self._chains for each in chain if type(each.basis) is OpenClaim]
        return [runnable.job for runnable in claimed if runnable not in happened]

    def wind_up(self) -> None:
        """After an interrupt, roll open transactions back, and record all other effects."""
        for chain in self._chains:
            for runnable in chain:
                self._try("roll back a transaction", _roll_back, runnable)
        self.effects += self._not_noted()
        for effect in self.effects:
            self._try("record what was done", self._record_again, effect)

    def _not_noted(self) -> list[Effect]:
        """Return the effects that had come back when an interrupt came, and were not noted yet."""
        returned = [] if self.returning is None else [self.returning]
        if self.sent is not None:
            returned += [(runnable, None) for runnable, error in zip(*self.sent, strict=False) if error is None]
        noted = {effect.runnable for effect in self.effects} | {failure.runnable for failure in self.failures}
        return [
            Effect(runnable, result)
            for runnable, result in returned
            if runnable not in noted and not _has_transaction(runnable) and unrun_kind(result) is None
        ]

    def never_happened(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that have no effect."""
        happened = {effect.runnable.job for effect in self.effects}
        return [job for job in jobs if job not in happened]

    def _try(self, action: str, function: Any, *args: Any) -> None:
        try:
            function(*args)
        except Exception:
            _log.exception("could not %s after an interruption", action)

    # --- how an effect is recorded ---

    def _record(self, effect: Effect) -> None:
        """Have an effect remembered. It is committed together with others."""
        job, claim = effect.runnable.job, effect.runnable.basis
        packed = None if job.rule.remember == "seen" and job.message_id is None else self._memo(effect)
        if type(claim) is not OpenClaim:
            return
        # The last key is the one under which workers with the replaced rule look too, so that one goes first.
        finish = Commit(job.keys[-1], claim.token, job.rule.window, job.version, packed)
        self._claims.enter_commit(finish)
        if len(job.keys) > 1:
            self._claims.enter_commit(finish._replace(key=job.key))

    def _record_again(self, effect: Effect) -> None:
        """Have an effect remembered that may be remembered already. Doing so twice is harmless."""
        job, claim = effect.runnable.job, effect.runnable.basis
        committed = self.in_transaction.get(job)
        if committed is None:
            self._record(effect)
        elif committed and len(job.keys) > 1 and type(claim) is OpenClaim:
            self._claims.enter_commit(Commit(job.key, claim.token, job.rule.window, job.version, self.memos[job]))

    def _commit(self, effect: Effect, transaction: Transaction) -> bool:
        """Commit an effect and the record of it together."""
        job, claim = effect.runnable.job, effect.runnable.basis
        assert type(claim) is OpenClaim  # without a claim no transaction begins
        finish = Commit(job.keys[-1], claim.token, job.rule.window, job.version, self._memo(effect))
        commit = transaction.commit
        committed = commit(finish) if self._hooks is None else self._hooks.observe_call("commit", 1, commit, finish)
        self.in_transaction[job] = committed
        self.effects.append(effect)  # only now has it happened
        self._claims.drop([finish.key])
        if committed and len(job.keys) > 1:  # if fenced, whoever took over decides what becomes of it
            self._claims.enter_commit(finish._replace(key=job.key))
        return committed

    def _memo(self, effect: Effect) -> bytes | None:
        job = effect.runnable.job
        rule = job.rule
        if rule.remember == "seen" and job.message_id is None:
            self.memos[job] = None
            return None
        from eventonce.claims import memo  # imported before, by whoever remembers more than that an event was seen

        self.memos[job], reason = memo.write(
            rule.remember, job.event, job.content, effect.result, self._max_result, job.message_id, job.restore
        )
        if reason:
            _log.warning("rule %s: duplicates will not get the result: %s", rule.name, one_line(reason))
        return self.memos[job]


def _check_has_run(result: Any) -> None:
    """Raise `ConfigError` if a handler returned what has not run. To record it as done would lose the event."""
    kind = None if result is None else unrun_kind(result)
    if kind is None:
        return
    for item in (result, *_items(result)):
        if isinstance(item, CoroutineType):
            item.close()
    raise ConfigError(f"the handler returned an object of type {kind.__name__}, {_remedy(kind)}")


def unrun_kind(result: Any) -> type | None:
    """Return the type of what a handler returned, or of something in it, if that has not run."""
    return next((kind for kind in (type(result), *set(map(type, _items(result)))) if _has_not_run(kind)), None)


def _items(result: Any) -> Iterable[Any]:
    return result if isinstance(result, _LISTS) else result.values() if isinstance(result, dict) else ()


def _has_not_run(kind: type) -> bool:
    return issubclass(kind, _NOT_RUN) or kind.__module__ == "itertools" or _is_future(kind)


def _is_future(kind: type) -> bool:
    """Return whether it is a future of any library, or what multiprocessing calls an AsyncResult."""
    return hasattr(kind, "add_done_callback") or all(hasattr(kind, name) for name in ("get", "ready", "wait"))


def _remedy(kind: type) -> str:
    if _is_future(kind):
        return "which may not be done yet; wait for it and return its result"
    if issubclass(kind, Awaitable):
        return "which is never awaited; write the handler with async def and await it"
    return "which never runs; iterate over it in the handler and return a list"


def _store_error_behind(error: Exception) -> Exception:
    """Return the store error of ctx.tx behind an error of a handler or a library, or that error itself."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):  # an error may be its own cause
        if cause is None or isinstance(cause, EventOnceError):
            break
        cause = cause.__cause__ or cause.__context__
    return cause if isinstance(cause, StoreError) else error


def _has_transaction(runnable: Runnable) -> bool:
    return runnable.context is not None and runnable.context.transaction is not None


def _roll_back(runnable: Runnable) -> None:
    context = runnable.context
    if context is None:
        return
    context.ended = True
    if context.transaction is not None:
        context.transaction.rollback()
