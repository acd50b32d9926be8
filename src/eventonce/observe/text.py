"""What others wrote, as it may stand in a log."""

_LONGEST = 500


def one_line(text: str) -> str:
    """The text on one line, without what a terminal would obey, and not too long."""
    shown = "".join(each if each.isprintable() else " " for each in text[: 2 * _LONGEST])
    shown = " ".join(shown.split())
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
