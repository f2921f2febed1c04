"""Before and Expected of packed rows in tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.compile.build import build_module, calls_of, decoder_options
from gemma4_compile.operators.activation_quantization import (
    QuantizeRows,
    quantized_specs,
)
from gemma4_compile.operators.activations import PACKED, PackedOutput
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.passes.fusion_limits import FusionLimits, fusion_limits
from gemma4_compile.passes.tile_rows import tile_rows
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from tests.matmuls import int8_linear
from tests.passes.operator_modules import F32, Tensors, assert_same, call, module, rewritten
from tests.passes.operator_modules import weights as weights_of
from tests.passes.test_few_rows import MOST, of_few_rows
from tests.unit.model_spec.drafter.test_parameters import drafted

N = tirx.Var("n", "int64")
WIDTH, FEW = 64, 40
PAIRS = WeightLayout(4, "float16", 32, WIDTH, (128,))
DOWN = WeightLayout(4, "float16", 32, 64, (48,))
SMALL = WeightLayout(4, "float16", 32, 64, (FEW,))
LIMITS = FusionLimits(None, reads_tiles=lambda layout: layout.rows > FEW)
INPUTS = {
    "y": ((N, WIDTH), F32),
    "residual": ((N, WIDTH), F32),
    "w_branch": ((WIDTH,), F32),
    "w_next": ((WIDTH,), F32),
    **weights_of(PAIRS),
}


def norm(x: Tensors, tiled: bool = False) -> list[nn.Tensor]:
    operator = ResidualNorm(
        Few(MOST), WIDTH, 1e-6, False, "float32", output=PackedOutput(True, tiled)
    )
    args = [x[name] for name in ("y", "residual", "w_branch", "w_next")]
    return call(operator, args, ((N, WIDTH), F32), *quantized_specs(WIDTH, N, tiled))


def gate_up(x: Tensors, packed: list[nn.Tensor], tiled: bool, out: bool) -> list[nn.Tensor]:
    operator = int8_linear(
        Few(MOST),
        PAIRS,
        PACKED,
        "gelu_pairs",
        packed_out=True,
        interleaved_out=True,
        tiled=tiled,
        tiled_out=out,
    )
    args = [*packed, *(x[name] for name in weights_of(PAIRS))]
    return call(operator, args, *quantized_specs(64, N, out))


def down(
    packed: list[nn.Tensor], weights: list[nn.Tensor], layout: WeightLayout, tiled: bool
) -> list[nn.Tensor]:
    operator = int8_linear(Few(MOST), layout, PACKED, tiled=tiled)
    return call(operator, [*packed, *weights], ((N, layout.rows), F32))


def with_down(layout: WeightLayout) -> dict[str, TensorSpec]:
    own = {f"down_{name}": spec for name, spec in weights_of(layout).items()}
    return {**INPUTS, **own}


def own_weights(x: Tensors) -> list[nn.Tensor]:
    return [tensor for name, tensor in x.items() if name.startswith("down_")]


@pytest.mark.parametrize(("layout", "is_tiled"), [(DOWN, True), (SMALL, False)])
def test_rows_between_matmuls_on_tensor_cores_are_in_tiles(
    layout: WeightLayout, is_tiled: bool
) -> None:
    """Of the two matmuls the first reads tiles, and writes them where the second reads them."""

    def before(x: Tensors) -> list[nn.Tensor]:
        residual, *packed = norm(x)
        product = gate_up(x, packed, tiled=False, out=False)
        return [residual, *down(product, own_weights(x), layout, tiled=False)]

    def expected(x: Tensors) -> list[nn.Tensor]:
        residual, *packed = norm(x, tiled=True)
        product = gate_up(x, packed, tiled=True, out=is_tiled)
        return [residual, *down(product, own_weights(x), layout, tiled=is_tiled)]

    inputs = with_down(layout)
    after = rewritten(of_few_rows(module(inputs, before)), LIMITS, tile_rows)
    assert_same(after, of_few_rows(module(inputs, expected)))


@pytest.mark.parametrize(("layout", "is_tiled"), [(DOWN, True), (SMALL, False)])
def test_rows_of_two_matmuls_are_in_tiles_for_both_or_neither(
    layout: WeightLayout, is_tiled: bool
) -> None:
    def of(x: Tensors, tiled: bool) -> list[nn.Tensor]:
        residual, *packed = norm(x, tiled)
        product = gate_up(x, packed, tiled, out=False)
        return [residual, *product, *down(packed, own_weights(x), layout, tiled)]

    inputs = with_down(layout)
    after = rewritten(of_few_rows(module(inputs, lambda x: of(x, False))), LIMITS, tile_rows)
    assert_same(after, of_few_rows(module(inputs, lambda x: of(x, is_tiled))))


def test_a_product_that_tensor_cores_do_not_make_stays() -> None:
    limits = replace(LIMITS, reads_tiles=lambda layout: layout.rows == DOWN.rows)

    def before(x: Tensors) -> list[nn.Tensor]:
        residual, *packed = norm(x)
        product = gate_up(x, packed, tiled=False, out=False)
        return [residual, *down(product, own_weights(x), DOWN, tiled=False)]

    made = of_few_rows(module(with_down(DOWN), before))
    assert_same(rewritten(made, limits, tile_rows), made)


Tiled = QuantizeRows | CombineSplits | ResidualNorm
MADE: dict[str, tuple[Tiled, list[TensorSpec], list[TensorSpec]]] = {
    "rounding": (QuantizeRows(CHUNK, WIDTH, F32, PackedOutput(True)), [((N, WIDTH), F32)], []),
    "combine": (
        CombineSplits(1, WIDTH, 3, F32, Few(MOST), PackedOutput(True)),
        [((N, 3, 1, WIDTH), F32), ((N, 3, 1, 2), F32)],
        [],
    ),
    "norm after experts": (
        ResidualNorm(
            Few(MOST), WIDTH, 1e-6, True, "float32", branches=2, top_k=2, output=PackedOutput(True)
        ),
        [
            ((N, WIDTH), F32),
            ((N * 2, WIDTH), F32),
            ((N, 2), F32),
            ((N, WIDTH), F32),
            ((3, WIDTH), F32),
            ((1,), F32),
            ((WIDTH,), F32),
        ],
        [((N, WIDTH), F32)],
    ),
}
"""Other operators that make rows, with their arguments and what else they make."""


@pytest.mark.parametrize("name", MADE)
def test_whatever_makes_packed_rows_writes_them_in_tiles(name: str) -> None:
    operator, args, others = MADE[name]
    inputs = {f"arg{index}": spec for index, spec in enumerate(args)} | with_down(DOWN)

    def of(x: Tensors, tiled: bool) -> list[nn.Tensor]:
        specs = [*others, *quantized_specs(WIDTH, N, tiled)]
        made = replace(operator, output=PackedOutput(True, tiled))
        *rest, words, scales = call(made, [x[f"arg{i}"] for i in range(len(args))], *specs)
        return [*rest, *down([words, scales], own_weights(x), DOWN, tiled)]

    after = rewritten(of_few_rows(module(inputs, lambda x: of(x, False))), LIMITS, tile_rows)
    assert_same(after, of_few_rows(module(inputs, lambda x: of(x, True))))


@pytest.mark.parametrize("reason", ["read as they are", "no tensor cores", "many rows"])
def test_rows_that_something_else_reads_stay(reason: str) -> None:
    def before(x: Tensors) -> list[nn.Tensor]:
        residual, *packed = norm(x)
        product = gate_up(x, packed, tiled=False, out=False)
        return [residual, *product, *(packed if reason == "read as they are" else [])]

    made = module(INPUTS, before)
    made = made if reason == "many rows" else of_few_rows(made)
    limits = replace(LIMITS, reads_tiles=None) if reason == "no tensor cores" else LIMITS
    assert_same(rewritten(made, limits, tile_rows), made)


@pytest.mark.parametrize(("target", "are_tiled"), [("cuda", True), ("webgpu", False)])
def test_cuda_alone_has_tiles(target: str, are_tiled: bool) -> None:
    spec = replace(target_spec(target), activations="int8")
    tensor_cores = replace(spec.tuning.few_row_tensor_cores, min_rows=1, direct_bytes=1 << 30)
    spec = replace(spec, tuning=replace(spec.tuning, few_row_tensor_cores=tensor_cores))
    assert (fusion_limits(spec).reads_tiles is not None) == are_tiled
    config, recipe = drafted("e2b"), RECIPES["q4f16"]
    whole = build_module(config, recipe, spec, decoder_options(recipe, spec, 16))
    assert ("tiles" in str(whole[abi.VERIFY].script())) == are_tiled
    assert "tiles" not in str(whole[abi.DECODE].script())
    assert any("few_row" in name for name in calls_of(whole, abi.VERIFY))
