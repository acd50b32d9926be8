"""An audit as plain text: a table, and below it what is worth a closer look."""

from collections.abc import Iterator, Sequence
from textwrap import fill

from eventonce.text import counted, printable
from eventonce.traffic.report import AuditReport, Bar, Between, Counts, Reason, Suspicious, TypeReport

# The counts in their order, with their heads and meanings. A count that is 0 everywhere has no column.
COLUMNS = {
    "events": ("events", ""),
    "distinct": ("new", "run: first copies, and higher versions of a known key"),
    "duplicates": ("duplicates", "dropped: copies of a known key, inside its window"),
    "new_id": ("new id", "of the duplicates, those under an id that did not come before"),
    "stale": ("stale", "dropped: a higher version of the key came before"),
    "late": ("late", "run again: copies of a known key, when the configured window has expired"),
    "only_id": ("only id", "of the new, those whose id came before, but not their content"),
    "only_content": ("only content", "of the new, those whose content came before, but not their id"),
    "id_and_content": ("id+content", "of the new, those whose id and content both came before"),
    "suspicious": (
        "suspicious",
        "of the duplicates, those with another content than their first copy: perhaps distinct events",
    ),
    "rejected": ("rejected", "no event, or no key under the rules"),
    "replayed": ("replayed", "of all, those that are marked as a replay"),
}
_ALWAYS = ("events", "distinct", "duplicates")
SHARES = ("99 %", "99.9 %", "100 %")
_MAX_NAME = 36
_MAX_TYPES, _MAX_DETAILS, _MAX_REASONS, _MAX_FIELDS = 40, 10, 5, 8
_BAR, _WIDTH = 40, 100  # characters


def text(report: AuditReport) -> str:
    """Return the whole report as text."""
    return "\n".join(_lines(report)) + "\n"


def names(type_report: TypeReport) -> tuple[str, str]:
    """Return the source and type for display. A missing one is `(none)`."""
    return type_report.source or "(none)", type_report.type or "(none)"


def shown_columns(totals: Counts) -> list[str]:
    """Return the counts that are worth a column."""
    return [name for name in COLUMNS if name in _ALWAYS or getattr(totals, name)]


def windows(between: Between) -> list[str]:
    """Return the window of each share, or dashes."""
    return [window.window for window in between.windows] or ["-"] * len(SHARES)


def _lines(report: AuditReport) -> Iterator[str]:
    yield summary(report)
    yield from conclusions(report.totals)
    for file in report.inputs.unreadable:
        yield f"not read: {printable(file.path)}: {printable(file.reason)}"
    if report.totals.events:
        yield ""
        yield from _table(report)
        yield from _reasons("\nno events", report.no_events)
        yield from _details(report)
    for note in report.notes:
        yield f"\n{fill(note, _WIDTH)}"


def summary(report: AuditReport) -> str:
    """Return in one sentence what was read."""
    inputs, totals = report.inputs, report.totals
    if not totals.events:
        return f"No events in {counted(inputs.files, 'file')}."
    return (
        f"{counted(totals.events, 'event')} in {counted(inputs.documents, 'document')}"
        f" of {counted(inputs.files, 'file')}: {totals.distinct + totals.late:,} run,"
        f" {totals.duplicates + totals.stale:,} dropped, {totals.rejected:,} rejected."
    )


def conclusions(totals: Counts) -> Iterator[str]:
    """Yield what the ids of the traffic mean for a key: copies that a key by id misses, or may miss."""
    if totals.new_id:
        copies = counted(totals.new_id, "copy", "copies")
        yield f"{copies} came under another id, so a key by id would have missed {_them(totals.new_id)}."
    if totals.suspicious_new_id:
        differ = counted(totals.suspicious_new_id, "of them differs", "of them differ")
        yield f"{differ} in content: look at the suspicious drops."
    if totals.only_content:
        repeats = counted(totals.only_content, "event that runs repeats", "events that run repeat")
        yield f"{repeats} an earlier content under another id: if these are copies, the rules miss them."


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


# --- the table ---


def _table(report: AuditReport) -> Iterator[str]:
    columns = shown_columns(report.totals)
    head = ["source", "type", *(COLUMNS[name][0] for name in columns), *SHARES]
    rows = [_row(*names(each), each.counts, each.between, columns) for each in report.groups[:_MAX_TYPES]]
    yield from _aligned([head, *rows, _row("all", "", report.totals, report.between, columns)])
    if len(report.groups) > _MAX_TYPES:
        yield f"{counted(len(report.groups) - _MAX_TYPES, 'more pair')} of source and type: see --json or --html"
    yield ""
    yield from _legend(columns)


def _row(source: str, kind: str, counts: Counts, between: Between, columns: Sequence[str]) -> list[str]:
    numbers = [f"{getattr(counts, name):,}" for name in columns]
    return [_short(source), _short(kind), *numbers, *windows(between)]


def _short(name: str) -> str:
    name = printable(name)
    half = _MAX_NAME // 2 - 1
    return name if len(name) <= _MAX_NAME else f"{name[:half]}..{name[-half:]}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        labels = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join(labels + numbers).rstrip()


def _legend(columns: Sequence[str]) -> Iterator[str]:
    meanings = [COLUMNS[name] for name in columns if COLUMNS[name][1]]
    meanings.append(("99 %", "the window that would have caught this share of the copies whose delay is known"))
    width = max(len(head) for head, _ in meanings)
    for head, meaning in meanings:
        yield f"  {head.ljust(width)}  {meaning}"


# --- below the table ---


def _details(report: AuditReport) -> Iterator[str]:
    detailed = [type_report for type_report in report.groups if has_details(type_report)]
    for type_report in detailed[:_MAX_DETAILS]:
        yield from _detail(type_report)
    if len(detailed) > _MAX_DETAILS:
        yield f"\n{counted(len(detailed) - _MAX_DETAILS, 'more section')} like these: see --json or --html"


def has_details(type_report: TypeReport) -> bool:
    """Return whether a type has more to show than its row in the table."""
    between = type_report.between
    return bool(
        type_report.suspicious.events or type_report.rejected or between.known or between.unknown or between.same_time
    )


def _detail(type_report: TypeReport) -> Iterator[str]:
    yield f"\n{printable(' / '.join(names(type_report)))}"
    yield from (
        f"  {counted(each.events, 'event')} under rule {printable(each.rule)}, window {each.window}"
        for each in type_report.rules
    )
    yield from _suspicious(type_report.suspicious)
    yield from (f"  {line}" if line else line for line in _reasons("rejected", type_report.rejected))
    yield from _between(type_report)


def _suspicious(suspicious: Suspicious) -> Iterator[str]:
    if not suspicious.events:
        return
    yield f"  suspicious drops: {suspicious.events:,}"
    for field in suspicious.fields[:_MAX_FIELDS]:
        yield f"    {printable(field.path)} differs in {field.pairs:,} of {suspicious.compared:,} compared"
    for example in suspicious.examples:
        yield f"    such as {printable(example.copy)}, taken for {printable(example.first)}"


def _reasons(head: str, reasons: Sequence[Reason]) -> Iterator[str]:
    if not reasons:
        return
    yield f"{head}: {sum(each.events for each in reasons):,}"
    for reason in reasons[:_MAX_REASONS]:
        yield f"  {reason.events:,} x {printable(reason.reason)}  (first: {printable(reason.place)})"
    if len(reasons) > _MAX_REASONS:
        yield f"  and {counted(len(reasons) - _MAX_REASONS, 'other reason')}"


def _between(type_report: TypeReport) -> Iterator[str]:
    between = type_report.between
    if summary := delays(between):
        yield f"  time between copies: {summary}"
    yield from _bars([bar for bar in between.histogram if bar.copies])
    if between.windows:
        yield f"  {caught(type_report)}"


def delays(between: Between) -> str:
    """Return how many of the gaps are known, and why the others are not."""
    counts = {
        "known": between.known,
        "unknown, without a time": between.unknown,
        "delivered again with the same time": between.same_time,
    }
    return ", ".join(f"{count:,} {label}" for label, count in counts.items() if count)


def caught(type_report: TypeReport) -> str:
    """Return which windows would have been enough, and what the configured one misses."""
    enough = ", ".join(f"{window} {share}" for window, share in zip(windows(type_report.between), SHARES, strict=True))
    configured = " and ".join(sorted({each.window for each in type_report.rules}))
    missed = type_report.counts.late
    return f"a window of {enough.replace(' ', ' catches ', 1)}; the configured {configured} misses {missed:,}"


def end_of(bar: Bar) -> str:
    """Return the label of a bar."""
    return "longer" if bar.up_to is None else f"up to {bar.up_to}"


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    highest = max((bar.copies for bar in bars), default=0)
    width = len(f"{highest:,}")
    for bar in bars:
        yield f"    {end_of(bar):<11}  {bar.copies:>{width},}  {'#' * max(1, bar.copies * _BAR // highest)}"
