"""Which patterns look ahead, and what cannot become a condition of its own."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.grammar.call_pattern import looks_ahead, pattern_of
from gemma4_compile.runtime.grammar.call_schema import refused


@pytest.mark.parametrize("pattern", ["^(?!a)b$", "^(?=a)ab"])
def test_what_a_pattern_looks_at_ahead_is_another_condition(pattern: str) -> None:
    assert looks_ahead(pattern)
    found = pattern_of({"pattern": pattern}, "k", refused)
    assert " & " in found
    assert "(?!" not in found
    assert "(?=" not in found


@pytest.mark.parametrize("pattern", ["^(?!a)b|c", "^(?!a|b$)c", "a(?!b)", "^(?!a"])
def test_what_is_no_condition_of_its_own_is_left_to_the_library(pattern: str) -> None:
    assert "(?!" in pattern_of({"pattern": pattern}, "k", refused)
