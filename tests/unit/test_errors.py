"""Messages of errors can be printed anywhere, whatever names are in them."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import MAX_MESSAGE, CheckpointError, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain `text`, 5 µm, ≤ 3\n\tnext", "plain `text`, 5 µm, ≤ 3\n\tnext"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb\x7f\x9b", r"a\rb\x7f\x9b"),
        ("\u202eabc", r"\u202eabc"),
        ("\ud800", r"\ud800"),
        ("\0", r"\x00"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    error = CheckpointError(text, hint=text)
    assert (str(error), error.hint) == (shown, shown)
    str(error).encode("utf-8")


def test_long_text_keeps_its_ends() -> None:
    text = printable("begin" + "x" * 10**6 + "end")
    assert len(text) < MAX_MESSAGE + 10
    assert text.startswith("begin")
    assert text.endswith("end")


def test_a_hint_may_be_missing() -> None:
    assert CheckpointError("x").hint is None
