"""Experts of one position and of a chunk: their launches, and what both compute."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.moe import (
    ExpertWeights,
    MoeSizes,
    RouterWeights,
    run_experts,
)
from gemma4_compile.model_spec.layers.norm import NormStack
from gemma4_compile.operators.moe import VECTORS
from tests.models import MOE_LIKE
from tests.unit.model_spec.exported import (
    Array,
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

CONFIG = config_of(MOE_LIKE)
WIDTH, EXPERTS, TOP_K, INNER = 64, 8, 2, 32
SIZES = MoeSizes(WIDTH, EXPERTS, TOP_K, 1e-6, "float32")


def branch(rows: int | None, recipe: str = "f32", sizes: MoeSizes = SIZES) -> tvm.IRModule:
    matrices = matrices_of(CONFIG, recipe)
    router = RouterWeights("layers.0.router", sizes, matrices)
    norms = NormStack(VECTORS, WIDTH)
    experts = ExpertWeights("layers.0.experts", matrices)

    def body(residual: nn.Tensor) -> nn.Tensor:
        return run_experts(sizes, router, experts, norms, residual)

    shape = tensor("n" if rows is None else rows, WIDTH)
    return exported([router, experts, norms], body, residual=shape)


def test_the_router_s_factor_is_that_of_the_width() -> None:
    assert SIZES.factor == 0.125


def test_one_position_reads_the_rows_of_its_experts() -> None:
    assert kinds(branch(1)) == [
        *("router_scores", "top_k_experts", "expert_gate_up", "expert_down")
    ]


@pytest.mark.parametrize("rows", [None, 3])
def test_a_chunk_is_grouped_by_expert(rows: int | None) -> None:
    assert kinds(branch(rows)) == [
        *("router", "permute_by_expert", "expert_gemm", "expert_gemm", "combine_experts")
    ]


def test_normed_inputs_have_the_dtype_of_activations() -> None:
    sizes = MoeSizes(WIDTH, EXPERTS, TOP_K, 1e-6, "float16")
    router, _, gate_up, down, _ = operators(branch(None, "q4f16", sizes))
    assert getattr(router, "out_dtype", None) == "float16"
    assert getattr(gate_up, "in_dtype", None) == "float16"
    assert getattr(down, "in_dtype", None) == "float32", "the gated product has no bound"


def gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def expected(x: Array, parameters: list[Array]) -> Array:
    """By hand: softmax over the experts, the best two, their weights as shares of one."""
    proj, per_expert, gate_up, down, norms = (value.astype(float) for value in parameters)
    logits = rms_normed(x, norms[2]) * WIDTH**-0.5 @ proj.T
    hidden, rows = rms_normed(x, norms[3]), []
    for position, scores in enumerate(logits):
        best = np.argsort(-scores)[:TOP_K]
        shares = np.exp(scores[best] - scores[best].max())
        shares *= per_expert[best] / shares.sum()
        total = np.zeros(WIDTH)
        for expert, share in zip(best, shares, strict=True):
            pairs = gate_up.reshape(EXPERTS, INNER, 2, WIDTH)[expert] @ hidden[position]
            inner = gelu(pairs[:, 0]) * pairs[:, 1]
            total += share * (down.reshape(EXPERTS, WIDTH, INNER)[expert] @ inner)
        rows.append(total)
    return np.stack(rows)


PARAMETERS = [
    random(1, EXPERTS, WIDTH),
    np.abs(random(2, EXPERTS)),
    random(3, EXPERTS * 2 * INNER, WIDTH) / 8,
    random(4, EXPERTS * WIDTH, INNER),
    random(5, VECTORS, WIDTH),
]
X = random(0, 5, WIDTH)


def test_a_chunk_and_one_position_compute_the_same() -> None:
    right = expected(X, PARAMETERS)
    (chunk,) = run(branch(None), X, PARAMETERS)
    np.testing.assert_allclose(chunk, right, rtol=1e-4, atol=1e-4)
    (one,) = run(branch(1), X[2:3], PARAMETERS)
    np.testing.assert_allclose(one, right[2:3], rtol=1e-4, atol=1e-4)
