"""The world of a simulation: virtual time, and tasks of which one runs at a time, switched where the choices say.

Each task is a greenlet, so the real engine runs in it as it is. Wherever it calls a store, a queue or its clock, it
comes to a point: another task may run first, time may pass, its process may stand still or die.
"""

from collections.abc import Callable
from contextlib import suppress

from greenlet import getcurrent, greenlet

from lab.choices import Choices

MOST_POINTS = 20_000  # of one run; more than that is no progress
NEVER = 1 << 62


class Killed(BaseException):
    """The process of this task is dead: nothing it does from now on reaches anyone."""


class Endless(Exception):
    """A run does not come to its end."""


class SimulatedProcess:
    """What dies and stands still as one: some tasks, a clock, and a keeper's turn to commit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.harmed = False  # anything at all has happened to it, but for slow handlers
        self.still_until = 0
        self.skew = 0
        self.committing: Task | None = None  # holds the lock of its batch, so others of the process wait


class Task(greenlet):
    """One line of execution in a process."""

    def __init__(self, process: SimulatedProcess, act: Callable[[], object], scheduler: greenlet) -> None:
        super().__init__(self._live, scheduler)  # which goes on when this ends, and not the task that started it
        self.process = process
        self.wake = 0
        self._act = act

    def _live(self) -> None:
        with suppress(Killed):
            self._act()

    def runs_at(self) -> int:
        """When it can go on; a dead one goes on at once, to its end."""
        if self.process.dead:
            return 0
        waits = self.process.committing not in (None, self)
        return NEVER if waits else max(self.wake, self.process.still_until)


class World:
    """Virtual milliseconds, the tasks, and what happened."""

    def __init__(self, choices: Choices, *, troubles: int) -> None:
        self.choices = choices
        self.now = 1_767_225_600_000
        self.troubles = troubles  # how many faults are left to happen
        self.story: list[tuple[int, str, str]] = []
        self._began = self.now
        self._tasks: list[Task] = []
        self._points = 0
        self._scheduler = getcurrent()

    def start(self, process: SimulatedProcess, act: Callable[[], object], at: int = 0) -> Task:
        task = Task(process, act, self._scheduler)
        task.wake = at
        self._tasks.append(task)
        return task

    def run(self) -> None:
        """Until every task has ended."""
        last: Task | None = None
        try:
            while self._tasks:
                last = self._next(last)
                last.switch()
                if last.dead:
                    self._tasks.remove(last)
        finally:
            self._end()

    def point(self) -> None:
        """Another task may run first."""
        self._points += 1
        if self._points > MOST_POINTS:
            raise Endless("the run makes no progress")
        self._scheduler.switch()
        if self.process.dead:
            raise Killed

    def sleep(self, duration: int) -> None:
        """Let time pass for this task."""
        self.task.wake = self.now + duration
        self.point()

    @property
    def task(self) -> Task:
        current = getcurrent()
        assert isinstance(current, Task)
        return current

    @property
    def process(self) -> SimulatedProcess:
        return self.task.process

    def trouble(self, percent: int) -> bool:
        """Whether a fault happens here; there are only so many in a run, so that every run can end well."""
        if not self.troubles or not self.choices.rarely(percent):
            return False
        self.troubles -= 1
        return True

    def kill(self, process: SimulatedProcess) -> None:
        self.tell("dies")
        process.dead = process.harmed = True
        if self.process is process:
            raise Killed

    def stand_still(self, duration: int) -> None:
        """The process of this task does nothing for so long."""
        self.tell("stands still")
        self.process.harmed = True
        self.process.still_until = self.now + duration

    def tell(self, what: str) -> None:
        self.story.append((self.now - self._began, self.process.name, what))

    def _next(self, last: Task | None) -> Task:
        times = [(task.runs_at(), task) for task in self._tasks]
        soonest = min(time for time, _ in times)
        if soonest >= NEVER:
            raise Endless("every task waits for another")
        self.now = max(self.now, soonest)
        ready = [task for time, task in times if time <= self.now]
        if last in ready:
            ready.remove(last)
            ready.insert(0, last)
        if len(ready) == 1:
            return ready[0]
        chosen = self.choices.below(2 * len(ready))  # as likely as not the same goes on
        return ready[chosen] if chosen < len(ready) else ready[0]

    def _end(self) -> None:
        """Nothing of a run that failed may live on."""
        for task in self._tasks:
            task.process.dead = True
        for task in list(self._tasks):
            if task:
                task.throw(Killed)
