"""Per-layer embeddings: what all layers get of a token, and what one adds of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.norm import Norm
from gemma4_compile.model_spec.text.per_layer_embedding import inject, per_layer_inputs
from gemma4_compile.model_spec.text.scales import per_layer_embedding_scale
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.rows import CHUNK, ONE, Rows
from tests.models import E2B_LIKE, E4B_LIKE
from tests.unit.model_spec.exported import (
    config_of,
    exported,
    kinds,
    matrices_of,
    operators,
    random,
    rms_normed,
    run,
    tensor,
)


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        (E2B_LIKE, 1.0),  # 32 columns: their root is no power of two
        (E4B_LIKE, 8.0),  # 64: the table carries it
    ],
)
def test_a_token_s_row_and_its_embedding_s_projection(
    text: Mapping[str, Any], carried: float
) -> None:
    config = config_of(text)
    layers, width = config.num_hidden_layers, config.hidden_size_per_layer_input
    matrices = matrices_of(config)
    table = matrices.matrix("embed_tokens_per_layer")
    projection = matrices.matrix("per_layer_model_projection")
    norm = Norm(width, config.rms_norm_eps)

    def body(ids: nn.Tensor, embeddings: nn.Tensor) -> nn.Tensor:
        return per_layer_inputs(config, table, projection, norm, ids, embeddings)

    inputs = {"ids": tensor("n", dtype="int32"), "embeddings": tensor("n", config.hidden_size)}
    module = exported([table, projection, norm], body, **inputs)
    assert kinds(module) == ["embedding", "linear", "per_layer_inputs"]
    rows = random(0, 256, layers * width)
    project, weight = random(1, layers * width, config.hidden_size), random(2, width)
    ids, x = np.array([7, 0, 255], np.int32), random(3, 3, config.hidden_size)
    (found,) = run(module, ids, x, [rows * np.float32(carried), project, weight])
    context = (x @ project.T).reshape(3, layers, width) * config.hidden_size**-0.5
    tokens = rows[ids].reshape(3, layers, width) * per_layer_embedding_scale(config)
    expected = (rms_normed(context, weight) + tokens) * 2**-0.5
    np.testing.assert_allclose(found, expected.reshape(3, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, None])
def test_a_layer_s_run_of_columns_gates(rows: int | None) -> None:
    config = config_of(E2B_LIKE)
    width, layer = config.hidden_size_per_layer_input, 3
    matrices = matrices_of(config)
    gate = matrices.matrix(f"layers.{layer}.per_layer_input_gate")
    projection = matrices.matrix(f"layers.{layer}.per_layer_projection")

    of: Rows = ONE if rows == 1 else CHUNK

    def body(x: nn.Tensor, ple: nn.Tensor) -> nn.Tensor:
        return inject(gate, projection, x, ple, layer)

    count: int | str = "n" if rows is None else rows
    shapes = {"x": tensor(count, config.hidden_size), "ple": tensor(count, 7 * width)}
    module = exported([gate, projection], body, **shapes)
    first, second = operators(module)
    assert isinstance(first, Linear)
    assert isinstance(second, Linear)
    assert (first.epilogue, second.epilogue) == (Epilogue.GELU_GATE, Epilogue.NONE)
    assert (first.rows, second.rows, first.in_dtype) == (of, of, "float32")
    x, ple = random(0, 1, config.hidden_size) / 10, random(1, 1, 7 * width)
    weights = random(2, width, config.hidden_size), random(3, config.hidden_size, width)
    (found,) = run(module, x, ple, weights)
    y = x.astype(float) @ weights[0].T
    gelu = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    gated = gelu * ple[:, layer * width : (layer + 1) * width]
    np.testing.assert_allclose(found, gated @ weights[1].T, rtol=1e-4, atol=1e-4)
