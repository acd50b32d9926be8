"""Blank passwords in URLs are refused by every door, as most of them are variables that were not set."""

from collections.abc import Callable
from typing import Any

import pytest

from eventonce import open_store
from eventonce.dead_letters import open_dead_letters
from eventonce.errors import ConfigError
from eventonce.outbox import Outbox
from eventonce.sinks import open_sink

POSTGRES = [
    "postgresql://billing:@db.example/shop",
    "postgresql://billing:%20@db.example/shop",
    "postgresql://billing@db.example/shop?password=",
]
REDIS = [
    "redis://:@cache.example/0",
    "rediss://billing:%20%09@cache.example/0",
    "redis://cache.example/0?password=",
    "unix://:@/run/redis.sock",
]
HTTP = ["https://billing:@shop.example/in", "https://:@shop.example/in#timeout=1s"]
CASES: list[tuple[Callable[[str], Any], str, str]] = [
    *((open_store, url, "store: ") for url in POSTGRES + REDIS),
    *((open_dead_letters, url, "dead_letter: ") for url in POSTGRES),
    *((Outbox, url, "outbox: ") for url in POSTGRES),
    *((open_sink, url, "sink: ") for url in HTTP),
]


@pytest.mark.parametrize(("opener", "url", "setting"), CASES)
def test_a_blank_password_is_refused(opener: Callable[[str], Any], url: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}.*: the password in the URL is blank; set it, or leave it out"):
        opener(url)


@pytest.mark.parametrize(
    ("opener", "url"),
    [
        (open_store, "redis://cache.example/0"),
        (open_store, "redis://billing@cache.example/0"),
        (open_store, "redis://:p%20@cache.example/0"),
        (open_store, "postgresql://billing@db.example/shop"),
        (open_sink, "https://key@shop.example/in"),
        (open_sink, "https://shop.example/in?password="),  # the query is the receiver's
    ],
)
def test_no_password_and_a_real_one_are_accepted(opener: Callable[[str], Any], url: str) -> None:
    opener(url).close()
