"""An audit as one page that opens offline: without scripts, nothing fetched, all words of the traffic escaped."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from eventonce.text import counted, printable
from eventonce.traffic.report import AuditReport, Bar, Between, Counts, Reason, Suspicious, TypeReport
from eventonce.traffic.report_text import (
    COLUMNS,
    SHARES,
    caught,
    conclusions,
    delays,
    end_of,
    has_details,
    names,
    shown_columns,
    summary,
    windows,
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5c667a; --line: #dde2ea; --page: #f6f7f9; --card: #fff;
  --bar: #3b6fb6; --warn: #b3452c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --soft: #98a2b5; --line: #313a4b; --page: #151a23;
  --card: #1d2430; --bar: #6d9fe0; --warn: #ef8a70; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 84rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h3 { font-size: .95rem; margin: 1.25rem 0 .4rem; } p { margin: .4rem 0; } .soft { color: var(--soft); }
section, .wide { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.25rem;
  margin: 1.25rem 0; } .wide { overflow-x: auto; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .7rem .9rem; }
.cards b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.cards span { display: block; color: var(--soft); font-size: .8rem; line-height: 1.35; margin-top: .2rem; }
.warn b, td.warn, .warn h3 { color: var(--warn); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .35rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; } th { color: var(--soft); font-weight: 600; }
th.name, td.name { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
tr.all td { font-weight: 600; border-bottom: 0; } ul { margin: .3rem 0; padding-left: 1.2rem; }
code { font: .88em ui-monospace, monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .85rem; color: var(--soft);
  margin: .9rem 0 0; } dd { margin: 0; } dt { font-weight: 600; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .2rem .7rem; align-items: center;
  max-width: 58rem; font-size: .85rem; font-variant-numeric: tabular-nums; } .bars span { text-align: right; }
.bars i { background: var(--page); border-radius: 3px; } .bars b { display: block; height: .95rem; min-width: 0;
  background: var(--bar); border-radius: 3px; }
@media (max-width: 48rem) { table, tbody, tr, td { display: block; } tr.head { display: none; }
  tr { padding: .5rem 0; border-bottom: 1px solid var(--line); } tr:last-child { border-bottom: 0; }
  td, tr.all td { display: flex; justify-content: space-between; gap: 1rem; padding: .15rem 0; border: 0; }
  td::before { content: attr(data-head); flex: none; color: var(--soft); font-weight: 400; }
  td.name { text-align: right; min-width: 0; } dl { display: block; } dd { margin: 0 0 .5rem; } }
"""
_CARDS = ("events", "distinct", "duplicates", "new_id", "suspicious", "late", "rejected")
_BAD = ("suspicious", "late", "rejected", "only_id", "only_content", "id_and_content")
_MAX_SECTIONS = 200


def html(report: AuditReport, rules: str, made_at: datetime) -> str:
    """Return the whole report as a page. `rules` is the file that they are in, or what they are."""
    parts = [
        f"<h1>Audit of recorded traffic</h1><p class=soft>{_safe(summary(report))}</p>",
        f"<p class=soft>Rules: {_code(rules)}. Made at {made_at:%Y-%m-%d %H:%M} UTC.</p>",
        "".join(f"<p><strong>{_safe(sentence)}</strong></p>" for sentence in conclusions(report.totals)),
        _unreadable(report),
        _cards(report.totals),
        _table(report) if report.totals.events else "",
        _section("Time between all copies", _chart(report.between)) if report.between.known else "",
        _section("No events", _reasons(report.no_events)) if report.no_events else "",
        *_type_sections(report),
        "".join(f"<p class=soft>{_safe(note)}</p>" for note in report.notes),
    ]
    head = "<meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
    head += f"<title>eventonce audit</title><style>{_STYLE}</style>"
    return f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>{_join(parts)}</body></html>\n"


def _safe(text: str) -> str:
    return escape(printable(text))


def _code(text: str) -> str:
    return f"<code>{_safe(text)}</code>"


def _join(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _section(head: str, *parts: str) -> str:
    return f"<section><h2>{_safe(head)}</h2>{_join(parts)}</section>"


def _unreadable(report: AuditReport) -> str:
    files = [f"{_code(each.path)} {_safe(each.reason)}" for each in report.inputs.unreadable]
    return f"<section class=warn><h3>Not read</h3>{_list(files)}</section>" if files else ""


def _cards(totals: Counts) -> str:
    counts = [(name, getattr(totals, name)) for name in _CARDS]
    cards = (
        f"<div{_css_class(name, count)}><b>{count:,}</b>{COLUMNS[name][0]}<span>{COLUMNS[name][1]}</span></div>"
        for name, count in counts
    )
    return f"<div class=cards>{''.join(cards)}</div>"


def _css_class(name: str, count: int) -> str:
    return " class=warn" if count and name in _BAD else ""


# --- the table ---


def _table(report: AuditReport) -> str:
    columns = shown_columns(report.totals)
    heads = "".join(f"<th>{head}</th>" for head in [*(COLUMNS[name][0] for name in columns), *SHARES])
    rows = [_row(*names(each), each.counts, each.between, columns) for each in report.groups]
    last = _row("all", "", report.totals, report.between, columns, " class=all")
    head = f"<tr class=head><th class=name>source</th><th class=name>type</th>{heads}</tr>"
    return f"<div class=wide><table>{head}{_join(rows)}{last}</table>{_legend(columns)}</div>"


def _row(source: str, kind: str, counts: Counts, between: Between, columns: Sequence[str], css_class: str = "") -> str:
    labels = "".join(_cell(head, _safe(each), " class=name") for head, each in (("source", source), ("type", kind)))
    numbers = ((name, getattr(counts, name)) for name in columns)
    cells = "".join(_cell(COLUMNS[name][0], f"{count:,}", _css_class(name, count)) for name, count in numbers)
    shares = "".join(_cell(head, window) for head, window in zip(SHARES, windows(between), strict=True))
    return f"<tr{css_class}>{labels}{cells}{shares}</tr>"


def _cell(head: str, text: str, css_class: str = "") -> str:
    """Return a cell that knows its head, which a phone shows beside it."""
    return f"<td{css_class} data-head='{head}'>{text}</td>"


def _legend(columns: Sequence[str]) -> str:
    meanings = [COLUMNS[name] for name in columns if name not in _CARDS]
    meanings.append(
        (", ".join(SHARES), "the window that would have caught this share of the copies whose delay is known")
    )
    return f"<dl>{''.join(f'<dt>{head}</dt><dd>{_safe(meaning)}</dd>' for head, meaning in meanings)}</dl>"


# --- each source and type ---


def _type_sections(report: AuditReport) -> list[str]:
    detailed = [type_report for type_report in report.groups if has_details(type_report)]
    remaining = len(detailed) - _MAX_SECTIONS
    return [_type_section(type_report) for type_report in detailed[:_MAX_SECTIONS]] + (
        [f"<p class=soft>{remaining:,} more like these are in --json.</p>"] if remaining > 0 else []
    )


def _type_section(type_report: TypeReport) -> str:
    rules = (
        f"{counted(each.events, 'event')} under rule {_code(each.rule)}, window {each.window}"
        for each in type_report.rules
    )
    return _section(
        " / ".join(names(type_report)),
        f"<p class=soft>{'; '.join(rules)}</p>",
        _suspicious(type_report.suspicious),
        f"<div class=warn><h3>Rejected</h3></div>{_reasons(type_report.rejected)}" if type_report.rejected else "",
        _between(type_report),
    )


def _suspicious(suspicious: Suspicious) -> str:
    if not suspicious.events:
        return ""
    fields = [f"{_code(each.path)} differs in {each.pairs:,} of {suspicious.compared:,}" for each in suspicious.fields]
    examples = [f"{_code(each.copy)}, taken for {_code(each.first)}" for each in suspicious.examples]
    head = f"<div class=warn><h3>Suspicious drops: {suspicious.events:,}</h3></div>"
    return head + (_list(fields) + f"<p class=soft>Such as</p>{_list(examples)}" if examples else "")


def _reasons(reasons: Sequence[Reason]) -> str:
    return _list(
        f"{each.events:,} &times; {_safe(each.reason)} <span class=soft>first {_code(each.place)}</span>"
        for each in reasons
    )


def _between(type_report: TypeReport) -> str:
    summary_line = delays(type_report.between)
    if not summary_line:
        return ""
    head = f"<h3>Time between copies</h3><p class=soft>{summary_line}</p>"
    return head + (
        f"{_chart(type_report.between)}<p>{_safe(caught(type_report))}</p>" if type_report.between.known else ""
    )


# --- the plot ---


def _chart(between: Between) -> str:
    """Return the histogram as rows of label, bar and count, which fit every width."""
    shown = [number for number, bar in enumerate(between.histogram) if bar.copies]
    bars = between.histogram[shown[0] : shown[-1] + 1]
    highest = max(bar.copies for bar in bars)
    label = f"Copies by the time between them; {between.known:,} in all"
    return f"<div class=bars role=img aria-label='{label}'>{''.join(_bar(bar, highest) for bar in bars)}</div>"


def _bar(bar: Bar, highest: int) -> str:
    percent = f"{100 * bar.copies / highest:.1f}"
    return f"<span>{end_of(bar)}</span><i><b style='width:{percent}%'></b></i><span>{bar.copies:,}</span>"
