"""Stored matrices in the model: their layout, their parameters, and what calls compute."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.moe import EXPERT_TILE, PermuteByExpert, routed_width
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.sampling import MASKED
from gemma4_compile.quantization.groups import GroupScheme, dequantize, quantize
from gemma4_compile.quantization.matrix import StoredMatrices, layout_of
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from tests.unit.model_spec.exported import exported, operators, random, run, tensor

ROWS, COLS = 192, 64


def stored(recipe: str = "q4f16", binding: int | None = None) -> StoredParameter:
    shape = (ROWS, COLS)
    parameter = Parameter("m", Role.LINEAR, shape, (Source("m.weight", shape),))
    (made,) = storage_plan([parameter], RECIPES[recipe], binding)
    return made


def experts(recipe: str = "q4f16") -> StoredMatrices:
    shape = (4 * 48, COLS)
    parameter = Parameter("m", Role.EXPERTS, shape, (Source("m", (4, 48, COLS)),), row_group=48)
    return StoredMatrices(storage_plan([parameter], RECIPES[recipe], None))


@pytest.mark.parametrize(
    ("recipe", "layout"),
    [
        ("f16", WeightLayout(0, "float16", 0, COLS, (ROWS,))),
        ("f32", WeightLayout(0, "float32", 0, COLS, (ROWS,))),
        ("q4f16", WeightLayout(4, "float16", 32, COLS, (ROWS,))),
        ("q4f32", WeightLayout(4, "float32", 32, COLS, (ROWS,))),
        ("q8f16", WeightLayout(8, "float16", 32, COLS, (ROWS,))),
    ],
)
def test_the_layout_is_that_of_the_scheme(recipe: str, layout: WeightLayout) -> None:
    assert layout_of(stored(recipe)) == layout


def test_parameters_have_the_names_and_the_order_of_the_package() -> None:
    made = stored("q4f16", 4096)
    assert layout_of(made).split_rows == (128, 64)
    matrix = StoredMatrices([made]).matrix("m")
    found = [(f"m.{name}", tuple(p.shape), p.dtype) for name, p in matrix.named_parameters()]
    assert found == [(one.name, one.shape, one.dtype) for one in made.tensors]
    assert [name for name, _, _ in found] == [
        *("m.q_weight.part0", "m.q_scale.part0", "m.q_weight.part1", "m.q_scale.part1")
    ]


def test_a_name_that_nobody_stored_is_an_error() -> None:
    with pytest.raises(KeyError, match="other"):
        StoredMatrices([stored()]).matrix("other")


W, X = random(0, ROWS, COLS), random(1, 3, COLS)


@pytest.mark.parametrize("binding", [None, 4096])
def test_a_matmul_and_a_lookup_of_quantised_rows(binding: int | None) -> None:
    scheme = GroupScheme(4, "float32")
    made = stored("q4f32", binding)
    matrix = StoredMatrices([made]).matrix("m")
    ids = np.array([191, 0, 130], np.int32)

    def body(x: nn.Tensor, ids: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        return matrix.matmul(x, CHUNK), matrix.take(ids, CHUNK, 0.5)

    module = exported([matrix], body, x=tensor("n", COLS), ids=tensor("n", dtype="int32"))
    pieces = [
        array
        for part in made.row_splits
        for array in quantize(W[part.row_begin : part.row_end], scheme)
    ]
    product, taken = run(module, X, ids, pieces)
    weights = dequantize(*quantize(W, scheme), scheme)
    np.testing.assert_allclose(product, X @ weights.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(taken, weights[ids] / 2, rtol=1e-6)


@pytest.mark.parametrize("binding", [None, 16384])
def test_a_matmul_of_some_rows(binding: int | None) -> None:
    matrix = StoredMatrices([stored("f32", binding)]).matrix("m")
    ids = np.array([191, 0, 130], np.int32)

    def body(x: nn.Tensor, ids: nn.Tensor) -> nn.Tensor:
        return matrix.matmul_of(x, ids)

    module = exported([matrix], body, x=tensor(1, COLS), ids=tensor(3, dtype="int32"))
    splits = stored("f32", binding).row_splits
    (found,) = run(module, X[:1], ids, [W[one.row_begin : one.row_end] for one in splits])
    np.testing.assert_allclose(found, X[:1] @ W[ids].T, rtol=1e-4, atol=1e-4)


def test_masked_columns_and_a_soft_cap() -> None:
    matrix = StoredMatrices([stored("f32")]).matrix("m")

    def body(x: nn.Tensor) -> nn.Tensor:
        return matrix.matmul(x, CHUNK, Epilogue.SOFTCAP, cap=5.0, suppressed=(0, 191))

    (found,) = run(exported([matrix], body, x=tensor(3, COLS)), X, [W])
    expected = 5 * np.tanh(X @ W.T / 5)
    expected[:, [0, 191]] = MASKED
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_operators_have_the_fields_of_the_call() -> None:
    made = stored("q4f16", 4096)
    matrix = StoredMatrices([made]).matrix("m")

    def body(x: nn.Tensor, ple: nn.Tensor, ids: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        gated = matrix.matmul(x, ONE, Epilogue.GELU_GATE, ple=ple, layer=1)
        return gated, matrix.take(ids, ONE, 2.0)

    inputs = {"x": tensor(1, COLS, dtype="float16"), "ple": tensor(1, 2 * ROWS)}
    linear, take = operators(exported([matrix], body, **inputs, ids=tensor(1, dtype="int32")))
    layout = layout_of(made)
    gate = Epilogue.GELU_GATE.value
    assert linear == Linear(ONE, layout, "float16", epilogue=gate, ple_width=2 * ROWS)
    assert take == Embedding(rows=ONE, layout=layout, row_begin=0, scale=2.0, accumulate=False)


def test_experts_are_rows_that_stay_together() -> None:
    matrix = experts().experts("m")
    i32 = "int32"

    def body(
        routed: nn.Tensor,
        x: nn.Tensor,
        ids: nn.Tensor,
        weights: nn.Tensor,
        many: nn.Tensor,
        order: nn.Tensor,
        tiles: nn.Tensor,
    ) -> tuple[nn.Tensor, ...]:
        return (
            matrix.gate_up(routed, ids, 2),
            matrix.down(x, ids, weights, 2),
            matrix.grouped(many, order, tiles, 2, Epilogue.GELU_PAIRS),
        )

    module = exported(
        [matrix],
        body,
        routed=tensor(1, routed_width(4, COLS)),
        x=tensor(2, COLS),
        ids=tensor(1, 2, dtype=i32),
        weights=tensor(1, 2),
        many=tensor(4, COLS, dtype="float16"),
        order=tensor(8, dtype=i32),
        tiles=tensor(int(PermuteByExpert(4, 2, EXPERT_TILE).tile_count(8)), 3, dtype=i32),
    )
    layout = WeightLayout(4, "float16", 32, COLS, (192,))
    gate_up, down, grouped = operators(module)
    assert gate_up == ExpertLinear(layout, 48, 4, 2, "float32")
    assert down == ExpertLinear(layout, 48, 4, 2, "float32", epilogue="none")
    assert grouped == ExpertLinear(layout, 48, 4, 2, "float16", epilogue="gelu_pairs", rows=CHUNK)
    shapes = [list(map(int, field.shape)) for field in module["forward"].ret_ty.fields]
    assert shapes == [[2, 24], [1, 48], [8, 24]]
