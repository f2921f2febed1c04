"""The gated MLP: gate and up in one launch, and what it computes."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.mlp import FeedForward
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.rows import CHUNK, ONE, Rows
from tests.models import DENSE_LIKE
from tests.unit.model_spec.exported import (
    config_of,
    exported,
    matrices_of,
    operators,
    random,
    run,
    tensor,
)

CONFIG = config_of(DENSE_LIKE)
HIDDEN, INNER = CONFIG.hidden_size, CONFIG.intermediate_size


@pytest.mark.parametrize("rows", [1, None])
@pytest.mark.parametrize(("recipe", "dtype"), [("q4f16", "float16"), ("f32", "float32")])
def test_two_launches_and_a_float32_product(rows: int | None, recipe: str, dtype: str) -> None:
    mlp = FeedForward("layers.0.mlp", matrices_of(CONFIG, recipe))

    of: Rows = ONE if rows == 1 else CHUNK

    def body(x: nn.Tensor) -> nn.Tensor:
        return mlp(x)

    x = tensor("n" if rows is None else rows, HIDDEN, dtype=dtype)
    gate_up, down = operators(exported([mlp], body, x=x))
    assert isinstance(gate_up, Linear)
    assert isinstance(down, Linear)
    assert (gate_up.epilogue, down.epilogue) == (Epilogue.GELU_PAIRS, Epilogue.NONE)
    assert (gate_up.in_dtype, down.in_dtype) == (dtype, "float32"), "the product has no bound"
    assert (gate_up.rows, down.rows) == (of, of)
    assert (gate_up.layout.rows, down.layout.rows) == (2 * INNER, HIDDEN)


def test_gate_and_up_are_rows_in_turn() -> None:
    mlp = FeedForward("layers.0.mlp", matrices_of(CONFIG))

    def body(x: nn.Tensor) -> nn.Tensor:
        return mlp(x)

    gate, up, down = random(1, INNER, HIDDEN), random(2, INNER, HIDDEN), random(3, HIDDEN, INNER)
    gate_up = np.stack([gate, up], axis=1).reshape(2 * INNER, HIDDEN)
    x = random(0, 2, HIDDEN) / 10
    (found,) = run(exported([mlp], body, x=tensor("n", HIDDEN)), x, [gate_up, down])
    y = x.astype(float) @ gate.T
    gelu = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    expected = (gelu * (x @ up.T)) @ down.T
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_layer_without_these_matrices_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"layers\.99\.mlp\.gate_up_proj"):
        FeedForward("layers.99.mlp", matrices_of(CONFIG))
