"""Writes docs/api.md from the code: what is public. A test fails while that page is stale."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
# Every public module with what is public in it; () stands for its `__all__`.
PUBLIC: dict[str, tuple[str, ...]] = {
    "eventonce": (),
    "eventonce.auth": (),
    "eventonce.claims.protocol": (
        *("ClaimRequest", "Claim", "Commit", "Release", "Record", "Won", "Done", "Busy", "Stale"),
        *("claim", "extend", "commit", "release", "live"),
    ),
    "eventonce.dead_letters": (),
    "eventonce.errors": (),
    "eventonce.event": (),
    "eventonce.event.formats": (),
    "eventonce.observe.health": ("Health",),
    "eventonce.observe.log": ("LogHook", "setup"),
    "eventonce.observe.opentelemetry": ("OpenTelemetryHook",),
    "eventonce.observe.prometheus": ("PrometheusHook",),
    "eventonce.observe.status": ("Status",),
    "eventonce.outbox": (),
    "eventonce.ports": (),
    "eventonce.redrive": (),
    "eventonce.requests.refusal": ("RequestRefused",),
    "eventonce.rules": (),
    "eventonce.rules.pattern": ("Pattern", "PatternError"),
    "eventonce.sinks": (),
    "eventonce.sources": (),
    "eventonce.testing": (),
    "eventonce.traffic": (),
    "eventonce.traffic.spark": ("with_key", "audit", "dedupe"),
    "eventonce.traffic.spark.stream": ("dedup_stream", "watch"),
    "eventonce.webhook": (),
    "eventonce.worker": (),
}
HEAD = """# Python API

Written by `make docs` from the code; change it there. What is listed here is public. Everything else is internal and
may change in any release, whatever its name is.
"""


def public_names(module: ModuleType) -> list[str]:
    """Return the public names of a public module, in the order of its page."""
    return list(PUBLIC[module.__name__] or getattr(module, "__all__", ()) or _defined(module))


def page() -> str:
    """Return the page: each public module, with the first sentence about each of its names."""
    modules = [importlib.import_module(name) for name in PUBLIC]
    return "\n".join([HEAD, *map(_section, modules)])


def _defined(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isclass(value) and value.__module__ == module.__name__
    ]


def _section(module: ModuleType) -> str:
    rows = [
        f"| `{name}{_signature(getattr(module, name))}` | {_summary(getattr(module, name))} |"
        for name in public_names(module)
    ]
    summary = (module.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")
    return "\n".join([f"## {module.__name__}", "", summary, "", "| name | what it is |", "|---|---|", *rows, ""])


def _signature(value: Any) -> str:
    if not inspect.isfunction(value):
        return ""
    return f"({', '.join(inspect.signature(value).parameters)})"


def _summary(value: Any) -> str:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"`{value!r}`" if isinstance(value, int | str) else "a type"
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
