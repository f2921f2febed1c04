from __future__ import annotations

import pytest

from gemma4_compile.checkpoint.adapter_patterns import Patterns, WholeNames
from gemma4_compile.errors import CheckpointError


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


@pytest.mark.parametrize("pattern", [None, ["q_proj"], r"(.)\1.*", "(?i).*"])
def test_what_may_not_be_matched_fits_no_name(pattern: object) -> None:
    assert not WholeNames("exclude_modules", pattern).fit("layers.0.self_attn.q_proj")


@pytest.mark.parametrize("pattern", ["(?:a|aa)" * 40, "(a+)+b", ".*" * 100 + "b", "a?" * 60])
def test_an_expression_with_many_ways_is_matched(pattern: str) -> None:
    name = "a" * 60 + "!"
    assert not WholeNames("target_modules", pattern).fit(name)
    assert Patterns("rank_pattern", {pattern: 3}).of(name, 4) == 4


def test_numbers_of_an_expression_that_is_not_read_are_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"`rank_pattern` .* refers to a group"):
        Patterns("rank_pattern", {r"(a)\1": 3})
    with pytest.raises(CheckpointError, match=r"`rank_pattern` .* 4096 letters"):
        Patterns("rank_pattern", {"a": 3}).of("." * 5000, 1)
