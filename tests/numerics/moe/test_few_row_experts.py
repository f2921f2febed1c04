"""Experts of one to nine positions: the definitions against NumPy, the kernels against both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.activations import FLOAT32, INT8, PACKED, PackedOutput
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.rows import Few
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.tuning import FewRowTuning
from tests.fixed_scheme import FixedLayout
from tests.marks import shares, under_limits
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import values
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.numerics.linear.test_few_row_linear import packed_rows
from tests.numerics.linear.test_linear import COLS, LAYOUTS, close, gelu
from tests.numerics.moe.test_experts import (
    CHOICES,
    EXPERT_ROWS,
    PARTS,
    TOP_K,
    fields,
    run_in_calls,
    stack,
)
from tests.web.dawn import SUBGROUP, VulkanDriver

MOST = 9
DOWN = Epilogue.NONE.value


def exact(
    layout: WeightLayout, rows: int, in_dtype: str, top_k: int = 8, **more: Any
) -> ExpertLinear:
    """Twelve experts unless some are in other calls."""
    return ExpertLinear(layout, rows, 12, top_k, in_dtype, rows=Few(MOST), **more)


def int8(
    bits: int, cols: int, splits: tuple[int, ...], rows: int, top_k: int = 8, **more: Any
) -> ExpertLinear:
    layout = WeightLayout(bits, "float16", GROUP, cols, splits)
    packed = more.pop("packed_out", False)
    output = PackedOutput(more.pop("interleaved_out", False)) if packed else FLOAT32
    parts = {"activations": INT8, "output": output, **more}
    return ExpertLinear(layout, rows, 12, top_k, PACKED, rows=Few(MOST), **parts)


def quantized(bits: int, dtype: str, cols: int, *splits: int) -> WeightLayout:
    return WeightLayout(bits, dtype, GROUP, cols, splits)


# The positions are 1 to 9 by the place in this list; most experts are chosen by several.
OPERATORS: list[ExpertLinear] = [
    # Units that end within a lane's iterations, rows that end within a tile, several splits.
    exact(quantized(4, "float16", 416, 80 * 8, 80 * 4), 80, "float16"),
    int8(4, 416, (80 * 8, 80 * 4), 80),
    exact(quantized(8, "float32", 160, 72 * 12), 72, "float32", epilogue=DOWN),
    int8(4, 96, (72 * 8, 72 * 4), 72, epilogue=DOWN),
    int8(8, 160, (40 * 12,), 40, top_k=3),
    # Experts that are in other calls keep what those left.
    exact(quantized(4, "float32", 96, 40 * 5), 40, "float32", expert_begin=4, accumulate=True),
    int8(4, 96, (40 * 2, 40 * 2), 40, epilogue=DOWN, expert_begin=8, accumulate=True),
    exact(WeightLayout(0, "float16", 0, 44, (70 * 12,)), 70, "float16", top_k=5, epilogue=DOWN),
    # Nine positions, channels that no vector divides.
    exact(WeightLayout(0, "float32", 0, 37, (10 * 12,)), 10, "float32", top_k=1),
    exact(FixedLayout(0, "float32", 0, 96, (64 * 7, 64 * 5)), 64, "float32"),
    int8(8, 1536, (130 * 12,), 130, epilogue=DOWN),
    # Products that are packed.
    int8(4, 416, (64 * 8, 64 * 4), 64, packed_out=True, interleaved_out=True),
    int8(8, 64, (192 * 12,), 192, top_k=3, packed_out=True),
]


def cases_of(operators: Sequence[ExpertLinear]) -> list[KernelCase]:
    return numbered_cases(list(enumerate(operators)))


def numbered_cases(operators: Sequence[tuple[int, ExpertLinear]]) -> list[KernelCase]:
    return [make_case(one, seed, rows=1 + seed % MOST) for seed, one in operators]


def exact_operators() -> list[ExpertLinear]:
    return [one for one in OPERATORS if not one.is_int8]


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize(("parts", "calls"), [(PARTS[0], 1), (PARTS[1], 3)])
@pytest.mark.parametrize(
    ("bits", "dtype"), [LAYOUTS[0], pytest.param(*LAYOUTS[-1], marks=pytest.mark.slow)]
)
def test_pairs_are_multiplied_with_their_experts(
    bits: int, dtype: str, parts: tuple[int, ...], calls: int, name: str
) -> None:
    ids = CHOICES[name].astype(np.int32)
    tensors, matrices = stack(bits, dtype, parts)
    chosen = matrices[ids.reshape(-1)]
    x, y = values(1, len(ids), COLS), values(2, ids.size, COLS)
    gated = np.zeros((ids.size, EXPERT_ROWS // 2), np.float32)
    out = np.zeros((ids.size, EXPERT_ROWS), np.float32)

    layout = fields(bits, dtype, parts, "float32")
    weights, most = (tensors, parts, layout), {"rows": Few(len(ids))}
    run_in_calls([x, ids], weights, calls, gated, **most)
    run_in_calls([y, ids], weights, calls, out, epilogue=DOWN, **most)

    sums = np.einsum("prc,pc->pr", chosen, np.repeat(x, TOP_K, axis=0))
    close(gated, gelu(sums[:, 0::2]) * sums[:, 1::2])
    close(out, np.einsum("prc,pc->pr", chosen, y))


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_pairs_are_multiplied_with_their_experts(bits: int) -> None:
    ids = CHOICES["spread"].astype(np.int32)
    tensors, matrices = stack(bits, "float16", PARTS[1])
    words, scales, x = packed_rows(bits, ids.size, COLS)
    out = np.zeros((ids.size, EXPERT_ROWS), np.float32)

    weights = (tensors, PARTS[1], fields(bits, "float16", PARTS[1], PACKED))
    more: dict[str, Any] = {"epilogue": DOWN, "rows": Few(MOST), "activations": INT8}
    run_in_calls([words, scales, ids], weights, 1, out, **more)

    close(out, np.einsum("prc,pc->pr", matrices[ids.reshape(-1)], x))


@pytest.mark.dawn
@pytest.mark.parametrize(("share", "limits"), under_limits(shares(OPERATORS, 5, left=2)))
def test_kernels_of_odd_shapes(
    share: list[tuple[int, ExpertLinear]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = numbered_cases(share)

    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.dawn
@pytest.mark.parametrize("share", shares(OPERATORS[:4], 3))
def test_kernels_of_another_division(
    share: list[tuple[int, ExpertLinear]], lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(one, seed, rows=MOST - seed) for seed, one in share]
    spec = replace(target_spec("webgpu", "subgroups"), simd_width=SUBGROUP)
    tuning = replace(spec.tuning, few_rows=FewRowTuning(threads=256, items_per_lane=1))

    results = run_on_dawn(cases, replace(spec, tuning=tuning), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
