"""Metal's text of tensor operations: what TVM prints, and what becomes of it."""

from __future__ import annotations

import pytest

from gemma4_compile.operators.activations import HALVED
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.select import select
from gemma4_compile.targets.metal_tensors import HEADERS, write_tensors

FIRST = "#include <metal_stdlib>\nusing namespace metal;\n"
SPEC = target_spec("metal", "tensors")


def test_a_line_becomes_what_metal_has() -> None:
    printed = (
        f"{FIRST}  gemma4_tensor_put_halves((&(v[0])), (min(a, b) + 8), float4(c[0], d, e, f));\n"
    )
    assert write_tensors(printed) == (
        FIRST.replace("\n", f"\n{HEADERS}", 1)
        + "  ((threadgroup half4*)v)[(min(a, b) + 8)] = half4(float4(c[0], d, e, f));\n"
    )


def test_a_text_without_them_stays() -> None:
    text = f"{FIRST}  some_call((&(v[0])), 1);\n"
    assert write_tensors(text) == text


@pytest.mark.parametrize(("dtype", "left"), [("float16", "half"), ("float32", "float")])
def test_a_kernel_multiplies_tiles_of_its_threadgroup(dtype: str, left: str) -> None:
    """The left one in the type of x, so that a float32 beyond float16 keeps its value."""
    operator = Linear(CHUNK, WeightLayout(4, "float16", 32, 96, (64,)), dtype, activations=HALVED)
    text = kernel_source(select(operator, SPEC)(operator, SPEC), "tensor", SPEC)
    assert text.count(HEADERS) == 1
    assert "gemma4_tensor_" not in text
    inline = "dextents<int32_t, 2>, tensor_inline>("
    assert f"auto gemma4_left = tensor<threadgroup {left}, {inline}" in text
    assert f"auto gemma4_right = tensor<threadgroup half, {inline}" in text
    assert f"auto gemma4_stored = tensor<threadgroup float, {inline}" in text
    assert "matmul2d_descriptor(64, 64, 32, false, true, false, " in text
    assert "execution_simdgroups<4>" in text
    assert text.count("gemma4_product.run(gemma4_left, gemma4_right, gemma4_sums);") == 1
    # Two a step of channels, two around the sums; none in between is TVM's own.
    assert text.count("threadgroup_barrier(") == 4
    assert text.count("threadgroup float4 ") == 1
