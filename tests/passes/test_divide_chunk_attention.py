"""Before and Expected of a chunk's attention that has memory for splits of its keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.divided_attention import DividedAttention
from gemma4_compile.operators.heads import CachePart
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.passes.divide_chunk_attention import divide_chunk_attention
from gemma4_compile.passes.fusion_limits import fusion_limits
from gemma4_compile.targets import TargetSpec, target_spec
from tests.passes.operator_modules import F32, Tensors, assert_same, call, module, rewritten

N, F16 = tirx.Var("n", "int64"), "float16"
CUDA = target_spec("cuda")
LIMITS = fusion_limits(CUDA)
UNDIVIDED = replace(CUDA.tuning.short_chunks, divides_keys=False)
FULL = PrefillAttention(CHUNK, 8, 1, 64, None, F16, None, out_dtype=F16, rounds_to_halves=True)
BLOCKS, PLACES = 132, 528  # 132 blocks of 32 rows with 8 heads


def inputs_of(heads: int) -> dict[str, TensorSpec]:
    cache = ((tirx.Var("capacity", "int64"), 1, 64), F16)
    return {
        "q": ((N, heads * 64), F32),
        "key": cache,
        "value": cache,
        "positions": ((4,), "int32"),
    }


def whole(operator: PrefillAttention) -> tvm.IRModule:
    def body(x: Tensors) -> list[nn.Tensor]:
        result = ((N, operator.heads * 64), operator.out_dtype)
        return call(operator, list(x.values()), result)

    return module(inputs_of(operator.heads), body)


def test_a_full_layer_has_memory_for_splits_of_its_keys() -> None:
    def divided(x: Tensors) -> list[nn.Tensor]:
        operator = DividedAttention(
            CHUNK,
            8,
            1,
            64,
            None,
            F16,
            None,
            out_dtype=F16,
            rounds_to_halves=True,
            blocks=BLOCKS,
            places=PLACES,
        )
        memory = ((PLACES, 8, 64), F32), ((PLACES, 8, 2), F32)
        return call(operator, list(x.values()), ((N, 8 * 64), F16), *memory)[:1]

    after = rewritten(whole(FULL), LIMITS, divide_chunk_attention)
    assert_same(after, module(inputs_of(8), divided))


STAY = {
    "a window is soon read": replace(FULL, window=40, cache_rows=64),
    "many heads are many blocks": replace(FULL, heads=16),
    "no matrix unit": replace(FULL, rounds_to_halves=False),
    "rows that are copies": replace(FULL, has_copies=True),
}


@pytest.mark.parametrize("name", STAY)
def test_other_attention_stays(name: str) -> None:
    before = whole(STAY[name])
    assert_same(rewritten(before, LIMITS, divide_chunk_attention), before)


def test_parts_of_the_keys_stay() -> None:
    assert LIMITS.divided is not None
    assert LIMITS.divided(FULL) is not None
    assert LIMITS.divided(replace(FULL, part=CachePart(0, 2))) is None


@pytest.mark.parametrize(
    "spec",
    [
        replace(CUDA, tuning=replace(CUDA.tuning, short_chunks=UNDIVIDED)),
        target_spec("webgpu", "h200-matrices"),
        target_spec("metal", "simdgroups"),
    ],
    ids=["told not to", "webgpu", "metal"],
)
def test_other_targets_leave_it(spec: TargetSpec) -> None:
    before = whole(FULL)
    assert_same(rewritten(before, fusion_limits(spec), divide_chunk_attention), before)
