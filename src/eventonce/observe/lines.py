"""Log lines on stderr, for people or as JSON. What an event holds can neither forge a line nor move a cursor."""

import logging
import sys
import time
from json import dumps

from eventonce.text import printable, safe_json


def setup(level: str = "warning", *, json: bool = False, handler: logging.Handler | None = None) -> None:
    """Log to stderr. Below warning only eventonce is logged: other packages would log requests and their headers."""
    handler = handler or logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("eventonce").setLevel(level.upper())


class TextLines(logging.Formatter):
    """Formats a log record for people: time, level, package and message. A traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.head(record)}{printable(record.getMessage())}"
        trace = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n    ".join([line, *map(printable, trace)])  # indented, so that no part of it passes for a log line

    def head(self, record: logging.LogRecord) -> str:
        """Return what is in front of the message."""
        return f"{_utc(record)}Z {record.levelname} {record.name.partition('.')[0]}: "


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": f"{_utc(record)}+00:00",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "seen", {}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return safe_json(dumps(fields, ensure_ascii=False, separators=(",", ":")))


def _utc(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.created * 1000) % 1000:03}"
