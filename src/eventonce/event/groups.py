"""Groups: events of one group run in order, and none runs behind one that did not end well.

This is the one home of that rule. The engine's order of a batch and the queues of the sinks apply it from here, so it
is pure and knows neither of them.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Stops:
    """Where groups have stopped: the positions behind which nothing of a group runs."""

    def __init__(self) -> None:
        self._positions: dict[str, dict[Hashable, int]] = {}  # of each group, by the message that may go on

    def __bool__(self) -> bool:
        return bool(self._positions)

    def stop(self, group: str | None, position: int, message: Hashable = None) -> None:
        """Stop a group at a position. With `message`, only other messages stop there.

        A message with several events is settled as a whole. If one of them is a dead letter, the others still run:
        else that one would hold them up each time the message is delivered, and the message would never end.
        """
        if group is not None:
            positions = self._positions.setdefault(group, {})
            positions[message] = min(position, positions.get(message, position))

    def hold_back(self, group: str | None, position: int, message: Hashable = None) -> bool:
        """Return whether one of the group at an earlier position did not end well."""
        if group is None or group not in self._positions:
            return False
        return any(
            position > stop and (exempt is None or exempt != message) for exempt, stop in self._positions[group].items()
        )


class GroupQueue(Generic[Item]):
    """Items to send, of each group one at a time: the next is free when the one before it has ended well."""

    def __init__(self, items: Iterable[Item], group_of: Callable[[Item], str | None]) -> None:
        self._group_of = group_of
        self.free: deque[Item] = deque()
        self._behind: dict[str, deque[Item]] = {}
        for chain in chains(items, group_of):
            self.free.append(chain[0])
            group = group_of(chain[0])
            if group is not None:
                self._behind[group] = deque(chain[1:])

    def ended(self, item: Item, *, well: bool) -> Sequence[Item]:
        """Free the next one of its group, or return all that are behind it if it did not end well."""
        group = self._group_of(item)
        behind = None if group is None else self._behind.get(group)
        if group is None or not behind:
            return ()
        if not well:
            return self._behind.pop(group)
        self.free.append(behind.popleft())
        return ()

    def waiting(self) -> list[Item]:
        """Return all that still wait: what is free, and what is behind another."""
        return [*self.free, *(item for chain in self._behind.values() for item in chain)]


def chains(items: Iterable[Item], group_of: Callable[[Item], str | None]) -> list[list[Item]]:
    """Return items as chains: those of one group one after another, every other item by itself."""
    apart: list[list[Item]] = []
    by_group: dict[str, list[Item]] = {}
    for item in items:
        group = group_of(item)
        if group is not None and group in by_group:
            by_group[group].append(item)
            continue
        apart.append([item])
        if group is not None:
            by_group[group] = apart[-1]
    return apart
