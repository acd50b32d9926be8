"""Boxes of dead letters, by URL."""

from eventonce.errors import ConfigError
from eventonce.ports import DeadLetterBox


def open_box(url: str) -> DeadLetterBox:
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
