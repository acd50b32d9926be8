"""The scheduler of a simulation: virtual time, and tasks that run one at a time and switch as the choices decide.

Each task is a greenlet, so the real engine runs in it as it is. Wherever it calls a store, a queue or its clock, it
comes to a point. There another task may run first, time may pass, and its process may freeze or die.
"""

from collections.abc import Callable
from contextlib import suppress

from greenlet import getcurrent, greenlet

from lab.choices import Choices

MAX_POINTS = 20_000  # of one run; with more it makes no progress
NEVER = 1 << 62


class Killed(BaseException):
    """The process of this task is dead: nothing it does now has any effect."""


class Endless(Exception):
    """A run that does not end."""


class SimulatedProcess:
    """A process, which dies and freezes as a whole: some tasks, a clock, and a keeper's turn to commit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.harmed = False  # by any fault other than slow handlers
        self.frozen_until = 0
        self.skew = 0
        self.committing: Task | None = None  # holds the lock of its batch, so others of the process wait


class Task(greenlet):
    """One line of execution in a process."""

    def __init__(self, process: SimulatedProcess, operation: Callable[[], object], scheduler: greenlet) -> None:
        super().__init__(self._live, scheduler)  # when this ends, the scheduler goes on and not the task's starter
        self.process = process
        self.wake = 0
        self._operation = operation

    def _live(self) -> None:
        with suppress(Killed):
            self._operation()

    def runs_at(self) -> int:
        """Return the time at which it can go on. A dead one goes on at once, to its end."""
        if self.process.dead:
            return 0
        waits = self.process.committing not in (None, self)
        return NEVER if waits else max(self.wake, self.process.frozen_until)


class World:
    """Virtual time in milliseconds, the tasks, and the story of what happened."""

    def __init__(self, choices: Choices, *, faults: int) -> None:
        self.choices = choices
        self.now = 1_767_225_600_000
        self.faults = faults  # how many may still happen
        self.story: list[tuple[int, str, str]] = []
        self._started_at = self.now
        self._tasks: list[Task] = []
        self._points = 0
        self._scheduler = getcurrent()

    def start(self, process: SimulatedProcess, operation: Callable[[], object], at: int = 0) -> Task:
        task = Task(process, operation, self._scheduler)
        task.wake = at
        self._tasks.append(task)
        return task

    def run(self) -> None:
        """Run until every task has ended."""
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
        """Let another task run first, perhaps."""
        self._points += 1
        if self._points > MAX_POINTS:
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

    def fault(self, percent: int) -> bool:
        """Return whether a fault happens here. A run has only so many, so that every run can end well."""
        if not self.faults or not self.choices.rarely(percent):
            return False
        self.faults -= 1
        return True

    def kill(self, process: SimulatedProcess) -> None:
        self.log("dies")
        process.dead = process.harmed = True
        if self.process is process:
            raise Killed

    def freeze(self, duration: int) -> None:
        """Let the process of this task do nothing for a while."""
        self.log("freezes")
        self.process.harmed = True
        self.process.frozen_until = self.now + duration

    def log(self, text: str) -> None:
        self.story.append((self.now - self._started_at, self.process.name, text))

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
        chosen = self.choices.below(2 * len(ready))  # as likely as not, the same task goes on
        return ready[chosen] if chosen < len(ready) else ready[0]

    def _end(self) -> None:
        """End all tasks. None of a run that failed may live on."""
        for task in self._tasks:
            task.process.dead = True
        for task in list(self._tasks):
            if task:
                task.throw(Killed)
