"""A file in ranges has the same documents as the whole file, at the same places."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from eventonce.sources.file import FileSource
from eventonce.traffic import file_ranges
from eventonce.traffic.file_ranges import FileRanges


def messy(rng: random.Random) -> str:
    """Return lines of all sorts: whole, broken, several in one, one over several, blank, with braces in strings."""
    kinds: list[Callable[[int], str]] = [
        lambda number: json.dumps({"id": number, "text": "x" * rng.randrange(50)}),
        lambda number: json.dumps({"id": number, "text": "}\n{"}),
        lambda number: json.dumps({"id": number, "deep": {"list": [1, {"a": 2}]}}, indent=2),
        lambda number: json.dumps({"id": number}) + json.dumps({"id": number + 1}) + ' {"id": 0}',
        lambda number: json.dumps({"id": number, "broken": 1})[:-6],
        lambda number: "no json at all",
        lambda number: "[1, 2]",
        lambda number: "",
    ]
    return "\n".join(rng.choice(kinds)(number) for number in range(200))


def whole(file: Path) -> list[tuple[bytes, object]]:
    source = FileSource(str(file))
    documents: list[tuple[bytes, object]] = []
    while deliveries := source.receive(100):
        documents += [(each.body, each.origin) for each in deliveries]
    source.close()
    return documents


@pytest.mark.parametrize("size", [1, 64, 1000, 10**9])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_ranges_have_the_documents_of_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, bom: bytes
) -> None:
    monkeypatch.setattr(file_ranges, "SIZE", size)
    file = tmp_path / "traffic.jsonl"
    for seed in range(5):
        file.write_bytes(bom + messy(random.Random(seed)).encode())
        ranges = FileRanges.of(str(file))
        assert ranges is not None
        assert [(each.body, each.origin) for file_range in ranges for each in file_range.deliveries()] == whole(file)


@pytest.mark.parametrize(
    "text", [messy(random.Random(9)), "{}\n" * 50, '{"a": 1}\n{"a": 2}', '{"a": 1} \n\n{"a": {}}{}\n']
)
@pytest.mark.parametrize("longest", [10, 10**6])
def test_a_range_may_be_longer_than_what_fits_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, longest: int
) -> None:
    monkeypatch.setattr(file_ranges, "LONGEST", longest)
    file = tmp_path / "traffic.jsonl"
    file.write_text(text)
    ranges = FileRanges.of(str(file))
    assert ranges is not None
    assert [(each.body, each.origin) for file_range in ranges for each in file_range.deliveries()] == whole(file)


def test_files_that_cannot_be_cut(tmp_path: Path) -> None:
    (tmp_path / "packed.gz").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "wide.json").write_bytes(b"\xff\xfe{\x00")
    (tmp_path / "empty").touch()
    (tmp_path / "no-lines.json").write_bytes(b'{"a": 1}' * 200_000)
    names = ["packed.gz", "wide.json", "empty", "no-lines.json", "missing", "."]
    assert [FileRanges.of(str(tmp_path / name)) for name in names] == [None] * 6
    assert FileRanges.of("-") is None
