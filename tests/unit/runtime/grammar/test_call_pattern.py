"""Which patterns look ahead, and what cannot become a condition of its own."""

from __future__ import annotations

import time

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.call_pattern import looks_ahead, pattern_of
from gemma4_compile.runtime.grammar.call_schema import CallRules, refused


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


HOSTILE = {
    "classes that nothing closes": "^(?=" + "[" * 60_000,
    "and a backslash at the end": "^(?=" + "[" * 60_000 + "\\",
    "classes behind a condition": "^(?=a)" + "[" * 60_000,
    "conditions": "^" + "(?=a)" * 12_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_pattern_is_gone_through_a_few_times(case: str) -> None:
    begin = time.process_time()
    assert pattern_of({"pattern": HOSTILE[case]}, "k", refused)
    assert time.process_time() - begin < 10, "once for each of its letters would take minutes"


def test_a_class_is_one_letter_of_a_pattern() -> None:
    found = pattern_of({"pattern": r"^(?![)|\]]x)[|(]$"}, "k", refused)
    assert found == r"/(?:[|(])/ & ~/(?:[)|\]]x)(?s:.)*/"


def test_many_names_that_exclude_each_other_are_refused() -> None:
    kinds = {f"^p{i}": {"type": "string"} for i in range(4000)}
    begin = time.process_time()
    with pytest.raises(UsageError, match="too large"):
        CallRules(None).arguments({"type": "object", "patternProperties": kinds}, "f")
    assert time.process_time() - begin < 10
