"""Forks: an object with locks, threads or connections must not take them into a child process."""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that acts before and after a fork. Internal."""

    def before_fork(self) -> None: ...
    def after_fork(self, *, in_child: bool) -> None: ...


_registered: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_forking: list[Forkable] = []  # between before and after, so that both call the same objects


def register_for_forks(forkable: Forkable) -> None:
    """Register an object for fork callbacks. It is held weakly."""
    _registered.add(forkable)


def _before() -> None:
    _forking[:] = _registered
    for forkable in _forking:
        forkable.before_fork()


def _after(*, in_child: bool) -> None:
    while _forking:
        _forking.pop().after_fork(in_child=in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(in_child=False),
        after_in_child=lambda: _after(in_child=True),
    )
