"""PostgreSQL's URLs: what libpq is told by one, and what of it may be shown."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from eventonce.errors import ConfigError

TIMEOUT = 5000  # milliseconds that an answer is awaited


def read(url: str, what: str, *ours: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What libpq is told, and our own options by these names. What libpq says of a wrong URL may hold the password."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    bare, _, query = url.partition("?")
    parts = [(each.partition("=")[0], each) for each in query.split("&") if each]
    # Not decoded and encoded again: libpq does not take a plus for a space.
    rest = "&".join(each for name, each in parts if name not in ours)
    try:
        found: dict[str, Any] = conninfo_to_dict(f"{bare}?{rest}" if rest else bare)
    except psycopg.Error:
        found = {"port": "unread"}
    if _misread(found):
        raise ConfigError(
            f"{what}: the URL cannot be read; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE, "
            f"each part %-encoded where it holds special characters; the options are {', '.join([*ours, 'libpq'])}'s"
        )
    return found, {name: unquote(each.partition("=")[2]) for name, each in parts if name in ours}


def _misread(found: Mapping[str, Any]) -> bool:
    # A password with a bare slash in it ends up as a port and a database, one with a bare at sign as a host.
    hosts = str(found.get("host", "")).split(",")  # of which a socket without a file begins with one
    if "@" in str(found.get("dbname", "")) or any("@" in host[1:] for host in hosts):
        return True
    return not str(found.get("port", "0")).replace(",", "0").isdecimal()


def address(settings: Mapping[str, Any]) -> str:
    """What may be shown of what libpq is told."""
    port = f":{settings['port']}" if "port" in settings else ""
    return f"postgresql://{settings.get('host', '')}{port}/{settings.get('dbname', '')}"
