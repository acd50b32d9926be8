"""`eventonce check`: check a pipeline file."""

import itertools
import json
import sys
from typing import Any

import click

from eventonce.auth import cautions
from eventonce.cli import stderr
from eventonce.cli.options import complete_files, takes_pipeline
from eventonce.errors import ConfigError, EventRejected
from eventonce.event import Event
from eventonce.event.formats import read_event
from eventonce.event.formats.text import kind_of
from eventonce.lint import Case, Finding, Lint
from eventonce.rules import Keyed, Rulebook
from eventonce.text import counted
from eventonce.traffic.archive import Archive
from eventonce.webhook.address import read_url


@click.command()
@takes_pipeline(required=True)
@click.option(
    "--samples",
    multiple=True,
    shell_complete=complete_files,
    help="Recorded events: files or folders, in any carrier's shape.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line for each finding.")
def check(pipeline: str, samples: tuple[str, ...], *, as_json: bool) -> None:
    """Check a pipeline for mistakes, and run its tests.

    The command finds unknown names, invalid durations, patterns and paths, unreachable rules, and windows shorter than
    a copy can be late. With --samples it also finds ignored fields that no sample has, and samples that would be
    rejected. A store with a server is asked whether it may evict keys. A [[test]] in the file lists events that must
    be the same, or different. What the file leaves out is read from the environment, as in a run. Exit 0 if there is no
    error, 1 if a test fails, 2 if the file is wrong.

    \b
      eventonce check pipeline.toml
      eventonce check pipeline.toml --samples recorded/
    """
    lint = Lint(pipeline)
    tests = list(lint.cases())
    failures: list[Finding] = []
    lint.read_source("http://", read_url, lambda address, rules: cautions(address.auth, rules))
    lint.check_store()
    lint.check_regions()
    if not lint.errors:
        failures = _failures(lint.rulebook(), tests)
        if samples:
            lint.check_samples(_events(samples))
    for finding in sorted(lint.findings + failures):
        _print_finding(pipeline, finding, as_json=as_json)
    if not as_json:
        _close(lint, len(tests), len(failures))
    sys.exit(2 if lint.errors else 1 if failures else 0)


def _events(samples: tuple[str, ...]) -> list[Event]:
    """Return the sample events. Those that cannot be read are reported on stderr."""
    recorded = Archive(samples, parquet=False)
    events = []
    for sample in recorded:
        if isinstance(sample.event, Event):
            events.append(sample.event)
        else:
            stderr.warn(f"--samples: {sample.location}: {sample.event}")
    for path, reason in recorded.unreadable.items():
        raise ConfigError(f"--samples: {path}: {reason}")
    if not events:
        raise ConfigError("--samples: no event was found; name files or folders of recorded events")
    return events


def _print_finding(pipeline: str, finding: Finding, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"file": pipeline, **finding._asdict()}))
    else:
        click.echo(f"{pipeline}:{finding.line}: {finding.level}: {finding.text}")


def _close(lint: Lint, tests: int, failures: int) -> None:
    warnings = len(lint.findings) - lint.errors
    results = f"{counted(lint.errors, 'error')}, {counted(warnings, 'warning')}, {counted(failures, 'test')} failed"
    click.echo(f"{counted(len(lint.rules), 'rule')}, {counted(tests, 'test')}: {results}", err=True)


def _failures(rulebook: Rulebook, tests: list[Case]) -> list[Finding]:
    reasons = [(case, _failure(rulebook, case)) for case in tests]
    return [Finding(case.line, "failure", f"test {case.name!r}: {reason}") for case, reason in reasons if reason]


def _failure(rulebook: Rulebook, case: Case) -> str | None:
    """Return the reason that a test fails, or None if it passes."""
    keyed = []
    for number, event in enumerate(case.events, 1):
        try:
            keyed.append(rulebook.key(_event(event)))
        except EventRejected as error:
            return f"event {number} {error}"
    if case.same != _are_same(keyed, every=case.same):
        problem = "are different that must be the same" if case.same else "are the same that must be different"
        return f"events {problem}, under {_rule_names(keyed)}; see eventonce key --compare"
    return None


def _event(value: Any) -> Event:
    if not isinstance(value, dict | str):
        raise EventRejected(f"is {kind_of(value)}, not an event; write it as a table, or as JSON in a string")
    return read_event(value)


def _are_same(keyed: list[Keyed], *, every: bool) -> bool:
    """Return whether every two events are the same, or any two."""
    pairs = [one.same_as(other) for one, other in itertools.combinations(keyed, 2)]
    return all(pairs) if every else any(pairs)


def _rule_names(keyed: list[Keyed]) -> str:
    return " and ".join(sorted({f"rule {each.rule.name!r}" for each in keyed}))
