"""Before and Expected of functions with a few rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.compile.build import build_module, calls_of, decoder_options
from gemma4_compile.model_spec.component import FEW_ROWS_ATTR
from gemma4_compile.model_spec.layers.attention import AttentionOptions
from gemma4_compile.model_spec.layers.kv_cache import KvLimits
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.operators.activation_quantization import (
    QuantizeRows,
    quantized_specs,
)
from gemma4_compile.operators.activations import PACKED, PackedOutput
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from gemma4_compile.passes.few_rows import few_rows
from gemma4_compile.passes.fusion_limits import CPU_SPLITS, FusionLimits
from gemma4_compile.passes.split_matmuls import split_matmuls
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.spec import INT8
from gemma4_compile.targets.tuning import FusionTuning
from tests.matmuls import int8_linear
from tests.passes.operator_modules import (
    F32,
    Tensors,
    assert_same,
    call,
    kinds,
    module,
    rewritten,
    weights,
)
from tests.unit.model_spec.drafter.test_parameters import drafted

MOST = 9
LAYOUT = WeightLayout(4, "float16", 32, 64, (16, 16, 8))
LIMITS = FusionLimits(None, few_rows=CPU_SPLITS)
N = tirx.Var("n", "int64")
INPUTS = {
    "x": ((N, 64), F32),
    "words": quantized_specs(64, N)[0],
    "scales": quantized_specs(64, N)[1],
    **weights(LAYOUT),
}
TENSORS = list(weights(LAYOUT))


def of_few_rows(whole: tvm.IRModule) -> tvm.IRModule:
    whole["main"] = whole["main"].with_attr(FEW_ROWS_ATTR, MOST)
    return whole


def before(x: Tensors) -> list[nn.Tensor]:
    of_weights = [x[name] for name in TENSORS]
    floats = Linear(CHUNK, LAYOUT, F32, suppressed=(3, 33))
    packed = int8_linear(CHUNK, LAYOUT, PACKED)
    return [
        *call(floats, [x["x"], *of_weights], ((N, 40), F32)),
        *call(packed, [x["words"], x["scales"], *of_weights], ((N, 40), F32)),
    ]


def expected(x: Tensors) -> list[nn.Tensor]:
    of_weights = [x[name] for name in TENSORS]
    floats = Linear(Few(MOST), LAYOUT, F32, suppressed=(3, 33))
    packed = int8_linear(Few(MOST), LAYOUT, PACKED)
    return [
        *call(floats, [x["x"], *of_weights], ((N, 40), F32)),
        *call(packed, [x["words"], x["scales"], *of_weights], ((N, 40), F32)),
    ]


def test_matmuls_of_all_rows_are_of_few() -> None:
    after = rewritten(of_few_rows(module(INPUTS, before)), LIMITS, few_rows)
    assert_same(after, of_few_rows(module(INPUTS, expected)))


def test_functions_that_may_have_many_rows_and_targets_without_such_kernels_stay() -> None:
    many = module(INPUTS, before)
    assert_same(rewritten(many, LIMITS, few_rows), many)
    few = of_few_rows(module(INPUTS, before))
    assert_same(rewritten(few, replace(LIMITS, few_rows=None), few_rows), few)


def test_attention_is_in_splits_of_its_keys() -> None:
    cache = ((64, 2, 16), "float16")
    inputs = {
        "q": ((N, 64), F32),
        "key": cache,
        "value": cache,
        "positions": ((4,), "int32"),
    }
    common: dict[str, Any] = {
        "rows": Few(MOST), "heads": 4, "kv_heads": 2, "head_dim": 16, "window": 40,
        "cache_dtype": "float16", "cache_rows": 64,
    }  # fmt: skip
    options = AttentionOptions(sliding_splits=8, full_splits=2, max_blocks=10, split_channels=128)

    def whole(x: Tensors) -> list[nn.Tensor]:
        operator = PrefillAttention(**common, out_dtype="float16")
        return call(operator, [x[name] for name in inputs], ((N, 64), "float16"))

    def divided(x: Tensors) -> list[nn.Tensor]:
        # One row's window is five splits of eight keys; nine rows see eight keys more.
        operator = SplitAttention(**common, splits=6, grain=8)
        results = ((N, 6, 4, 16), "float16"), ((N, 6, 4, 2), F32)
        partial = call(operator, [x[name] for name in inputs], *results)
        combine = CombineSplits(4, 16, 6, "float16", Few(MOST))
        return call(combine, partial, ((N, 64), "float16"))

    limits = replace(LIMITS, few_rows=options)
    after = rewritten(of_few_rows(module(inputs, whole)), limits, few_rows)
    assert_same(after, of_few_rows(module(inputs, divided)))


SHARED_INPUTS: dict[str, TensorSpec] = {
    "projected": ((N, 64), F32),
    "q_norm": ((16,), F32),
    "positions": ((4,), "int32"),
    "rotary": ((tirx.Var("chunk", "int64"), 12, 2), F32),
    "key": ((64, 2, 16), F32),
    "value": ((64, 2, 16), F32),
}


@pytest.mark.parametrize("has_copies", [False, True])
@pytest.mark.parametrize("max_buffers", [8, 7])
def test_attention_norms_its_queries_itself(max_buffers: int, has_copies: bool) -> None:
    """A layer that has no keys of its own; eight buffers are all that some browsers bind."""
    common: dict[str, Any] = {
        "rows": Few(MOST), "heads": 4, "kv_heads": 2, "head_dim": 16, "cache_dtype": F32,
        "cache_rows": 64,
    }  # fmt: skip
    rotation: dict[str, Any] = {"pairs": 8, "rotary_offset": 4, "rotary_total": 12, "eps": 1e-6}
    attended = ((N, 64), F32)
    results = ((N, 1, 4, 16), F32), ((N, 1, 4, 2), F32)

    def before(x: Tensors) -> list[nn.Tensor]:
        prepare = QkNormRopeCache(
            **common, **rotation, owns_kv=False, value_is_key=False, has_copies=has_copies
        )
        own = [x[name] for name in ("projected", "q_norm", "positions", "rotary")]
        (q,) = call(prepare, own, attended)
        operator = PrefillAttention(**common, window=40, has_copies=has_copies)
        return call(operator, [q, x["key"], x["value"], x["positions"]], attended)

    def expected(x: Tensors) -> list[nn.Tensor]:
        operator = SplitAttention(**common, window=40, splits=1, query=NormedQuery(**rotation))
        names = ("projected", "key", "value", "positions", "q_norm", "rotary")
        partial = call(operator, [x[name] for name in names], *results)
        return call(CombineSplits(4, 16, 1, F32, Few(MOST)), partial, attended)

    limits = replace(LIMITS, max_buffers=max_buffers)
    after = rewritten(of_few_rows(module(SHARED_INPUTS, before)), limits, few_rows)
    if max_buffers == 8 and not has_copies:
        assert_same(after, of_few_rows(module(SHARED_INPUTS, expected)))
    else:
        assert kinds(after)[0] == "qk_norm_rope_cache"


NORM_INPUTS: dict[str, TensorSpec] = {
    "y": ((N, 64), F32),
    "residual": ((N, 64), F32),
    "w_branch": ((64,), F32),
    "w_next": ((64,), F32),
}
ROWS, PACKED_SPECS = ((N, 64), F32), quantized_specs(64, N)


def test_a_norm_quantises_its_rows_itself() -> None:
    def before(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(CHUNK, 64, 1e-6, False, F32)
        residual, hidden = call(norm, [x[name] for name in NORM_INPUTS], ROWS, ROWS)
        rounding = QuantizeRows(CHUNK, 64, F32, PackedOutput(True))
        return [residual, *call(rounding, [hidden], *PACKED_SPECS)]

    def expected(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(Few(MOST), 64, 1e-6, False, "float32", output=PackedOutput(True))
        return call(norm, [x[name] for name in NORM_INPUTS], ROWS, *PACKED_SPECS)

    after = rewritten(of_few_rows(module(NORM_INPUTS, before)), LIMITS, few_rows)
    assert_same(after, of_few_rows(module(NORM_INPUTS, expected)))


@pytest.mark.parametrize("is_read_before", [False, True])
def test_a_residual_that_is_rounded_as_it_is(is_read_before: bool) -> None:
    inputs = {name: spec for name, spec in NORM_INPUTS.items() if name != "w_next"}

    def before(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(CHUNK, 64, 1e-6, False, None)
        (residual,) = call(norm, [x[name] for name in inputs], ROWS)
        early = call(norm, [residual, x["residual"], x["w_branch"]], ROWS) if is_read_before else []
        packed = call(QuantizeRows(CHUNK, 64, F32, PackedOutput(True)), [residual], *PACKED_SPECS)
        return [residual, *early, *packed]

    def expected(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(Few(MOST), 64, 1e-6, False, None, output=PackedOutput(True))
        return call(norm, [x[name] for name in inputs], ROWS, *PACKED_SPECS)

    few = of_few_rows(module(inputs, before))
    after = rewritten(few, LIMITS, few_rows)
    assert_same(after, few if is_read_before else of_few_rows(module(inputs, expected)))


def test_a_norm_whose_rows_others_read_does_not() -> None:
    def before(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(CHUNK, 64, 1e-6, False, F32)
        _, hidden = call(norm, [x[name] for name in NORM_INPUTS], ROWS, ROWS)
        return [
            hidden,
            *call(QuantizeRows(CHUNK, 64, F32, PackedOutput(True)), [hidden], *PACKED_SPECS),
        ]

    few = of_few_rows(module(NORM_INPUTS, before))
    assert kinds(rewritten(few, LIMITS, few_rows)) == ["residual_norm", "quantize_rows"]


@pytest.mark.parametrize(("cols", "is_read_twice"), [(64, False), (64, True), (1024, False)])
def test_a_matmul_rounds_short_rows_itself(cols: int, is_read_twice: bool) -> None:
    layout = WeightLayout(4, "float16", 32, cols, (40,))
    inputs = {"x": ((N, cols), F32), **weights(layout)}

    def before(x: Tensors) -> list[nn.Tensor]:
        rounding = QuantizeRows(CHUNK, cols, F32, PackedOutput(True))
        packed = call(rounding, [x["x"]], *quantized_specs(cols, N))
        multiply = int8_linear(CHUNK, layout, PACKED)
        args = [*packed, *(x[name] for name in weights(layout))]
        products = [call(multiply, args, ((N, 40), F32)) for _ in range(1 + is_read_twice)]
        return [result for (result,) in products]

    def expected(x: Tensors) -> list[nn.Tensor]:
        multiply = int8_linear(Few(MOST), layout, F32)
        return call(multiply, [x[name] for name in inputs], ((N, 40), F32))

    after = rewritten(of_few_rows(module(inputs, before)), LIMITS, few_rows)
    if cols == 64 and not is_read_twice:
        assert_same(after, of_few_rows(module(inputs, expected)))
    else:
        assert kinds(after)[0] == "quantize_rows"


@pytest.mark.parametrize("reason", ["", "wide", "buffers", "read twice", "no groups"])
def test_gate_and_up_round_their_product(reason: str) -> None:
    rows = 144 if reason == "no groups" else 128
    layout = WeightLayout(4, "float16", 32, 64, (rows,))
    packed = dict(zip(("words", "scales"), quantized_specs(64, N), strict=True))
    inputs = {**packed, **weights(layout)}
    gate_up: dict[str, Any] = {"epilogue": "gelu_pairs"}
    product, rounded = ((N, rows // 2), F32), quantized_specs(rows // 2, N)

    def before(x: Tensors) -> list[nn.Tensor]:
        operator = int8_linear(CHUNK, layout, PACKED, **gate_up)
        (y,) = call(operator, [x[name] for name in inputs], product)
        rounding = call(QuantizeRows(CHUNK, rows // 2, F32, PackedOutput(False)), [y], *rounded)
        return [*rounding, *([y] if reason == "read twice" else [])]

    def expected(x: Tensors) -> list[nn.Tensor]:
        operator = int8_linear(Few(MOST), layout, PACKED, **gate_up, packed_out=True)
        return call(operator, [x[name] for name in inputs], *rounded)

    tuning = FusionTuning(few_row_product_width=32 if reason == "wide" else 64)
    most = 5 if reason == "buffers" else 6
    limits = replace(LIMITS, tuning=tuning, max_buffers=most)
    after = rewritten(of_few_rows(module(inputs, before)), limits, few_rows)
    if reason:
        assert kinds(after) == ["few_row_int8_linear", "quantize_rows"]
    else:
        assert_same(after, of_few_rows(module(inputs, expected)))


@pytest.mark.parametrize(("dim", "is_fused"), [(32, True), (16, False)])
def test_a_combine_quantises_whole_groups_itself(dim: int, is_fused: bool) -> None:
    cache = ((64, 2, dim), F32)
    q = ((N, 4 * dim), F32)
    inputs = {"q": q, "key": cache, "value": cache, "positions": ((4,), "int32")}

    def before(x: Tensors) -> list[nn.Tensor]:
        operator = PrefillAttention(CHUNK, 4, 2, dim, 40, F32, 64)
        attended = call(operator, [x[name] for name in inputs], q)
        rounding = QuantizeRows(CHUNK, 4 * dim, F32, PackedOutput(True))
        return call(rounding, attended, *quantized_specs(4 * dim, N))

    after = rewritten(of_few_rows(module(inputs, before)), LIMITS, few_rows)
    fused = ["quantized_few_row_combine"]
    assert kinds(after)[1:] == (fused if is_fused else ["combine_few_rows", "quantize_rows"])


def test_they_are_divided_where_buffers_are_too_few() -> None:
    limits = replace(LIMITS, max_buffers=7)
    after = rewritten(of_few_rows(module(INPUTS, before)), limits, few_rows, split_matmuls)
    found = [kind for kind in kinds(after) if kind != "relax.concat"]
    assert found == ["few_row_linear"] * 2 + ["few_row_int8_linear"] * 2


@pytest.mark.parametrize("activations", ["float", INT8])
@pytest.mark.parametrize("kind", ["e2b", "moe"])
def test_of_a_model_only_the_check_of_drafts_has_few_rows(kind: str, activations: str) -> None:
    config, recipe = drafted(kind), RECIPES["q4f16"]
    target = replace(target_spec("webgpu"), activations=activations)
    whole = build_module(config, recipe, target, decoder_options(recipe, target, 16))
    for name in (abi.VERIFY, abi.PREFILL, abi.DECODE, abi.DRAFT, abi.EMBED):
        found = [kernel for kernel in calls_of(whole, name) if "few_row" in kernel]
        assert bool(found) == (name == abi.VERIFY), name
    tiled = ("gemm", "expert_gemm", "int8_gemm", "int8_expert_gemm")
    of_chunks = (*tiled, "prefill_attention", "permute_by_expert")
    assert not [name for name in calls_of(whole, abi.VERIFY) if name.startswith(of_chunks)]


@pytest.mark.parametrize(
    ("kind", "name"), [("e2b", "cuda"), ("moe", "cuda"), ("e2b", "metal"), ("moe", "metal")]
)
def test_rows_of_several_sequences_have_the_kernels_of_drafts(kind: str, name: str) -> None:
    """But for attention, of which each row has that of one position: a launch a layer, or a row.

    Where they have guesses, too, layers that own keys write all of them before.
    """
    config, recipe, target = drafted(kind), RECIPES["q4f16"], target_spec(name)
    whole = build_module(config, recipe, target, decoder_options(recipe, target, 16))
    attention = ("attention", "combine", "qk_norm")

    def matmuls(function: str) -> set[str]:
        names = calls_of(whole, function)
        return {one for one in names if not any(part in one for part in attention)}

    joint = Counter(name.rstrip("0123456789_") for name in calls_of(whole, abi.DECODE_ROWS))
    layers = config.num_hidden_layers
    if target.slots_apart:
        assert joint["one_row_decode_attention"] == 9 * layers
        assert joint["combine_few_rows"] == layers
    else:
        assert joint["joint_decode_attention"] == joint["quantized_few_row_combine"] == layers
    assert not [name for name in joint if name.startswith(("prefill", "permute", "gemm", "int8_g"))]
    own = matmuls(abi.DECODE_ROWS) - matmuls(abi.VERIFY)
    assert {name.rstrip("0123456789_") for name in own} <= {"embedding", "reshape"}
    functions = {var.name_hint for var in whole.get_global_vars()}
    assert (abi.VERIFY_ROWS in functions) != target.slots_apart
    if target.slots_apart:
        return
    assert matmuls(abi.VERIFY_ROWS) - matmuls(abi.DECODE_ROWS) <= matmuls(abi.VERIFY)
    shared = Counter(name.rstrip("0123456789_") for name in calls_of(whole, abi.VERIFY_ROWS))
    owners = sum(plan.owns_kv for plan in layer_plans(config))
    assert shared["joint_qk_norm_rope_cache"] == shared["joint_attention"] == owners
    assert shared["joint_decode_attention"] == layers - owners
    assert shared["quantized_few_row_combine"] == layers


def test_keys_in_parts_are_attended_to_one_after_the_other_and_combined_once() -> None:
    config, recipe = drafted("e2b"), RECIPES["q4f32"]
    target = target_spec("webgpu")
    limits = KvLimits(context_length=96, max_tensor_bytes=4 * 64 * 40)
    options = replace(decoder_options(recipe, target, 16), kv_limits=limits)
    whole = build_module(config, recipe, target, options)
    full = layer_plans(config)
    counts = Counter(plan.owns_kv for plan in full if plan.window is None)
    parts, layers = 3, len(full)

    def count(function: str, *kinds: str) -> int:
        return sum(name.rstrip("0123456789_") in kinds for name in calls_of(whole, function))

    more = (parts - 1) * counts.total()
    assert count(abi.VERIFY, "few_row_attention", "normed_few_row_attention") == layers + more
    combined = ("combine_few_rows", "quantized_few_row_combine")
    assert count(abi.VERIFY, *combined) == layers
    # A layer that owns keys writes those of each part; of shared ones whose keys are whole the
    # attention makes the queries, and of the others the launch before it.
    owners = sum(plan.owns_kv for plan in full)
    written = owners + (parts - 1) * counts[True] + counts[False]
    assert count(abi.VERIFY, "qk_norm_rope_cache") == written
    assert count(abi.DECODE, "decode_attention") == layers + more
