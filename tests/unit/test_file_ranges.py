"""A file in pieces holds the same documents as the whole, at the same places."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from eventonce.sources.file import FileSource
from eventonce.traffic import file_ranges as pieces
from eventonce.traffic.file_ranges import Pieces


def messy(dice: random.Random) -> str:
    """Lines as they come: whole, broken, several in one, one over several, blank, with braces in strings."""
    kinds: list[Callable[[int], str]] = [
        lambda number: json.dumps({"id": number, "text": "x" * dice.randrange(50)}),
        lambda number: json.dumps({"id": number, "text": "}\n{"}),
        lambda number: json.dumps({"id": number, "deep": {"list": [1, {"a": 2}]}}, indent=2),
        lambda number: json.dumps({"id": number}) + json.dumps({"id": number + 1}) + ' {"id": 0}',
        lambda number: json.dumps({"id": number, "broken": 1})[:-6],
        lambda number: "no json at all",
        lambda number: "[1, 2]",
        lambda number: "",
    ]
    return "\n".join(dice.choice(kinds)(number) for number in range(200))


def whole(file: Path) -> list[tuple[bytes, object]]:
    source = FileSource(str(file))
    found: list[tuple[bytes, object]] = []
    while deliveries := source.receive(100):
        found += [(each.body, each.origin) for each in deliveries]
    source.close()
    return found


@pytest.mark.parametrize("size", [1, 64, 1000, 10**9])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_pieces_hold_what_the_whole_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, bom: bytes
) -> None:
    monkeypatch.setattr(pieces, "SIZE", size)
    file = tmp_path / "traffic.jsonl"
    for seed in range(5):
        file.write_bytes(bom + messy(random.Random(seed)).encode())
        cut = Pieces.of(str(file))
        assert cut is not None
        assert [(each.body, each.origin) for piece in cut for each in piece.deliveries()] == whole(file)


@pytest.mark.parametrize(
    "text", [messy(random.Random(9)), "{}\n" * 50, '{"a": 1}\n{"a": 2}', '{"a": 1} \n\n{"a": {}}{}\n']
)
@pytest.mark.parametrize("longest", [10, 10**6])
def test_a_piece_may_be_longer_than_what_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, longest: int
) -> None:
    monkeypatch.setattr(pieces, "LONGEST", longest)
    file = tmp_path / "traffic.jsonl"
    file.write_text(text)
    cut = Pieces.of(str(file))
    assert cut is not None
    assert [(each.body, each.origin) for piece in cut for each in piece.deliveries()] == whole(file)


def test_what_cannot_be_cut(tmp_path: Path) -> None:
    (tmp_path / "packed.gz").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "wide.json").write_bytes(b"\xff\xfe{\x00")
    (tmp_path / "empty").touch()
    (tmp_path / "no-lines.json").write_bytes(b'{"a": 1}' * 200_000)
    names = ["packed.gz", "wide.json", "empty", "no-lines.json", "missing", "."]
    assert [Pieces.of(str(tmp_path / name)) for name in names] == [None] * 6
    assert Pieces.of("-") is None
