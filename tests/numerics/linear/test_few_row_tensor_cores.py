"""Which matmuls of a few rows are products of bytes; tests/metal and test_cuda.py run them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.common.blocks import MIN_BLOCKS
from gemma4_compile.targets.kernels.tiles.tensor_cores import MULTIPLY_ADD_BYTES
from tests.fixed_scheme import FixedLayout
from tests.numerics.linear.test_few_row_linear import exact, int8

OPERATORS: list[tuple[Linear, bool]] = [
    (int8(4, 416, (72,)), True),
    (int8(8, 416, (72,), "float32"), True),
    (replace(int8(4, 416, (72,)), in_dtype="float32"), False),  # rounds its rows itself
    (exact(WeightLayout(4, "float16", 32, 96, (40,)), "float16"), False),
    (exact(FixedLayout(0, "float32", 0, 96, (64,)), "float32"), False),
]


@pytest.mark.parametrize(("operator", "fits"), OPERATORS)
def test_packed_rows_meet_integers_on_tensor_cores(operator: Linear, fits: bool) -> None:
    spec = target_spec("cuda")
    sizes = replace(spec.tuning.few_row_tensor_cores, min_rows=1)
    spec = replace(spec, tuning=replace(spec.tuning, few_row_tensor_cores=sizes))
    without = replace(spec, tensor_cores=False)
    kernel = str(make_kernel(operator, spec).script())
    assert (MULTIPLY_ADD_BYTES in kernel) == (MIN_BLOCKS in kernel) == fits
    assert MULTIPLY_ADD_BYTES not in str(make_kernel(operator, without).script())


@pytest.mark.parametrize(("rows", "fits"), [(256, False), (512, True)])
def test_a_matrix_of_few_rows_has_another_kernel(rows: int, fits: bool) -> None:
    kernel = make_kernel(int8(8, 416, (rows,)), target_spec("cuda"))
    assert (MULTIPLY_ADD_BYTES in str(kernel.script())) == fits
