"""Metadata of GGUF: each value has the type that is asked for, or the key is named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemma4_compile.checkpoint.gguf.metadata import Metadata
from gemma4_compile.errors import CheckpointError

VALUES = Metadata(
    {
        "eps": float(np.float32(1e-6)),
        "double": 1e-300,
        "count": 7,
        "flag": True,
        "text": "a",
        "texts": ["a", "b"],
        "flags": np.array([True, False]),
        "counts": np.array([1, 2], np.uint32),
        "floats": np.array([0.5], np.float32),
    },
    "a.gguf",
)


def test_values_are_what_was_written() -> None:
    assert VALUES.number("eps") == 1e-6  # not 9.99999997e-07, which float32 makes of it
    assert VALUES.number("double") == 1e-300
    assert VALUES.number("count") == 7.0
    assert VALUES.number("none", 2.5) == 2.5
    assert VALUES.integer("none", 3) == 3
    assert VALUES.optional_integer("none") is None
    assert VALUES.text("none") is None
    assert VALUES.texts("none") == []
    assert VALUES.integers("counts") == [1, 2]
    assert VALUES.by_layer("count", 3) == [7, 7, 7]
    assert VALUES.by_layer("flag", 2) == [1, 1]
    assert VALUES.by_layer("flags", 2) == [1, 0]
    assert VALUES.names("t") == ["text", "texts"]
    assert {"eps", "none"} <= VALUES.asked


WRONG: tuple[tuple[Callable[[], object], str], ...] = (
    (lambda: VALUES.integer("none"), "`none` of `a.gguf`: expected an integer, found None"),
    (lambda: VALUES.integer("text"), "expected an integer, found a"),
    (lambda: VALUES.integer("flag"), "expected an integer, found True"),
    (lambda: VALUES.integer("eps"), "expected an integer"),
    (lambda: VALUES.number("flag"), "expected a number"),
    (lambda: VALUES.number("texts"), "expected a number"),
    (lambda: VALUES.text("count"), "expected a text, found 7"),
    (lambda: VALUES.texts("text"), "expected texts, found a"),
    (lambda: VALUES.integers("floats"), "expected integers"),
    (lambda: VALUES.by_layer("floats", 1), "expected integers"),
    (lambda: VALUES.by_layer("counts", 3), "one value for each of 3 layers, found 2"),
    (lambda: VALUES.by_layer("none", 3), "found None"),
)


@pytest.mark.parametrize(("ask", "message"), WRONG)
def test_another_type_is_named(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        ask()
    assert caught.value.hint
