"""`eventonce check`: lint a pipeline."""

import itertools
import json
import re
import sys
from typing import Any

import click

from eventonce.auth import cautions
from eventonce.errors import ConfigError, EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.event.formats.text import kind_of
from eventonce.lint import Case, Finding, Lint
from eventonce.rules import Keyed, Rulebook
from eventonce.traffic.recorded import Traffic
from eventonce.webhook.address import read_url

_DATE = re.compile(r"holds a (datetime|date|time),")  # which TOML has and JSON has not


@click.command()
@click.argument("pipeline", type=click.Path(dir_okay=False))
@click.option("--samples", multiple=True, help="Recorded events: files or folders, in any carrier's shape.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line for each finding.")
def check(pipeline: str, samples: tuple[str, ...], *, as_json: bool) -> None:
    """Read a pipeline for mistakes, and run the tests that are in it.

    Finds unknown names, invalid durations, patterns and paths, rules that can never be reached, windows shorter than
    a copy can be late, and with --samples what is ignored but never there and which samples would be rejected. A store
    with a server is asked whether it may forget keys. A [[test]] in the file gives a list of events that must be the
    same, or different. Exit 0 when all is well, 1 when a test fails, 2 when the file is wrong.

    \b
      eventonce check pipeline.toml
      eventonce check pipeline.toml --samples recorded/
    """
    lint = Lint(pipeline)
    tests = list(lint.cases())
    failures: list[Finding] = []
    lint.read_source("http://", read_url, lambda place, rules: cautions(place.auth, rules))
    lint.check_store()
    if not lint.errors:
        failures = _failures(lint.rulebook(), tests)
        if samples:
            lint.check_samples(_events(samples))
    for finding in sorted(lint.findings + failures):
        _tell(pipeline, finding, as_json=as_json)
    if not as_json:
        _close(lint, len(tests), len(failures))
    sys.exit(2 if lint.errors else 1 if failures else 0)


def _events(samples: tuple[str, ...]) -> list[Event]:
    """The samples; what cannot be read among them is told beside the findings."""
    recorded = Traffic(samples)
    events = []
    for seen in recorded:
        if isinstance(seen.event, Event):
            events.append(seen.event)
        else:
            click.echo(f"eventonce: --samples: {seen.place}: {seen.event}", err=True)
    for path, reason in recorded.unreadable.items():
        raise ConfigError(f"--samples: {path}: {reason}")
    if not events:
        raise ConfigError("--samples: there is no event in them; name files or folders of recorded events")
    return events


def _tell(pipeline: str, finding: Finding, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"file": pipeline, **finding._asdict()}))
    else:
        click.echo(f"{pipeline}:{finding.line}: {finding.level}: {finding.text}")


def _close(lint: Lint, tests: int, failures: int) -> None:
    warnings = len(lint.findings) - lint.errors
    told = f"{len(lint.rules)} rules, {tests} tests: {lint.errors} errors, {warnings} warnings, {failures} tests failed"
    click.echo(told, err=True)


def _failures(book: Rulebook, tests: list[Case]) -> list[Finding]:
    found = [(case, _trouble(book, case)) for case in tests]
    return [Finding(case.line, "failure", f"test {case.name!r}: {why}") for case, why in found if why]


def _trouble(book: Rulebook, case: Case) -> str | None:
    """Why a test fails, if it does."""
    keyed = []
    for number, event in enumerate(case.events, 1):
        try:
            keyed.append(book.key(_event(event)))
        except EventRejected as error:
            hint = "; write times in quotes" if _DATE.search(str(error)) else ""
            return f"event {number} {error}{hint}"
    if case.same != _meet(keyed, case.same):
        told = "are different that must be the same" if case.same else "are the same that must be different"
        return f"events {told}, under {_named(keyed)}; see eventonce key --compare"
    return None


def _event(given: Any) -> Event:
    if not isinstance(given, dict | str):
        raise EventRejected(f"is {kind_of(given)}, not an event; write it as a table, or as JSON in a text")
    return read_event(given)


def _meet(keyed: list[Keyed], every: bool) -> bool:
    """Whether all events of a test are one, or any two of them."""
    pairs = [one.same_as(other) for one, other in itertools.combinations(keyed, 2)]
    return all(pairs) if every else any(pairs)


def _named(keyed: list[Keyed]) -> str:
    return " and ".join(sorted({f"rule {each.rule.name!r}" for each in keyed}))
