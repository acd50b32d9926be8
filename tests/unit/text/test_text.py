"""Text from outside, made safe for a terminal and a log."""

import json

import pytest

from eventonce.text import one_line, printable, safe_json

HOSTILE = "a\r\n\x1b]0;x\x07\x9b\u202e\u2066\u2028\x7f\udc80\U000e0001b"


@pytest.mark.parametrize("function", [printable, one_line, safe_json])
def test_nothing_is_left_that_a_terminal_obeys(function: object) -> None:
    assert callable(function)
    safe = function(HOSTILE)

    assert safe.isprintable()
    assert safe[0] + safe[-1] == "ab"


def test_plain_text_stays() -> None:
    assert printable("zürich 東京 🚲") == one_line("zürich 東京 🚲") == safe_json("zürich 東京 🚲") == "zürich 東京 🚲"


def test_names_stay_apart() -> None:
    assert printable("a\nb") == "a\\nb"
    assert printable("\u202e") == "\\u202e"


def test_json_says_the_same() -> None:
    encoded = json.dumps({HOSTILE: HOSTILE}, ensure_ascii=False)

    assert json.loads(safe_json(encoded)) == json.loads(encoded) == {HOSTILE: HOSTILE}
