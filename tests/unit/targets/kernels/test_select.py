"""Which kernel runs where, as a table: a row an operator of E2B's or 26B-A4B's sizes.

Where a choice is meant to change, take the new table from this test's message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.activations import (
    HALVED,
    HALVED_INT8,
    IN_ORDER,
    INT8,
    PACKED,
    SCALED_HALVES,
    STEPPED_INT8,
    PackedOutput,
    SteppedOutput,
)
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.divided_attention import DividedAttention
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.halved_rows import HalveRows
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.linear_pair import LinearPair
from gemma4_compile.operators.norms import ResidualNorm, RmsNorm
from gemma4_compile.operators.packed_texts import SpanAttention
from gemma4_compile.operators.prologues import Combine, Norm
from gemma4_compile.operators.rows import CHUNK, ONE, Few, Joint, OneOf
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.operators.static_rounding import RoundToStep
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.quantization.rows import RowScheme
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.select import ONE_KERNEL, select, select_host
from tests.matmuls import int8_linear

F16, MOST = "float16", 9
LAYOUT = WeightLayout(4, F16, 32, 1536, (12288,))
BYTES = WeightLayout(8, F16, 32, 768, (3072,))
BY_ROWS, STEPS = RowScheme(2).layout(1536, (262144,)), SteppedOutput((262144,), True)

EXPERTS = ExpertLinear(WeightLayout(4, F16, 32, 2816, (128 * 1408,)), 1408, 128, 8, "float32")
NORM = ResidualNorm(CHUNK, 2816, 1e-6, True, F16)
ATTENTION = SplitAttention(ONE, 8, 1, 256, 512, F16, 1024, splits=8, grain=64)
OF_CHUNK = PrefillAttention(CHUNK, 8, 1, 256, 512, F16, 1024, F16)

OPERATORS: Mapping[str, Operator] = {
    "one row": Linear(ONE, LAYOUT, F16),
    "one row, normed": Linear(ONE, LAYOUT, F16, prologue=Norm(eps=1e-6)),
    "one row, combined": Linear(ONE, LAYOUT, F16, prologue=Combine(8, 256, 4)),
    "one row, beside another": LinearPair(Linear(ONE, LAYOUT, F16), Linear(ONE, BYTES, F16), False),
    "few rows": Linear(Few(MOST), LAYOUT, F16),
    "chunk": Linear(CHUNK, LAYOUT, F16),
    "one row, int8": int8_linear(ONE, LAYOUT, PACKED),
    "one row, int8, normed": int8_linear(ONE, LAYOUT, F16, prologue=Norm(eps=1e-6)),
    "one row, int8, combined": int8_linear(ONE, LAYOUT, F16, prologue=Combine(8, 256, 4)),
    "gate and up of one row, int8": int8_linear(
        ONE, LAYOUT, F16, "gelu_pairs", packed_out=True, prologue=Norm(eps=1e-6)
    ),
    "head of one row, int8": int8_linear(ONE, BYTES, PACKED, "softcap", cap=30.0),
    "few rows, int8": int8_linear(Few(MOST), LAYOUT, PACKED),
    "few rows, int8, floats": int8_linear(Few(MOST), LAYOUT, F16),
    "one row, steps": Linear(ONE, BY_ROWS, "float32", activations=STEPPED_INT8, output=STEPS),
    "few rows, steps": Linear(Few(MOST), BY_ROWS, PACKED, activations=STEPPED_INT8, output=STEPS),
    "chunk, steps": Linear(CHUNK, BY_ROWS, PACKED, activations=STEPPED_INT8, output=STEPS),
    "rounding to steps": RoundToStep(1536, "float32", 2, IN_ORDER),
    "chunk, int8": int8_linear(CHUNK, LAYOUT, PACKED),
    "gate and up of a chunk, int8": int8_linear(CHUNK, LAYOUT, PACKED, "gelu_pairs"),
    "chunk, by float16": Linear(CHUNK, LAYOUT, F16, activations=HALVED),
    "chunk, int8 as float16": Linear(CHUNK, LAYOUT, PACKED, activations=HALVED_INT8),
    "chunk, int8 as float16 before": Linear(CHUNK, LAYOUT, PACKED, activations=SCALED_HALVES),
    "rows as float16": HalveRows(CHUNK, 64, True),
    "tower": BoundedLinear(CHUNK, BYTES, F16),
    "tower, float32": BoundedLinear(CHUNK, replace(BYTES, dtype="float32"), "float32"),
    "patches": PatchAttention(12, 64, 3, F16, F16),
    "gate and up of experts": EXPERTS,
    "down of experts": replace(EXPERTS, epilogue="none"),
    "gate and up of experts, int8": replace(EXPERTS, activations=INT8),
    "down of experts, int8": replace(EXPERTS, epilogue="none", activations=INT8),
    "experts of few rows": replace(EXPERTS, rows=Few(MOST)),
    "experts of few rows, int8": replace(EXPERTS, rows=Few(MOST), activations=INT8),
    "experts of a chunk": replace(EXPERTS, rows=CHUNK),
    "experts of a chunk, int8": replace(EXPERTS, rows=CHUNK, in_dtype=PACKED, activations=INT8),
    "experts of a chunk, by float16": replace(EXPERTS, rows=CHUNK, activations=HALVED),
    "experts of a chunk, int8 as float16": replace(
        EXPERTS, rows=CHUNK, in_dtype=PACKED, activations=HALVED_INT8
    ),
    "norm": NORM,
    "norm, packed": replace(NORM, rows=ONE, output=PackedOutput()),
    "norm of few rows, packed": replace(NORM, rows=Few(MOST), output=PackedOutput()),
    "norm after experts": replace(NORM, branches=2),
    "norm after experts of few rows, packed": replace(
        NORM, rows=Few(MOST), branches=2, top_k=8, output=PackedOutput()
    ),
    "attention of a chunk": OF_CHUNK,
    "attention of a chunk, rounded": replace(OF_CHUNK, rounds_to_halves=True),
    "attention of a chunk, divided": DividedAttention(
        **{**vars(OF_CHUNK), "window": None, "cache_rows": None, "rounds_to_halves": True},
        blocks=132,
        places=1056,
    ),
    "attention of texts": SpanAttention(4, 2, 256, 512, F16, F16),
    "attention of one row": ATTENTION,
    "attention of few rows": replace(ATTENTION, rows=Few(MOST)),
    "attention of several sequences": replace(ATTENTION, rows=Joint(MOST)),
    "attention of one of several": replace(ATTENTION, rows=OneOf(MOST)),
}
TARGETS: Mapping[str, TargetSpec] = {
    name: target_spec(*name.split("/"))
    for name in (
        "webgpu/default",
        "webgpu/h200",
        "webgpu/h200-matrices",
        "metal",
        "metal/simdgroups",
        "metal/tensors",
        "cuda",
    )
}

TABLE = """
one row: linear/gemv
one row, normed: linear/gemv
one row, combined: linear/gemv
one row, beside another: linear/gemv_pair
few rows: linear/few_row_gemv
chunk: linear/gemm
    metal/simdgroups: linear/simdgroup_gemm
    metal/tensors: linear/simdgroup_gemm
one row, int8: linear/gemv
one row, int8, normed: linear/gemv
one row, int8, combined: linear/gemv
gate and up of one row, int8: linear/gemv
head of one row, int8: linear/gemv
few rows, int8: linear/few_row_gemv
    cuda: linear/few_rows_on_tensor_cores
few rows, int8, floats: linear/few_row_gemv
one row, steps: linear/gemv
few rows, steps: linear/few_row_gemv
chunk, steps: linear/gemm
    cuda: linear/byte_tensor_core_gemm
rounding to steps: common/pointwise
chunk, int8: linear/gemm
    cuda: linear/byte_tensor_core_gemm
gate and up of a chunk, int8: linear/gemm
    cuda: linear/byte_tensor_core_gemm
chunk, by float16: linear/tensor_gemm
chunk, int8 as float16: linear/subgroup_matrix_chunk
    cuda: linear/warpgroup_gemm
chunk, int8 as float16 before: linear/subgroup_matrix_chunk
rows as float16: linear/halve_rows
tower: linear/bounded_gemm
    webgpu/h200-matrices: linear/subgroup_matrix_gemm
    metal/simdgroups: linear/simdgroup_bounded_gemm
    metal/tensors: linear/tensor_bounded_gemm
    cuda: linear/tensor_core_gemm
tower, float32: linear/bounded_gemm
    metal/simdgroups: linear/simdgroup_bounded_gemm
    metal/tensors: linear/simdgroup_bounded_gemm
patches: attention/patch_attention
    webgpu/h200-matrices: attention/subgroup_matrix_attention
    metal/simdgroups: attention/simdgroup_patch_attention
    metal/tensors: attention/simdgroup_patch_attention
    cuda: attention/tensor_core_attention
gate and up of experts: moe/expert_gate_up
down of experts: moe/expert_down
gate and up of experts, int8: moe/int8_expert_gate_up
down of experts, int8: moe/int8_expert_down
experts of few rows: moe/few_row_experts
experts of few rows, int8: moe/few_row_experts
    cuda: moe/few_row_expert_tensor_cores
experts of a chunk: moe/expert_gemm
experts of a chunk, int8: moe/expert_gemm
    cuda: moe/byte_tensor_core_experts
experts of a chunk, by float16: moe/tensor_experts
experts of a chunk, int8 as float16: moe/subgroup_matrix_experts
norm: norms/residual_norm
norm, packed: linear/quantized_norm
norm of few rows, packed: linear/quantized_few_row_norm
norm after experts: moe/expert_residual_norm
norm after experts of few rows, packed: moe/expert_residual_norm
attention of a chunk: attention/prefill_attention
    metal/simdgroups: attention/simdgroup_chunk_attention
    metal/tensors: attention/simdgroup_chunk_attention
attention of a chunk, rounded: attention/prefill_attention
    webgpu/h200-matrices: attention/subgroup_matrix_chunk_attention
    cuda: attention/tensor_core_chunk_attention
attention of a chunk, divided: attention/tensor_core_divided_chunk
attention of texts: attention/span_attention
    metal/simdgroups: attention/simdgroup_span_attention
    metal/tensors: attention/simdgroup_span_attention
attention of one row: attention/decode_attention
attention of few rows: attention/few_row_attention
attention of several sequences: attention/decode_attention
attention of one of several: attention/decode_attention
""".strip()


def table() -> str:
    """Rows of operators: the kernel of each target, once where it is the same everywhere."""
    lines = []
    for name, operator in OPERATORS.items():
        made = {target: _name(operator, spec) for target, spec in TARGETS.items()}
        usual = made["webgpu/default"]
        others = [f"{target}: {kernel}" for target, kernel in made.items() if kernel != usual]
        lines.append("\n    ".join((f"{name}: {usual}", *others)))
    return "\n".join(lines)


def _name(operator: Operator, spec: TargetSpec) -> str:
    factory = select(operator, spec)
    room = factory.__module__.split(".")[-2]
    return f"{room}/{factory.__name__.removeprefix('make_')}"


def test_the_table_of_kernels() -> None:
    assert table() == TABLE


def test_every_kind_has_one_place() -> None:
    chosen = {type(operator).kind for operator in OPERATORS.values()} - set(ONE_KERNEL)
    for operator in OPERATORS.values():
        by_table = ONE_KERNEL.get(operator.kind)
        assert by_table is None or select(operator, TARGETS["cuda"]) is by_table
    assert {"linear", "bounded_linear", "patch_attention", "expert_linear"} <= chosen


def test_cpus_have_kernels_of_matmuls_and_attention() -> None:
    made = {name: select_host(operator) for name, operator in OPERATORS.items()}
    own = {name for name, factory in made.items() if factory is not None}
    kinds = {OPERATORS[name].kind for name in own}
    assert {"linear", "bounded_linear", "prefill_attention", "split_attention"} <= kinds
    assert all(name in own for name, one in OPERATORS.items() if one.kind in kinds)
    assert "experts" not in " ".join(own), "their definitions run"


def test_an_operator_without_a_kernel_is_refused() -> None:
    class Unknown(RmsNorm):
        kind = "unknown_of_this_test"

    with pytest.raises(LoweringError, match="no `metal` kernel for operator `unknown_of_this"):
        make_kernel(Unknown(ONE, 64, 1e-6, F16), TARGETS["metal"])
