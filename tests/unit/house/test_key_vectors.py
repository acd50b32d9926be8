"""The published key vectors are right, complete, and never change."""

import hashlib
import json
import re
from typing import Any

import pytest

from eventonce.event import values
from eventonce.event.keys import canonical
from tools import key_vectors

FILE: dict[str, Any] = json.loads(key_vectors.PAGE.read_text())
EVENTS = FILE["events"]


def test_the_file_is_fresh_and_complete() -> None:
    assert key_vectors.PAGE.read_text() == key_vectors.text(key_vectors.vectors()), "run `make docs`"


def test_names_are_unique() -> None:
    for section in key_vectors.SECTIONS:
        names = [vector["name"] for vector in FILE[section]]
        assert len(names) == len(set(names)), section


@pytest.mark.parametrize("vector", FILE["canonical"], ids=lambda vector: vector["name"])
def test_canonical_forms(vector: dict[str, Any]) -> None:
    assert canonical(json.loads(vector["json"])).decode() == vector["canonical"]
    assert canonical(json.loads(vector["canonical"])).decode() == vector["canonical"]


@pytest.mark.parametrize("vector", FILE["values"], ids=lambda vector: vector["name"])
def test_spellings_are_json_of_their_own(vector: dict[str, Any]) -> None:
    assert values.spell(vector["spelling"]) == vector["spelling"]
    assert canonical(vector["spelling"]).decode() == vector["canonical"]


def test_every_type_with_a_spelling_has_a_vector() -> None:
    shown = " ".join(vector["python"] for vector in FILE["values"])
    names = {kind.__name__ for kind in values._CANONICAL} - {"bytearray", "memoryview", "bytes"}
    assert [name for name in names if not re.search(rf"\b{name}\(", shown)] == []
    assert {"bytes", "enum", "set", "path", "tuple", "model"} <= {vector["name"] for vector in FILE["values"]}


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


@pytest.mark.parametrize("vector", FILE["digests"] + FILE["calls"], ids=lambda vector: vector["name"])
def test_digests_as_the_page_explains_them(vector: dict[str, Any]) -> None:
    scope = ["eventonce key 1", vector["consumer"], vector["rule"], vector["kind"], vector["replay"]]
    parts = [each["tag"].encode() + _sized(bytes.fromhex(each["bytes"])) for each in vector["parts"]]
    hashed = b"".join([*(_sized(text.encode()) for text in scope), *parts])
    assert hashed.hex() == vector["hashed"]
    assert hashlib.sha256(hashed).hexdigest()[:32] == vector["key"]


@pytest.mark.parametrize("vector", EVENTS, ids=lambda vector: vector["name"])
def test_keys_of_events(vector: dict[str, Any]) -> None:
    assert key_vectors.event_keys(vector["body"], vector["rule"]) == vector["keys"]


def test_every_carrier_and_every_setting_of_a_key_has_a_vector() -> None:
    names = {vector["name"] for vector in EVENTS}
    samples = {f"{sample.parent.name}/{sample.stem}" for sample in key_vectors.SAMPLES.glob("*/*.json")}
    assert {f"{name} by {key}" for name in samples for key in ("id", "content")} <= names
    settings = {name for vector in EVENTS for name in vector["rule"]}
    assert settings == {"key", "ignore", "otherwise", "version", "version_ahead", "replay", "digest"}


def test_no_vector_may_change_or_vanish(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    file = tmp_path / "key-vectors.json"
    monkeypatch.setattr(key_vectors, "PAGE", file)
    key_vectors.main()
    assert json.loads(file.read_text()) == FILE
    extra = {**FILE, "parts": [{"name": "a new one"}]}
    for key in ("digests", "events"):
        changed = json.loads(json.dumps(FILE))
        changed[key][0]["key" if key == "digests" else "keys"] = "00"
        file.write_text(json.dumps(changed))
        with pytest.raises(SystemExit, match=f"{key}: {FILE[key][0]['name']}; restore how they are made"):
            key_vectors.main()
    file.write_text(json.dumps(extra))
    with pytest.raises(SystemExit, match="parts: a new one"):
        key_vectors.main()
    file.write_text(json.dumps({**FILE, "parts": [], "calls": []}))
    key_vectors.main()
    assert json.loads(file.read_text()) == FILE
