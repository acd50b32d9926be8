"""Passwords in URLs."""

from urllib.parse import parse_qsl, unquote, urlsplit

from eventonce.errors import ConfigError


def refuse_blank_password(url: str, label: str) -> None:
    """Raise `ConfigError` if a URL has a blank password. It is most often a variable that was not set."""
    parts = urlsplit(url)
    _, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    passwords = [value for name, value in parse_qsl(parts.query, keep_blank_values=True) if name == "password"]
    if not all(text.strip() for text in [*passwords, *([unquote(password)] if colon else [])]):
        raise ConfigError(f"{label}: the password in the URL is blank; set it, or leave it out with its colon")
