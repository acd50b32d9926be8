"""Text from outside, made safe for a log."""

_MAX_LENGTH = 500


def one_line(text: str) -> str:
    """Return the text on one line, without control characters and shortened if it is long."""
    line = "".join(character if character.isprintable() else " " for character in text[: 2 * _MAX_LENGTH])
    line = " ".join(line.split())
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3] + "..."
