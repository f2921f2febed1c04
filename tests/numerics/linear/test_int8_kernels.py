"""Kernels on int8 vectors against their definitions, on Dawn in Node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    LEVELS,
    QuantizeRows,
)
from gemma4_compile.operators.activations import INT8, PACKED, PackedOutput
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.examples import MOVED_BYTES
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.prologues import Combine, Norm, Routed
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.kernels.linear.int8_block import int8_shape, tiles_of_block
from gemma4_compile.targets.spec import INT8 as QUANTIZED
from tests.marks import shares, under_limits
from tests.matmuls import int8_linear
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import Array, differences, make_case, one_of_a_form, operators
from tests.numerics.test_kernels import PART_BYTES, config_of
from tests.web.dawn import SUBGROUP, VulkanDriver

pytestmark = pytest.mark.dawn


def linear(
    kind: Callable[..., Linear], cols: int, rows: tuple[int, ...], bits: int = 4, **fields: Any
) -> Linear:
    layout = WeightLayout(bits, fields.pop("weight_dtype", "float16"), 32, cols, rows)
    return kind(rows=ONE, layout=layout, **{"in_dtype": "float32", **fields})


def odd_shapes() -> list[Operator]:
    """Ragged lanes and rows, several parts, both widths of weights, every source and epilogue."""
    pairs, gate = Epilogue.GELU_PAIRS.value, Epilogue.GELU_GATE.value
    capped = Epilogue.SOFTCAP.value
    return [
        linear(int8_linear, 32, (6,)),
        linear(int8_linear, 416, (64, 64, 40), in_dtype=PACKED),
        linear(int8_linear, 416, (72,), 8, in_dtype=PACKED, weight_dtype="float32"),
        linear(
            int8_linear,
            160,
            (1000,),
            in_dtype="float16",
            epilogue=capped,
            cap=30.0,
            suppressed=(3, 77),
        ),
        linear(int8_linear, 96, (192,), in_dtype="float16", epilogue=pairs, packed_out=True),
        linear(int8_linear, 96, (70,), epilogue=pairs),
        linear(
            int8_linear,
            160,
            (40,),
            8,
            epilogue=gate,
            ple_width=5 * 40,
            prologue=Norm(normed=False, eps=1e-6),
        ),
        linear(
            int8_linear,
            288,
            (576,),
            interleaved_out=True,
            epilogue=pairs,
            packed_out=True,
            prologue=Norm(scaled=True, eps=1e-6),
        ),
        linear(int8_linear, 288, (64, 9), weight_dtype="float32", prologue=Norm(eps=1e-6)),
        linear(int8_linear, 192, (77,), prologue=Combine(heads=3, head_dim=64, splits=5)),
        linear(
            int8_linear,
            96,
            (10,),
            in_dtype="float16",
            prologue=Combine(heads=3, head_dim=32, splits=8),
        ),
        linear(int8_linear, 416, (78,), prologue=Norm(scaled=True, count=2, eps=1e-6)),
        ExpertLinear(
            WeightLayout(4, "float16", 32, 96, (64 * 4, 64 * 8)),
            64,
            12,
            3,
            "float32",
            activations=INT8,
            output=PackedOutput(True),
        ),
        ExpertLinear(
            WeightLayout(8, "float32", 32, 32, (100 * 12,)),
            100,
            12,
            3,
            PACKED,
            activations=INT8,
            epilogue="none",
        ),
        linear(
            int8_linear,
            288,
            (192,),
            interleaved_out=True,
            epilogue=pairs,
            packed_out=True,
            prologue=Routed(experts=12, factor=0.06, router_dtype="float16", eps=1e-6),
        ),
        linear(
            int8_linear,
            160,
            (70,),
            8,
            epilogue=pairs,
            prologue=Routed(experts=7, factor=0.06, router_dtype="float16", eps=1e-6),
        ),
        ResidualNorm(ONE, 288, 1e-6, False, "float32", output=PackedOutput(False)),
        ResidualNorm(ONE, 1312, 1e-6, True, "float32", branches=2, output=PackedOutput(True)),
        CombineSplits(3, 96, 7, "float16", output=PackedOutput(True)),
        CombineSplits(3, 96, 7, "float32", output=PackedOutput(True)),
    ]


def of_model(preset: str, limits: str) -> list[Operator]:
    """The int8 operators of a released size."""
    spec = replace(target_spec("webgpu", limits), activations=QUANTIZED)
    found = one_of_a_form(operators(config_of(preset), "q4f16", spec, PART_BYTES))
    return [op for op in found if op.packs or op.variant.startswith(("int8", "quantized"))]


def packed_gates(x: Array, gate: Array, up: Array) -> Array:
    """Bytes of gelu(gate x) * (up x), gelu as the ramp that it is for large arguments."""
    y = (np.maximum(gate @ x, 0.0) * (up @ x)).reshape(-1, GROUP)
    largest = np.abs(y).max(axis=1, keepdims=True)
    return np.floor(y * (LEVELS / largest) + 0.5).astype(int)


@pytest.mark.parametrize(("cols", "rows"), [(96, 192), (2816, 5632)])
def test_a_byte_of_x_on_the_other_side_stays_within_the_bound(cols: int, rows: int) -> None:
    """Experts of 26B-A4B and the narrowest of the odd shapes, against NumPy in float64."""
    rng = np.random.default_rng(cols)
    x, gate, up = (rng.normal(size=shape) for shape in ((cols,), (rows, cols), (rows, cols)))
    unit = np.abs(x[:GROUP]).max() / LEVELS
    expected = packed_gates(x, gate, up)
    operator = ExpertLinear(
        WeightLayout(4, "float16", 32, cols, (rows,)),
        rows,
        1,
        1,
        "float32",
        activations=INT8,
        output=PackedOutput(False),
    )
    shares = []
    for channel in range(8):
        other = x.copy()
        other[channel] += unit
        moved = np.abs(packed_gates(other, gate, up) - expected)
        assert moved.max() <= 1
        shares.append(moved.mean())
    assert MOVED_BYTES < max(shares) <= operator.moved_share()


@pytest.mark.parametrize(("share", "limits"), under_limits(shares(odd_shapes(), 3)))
def test_kernels_of_odd_shapes(
    share: list[tuple[int, Operator]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(operator, seed) for seed, operator in share]

    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def several_tiles() -> list[Linear]:
    """Tiles that blocks share evenly and not, in several parts, with and without a epilogue."""
    pairs, gate = Epilogue.GELU_PAIRS.value, Epilogue.GELU_GATE.value
    return [
        linear(
            int8_linear,
            288,
            (576,),
            interleaved_out=True,
            epilogue=pairs,
            packed_out=True,
            prologue=Norm(scaled=True, eps=1e-6),
        ),
        linear(int8_linear, 288, (320,), epilogue=pairs, packed_out=True, prologue=Norm(eps=1e-6)),
        linear(int8_linear, 2816, (192, 200), weight_dtype="float32", prologue=Norm(eps=1e-6)),
        linear(
            int8_linear,
            160,
            (640,),
            8,
            epilogue=gate,
            ple_width=5 * 640,
            prologue=Norm(normed=False, eps=1e-6),
        ),
        linear(int8_linear, 2816, (392,), prologue=Norm(scaled=True, count=2, eps=1e-6)),
    ]


def with_few_blocks(spec: TargetSpec) -> TargetSpec:
    """The target under limits whose blocks take several tiles of `several_tiles`."""
    tuning = spec.tuning.int8_gemv
    few = replace(tuning, norm_threads=3 * tuning.threads)
    return replace(spec, tuning=replace(spec.tuning, int8_gemv=few))


@pytest.mark.slow
def test_blocks_that_norm_once_for_several_tiles(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    tiled = several_tiles()
    cases = [make_case(operator, seed) for seed, operator in enumerate(tiled)]
    spec = with_few_blocks(target_spec("webgpu", "default"))
    shapes = [(operator.layout.rows, int8_shape(operator, spec)) for operator in tiled]
    counts = [(-(-rows // shape.tile), shape.threads) for rows, shape in shapes]
    turns = [tiles_of_block(*count, spec.tuning.int8_gemv) for count in counts]
    assert min(turns) > 1
    assert any(tiles % turn for (tiles, _), turn in zip(counts, turns, strict=True))

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.parametrize(
    "share",
    shares([QuantizeRows(CHUNK, 1312, "float32", PackedOutput(False)), *odd_shapes()[4::2]], 3),
)
def test_kernels_of_odd_shapes_with_subgroups(
    share: list[tuple[int, Operator]], lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(operator, seed) for seed, operator in share]
    spec = replace(target_spec("webgpu", "subgroups"), simd_width=SUBGROUP)

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "limits"),
    [
        ("gemma-4-E2B-it", "h200"),
        # Odd shapes have these limits, and E2B the forms.
        pytest.param("gemma-4-31B-it", "compat", marks=pytest.mark.exhaustive),
    ],
)
def test_kernels_of_released_sizes(
    preset: str, limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    found = of_model(preset, limits)
    assert {operator.variant for operator in found} >= {
        "int8_linear",
        "quantized_combine",
        "quantized_norm",
    }
    cases = [make_case(operator, seed) for seed, operator in enumerate(found)]

    spec = target_spec("webgpu", limits)
    spec = replace(spec, simd_width=min(spec.simd_width, SUBGROUP))
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
