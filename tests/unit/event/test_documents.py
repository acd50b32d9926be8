"""`Splitter`: a stream of bytes becomes documents, however it is cut into pieces."""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventonce.sources import documents
from eventonce.sources.documents import Document, Splitter

BOM = b"\xef\xbb\xbf"
AWKWARD = {"text": 'a } b { c }{ d " e \\ f ] g [ h \\" i {"id": 2}', "}{": "]["}


def split(*chunks: bytes) -> list[Document]:
    """All documents of a stream that comes in these chunks."""
    splitter = Splitter()
    documents = [document for chunk in chunks for document in splitter.feed(chunk)]
    return documents + list(splitter.end())


def bodies(*chunks: bytes) -> list[bytes]:
    return [document.body for document in split(*chunks)]


def places(*chunks: bytes) -> list[tuple[bytes, int, int]]:
    return [(document.body, document.line, document.byte) for document in split(*chunks)]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


# --- documents that are whole ---


def test_each_line_is_a_document() -> None:
    assert places(b'{"a":1}\n{"b":2}\n') == [(b'{"a":1}', 1, 0), (b'{"b":2}', 2, 8)]


def test_the_last_line_needs_no_newline() -> None:
    assert bodies(b'{"a":1}\n{"b":2}') == [b'{"a":1}', b'{"b":2}']


def test_nothing_gives_nothing() -> None:
    assert split() == []
    assert split(b"") == []
    assert split(b"\n\r\n  \n\t\n") == []


def test_windows_line_ends_are_not_part_of_a_document() -> None:
    assert places(b'{"a":1}\r\n{"b":2}\r\n') == [(b'{"a":1}', 1, 0), (b'{"b":2}', 2, 9)]


def test_windows_line_ends_after_several_documents_in_a_line() -> None:
    assert places(b'{"a":1}{"b":2}\r\n{"c":3}\r\n') == [
        (b'{"a":1}', 1, 0),
        (b'{"b":2}', 1, 7),
        (b'{"c":3}', 2, 16),
    ]


def test_blank_lines_only_count_as_lines() -> None:
    assert places(b'\n\n{"a":1}\n  \n\r\n{"b":2}\n\n') == [(b'{"a":1}', 3, 2), (b'{"b":2}', 6, 15)]


def test_space_around_a_document_is_left_out() -> None:
    assert places(b'  {"a":1}\t \n') == [(b'{"a":1}', 1, 2)]


def test_a_bom_is_skipped_and_counted() -> None:
    assert places(BOM + b'{"a":1}\n{"b":2}\n') == [(b'{"a":1}', 1, 3), (b'{"b":2}', 2, 11)]


def test_a_bom_that_comes_in_pieces_is_skipped() -> None:
    assert places(BOM[:1], BOM[1:2], BOM[2:], b'{"a":1}') == [(b'{"a":1}', 1, 3)]


def test_a_bom_alone_is_an_empty_stream() -> None:
    assert split(BOM) == []


def test_a_bom_further_on_is_not_skipped() -> None:
    # given a file that was glued together from two
    documents = places(b'{"a":1}\n' + BOM + b'{"b":2}\n{"c":3}\n')

    # then what follows the second BOM is kept, and is for the reader to judge
    assert documents == [(b'{"a":1}', 1, 0), (BOM + b'{"b":2}', 2, 8), (b'{"c":3}', 3, 19)]


def test_a_bom_after_blank_lines_does_not_move_the_count() -> None:
    # given blank lines that come before the first three bytes are known
    documents = split(b"\n", b"\n", BOM + b'{"a":1}\n{"b":2}\n')

    # then the places after it are right, whether the BOM was skipped or not
    assert (documents[-1].body, documents[-1].line, documents[-1].byte) == (b'{"b":2}', 4, 13)


@pytest.mark.parametrize("between", [b"", b" ", b"\t", b"   ", b"\n", b"\r\n", b" \n "])
def test_documents_may_stand_one_behind_the_other(between: bytes) -> None:
    assert bodies(between.join([b"{}", b'{"a":{"b":[]}}', b"{}"])) == [b"{}", b'{"a":{"b":[]}}', b"{}"]


def test_documents_without_newlines_know_their_place() -> None:
    assert places(b'{}{"a":1} {}') == [(b"{}", 1, 0), (b'{"a":1}', 1, 2), (b"{}", 1, 10)]


def test_several_documents_on_some_lines() -> None:
    assert places(b'{"a":1}{"b":2}\n{"c":3}\n{"d":4} {"e":5}\n') == [
        (b'{"a":1}', 1, 0),
        (b'{"b":2}', 1, 7),
        (b'{"c":3}', 2, 15),
        (b'{"d":4}', 3, 23),
        (b'{"e":5}', 3, 31),
    ]


def test_a_document_over_several_indented_lines() -> None:
    # given two documents as people write them, and a line between
    first = json.dumps({"a": [1, {"b": 2}], "c": AWKWARD}, indent=2).encode()
    second = json.dumps({"d": {"e": []}}, indent=4).encode()
    text = first + b"\n" + b'{"line":1}\n' + second + b"\n"

    documents = split(text)

    assert [document.body for document in documents] == [first, b'{"line":1}', second]
    assert [document.line for document in documents] == [1, 1 + len(first.splitlines()), 2 + len(first.splitlines())]
    assert [document.byte for document in documents] == [text.index(body) for body in (first, b'{"line', second)]


def test_a_document_over_several_lines_with_windows_line_ends() -> None:
    assert [json.loads(body) for body in bodies(b'{\r\n  "a": 1\r\n}\r\n{"b":2}\r\n')] == [{"a": 1}, {"b": 2}]


def test_an_indented_document_may_hold_a_blank_line() -> None:
    assert [json.loads(body) for body in bodies(b'{\n  "a": 1,\n\n  "b": 2\n}\n{"c":3}\n')] == [
        {"a": 1, "b": 2},
        {"c": 3},
    ]


def test_indented_documents_one_behind_the_other() -> None:
    assert [json.loads(body) for body in bodies(b'{\n  "a": 1\n}{\n  "b": 2\n}{"c":3}')] == [
        {"a": 1},
        {"b": 2},
        {"c": 3},
    ]


@pytest.mark.parametrize("between", [b"", b" ", b"\n"])
@pytest.mark.parametrize("indent", [None, 1])
def test_strings_may_hold_brackets_quotes_and_escapes(between: bytes, indent: int | None) -> None:
    body = json.dumps(AWKWARD, indent=indent).encode()

    assert bodies(between.join([body] * 3)) == [body] * 3


def test_a_string_may_end_in_an_escaped_backslash() -> None:
    assert bodies(rb'{"a":"\\"}{"b":"\\\""}{"c":"\"}{"}') == [rb'{"a":"\\"}', rb'{"b":"\\\""}', rb'{"c":"\"}{"}']


def test_lists_are_cut_as_wholes_and_left_to_the_reader() -> None:
    assert bodies(b'[{"a":1},{"b":2}]\n{"c":3}\n') == [b'[{"a":1},{"b":2}]', b'{"c":3}']


# --- documents that are broken ---


def test_a_broken_line_is_its_own_document_and_the_good_ones_survive() -> None:
    assert places(b'{"a":1}\n{"broken": \n{"b":2}\n{"c":3}\n') == [
        (b'{"a":1}', 1, 0),
        (b'{"broken":', 2, 8),
        (b'{"b":2}', 3, 20),
        (b'{"c":3}', 4, 28),
    ]


@pytest.mark.parametrize(
    "broken",
    [
        b'{"a":',
        b'{"a":"open string',
        b'{"a":"open string\\',
        b'{"a":1]',
        b'{"a":{"b":1}',
        b'{"a":1}}',
        b"{",
        b"[",
        b"}",
        b"]",
        b'"',
        b"nonsense",
        b"2026-01-01 ERROR it broke",
        b'nonsense {"id":"inside"}',
        b"\x00\x01\x02",
        b"\xff\xfe\xfd",
        b"'single'",
    ],
)
def test_each_broken_line_is_given_whole_with_its_place(broken: bytes) -> None:
    size = len(broken) + 1
    text = b'{"a":1}\n' + broken + b'\n{"b":2}\n' + broken + b'\n{"c":3}\n'

    assert places(text) == [
        (b'{"a":1}', 1, 0),
        (broken, 2, 8),
        (b'{"b":2}', 3, 8 + size),
        (broken, 4, 16 + size),
        (b'{"c":3}', 5, 16 + 2 * size),
    ]


def test_broken_lines_one_after_the_other_are_told_apart() -> None:
    assert [(body, line) for body, line, _ in places(b'{"a":\n{"b":\n{"c":\n')] == [
        (b'{"a":', 1),
        (b'{"b":', 2),
        (b'{"c":', 3),
    ]


def test_junk_behind_a_document_does_not_take_it_along() -> None:
    assert places(b'{"a":1} junk\n{"b":2}\n') == [(b'{"a":1}', 1, 0), (b"junk", 1, 8), (b'{"b":2}', 2, 13)]


def test_a_document_inside_a_broken_one_is_never_taken_for_an_event() -> None:
    for text in (b'junk {"id":"1"}\n', b'{"outer": {"id":"1"}\n', b'"text" {"id":"1"}\n'):
        assert b'{"id":"1"}' not in bodies(text)


@pytest.mark.parametrize("body", [b"1", b"-1.5e3", b'"text"', b"null", b"true", b"false", b"[1, 2]", b"[]"])
def test_other_json_is_returned_as_it_is(body: bytes) -> None:
    assert places(b'{"a":1}\n' + body + b'\n{"b":2}') == [
        (b'{"a":1}', 1, 0),
        (body, 2, 8),
        (b'{"b":2}', 3, 9 + len(body)),
    ]


def test_a_truncated_end_is_given_as_it_is() -> None:
    assert places(b'{"a":1}\n{"b":[{"c') == [(b'{"a":1}', 1, 0), (b'{"b":[{"c', 2, 8)]


def test_a_truncated_document_over_several_lines_has_its_own_start() -> None:
    assert places(b'{"a":1}\n{\n  "b": [\n    1,') == [(b'{"a":1}', 1, 0), (b'{\n  "b": [\n    1,', 2, 8)]


def test_a_truncated_end_without_newlines() -> None:
    assert places(b'{"a":1}{"b":2}{"c"') == [(b'{"a":1}', 1, 0), (b'{"b":2}', 1, 7), (b'{"c"', 1, 14)]


def test_a_broken_document_over_several_lines_keeps_all_its_bytes() -> None:
    # given a document that never closes and has a line of spaces inside
    broken = b'{\n  "a": 1,\n    \n  "b": 2'

    # then the dead letter will have it as it was
    assert bodies(broken + b'\n{"c":3}\n') == [broken, b'{"c":3}']


# --- documents that come in pieces ---


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_where_the_chunks_are_cut_does_not_matter(size: int) -> None:
    text = BOM + b'{"a":1}\r\n\n' + json.dumps(AWKWARD, ensure_ascii=False).encode() + b'{}{"b":\nx\n{"c":"\xc3\xa4"}'

    assert split(*pieces(text, size)) == split(text)


def test_a_document_is_given_as_soon_as_its_line_ends() -> None:
    splitter = Splitter()

    assert list(splitter.feed(b'{"a":1}')) == []
    assert [document.body for document in splitter.feed(b'\n{"b"')] == [b'{"a":1}']
    assert [document.body for document in splitter.feed(b":2}\n")] == [b'{"b":2}']


def long_document() -> bytes:
    """Longer than a line is looked at in one go: with escapes, characters of several bytes, and brackets."""
    text = 'ä€𝄞 \\ " }{ ][ \n \u0001 ' * 80_000
    return json.dumps({"text": text, "list": [{"n": 1}] * 1000}, ensure_ascii=False).encode()


@pytest.mark.parametrize("size", [64 * 1024, 65_537, 262_144, 1_048_577])
def test_a_long_document_without_newline_in_pieces(size: int) -> None:
    body = long_document()
    assert len(body) > 2 * 1024 * 1024

    documents = places(*pieces(body + b'{"a":1}' + body + b"\n", size))

    assert documents == [(body, 1, 0), (b'{"a":1}', 1, len(body)), (body, 1, len(body) + 7)]


FILLER = b"x" * 1_100_000  # enough for a piece to be looked at before its line ends


@pytest.mark.parametrize(
    "cut", [b'\\|"', b"\\|\\", b"\\|n", b"\\u00|e4", b"\xc3|\xa4", b"\xf0\x9d|\x84\x9e", b"}|{", b"|\\\\", b"\\\\|"]
)
def test_a_long_document_cut_inside_a_string(cut: bytes) -> None:
    # given a piece that ends inside an escape or inside a character of several bytes
    left, right = cut.split(b"|")
    first, second = b'{"a":"' + FILLER + left, right + FILLER + b'","b":1}'

    assert bodies(first, second + b'{}\n{"end":1}\n') == [first + second, b"{}", b'{"end":1}']


@pytest.mark.parametrize("cut", [b'"|}{}', b'"}|{}', b'"}{|}', b'" |}{}', b'"}| {}', b'"} |{}'])
def test_a_long_document_cut_at_its_end(cut: bytes) -> None:
    left, right = cut.split(b"|")
    document = b'{"a":"' + FILLER

    documents = bodies(document + left, right + b'\n{"end":1}\n')

    assert documents == [document + (b'" }' if cut.startswith(b'" ') else b'"}'), b"{}", b'{"end":1}']


def test_a_long_run_of_spaces_inside_a_string_is_kept() -> None:
    # given a piece of a long line that is nothing but spaces
    body = b'{"a":"' + b" " * 4_000_000 + b'"}'

    assert bodies(*pieces(body, 262_144)) == [body]


def test_a_long_line_of_junk_is_one_document() -> None:
    junk = b"x" * 3_000_000

    assert places(*pieces(junk + b'\n{"a":1}\n', 262_144)) == [(junk, 1, 0), (b'{"a":1}', 2, len(junk) + 1)]


def test_a_long_document_that_never_closes_ends_with_the_next_line() -> None:
    broken = b'{"a":"' + b"x" * 3_000_000

    assert places(*pieces(broken + b'\n{"a":1}\n', 262_144)) == [(broken, 1, 0), (b'{"a":1}', 2, len(broken) + 1)]


def test_many_escapes_are_followed() -> None:
    body = b'{"a":"' + b'\\"' * 2_000_000 + b'"}'

    assert bodies(*pieces(body * 2, 262_144)) == [body, body]


# --- documents that are too long ---


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach."""
    monkeypatch.setattr(documents, "LONGEST", 1000)
    monkeypatch.setattr(documents, "_EXCERPT", 100)
    monkeypatch.setattr(documents, "_LONG_LINE", 50)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("begin", [b'{"a":"', b"junk ", b"["])
def test_a_document_that_is_too_long_is_reported_and_cut_short(begin: bytes) -> None:
    long = begin + b"x" * 5000

    first, second = split(*pieces(long + b'"}\n{"b":2}\n', 64))

    assert (first.body, first.line, first.byte) == (long[:100], 1, 0)
    assert first.unreadable == "has more than 1,000 bytes; only its first 100 are kept here"
    assert second == Document(b'{"b":2}', 2, len(long) + 3)


@pytest.mark.usefixtures("small")
def test_a_document_that_is_not_too_long_is_kept() -> None:
    body = b'{"a":"' + b"x" * 900 + b'"}'

    assert split(*pieces(body + b"\n" + body, 64)) == [Document(body, 1, 0), Document(body, 2, len(body) + 1)]


@pytest.mark.usefixtures("small")
def test_what_follows_a_too_long_document_in_its_line_is_not_lost() -> None:
    # given documents without newlines, as Firehose writes them, of which one is too long
    long = b'{"a":"' + b"x" * 5000 + b'}{"}'
    text = b'{"id":1}' + long + b'{"id":2}{"id":3}'

    documents = split(*pieces(text, 64))

    assert [document.body for document in documents if document.unreadable is None] == [
        b'{"id":1}',
        b'{"id":2}',
        b'{"id":3}',
    ]
    assert [document.byte for document in documents if document.unreadable is not None] == [8]


@pytest.mark.usefixtures("small")
def test_a_part_of_a_too_long_document_is_never_taken_for_an_event() -> None:
    # given a document over several lines that is too long and has objects on lines of their own
    lines = [b"{", b' "items": [', *[b'  {"id": %d},' % number for number in range(200)], b"  {}", b" ]", b"}"]

    documents = split(*pieces(b"\n".join(lines) + b'\n{"b":2}\n', 64))

    assert [document.body for document in documents if document.unreadable is None] == [b'{"b":2}']
    assert [document.line for document in documents if document.unreadable is not None] == [1]


# --- any documents, joined and cut in any way ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
AWKWARD_TEXT = st.text(alphabet=' {}[]"\\\nä𝄞a', max_size=30)
OBJECTS = st.dictionaries(AWKWARD_TEXT | st.text(), AWKWARD_TEXT | VALUES, max_size=4)


def serialised(objects: Sequence[Any], *, ascii_only: bool) -> list[bytes]:
    return [json.dumps(each, ensure_ascii=ascii_only, separators=(",", ":")).encode() for each in objects]


def cut_up(data: bytes, sizes: Iterable[int]) -> list[bytes]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    return chunks + [data[at:]]


@settings(deadline=None)
@given(
    objects=st.lists(OBJECTS, max_size=6),
    ascii_only=st.booleans(),
    between=st.sampled_from([b"", b" ", b"\n", b"\r\n", b"  \n"]),
    sizes=st.lists(st.integers(0, 40), max_size=30),
    long_line=st.sampled_from([3, 5, 20, 1024 * 1024]),
    bom=st.booleans(),
)
def test_any_objects_come_out_as_they_went_in(
    objects: list[Any], ascii_only: bool, between: bytes, sizes: list[int], long_line: int, bom: bool
) -> None:
    wanted = serialised(objects, ascii_only=ascii_only)
    text = (BOM if bom else b"") + between.join(wanted)

    with mock.patch.object(documents, "_LONG_LINE", long_line):
        split_documents = split(*cut_up(text, sizes))

    assert [document.body for document in split_documents] == wanted
    assert [text[document.byte :][: len(document.body)] for document in split_documents] == wanted
    assert [document.line for document in split_documents] == [
        1 + text[: document.byte].count(b"\n") for document in split_documents
    ]
    assert all(document.unreadable is None for document in split_documents)


@settings(deadline=None)
@given(
    text=st.lists(
        st.sampled_from([b"{", b"}", b"[", b"]", b'"', b"\\", b"\n", b" ", b"a", b":", b"1", b"\xc3", b'{"id":1}\n']),
        max_size=60,
    ).map(b"".join),
    sizes=st.lists(st.integers(0, 10), max_size=30),
)
def test_any_bytes_come_out_alike_however_they_are_cut_and_none_is_lost(text: bytes, sizes: list[int]) -> None:
    documents = split(*cut_up(text, sizes))

    assert documents == split(text)
    assert b"".join(b"".join(document.body.split()) for document in documents) == b"".join(text.split())
