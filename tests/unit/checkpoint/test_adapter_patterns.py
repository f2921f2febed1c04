from __future__ import annotations

import pytest

from gemma4_compile.checkpoint.adapter_patterns import Patterns, WholeNames, is_quick


def test_a_pattern_may_not_take_long() -> None:
    found = Patterns("rank_pattern", {f"layers.{i}.mlp": i for i in range(5000)})
    assert [found.of(f"model.layers.{i}.mlp", -1) for i in (7, 4999, 5000)] == [7, 4999, -1]


def test_the_first_pattern_holds() -> None:
    found = Patterns("alpha_pattern", {r".*\.[01]\.mlp": 1, "mlp": 2})
    assert [found.of(f"layers.{i}.mlp", 3) for i in range(3)] == [1, 1, 2]
    assert found.of("layers.0.mlpx", 3) == 3


def test_an_expression_is_of_whole_names() -> None:
    found = WholeNames("exclude_modules", r".*\.[01]\..*_proj")
    assert [found.fit(f"layers.{i}.q_proj") for i in range(3)] == [True, True, False]
    assert not found.fit("layers.0.q_proj.x")


@pytest.mark.parametrize("pattern", [None, ["q_proj"], "(a+)+b", ".*.*.*.*"])
def test_what_may_not_be_matched_fits_no_name(pattern: object) -> None:
    assert not WholeNames("exclude_modules", pattern).fit("layers.0.self_attn.q_proj")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(?!.*vision).*\.(?:q|k)_proj", True),
        (r".*\.layers\.\d+\.(?:mlp|self_attn)\.(?:up|down|q)_proj", True),
        (r".*(?<!visual)\.q_proj", True),
        (r"\(*\(*\(*\(*b", False),  # the parentheses are letters, each with a quantifier
        (r"(?!(?:a+)+b)c", False),
        (r"(?P<a>a)", False),
        (r"(a)\1", False),
        (r"a?b?c?d?", False),
    ],
)
def test_what_is_quick_to_match(pattern: str, expected: bool) -> None:
    assert is_quick(pattern) is expected
