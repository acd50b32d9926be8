"""Boxes: where dead letters lie, to be read and taken out."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from eventonce.dead_letters.letter import DeadLetter
from eventonce.errors import ConfigError


class Box(Protocol):
    """A place that dead letters are redriven from. What is killed half-way leaves every letter that is not settled."""

    @property
    def name(self) -> str: ...
    def letters(self) -> Iterator[DeadLetter]: ...  # the oldest first; to be read at once, a worker may wait
    def hidden(self) -> int: ...  # about how many others have in hand, or had until they died
    def remove(self, letters: Sequence[DeadLetter]) -> None: ...  # their events are done
    def keep(self, letters: Sequence[DeadLetter]) -> None: ...  # as they are told now, after another try in vain
    def close(self) -> None: ...  # and leave all others as they were


def open_box(url: str) -> Box:
    """Open the place that `dead_letter` of a pipeline names, or a queue with the dead letters of others."""
    if url == "-":
        raise ConfigError("dead_letter: stdout cannot be read back; name the file they went to with --from FILE")
    if url.startswith("sqs://"):
        from eventonce.dead_letters.queue_box import QueueBox

        return QueueBox(url)
    if url.startswith(("sqlite://", "postgresql://")):
        from eventonce.dead_letters.table_box import TableBox

        return TableBox(url)
    if "://" in url:
        raise ConfigError(
            f"--from: {url.partition('://')[0]}:// holds no dead letters; use a file, sqs://QUEUE, "
            "sqlite:///FILE or postgresql://HOST/DATABASE"
        )
    from eventonce.dead_letters.file_box import FileBox

    return FileBox(url)
