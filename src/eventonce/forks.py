"""Forks: what holds locks, threads or connections must not carry them into a child process."""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that acts before and after a fork. Internal."""

    def before_fork(self) -> None: ...
    def after_fork(self, *, in_child: bool) -> None: ...


_told: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_asked: list[Forkable] = []  # between before and after, so that both see the same ones


def tell_of_forks(each: Forkable) -> None:
    """From now on, for as long as it lives."""
    _told.add(each)


def _before() -> None:
    _asked[:] = _told
    for each in _asked:
        each.before_fork()


def _after(*, in_child: bool) -> None:
    while _asked:
        _asked.pop().after_fork(in_child=in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(in_child=False),
        after_in_child=lambda: _after(in_child=True),
    )
