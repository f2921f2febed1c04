from __future__ import annotations

from gemma4_compile.checkpoint.adapter_config import Patterns


def test_a_pattern_may_not_take_long() -> None:
    found = Patterns("rank_pattern", {f"layers.{i}.mlp": i for i in range(5000)})
    assert [found.of(f"model.layers.{i}.mlp", -1) for i in (7, 4999, 5000)] == [7, 4999, -1]


def test_the_first_pattern_holds() -> None:
    found = Patterns("alpha_pattern", {r".*\.[01]\.mlp": 1, "mlp": 2})
    assert [found.of(f"layers.{i}.mlp", 3) for i in range(3)] == [1, 1, 2]
    assert found.of("layers.0.mlpx", 3) == 3
