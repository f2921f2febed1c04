"""A chunk's matmuls and experts in subgroup matrices, emulated, against the definition, on Dawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.operators.activations import HALVED_INT8, PACKED, SCALED_HALVES
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.halved_rows import HalveRows
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets.tuning import SubgroupMatrixTuning, TensorCoreTuning
from tests.marks import shares
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.emulated_matrices import OF_ALL_ROWS, emulated_spec
from tests.numerics.kernel_cases import (
    KernelCase,
    differences,
    make_case,
    one_of_a_form,
    operators,
)
from tests.numerics.test_kernels import config_of
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

SPEC = emulated_spec()
GROUP = 32
PAIRS, GATE, CAPPED, DOWN = (
    one.value for one in (Epilogue.GELU_PAIRS, Epilogue.GELU_GATE, Epilogue.SOFTCAP, Epilogue.NONE)
)


def groups(bits: int, cols: int, *rows: int) -> WeightLayout:
    return WeightLayout(bits, "float16", GROUP, cols, rows)


def minima(cols: int, *rows: int) -> MinimaLayout:
    return MinimaLayout(4, "uint32", GROUP, cols, rows)


def halved(layout: WeightLayout, epilogue: str = DOWN, **fields: Any) -> Linear:
    return Linear(CHUNK, layout, PACKED, epilogue, activations=SCALED_HALVES, **fields)


def experts(layout: WeightLayout, rows: int, **fields: Any) -> ExpertLinear:
    return ExpertLinear(layout, rows, 6, 3, PACKED, activations=HALVED_INT8, rows=CHUNK, **fields)


OPERATORS: tuple[Operator, ...] = (
    # Rows that end within a tile, a tile in two parts; one group, odd numbers of them.
    halved(groups(4, 96, 64, 64, 40)),
    halved(groups(8, 160, 200), PAIRS),
    experts(groups(4, 96, 80 * 4, 80 * 2), 80),
    halved(groups(6, 96, 64, 40), GATE, ple_width=5 * 104),
    halved(minima(288, 64, 64, 40)),
    halved(groups(4, 32, 70), CAPPED, cap=30.0, suppressed=(3, 69)),
    experts(groups(8, 32, 24 * 6), 24, epilogue=DOWN),
    experts(minima(96, 40 * 4), 40, epilogue=DOWN, expert_begin=2, accumulate=True),
    experts(groups(6, 96, 40 * 6), 40),
)
TILES = {
    "64x64": TensorCoreTuning(64, 64, 32, 32, 32),
    "wide": SubgroupMatrixTuning().wide,
    "narrow": SubgroupMatrixTuning().narrow,
    "medium": SubgroupMatrixTuning().medium,
}


def one_tile(name: str) -> SubgroupMatrixTuning:
    return SubgroupMatrixTuning(wide=TILES[name], narrow_to=0, medium_to=0)


SOME, OTHERS = shares(OPERATORS, 5)
FEW = list(enumerate(OPERATORS))[::4]  # a driver in software takes seconds for each
# `test_released_widths` has matrices with minima in a wide tile.
OF_TILE = [("wide", FEW[::2]), ("narrow", FEW), ("medium", FEW)]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param("64x64", *SOME.values, id="some"),
        pytest.param("64x64", *OTHERS.values, id="others", marks=pytest.mark.slow),
        *(pytest.param(name, few, id=name, marks=pytest.mark.slow) for name, few in OF_TILE),
    ],
)
def test_tiles_compute_the_definition(
    share: list[tuple[int, Operator]], name: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = emulated_spec(subgroup_matrices=one_tile(name))
    cases = [make_case(operator, seed) for seed, operator in share]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def scaled_case(operator: Linear | HalveRows, factors: np.ndarray[Any, Any]) -> KernelCase:
    """A case whose row i of x is `factors[i]` times as large."""
    case = make_case(operator, 7, rows=len(factors))
    args = tuple(arg if isinstance(arg, int) else arg.copy() for arg in case.args)
    names = [param.name for param in operator.prim_func().params]
    scales = args[names.index("scales")]
    assert not isinstance(scales, int)
    scales *= factors[:, None].astype(np.float32)
    after = tuple(arg if isinstance(arg, int) else arg.copy() for arg in args)
    run(operator, *after)
    arrays = tuple(one for i in case.changed if not isinstance(one := after[i], int))
    return replace(case, args=args, expected=arrays)


@pytest.mark.slow
def test_rows_beyond_float16_keep_their_accuracy(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    operator = replace(halved(groups(4, 96, 64)), activations=HALVED_INT8)
    factors = np.array([1e-20, 1e-7, 1e-3, 1.0, 1e5, 1e12, 0.0])
    case = scaled_case(operator, factors)
    spec = emulated_spec(subgroup_matrices=one_tile("64x64"))

    ((found,),) = run_on_dawn([case], spec, lavapipe, tmp_path)

    (expected,) = case.expected
    largest = np.abs(expected.astype(np.float64)).max(axis=1)
    error = np.abs(found.astype(np.float64) - expected).max(axis=1)
    assert (error <= operator.tolerance("y") * largest).all(), error / largest
    assert largest[-1] == 0 < largest[:-1].min()


@pytest.mark.parametrize("interleaved", [True, False])
def test_packed_rows_become_float16(
    interleaved: bool, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    factors = np.array([1e-20, 1e-7, 1.0, 1e12, 0.0])
    cases = [
        make_case(HalveRows(CHUNK, 1312, interleaved), 1),
        scaled_case(HalveRows(CHUNK, 96, interleaved), factors),
    ]
    results = run_on_dawn(cases, SPEC, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)
    halves, powers = cases[1].expected
    assert np.isfinite(halves).all()
    assert (powers[:-1] > 0).all()
    assert powers[-1] == 0


PART_BYTES = 4 << 20  # so that matrices of released widths have several parts
MOST_ROWS = 136  # of a part of W, for time's sake: they end within a tile of every size


def with_few_rows(operator: Linear) -> Linear:
    rows = tuple(min(count, MOST_ROWS) for count in operator.layout.split_rows)
    return replace(operator, layout=replace(operator.layout, split_rows=rows))


def by_tile(found: Iterable[Linear]) -> dict[TensorCoreTuning, list[Linear]]:
    """Operators by the tile that all rows of their W have; of a layout's the one of most parts."""
    most: dict[tuple[object, ...], Linear] = {}
    for one in sorted(found, key=lambda one: len(one.layout.split_rows)):
        layout = one.layout
        most[type(layout), layout.bits, layout.cols, one.epilogue] = one
    tiles: dict[TensorCoreTuning, list[Linear]] = {}
    for one in most.values():
        tiles.setdefault(OF_ALL_ROWS.tile(one.layout.rows), []).append(one)
    return tiles


@pytest.mark.slow
def test_released_widths(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    spec = emulated_spec(subgroup_matrices=OF_ALL_ROWS)
    every = operators(config_of("gemma-4-E2B-it"), "q4kf16m", spec, PART_BYTES)
    halves = [one for one in every if isinstance(one, Linear | ExpertLinear) and one.in_halves]
    of_chunks = [one for one in every if getattr(one, "rows", None) == CHUNK]
    left = [one for one in of_chunks if isinstance(one, Linear | ExpertLinear) and one.is_int8]
    assert left == halves, "all of them multiply float16"
    forms = [one for one in one_of_a_form(halves) if isinstance(one, Linear)]
    assert {one.layout.cols for one in forms} == {1536, 4096}
    tiles = by_tile(forms)
    assert set(tiles) == {OF_ALL_ROWS.narrow, OF_ALL_ROWS.medium, OF_ALL_ROWS.wide}
    wrong: list[str] = []
    for index, (tile, of_tile) in enumerate(tiles.items()):
        # Few rows would all be narrow: each has the tile that it has in the released model.
        tuning = replace(OF_ALL_ROWS, narrow_to=0, medium_to=0, wide=tile)
        cases = [make_case(with_few_rows(one), seed) for seed, one in enumerate(of_tile)]
        (folder := tmp_path / str(index)).mkdir()
        spec = emulated_spec(subgroup_matrices=tuning)
        wrong += differences(cases, run_on_dawn(cases, spec, lavapipe, folder))
    assert not wrong, "\n".join(wrong)
