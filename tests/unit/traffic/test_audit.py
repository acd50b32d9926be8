"""The audit: generated traffic whose every number is known."""

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventonce import Once
from eventonce.clock import duration, format_duration
from eventonce.errors import EventRejected
from eventonce.event import Event
from eventonce.event.keys import canonical
from eventonce.event.stamp import add_stamp
from eventonce.rules import Rulebook
from eventonce.rules.rule import Rule
from eventonce.text import printable
from eventonce.traffic import file_ranges, fingerprint
from eventonce.traffic.archive import Archive, RecordedEvent, time_ms
from eventonce.traffic.audit import audit
from eventonce.traffic.content import of_content
from eventonce.traffic.count import AuditCount, DecisionColumns
from eventonce.traffic.gap_histogram import DAY, EDGES, HOUR, MINUTE, SECOND, Gaps, readable
from eventonce.traffic.ledger import (
    NEW,
    NO_VERSION,
    AuditColumns,
    AuditDecision,
    AuditLedger,
    Decision,
    FingerprintSet,
    Index,
)
from eventonce.traffic.report import AuditReport, Counts, TypeReport
from eventonce.traffic.report_html import html as page_of
from eventonce.traffic.report_text import text

START = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = Rule(name="orders", key=["detail.order"], window="1d")
CONTENT = Rule(name="content", key="content", ignore=["detail.sent"])


def event(number: int = 1, at: float | None = 0, /, **fields: Any) -> dict[str, Any]:
    """Return an EventBridge event. `at` is its time in seconds. With None it has no time."""
    own = {"id": f"id-{number}", "source": "shop", "detail-type": "Order", "detail": {"order": number, "sum": 5}}
    time = {} if at is None else {"time": (START + timedelta(seconds=at)).isoformat()}
    return {**own, **time, **fields}


def lines(*documents: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in documents)


def rulebook(*rules: Rule, window: str = "14d") -> Rulebook:
    return Rulebook("test", rules, Rule(name="id", window=window))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "traffic.jsonl"


def html(report: AuditReport, rules: str = "pipeline.toml") -> str:
    return page_of(report, rules, datetime(2026, 11, 19, 22, 5, tzinfo=UTC))


def report_on(file: Path, documents: Iterable[Any], *rules: Rule, **settings: Any) -> AuditReport:
    file.write_bytes(lines(*documents))
    return audit(Archive([str(file)]), rulebook(*rules, **settings))


def only(report: AuditReport) -> TypeReport:
    (group,) = report.groups
    return group


# --- counts ---


def test_duplicates_under_the_pipeline_and_what_id_and_content_would_have_found(file: Path) -> None:
    traffic = [
        event(1, 0),
        event(1, 5),  # same id, same content, same key
        event(2, 0, id="id-1", detail={"order": 2, "sum": 7}),  # a new key, and an id that came before
        event(3, 0, id="id-9", detail={"order": 3, "sum": 5}),
        event(3, 9, id="id-10", detail={"order": 3, "sum": 5}),  # the key and the content came before
    ]

    counts = only(report_on(file, traffic, ORDERS)).counts

    assert counts == Counts(events=5, distinct=3, duplicates=2, new_id=1, only_id=1)


def test_what_only_the_content_would_have_found(file: Path) -> None:
    traffic = [event(1), event(1, 3, id="other"), event(2), event(2, 4, id="other too")]

    by_id, by_content = (only(report_on(file, traffic, *rules)).counts for rules in ([], [CONTENT]))

    assert by_id == Counts(events=4, distinct=4, only_content=2)
    assert by_content == Counts(events=4, distinct=2, duplicates=2, new_id=2)


def test_copies_that_a_key_by_id_would_have_missed(file: Path) -> None:
    traffic = [
        event(1, 0),
        event(1, 1),  # delivered again
        event(1, 2, id="again"),  # sent again by the producer
        event(1, 3, id="again"),  # and that delivered again
        event(1, 4, id="changed", detail={"order": 1, "sum": 6}),
        event(1, 5, id=""),  # which has no id that another could be
        event(1, 2 * DAY // 1000, id="late"),  # which runs
    ]

    report = report_on(file, traffic, ORDERS)

    assert only(report).counts == Counts(
        events=7, distinct=1, duplicates=5, late=1, new_id=2, suspicious=1, suspicious_new_id=1
    )
    for shown in (text(report), Page(html(report)).words):
        assert "2 copies came under another id, so a key by id would have missed them." in shown
        assert "1 of them differs in content: look at the suspicious drops." in shown


def test_what_runs_and_may_be_a_copy_is_said_of_a_key_by_id(file: Path) -> None:
    report = report_on(file, [event(1), event(1, 3, id="other")])

    assert "another id, so a key by id" not in text(report)
    assert "1 event that runs repeats an earlier content under another id" in text(report)


def test_what_id_and_content_both_would_have_found(file: Path) -> None:
    too_fine = Rule(name="fine", key=["time"])

    counts = only(report_on(file, [event(1), event(1, 1), event(1, 2)], too_fine)).counts

    assert counts == Counts(events=3, distinct=3, id_and_content=2)


def test_old_keys_are_not_looked_at_and_a_note_says_so(file: Path) -> None:
    new = Rule(name="new", key=["detail.order", "detail.sum"], replaces={"name": "old", "key": ["detail.order"]})
    traffic = [event(1), event(1, detail={"order": 1, "sum": 6})]
    report = report_on(file, traffic, new)
    assert report.totals.distinct == 2
    assert [note for note in report.notes if "a run also drops what shares an old key" in note]
    assert report_on(file, traffic, msgspec.structs.replace(new, replaces=None)).notes == []


def test_an_event_too_large_for_a_run_is_rejected_and_a_long_list_is_not(file: Path) -> None:
    large = event(1, detail={"text": "x" * 5_000_000})
    report = report_on(file, [large, [event(number, text="x" * 50_000) for number in range(100)], "text"])
    assert (report.totals.distinct, report.totals.rejected) == (100, 2)
    assert [reason.reason.partition(",")[0] for reason in report.no_events] == ["has 5", "is a string"]


def test_copies_by_id_are_found_across_rules(file: Path) -> None:
    low = Rule(name="low", key="id", match={"detail": {"sum": [{"numeric": ["<", 10]}]}})

    counts = only(report_on(file, [event(1), event(1, detail={"order": 1, "sum": 50})], low)).counts

    assert counts == Counts(events=2, distinct=2, only_id=1)


def test_events_without_an_id_are_not_copies_by_id(file: Path) -> None:
    traffic = [event(number, id="") for number in (1, 2, 3)]

    assert only(report_on(file, traffic, ORDERS)).counts == Counts(events=3, distinct=3)


def test_copies_that_a_publisher_sent_under_new_ids_are_copies_by_id(file: Path) -> None:
    sent = {"order": 1, "_eventonce": {"id": "order 1", "attempt": 1}}

    counts = only(report_on(file, [event(1, detail=sent), event(2, 5, detail=sent)])).counts

    assert counts == Counts(events=2, distinct=1, duplicates=1)


def test_every_source_and_type_is_counted_apart_and_the_largest_comes_first(file: Path) -> None:
    paid = {"detail-type": "Paid"}
    traffic = [event(1), event(2), event(2, 1), event(3, **paid), event(4, source="bank"), event(4, 2, source="bank")]

    report = report_on(file, traffic)

    assert [(each.source, each.type, each.counts.events, each.counts.duplicates) for each in report.groups] == [
        ("shop", "Order", 3, 1),
        ("bank", "Order", 2, 1),
        ("shop", "Paid", 1, 0),
    ]
    assert report.totals == Counts(events=6, distinct=4, duplicates=2)


def test_ten_thousand_events_with_known_answers(file: Path) -> None:
    chance = random.Random(7)
    copies = {number: chance.choice([0, 0, 1, 2]) for number in range(5000)}
    traffic = [event(number, number + nth) for number, more in copies.items() for nth in range(more + 1)]
    chance.shuffle(traffic)

    counts = only(report_on(file, traffic, ORDERS)).counts

    assert counts == Counts(events=len(traffic), distinct=5000, duplicates=sum(copies.values()))


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [Rule(name="content", key="content", ignore=["detail.sent"])],
        [Rule(name="a", match={"source": ["shop"]}, key=["detail.order"], otherwise="content"), CONTENT],
        [Rule(name="versions", key=["detail.order"], version="detail.sum")],
        [Rule(name="replays", key="id", replay="reprocess")],
    ],
    ids=lambda rules: rules[0].name if rules else "none",
)
def test_an_audit_says_what_a_run_does(file: Path, rules: list[Rule]) -> None:
    # given traffic of all sorts: copies, versions, replays, other sources, events without an id or a key
    chance = random.Random(7)
    details = [{"order": n, "sum": chance.randint(1, 3), "sent": n} for n in range(20)] + [{"sum": 1}, {"order": ""}, 7]
    forms: list[dict[str, Any]] = [{}, {}, {"source": "bank"}, {"id": ""}, {"replay-name": "monday"}]
    traffic = [
        event(chance.randint(1, 30), **{"detail": chance.choice(details), **chance.choice(forms)}) for _ in range(500)
    ]

    totals = report_on(file, traffic, *rules).totals
    kinds = Counter(outcome.kind.value for outcome in Once("memory:", rules=rules).run(traffic, lambda event: None))

    assert totals.duplicates > 0
    assert (totals.distinct, totals.duplicates, totals.stale, totals.rejected) == (
        *(kinds["processed"], kinds["duplicate"]),
        *(kinds["stale"], kinds["rejected"]),
    )


def test_sources_beyond_the_thousandth_are_counted_as_one_type(file: Path) -> None:
    report = report_on(file, [event(number, source=f"s{number}") for number in range(1010)])

    assert len(report.groups) == 1001
    assert (report.groups[0].source, report.groups[0].counts.events) == ("(others)", 10)


def test_without_events_the_report_is_empty(file: Path) -> None:
    report = report_on(file, [])

    assert (report.totals, report.groups, report.notes, report.complete) == (Counts(), [], [], True)
    assert text(report) == "No events in 1 file.\n"
    assert "No events in 1 file." in html(report)


# --- replays and versions ---


def test_a_replay_that_may_run_again_is_not_counted_as_missed(file: Path) -> None:
    rule = Rule(name="again", key="id", replay="reprocess")

    counts = only(report_on(file, [event(1), event(1, **{"replay-name": "r1"})], rule)).counts

    assert counts == Counts(events=2, distinct=2, replayed=1)


def test_a_replay_that_is_a_copy_like_any_other_is_dropped(file: Path) -> None:
    counts = only(report_on(file, [event(1), event(1, **{"replay-name": "r1"})])).counts

    assert counts == Counts(events=2, distinct=1, duplicates=1, replayed=1)


def test_each_named_replay_is_dropped_the_second_time(file: Path) -> None:
    rule = Rule(name="again", key="id", replay="reprocess")
    traffic = [event(1, **{"replay-name": name} if name else {}) for name in ("", "r1", "r2", "r1", "")]

    counts = only(report_on(file, traffic, rule)).counts

    assert counts == Counts(events=5, distinct=3, duplicates=2, replayed=3)


def test_versions_of_an_id(file: Path) -> None:
    rule = Rule(name="v", key="id", version="detail.v")

    counts = only(report_on(file, [event(1, detail={"v": v}) for v in (1, 2, 1, 2)], rule)).counts

    assert (counts.distinct, counts.stale, counts.duplicates) == (2, 1, 1)


def test_versions(file: Path) -> None:
    rule = Rule(name="rides", key=["detail.order"], version="detail.v")
    versions = [1, 1, 3, 2, 3]

    group = only(report_on(file, [event(1, n, detail={"order": 1, "v": v}) for n, v in enumerate(versions)], rule))

    assert group.counts == Counts(events=5, distinct=2, duplicates=2, stale=1, only_id=0, suspicious=0)


@pytest.mark.parametrize("ahead", [None, "1d", 10])
def test_an_archive_is_not_judged_by_the_clock_of_today(file: Path, ahead: Any) -> None:
    rule = Rule(name="rides", key=["detail.order"], version="detail.v", version_ahead=ahead)
    versions = ["2026-01-01T00:00:00Z", "2262-01-01T00:00:00Z"] if isinstance(ahead, str) else [1, 2**63 - 1]

    report = report_on(file, [event(1, detail={"order": 1, "v": version}) for version in versions], rule)

    assert only(report).counts == Counts(events=2, distinct=2)


def test_the_same_version_with_another_content_is_suspicious(file: Path) -> None:
    rule = Rule(name="rides", key=["detail.order"], version="detail.v")
    traffic = [event(1, detail={"order": 1, "v": 2, "sum": number}) for number in (5, 6)]

    group = only(report_on(file, traffic, rule))

    assert [each.path for each in group.suspicious.fields] == ["detail.sum"]


# --- suspicious drops ---


def test_suspicious_drops_have_their_fields_and_places(file: Path) -> None:
    traffic = [
        event(1, detail={"order": 1, "sum": 5, "to": {"post-code": "1", "lines": ["a", "b"]}}),
        event(2),
        event(1, 1, detail={"order": 1, "sum": 6, "to": {"post-code": "2", "lines": ["a", "c"]}}),
        event(1, 2, detail={"order": 1, "sum": 7, "to": {"post-code": "1", "lines": ["a", "b"]}}),
        event(2, 3),
    ]

    group = only(report_on(file, traffic, ORDERS))

    assert (group.counts.duplicates, group.counts.suspicious, group.suspicious.compared) == (3, 2, 2)
    assert {each.path: each.pairs for each in group.suspicious.fields} == {
        "detail.sum": 2,
        'detail.to."post-code"': 1,
        "detail.to.lines[1]": 1,
    }
    first, second = group.suspicious.examples
    assert (first.first, first.copy) == (f"{file}:1", f"{file}:3")
    assert (second.first, second.copy, second.fields) == (f"{file}:1", f"{file}:4", ["detail.sum"])


def test_another_type_under_the_same_key_is_suspicious(file: Path) -> None:
    report = report_on(file, [event(1), event(1, **{"detail-type": "Paid"})], ORDERS)

    paid = next(group for group in report.groups if group.type == "Paid")
    assert paid.suspicious.examples[0].fields == ['"detail-type"']


def test_what_a_rule_ignores_and_how_numbers_are_spelled_is_not_suspicious(file: Path) -> None:
    bodies = [b'{"order":1,"sum":%s,"traceparent":%d}' % (sum_, n) for n, sum_ in enumerate((b"1", b"1.0", b"1e0"))]
    envelope = b'{"id":"a","source":"s","detail-type":"t","detail":%s}\n'
    file.write_bytes(b"".join(envelope % body for body in bodies))

    group = only(audit(Archive([str(file)]), rulebook(ORDERS)))

    assert group.counts == Counts(events=3, distinct=1, duplicates=2)


def test_only_a_few_examples_are_kept(file: Path) -> None:
    traffic = [event(1, detail={"order": 1, "sum": number}) for number in range(200)]

    suspicious = only(report_on(file, traffic, ORDERS)).suspicious

    assert (suspicious.events, suspicious.compared, len(suspicious.examples)) == (199, 50, 3)


def test_copies_inside_one_document_are_told_apart(file: Path) -> None:
    inner = [event(1, detail={"order": 1, "sum": number}) for number in (5, 5, 8)]
    batch = [{"messageId": str(n), "body": json.dumps(each), "eventSource": "aws:sqs"} for n, each in enumerate(inner)]

    group = only(report_on(file, [event(2), {"Records": batch}], ORDERS))

    assert (group.counts.events, group.counts.duplicates, group.counts.suspicious) == (4, 2, 1)
    assert group.suspicious.examples[0].fields == ["detail.sum"]


def test_a_pipe_is_read_once_and_a_note_says_what_is_missing(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if not (child := os.fork()):
        pipe.write_bytes(lines(event(1), event(1, detail={"order": 1, "sum": 6})))
        os._exit(0)

    report = audit(Archive([str(pipe)]), rulebook(ORDERS))
    os.waitpid(child, 0)

    assert only(report).suspicious.events == 1
    assert only(report).suspicious.examples == []
    assert "a pipe cannot be read twice" in report.notes[0]


# --- rejected ---


def test_events_without_a_key_are_rejected_with_the_reason(file: Path) -> None:
    traffic = [event(1), event(2, detail={}), event(3, detail={})]

    report = report_on(file, traffic, ORDERS)

    group = only(report)
    assert group.counts == Counts(events=3, distinct=1, rejected=2)
    assert [(each.events, each.place) for each in group.rejected] == [(2, f"{file}:2")]
    assert "has no detail.order" in group.rejected[0].reason
    assert not report.complete


def test_a_document_without_an_event_is_counted_with_its_reason(file: Path) -> None:
    file.write_bytes(lines(event(1)) + b'{"a": tru}\n' + b'{"b": trux}\n' + b"nonsense\n" + lines(event(2)))

    report = audit(Archive([str(file)]), rulebook())

    assert report.totals == Counts(events=5, distinct=2, rejected=3)
    assert sum(each.events for each in report.no_events) == 3
    assert report.no_events[0].place == f"{file}:2"
    assert f"(first: {file}:2)" in text(report)
    assert not report.complete


def test_reasons_that_differ_in_numbers_count_as_one_and_are_not_kept_without_end(file: Path) -> None:
    versioned = Rule(name="v", key=["detail.order"], version="detail.v")
    numbers = [event(n, detail={"order": n, "v": f"1.{n}"}) for n in range(100)]
    words = [event(n, detail={"order": n, "v": chr(0x4E00 + n)}) for n in range(100)]

    group = only(report_on(file, numbers + words, versioned))

    assert group.counts.rejected == 200
    assert group.rejected[0].events == 100
    assert len(group.rejected) == 51


# --- the time between copies ---


def test_windows_that_would_have_caught_99_and_999_and_1000_of_1000(file: Path) -> None:
    gaps = [60.0] * 985 + [3000.0] * 13 + [7 * 3600.0] + [4 * 86400.0]
    traffic = [each for n, gap in enumerate(gaps) for each in (event(n, n), event(n, n + gap))]

    group = only(report_on(file, traffic, ORDERS))

    assert [(each.percent, each.gap_ms, each.window) for each in group.between.windows] == [
        (99.0, 3000 * SECOND, "1h"),
        (99.9, 7 * HOUR, "8h"),
        (100.0, 4 * DAY, "4d"),
    ]
    assert group.between.longest_ms == 4 * DAY
    assert (group.between.known, group.counts.duplicates, group.counts.late) == (1000, 999, 1)
    assert {bar.up_to: bar.copies for bar in group.between.histogram if bar.copies} == {
        "1m": 985,
        "1h": 13,
        "1d": 1,
        "7d": 1,
    }


def test_the_histogram_goes_from_a_millisecond_to_thirty_days_and_beyond(file: Path) -> None:
    histogram = report_on(file, []).between.histogram

    assert [histogram[0].up_to, histogram[-2].up_to, histogram[-1].up_to] == ["1ms", "30d", None]
    assert all(bar.up_to is None or duration(bar.up_to) == bar.up_to_ms for bar in histogram)


def test_a_window_counts_from_the_first_copy_and_restarts_when_one_runs_again(file: Path) -> None:
    hours = [0, 20, 30, 40, 60]  # with a window of a day: run, dropped, run again, dropped, run again

    group = only(report_on(file, [event(1, 3600 * hour) for hour in hours], ORDERS))

    assert (group.counts.distinct, group.counts.duplicates, group.counts.late) == (1, 2, 2)
    assert group.between.longest_ms == 60 * HOUR


def test_a_window_that_slides_counts_from_the_copy_before(file: Path) -> None:
    sliding = Rule(name="orders", key=["detail.order"], window="1d", refresh=True)

    group = only(report_on(file, [event(1, 3600 * hour) for hour in (0, 20, 40, 70)], sliding))

    assert (group.counts.duplicates, group.counts.late) == (2, 1)
    assert group.between.longest_ms == 30 * HOUR


def test_copies_out_of_order_have_gaps_all_the_same(file: Path) -> None:
    group = only(report_on(file, [event(1, 100), event(1, 40), event(1, 130)], ORDERS))

    assert (group.counts.duplicates, group.between.known) == (2, 2)
    assert group.between.longest_ms == MINUTE


def test_copies_without_a_time_are_counted_and_their_gap_is_unknown(file: Path) -> None:
    report = report_on(file, [event(1, None), event(1, None), event(2, 0), event(2, None), event(2, 5)], ORDERS)

    group = only(report)
    assert group.counts == Counts(events=5, distinct=2, duplicates=3)
    assert (group.between.known, group.between.unknown, group.between.longest_ms) == (1, 2, 5 * SECOND)
    assert any("unknown" in note for note in report.notes)


def test_without_times_there_is_no_window(file: Path) -> None:
    report = report_on(file, [event(1, None), event(1, None)])

    assert (report.between.windows, report.between.longest_ms) == ([], None)
    assert "1 unknown, without a time" in text(report)


def test_a_redelivery_carries_its_old_time_which_says_nothing_about_its_delay(file: Path) -> None:
    differs = event(3, detail={"order": 3, "sum": 6})
    report = report_on(file, [event(1), event(1), event(2), event(2, id="another"), event(3), differs], ORDERS)

    between = only(report).between
    assert (between.same_time, between.known, between.longest_ms) == (1, 2, 0)
    assert any("delivered again as they were" in note for note in report.notes)


def test_a_first_copy_without_a_time_gives_way_to_the_next_that_has_one(file: Path) -> None:
    group = only(report_on(file, [event(1, None), event(1, 10), event(1, 25)], ORDERS))

    assert (group.between.known, group.between.unknown, group.between.longest_ms) == (1, 1, 15 * SECOND)


# --- gaps ---


@given(st.lists(st.integers(0, 400 * DAY), min_size=1, max_size=200), st.sampled_from([500, 990, 999, 1000]))
def test_a_share_is_found_to_within_two_percent(given_gaps: list[int], share: int) -> None:
    gaps = Gaps()
    for gap in given_gaps:
        gaps.add(gap)

    exact = sorted(given_gaps)[-(-len(given_gaps) * share // 1000) - 1]
    window = gaps.within(share)

    assert window is not None
    assert exact <= window <= exact * 1.016
    assert gaps.within(1000) == gaps.longest == max(given_gaps)
    assert sum(gaps.bars) == len(given_gaps)


@given(st.lists(st.integers(0, 40 * DAY)), st.lists(st.integers(0, 40 * DAY)))
def test_merged_gaps_are_as_if_counted_together(some: list[int], more: list[int]) -> None:
    one, other, both = Gaps(), Gaps(), Gaps()
    for gaps, counted in ((one, some), (other, more), (both, some + more)):
        for gap in counted:
            gaps.add(gap)

    merged = one.merge(other)

    assert (merged.known, merged.bars, merged.longest) == (both.known, both.bars, both.longest)
    assert [merged.within(share) for share in (500, 990)] == [both.within(share) for share in (500, 990)]


DECISIONS = st.builds(
    AuditDecision,
    st.sampled_from(Decision).filter(lambda kind: kind is not Decision.NEW),
    st.none() | st.integers(0, 40 * DAY),
    st.none() | st.integers(0, 99),
)
EVENTS = st.lists(st.tuples(st.just(NEW) | DECISIONS, st.booleans(), st.booleans(), st.integers(0, 1)), max_size=150)


@given(EVENTS, st.integers(0, 150))
def test_merged_counts_are_as_if_counted_together(events: list[tuple[Any, ...]], cut: int) -> None:
    one, other, both = AuditCount.on_worker([7]), AuditCount.on_worker([7]), AuditCount.on_worker([7])
    numbered = [(7, *event, 100 + position) for position, event in enumerate(events)]

    for count, part in ((one, numbered[cut:]), (other, numbered[:cut]), (both, numbered)):
        if part:
            count.add({7: count.numbered(7)}, DecisionColumns(*zip(*part, strict=True)))
    one.merge(other.packed())

    assert one.numbered(7).earliest_pairs() == both.numbered(7).earliest_pairs()
    assert msgspec.structs.replace(one.numbered(7), pairs=[]) == msgspec.structs.replace(both.numbered(7), pairs=[])


@given(st.integers(0, 3000 * DAY))
def test_readable_rounds_up_to_a_duration_that_a_rule_takes(gap: int) -> None:
    rounded = readable(gap)

    assert rounded >= max(1, gap)
    assert duration(format_duration(rounded)) == rounded
    assert readable(rounded) == rounded


@pytest.mark.parametrize(
    ("gap", "window"), [(0, "1ms"), (3, "5ms"), (999, "1s"), (61_000, "2m"), (25 * HOUR, "2d"), (366 * DAY, "730d")]
)
def test_readable_examples(gap: int, window: str) -> None:
    assert format_duration(readable(gap)) == window


@pytest.mark.parametrize(("millis", "text"), [(0, "0ms"), (5_400_000, "1h30m"), (14 * DAY, "14d"), (1500, "1s500ms")])
def test_durations_are_spelled_as_rules_take_them(millis: int, text: str) -> None:
    assert format_duration(millis) == text


def test_each_gap_is_in_the_bar_it_ends_with() -> None:
    gaps = Gaps()
    for edge in EDGES:
        gaps.add(edge)

    assert gaps.bars == [1] * len(EDGES) + [0]


# --- the ledger ---


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 50).map(lambda n: n << 12)))
def test_the_index_is_a_dictionary(fingerprints: list[int]) -> None:
    index, model = Index(), dict[int, int]()

    new = [each not in fingerprints[:at] for at, each in enumerate(fingerprints)]
    rows = [model.setdefault(each, len(model)) for each in fingerprints]
    assert index.rows(fingerprints) == [None if is_new else row for is_new, row in zip(new, rows, strict=True)]
    assert index.rows(fingerprints) == rows
    assert len(index) == len(model)


def test_the_index_grows() -> None:
    many = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(50_000)]
    index = Index()

    assert index.rows(many) == [None] * len(many)
    assert index.rows(many) == [*range(len(many))]


@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 50).map(lambda n: n << 12))))
def test_a_fingerprint_set_is_a_set_without_zero(batches: list[list[int]]) -> None:
    fingerprints, model = FingerprintSet(), set[int]()

    for batch in batches:
        expected = [each in model or (bool(each) and each in batch[:at]) for at, each in enumerate(batch)]
        assert fingerprints.add_all(batch) == expected
        model |= {*batch} - {0}


def test_a_fingerprint_set_grows() -> None:
    many = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, 50_000)]
    fingerprints = FingerprintSet()

    assert not any(fingerprints.add_all([*many, *[0] * 50_000]))
    assert all(fingerprints.add_all(many))


def test_a_copy_that_ran_again_is_what_later_copies_are_compared_with() -> None:
    ledger = AuditLedger(rulebook(ORDERS).all)

    def decide(content: int, time: int, position: int) -> AuditDecision:
        return ledger.decide(AuditColumns([0], [1], [NO_VERSION], [content], [time], [position]))[0]

    assert decide(7, 0, 1) == AuditDecision(Decision.NEW)
    assert decide(8, 5, 2) == AuditDecision(Decision.DUPLICATE, 5, 1)
    assert decide(8, 2 * DAY, 3) == AuditDecision(Decision.LATE, 2 * DAY)
    assert decide(8, 2 * DAY + 1, 4) == AuditDecision(Decision.DUPLICATE, 2 * DAY + 1)
    assert decide(7, 2 * DAY + 2, 5) == AuditDecision(Decision.DUPLICATE, 2 * DAY + 2, 3)
    assert len(ledger) == 1


# --- fingerprints ---


def test_content_without_a_canonical_form_stops_nothing() -> None:
    odd = Event(id="1", data={"a": "\ud800"})
    keyed = rulebook().key(odd)

    assert fingerprint.of_content(keyed, odd) == fingerprint.of_content(keyed, Event(id="2", data={"a": {1, 2}}))


NUMBERS = (
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e25, 1e25).map(round).map(float)
)
DATA = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def respelt(value: Any) -> Any:
    """Return the same value, with other numbers and names in another order."""
    if isinstance(value, dict):
        return {name: respelt(item) for name, item in reversed(value.items())}
    if isinstance(value, list):
        return [respelt(item) for item in value]
    if type(value) is float and value.is_integer():
        return int(canonical(value)) if abs(value) < 1e21 else int(f"{value:.0f}")
    return value


@given(DATA, DATA)
def test_contents_are_the_same_where_their_canonical_forms_are(one: Any, other: Any) -> None:
    rule = rulebook().find(Event(data=1))

    for more in (other, respelt(one)):
        prints = {of_content(rule, Event(data=data), bytearray()) for data in (one, more)}
        assert len(prints) == len({canonical(one), canonical(more)})


@given(st.integers(0, 2**64), st.sampled_from([1, -1]), st.text(alphabet="\u02c0x\0", max_size=9))
def test_a_float_that_equals_an_integer_has_its_content(size: int, sign: int, before: str) -> None:
    rule, whole = rulebook().find(Event(data=1)), float(sign * size)
    texts = [f'["{before}", {number}]'.encode() for number in (repr(whole), int(canonical(whole)), size + 0.5)]

    events = (Event(data=json.loads(text, strict=False), raw=text) for text in texts)
    same, other, more = (of_content(rule, event, bytearray()) for event in events)

    assert same == other
    assert (more == same) is (size + 0.5 == whole)


@pytest.mark.parametrize("odd", [{"a": "\ud800"}, {"a": 10**30}])
def test_a_content_that_has_no_short_form_has_a_fingerprint(odd: Any) -> None:
    keyed = rulebook().key(Event(id="1", data=odd))

    assert of_content(keyed.rule, Event(data=odd), bytearray()) == fingerprint.of_content(keyed, Event(data=odd))


def published(name: str, **fields: Any) -> Event:
    """Return an event as a publisher sends it: under a new id each time, with its own in a stamp."""
    return add_stamp(Event(id=name, data={}, **fields), "own", 1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            Event(id="1", source="a", form="eventbridge", data=1),
            Event(id="1", source="b", form="eventbridge", data=2),
            1,
        ),
        (
            Event(id="1", source="a", form="cloudevents", data=1),
            Event(id="1", source="b", form="cloudevents", data=1),
            0,
        ),
        (Event(id="7", attributes={"id": 7}, data=1), Event(id="7", attributes={"id": "7"}, data=1), 0),
        (Event(id="7", attributes={"id": 7}, data=1), Event(id="7", attributes={"id": 7}, data=2), 1),
        (Event(id="7", attributes={"id": 7}, data=1), Event(id="7.0", attributes={"id": 7.0}, data=2), 1),
        (published("1", form="eventbridge"), published("2", form="eventbridge"), 1),
        (published("1", form="eventbridge"), Event(id="1", form="eventbridge", data={}), 0),
        (published("1", form="eventbridge"), published("1", form="eventbridge", source="b"), 0),
        (published("1", form="cloudevents"), published("2", form="cloudevents", type="b"), 1),
        (published("1"), Event(id="own", data={}), 1),
    ],
)
def test_ids_identify_as_a_rule_by_id_does(one: Event, other: Event, same: int) -> None:
    rule = rulebook().find(one)

    assert (fingerprint.of_id(one) == fingerprint.of_id(other)) is bool(same)
    assert (rule.key(one).key == rule.key(other).key) is bool(same)


@pytest.mark.parametrize("odd", [Event(data=1), Event(id="{}", attributes={"id": {}}, data=1)])
def test_an_event_without_an_id_has_no_fingerprint(odd: Event) -> None:
    assert fingerprint.of_id(odd) is None


# --- reading traffic ---


def ids(traffic: Iterable[RecordedEvent]) -> list[str]:
    return [each.event.id if isinstance(each.event, Event) else "rejected" for each in traffic]


def test_several_documents_in_a_line_are_as_many_events(file: Path) -> None:
    documents = [event(1), event(2), event(1, 5), event(3, text="} {")]
    expected = report_on(file, documents, ORDERS)
    rows = [json.dumps(each) for each in documents]
    for written in ("\n".join((rows[0] + " " + rows[1], *rows[2:])), rows[0] + "".join(rows[1:]) + "\n"):
        file.write_text(written)
        report = audit(Archive([str(file)]), rulebook(ORDERS))
        assert (report.totals, report.inputs) == (expected.totals, expected.inputs)


def test_lines_documents_without_newlines_and_gzip(tmp_path: Path) -> None:
    files = {
        "a.jsonl": lines(event(1), event(2)),
        "b.json": lines(event(3), event(4)).replace(b"\n", b""),
        "c.gz": gzip.compress(lines(event(5))),
        "d.json": json.dumps([event(6), event(7)], indent=2).encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)

    assert ids(Archive([str(tmp_path / name) for name in files])) == [f"id-{number}" for number in range(1, 8)]


def test_a_folder_is_read_to_its_depth_and_in_order(tmp_path: Path) -> None:
    names = ["b/2.ndjson", "b/1.JSON", "a/x/3", "c.txt", "c.csv", ".hidden", ".git/4", "a.jsonl.gz", "z.html"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(lines(event(number)))
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")

    traffic = Archive([str(tmp_path)])

    assert ids(traffic) == ["id-7", "id-2", "id-1", "id-0", "id-3"]
    assert len(traffic.files) == 5
    assert traffic.unreadable == {}


def test_a_file_is_read_once_however_often_it_is_given(tmp_path: Path, file: Path) -> None:
    file.write_bytes(lines(event(1)))
    (tmp_path / "link.json").symlink_to(file)

    assert ids(Archive([str(file), str(tmp_path), str(tmp_path / "." / file.name)])) == ["id-1"]


def test_an_unreadable_file_is_named_and_the_others_are_read(tmp_path: Path, file: Path) -> None:
    file.write_bytes(lines(event(1)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "wide.json").write_bytes("{}".encode("utf-16"))
    missing, empty, wide = (str(tmp_path / name) for name in ("missing.json", "empty", "wide.json"))

    traffic = Archive([missing, empty, wide, str(file)])
    report = audit(traffic, rulebook())

    assert report.totals == Counts(events=1, distinct=1)
    assert [each.path for each in report.inputs.unreadable] == [empty, missing, wide]
    reasons = {each.path: each.reason for each in report.inputs.unreadable}
    assert reasons[missing].startswith("cannot be read: No such file")
    assert reasons[empty].startswith("is a folder without traffic")
    assert reasons[wide].startswith("is UTF-16")
    assert not report.complete
    assert f"not read: {missing}: cannot be read" in text(report)
    assert missing in html(report)


def test_damaged_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gz"
    bad.write_bytes(gzip.compress(lines(*(event(n, detail={"x": os.urandom(99).hex()}) for n in range(500))))[:-500])

    report = audit(Archive([str(bad)]), rulebook())

    assert report.totals.distinct > 400
    assert any("gzip data is damaged" in each.reason for each in report.no_events)
    assert not report.complete


def test_an_event_is_read_again_by_its_position(file: Path) -> None:
    file.write_bytes(lines([event(1), event(2)], event(3), [event(4), event(5), event(6)], event(7)))
    traffic = Archive([str(file)])
    seen = list(traffic)

    again = list(traffic.reread({seen[1].position, seen[4].position}))

    assert ids(again) == ["id-2", "id-5"]
    assert [each.location for each in again] == [f"{file}:1", f"{file}:3"]
    assert list(traffic.reread(set())) == []
    assert [each.position for each in seen] == sorted({each.position for each in seen})


def test_a_recorded_event_has_its_time_and_location(file: Path) -> None:
    file.write_bytes(lines(event(1, 1.5), event(2, None)) + b"nonsense\n")

    one, two, none = Archive([str(file)])

    assert isinstance(one.event, Event)
    assert isinstance(two.event, Event)
    assert (time_ms(one.event), time_ms(two.event)) == (round(START.timestamp() * 1000) + 1500, None)
    assert isinstance(none.event, EventRejected)
    assert none.location == f"{file}:3"


def test_the_position_grows_with_the_bytes_read(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(lines(event(1)))
    traffic = Archive([str(tmp_path)])
    size = len(lines(event(1)))

    assert (traffic.size, traffic.position) == (2 * size, 0)
    assert [traffic.position for _ in traffic] == [size, 2 * size]
    assert (traffic.position, traffic.documents) == (2 * size, 2)
    assert Archive(["-"]).size is None


# --- the formats of a report ---

HOSTILE = '<script>alert("1")</script>&\x1b[2J\u202e'


@pytest.fixture
def hostile(file: Path) -> AuditReport:
    names = {"source": HOSTILE, "detail-type": f"<b>{HOSTILE}"}
    traffic = [event(1, n, **names, detail={"order": 1, f"<img {HOSTILE}": n}) for n in range(2)]
    broken = event(2, **names, detail={"order": 2, "v": HOSTILE})
    rule = Rule(name=HOSTILE, key=["detail.order"])
    versioned = Rule(name="v", key=["detail.order"], version="detail.v", match={"detail": {"v": [{"exists": True}]}})
    return report_on(file, [*traffic, broken], versioned, rule)


class Page(HTMLParser):
    """Collects the tags and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href", "onclick", "onload")]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_escapes_what_comes_from_the_traffic(hostile: AuditReport) -> None:
    made = html(hostile)
    page = Page(made)

    assert hostile.totals == Counts(events=3, distinct=1, duplicates=1, suspicious=1, rejected=1)
    assert page.tags.isdisjoint({"script", "img"})
    assert "<img" not in made
    assert page.words.count('<script>alert("1")</script>') >= 4
    assert not {"\x1b", "\u202e"} & set(made)


def test_the_page_has_its_rules_and_its_date(hostile: AuditReport) -> None:
    words = Page(html(hostile, "<rules>.toml")).words

    assert "Rules: <rules>.toml. Made at 2026-11-19 22:05 UTC." in words


def test_the_page_explains_every_count_on_its_cards(file: Path) -> None:
    words = Page(html(report_on(file, [event(1)]))).words

    assert "suspiciousof the duplicates, those with another content" in words
    assert "laterun again: copies of a known key, when the configured window has expired" in words


def test_every_cell_has_its_head_for_a_phone(file: Path) -> None:
    made = html(report_on(file, [event(1), event(1, 3)]))

    assert made.count("<td") == made.count("<td data-head") + made.count("<td class=name data-head")
    assert made.count("data-head='duplicates'") == 2  # of its type, and of all
    assert "@media (max-width" in made


def test_the_page_needs_nothing_from_elsewhere(hostile: AuditReport) -> None:
    made = html(hostile)

    assert Page(made).links == []
    assert "http" not in made
    assert "url(" not in made


def test_the_page_has_a_plot_for_each_histogram(file: Path) -> None:
    traffic = [each for n in range(3) for each in (event(n, 0, source=f"s{n}"), event(n, 10**n, source=f"s{n}"))]

    made = html(report_on(file, traffic))

    assert made.count("role=img") == 4
    assert made.count("width:100.0%") == 3 + 3


def test_the_table_moves_no_cursor(hostile: AuditReport) -> None:
    made = text(hostile)

    assert made.replace("\n", "").isprintable()
    assert "\\x1b[2J" in made
    assert printable("plain é") == "plain é"


def test_the_table_is_aligned_and_leaves_out_what_is_zero(file: Path) -> None:
    made = text(report_on(file, [event(1), event(1, 90), event(2, source="a-longer-name")], ORDERS))

    head, *rows = made.splitlines()[2:6]
    assert head.split() == ["source", "type", "events", "new", "duplicates", "99", "%", "99.9", "%", "100", "%"]
    assert {len(row.split()) for row in rows} == {8, 7}
    assert {row.rindex(row.split()[-1]) + len(row.split()[-1]) for row in rows} == {len(head)}
    assert "a window of 2m catches 99 %, 2m 99.9 %, 2m 100 %; the configured 1d misses 0" in made
    assert "rejected  " not in made


def test_long_tables_are_cut_and_a_line_says_so(file: Path) -> None:
    sources = [f"{n}" * 60 for n in range(10)] + [f"s{n}" for n in range(45)]
    made = text(
        report_on(file, [each for s in sources for each in (event(1, source=s), event(1, 5, source=s))], ORDERS)
    )

    assert "15 more pairs of source and type" in made
    assert "45 more sections like these" in made
    assert max(map(len, made.splitlines()[2:44])) < 130


SHAPE = {
    "inputs": {"files": int, "documents": int, "unreadable": list},
    "totals": dict.fromkeys(Counts.__struct_fields__, int),
    "between": {"known": int, "unknown": int, "same_time": int, "longest_ms": int, "windows": list, "histogram": list},
    "no_events": list,
    "groups": list,
    "notes": list,
    "audit": int,
}
GROUP = {
    "source": str,
    "type": str,
    "counts": SHAPE["totals"],
    "rules": list,
    "between": SHAPE["between"],
    "suspicious": {"events": int, "compared": int, "fields": list, "examples": list},
    "rejected": list,
}


def shape_of(value: Any) -> Any:
    return {name: shape_of(item) for name, item in value.items()} if isinstance(value, dict) else type(value)


def test_the_json_form_is_stable(hostile: AuditReport) -> None:
    fields = json.loads(msgspec.json.encode(hostile))
    (group,) = fields["groups"]

    assert shape_of(fields) == SHAPE
    assert shape_of(group) == GROUP
    assert list(fields["totals"]) == [
        *("events", "distinct", "duplicates", "new_id", "stale", "late", "only_id", "only_content", "id_and_content"),
        *("suspicious", "suspicious_new_id", "rejected", "replayed"),
    ]
    assert group["rules"] == [{"rule": HOSTILE, "window": "14d", "events": 2}]
    assert group["between"]["windows"][0] == {"percent": 99.0, "gap_ms": 1000, "window": "1s"}
    assert group["between"]["histogram"][0] == {"up_to": "1ms", "up_to_ms": 1, "copies": 0}
    assert list(group["rejected"][0]) == ["reason", "events", "place"]
    assert list(group["suspicious"]["fields"][0]) == ["path", "pairs"]
    assert list(group["suspicious"]["examples"][0]) == ["first", "copy", "fields"]


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(number % 700), "source": "s", "n": number % 300}) for number in range(1000)]
    file = tmp_path / "traffic.jsonl"
    file.write_text("\n".join([*lines, "broken", '{"no": "id"}']) + "\n")
    rules = rulebook(Rule(name="n", match={"source": ["s"]}, key=["n"]))

    alone, together = (audit(Archive([str(file)]), rules, processes=count) for count in (1, 2))

    assert alone.totals.duplicates == 700
    assert alone == together


def test_several_processes_find_the_same_in_many_pieces_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_ranges, "SIZE", 2000)
    chance = random.Random(5)
    traffic: list[Any] = []
    for number in range(3000):
        order = number if number % 3 else chance.randrange(number + 1)
        source = f"s{chance.randrange(1100)}" if number % 7 == 0 else "shop"
        extra = {"replay-name": "r"} if number % 50 == 0 else {}
        traffic.append(event(order, number, source=source, detail={"order": order, "v": chance.randrange(3)}, **extra))
    traffic += [event(1, detail={}), [event(2), event(3, None)], {"Records": []}, "text"]
    names = ["a.jsonl", "b.jsonl.gz", "c.jsonl", "missing.jsonl"]
    for name, part in zip(names, (traffic[::3], traffic[1::3], traffic[2::3]), strict=False):
        (tmp_path / name).write_bytes(gzip.compress(lines(*part)) if name.endswith("gz") else lines(*part))
    rules = rulebook(Rule(name="orders", key=["detail.order"], version="detail.v", window="20m"))

    alone, together = (audit(Archive([str(tmp_path / each) for each in names]), rules, processes=n) for n in (1, 3))

    assert alone == together
    assert alone.inputs.documents == len(traffic)
    assert min(alone.totals.duplicates, alone.totals.stale, alone.totals.late, alone.totals.suspicious) > 10
    assert alone.totals.rejected > 1
