"""Self-attention: its launches by kind of call, what they read and write, and its splits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.attention import (
    Attention,
    AttentionContext,
    AttentionOptions,
    JointSplits,
)
from gemma4_compile.model_spec.layers.kv_cache import KvTensors
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.text.kv_layout import kv_layout
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import CHUNK, ONE, Joint
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from tests.models import DENSE_LIKE, E2B_LIKE
from tests.unit.model_spec.exported import (
    STATE,
    config_of,
    exported,
    kinds,
    matrices_of,
    operators,
    tensor,
)

OPTIONS = AttentionOptions(sliding_splits=16, full_splits=128, max_blocks=256, split_channels=16384)


def plan_of(preset: str, kind: AttentionKind) -> LayerPlan:
    plans = layer_plans(Gemma4Config.from_preset(preset))
    return next(plan for plan in plans if plan.kind is kind)


@pytest.mark.parametrize(
    ("preset", "kind", "splits", "grain"),
    [
        ("gemma-4-E2B-it", AttentionKind.SLIDING, 8, 64),  # no more than the window has tiles
        ("gemma-4-31B-it", AttentionKind.SLIDING, 16, 64),
        ("gemma-4-E2B-it", AttentionKind.FULL, 128, 32),
        ("gemma-4-31B-it", AttentionKind.FULL, 64, 32),  # four KV heads fill the device sooner
    ],
)
def test_splits_follow_the_layer(preset: str, kind: AttentionKind, splits: int, grain: int) -> None:
    plan = plan_of(preset, kind)

    assert (OPTIONS.splits(plan), OPTIONS.grain(plan)) == (splits, grain)


def test_there_is_always_a_split() -> None:
    plan = plan_of("gemma-4-31B-it", AttentionKind.SLIDING)

    assert replace(OPTIONS, max_blocks=1).splits(plan) == 1
    assert replace(OPTIONS, split_channels=1 << 20).splits(plan) == 1


@pytest.mark.parametrize(
    ("preset", "sliding", "full", "grain"),
    [
        ("gemma-4-E2B-it", 8, 32, 32),  # whose full layers have a block a row and split
        ("gemma-4-26B-A4B-it", 8, 32, 64),
        ("gemma-4-31B-it", 4, 16, 64),
    ],
)
def test_rows_of_several_sequences_have_fewer_and_longer_splits(
    preset: str, sliding: int, full: int, grain: int
) -> None:
    kinds = {AttentionKind.SLIDING: (sliding, 64), AttentionKind.FULL: (full, grain)}
    joint, rows = replace(OPTIONS, joint=JointSplits(32, 64, 2)), Joint(9)
    for kind, expected in kinds.items():
        plan = plan_of(preset, kind)
        assert (joint.splits(plan, rows), joint.grain(plan, rows)) == expected
        for options, of in ((joint, ONE), (OPTIONS, rows)):
            assert options.splits(plan, of) == OPTIONS.splits(plan)
            assert options.grain(plan, of) == OPTIONS.grain(plan)


E2B, DENSE = config_of(E2B_LIKE), config_of(DENSE_LIKE)
OWNER, FULL_OWNER, SHARING = 0, 2, 5  # layers of E2B


def attended(
    layer: int,
    rows: int | None,
    last_row_only: bool = False,
    config: Gemma4Config = E2B,
    written: list[bool] | None = None,
) -> tvm.IRModule:
    """The attention of a layer, in float16; `written` tells whether it put new keys back."""
    plans = layer_plans(config)
    plan, layout = plans[layer], kv_layout(config, plans, "float16", 16)
    matrices, options = matrices_of(config, "q4f16"), AttentionOptions(2, 4)
    attention = Attention(f"layers.{layer}.self_attn", plan, matrices, 1e-6, "float16", options)

    def body(hidden: nn.Tensor, kv: nn.Object) -> nn.Tensor:
        tensors = KvTensors(layout, kv)
        before = tensors.get(plan.kv_slot)
        cut_at = plan.index if last_row_only else None
        result = attention(hidden, AttentionContext(tensors, cut_at=cut_at))
        if written is not None:
            written.append(tensors.get(plan.kv_slot) is not before)
        return result

    shape = tensor("n" if rows is None else rows, config.hidden_size, dtype="float16")
    return exported([attention], body, hidden=shape, kv=STATE)


@pytest.mark.parametrize("layer", [OWNER, FULL_OWNER, SHARING])
def test_one_position_is_prepared_and_attended_in_one_launch(layer: int) -> None:
    found = kinds(attended(layer, 1))
    assert found == ["linear", "decode_attention", "combine_splits", "linear"]


def test_a_chunk_is_prepared_and_then_attended() -> None:
    expected = ["linear", "qk_norm_rope_cache", "prefill_attention", "linear"]
    assert kinds(attended(OWNER, None)) == kinds(attended(SHARING, None)) == expected


def test_where_nobody_reads_the_other_rows_only_the_last_attends() -> None:
    found = operators(attended(FULL_OWNER, None, last_row_only=True))
    assert [operator.variant for operator in found] == [
        *("linear", "qk_norm_rope_cache", "take_last_row"),
        *("split_attention", "combine_splits", "linear"),
    ]
    rows = [getattr(operator, "rows", None) for operator in found]
    assert rows[0] == rows[1] == CHUNK, "keys and values of all rows are written"
    assert (rows[3], rows[5]) == (ONE, ONE)


@pytest.mark.parametrize("rows", [1, None])
@pytest.mark.parametrize(("layer", "owns"), [(OWNER, True), (SHARING, False)])
def test_only_a_layer_that_owns_keys_writes_them(layer: int, owns: bool, rows: int | None) -> None:
    written: list[bool] = []
    module = attended(layer, rows, written=written)
    assert written == [owns]
    assert ("call_tir_inplace" in module["forward"].script()) == owns


def test_a_layer_s_plan_becomes_the_fields_of_its_operators() -> None:
    _, decode, combine, _ = operators(attended(FULL_OWNER, 1))
    assert isinstance(decode, SplitAttention)
    assert (decode.heads, decode.kv_heads, decode.head_dim) == (4, 1, 64)
    assert (decode.cache_rows, decode.window, decode.cache_dtype) == (None, None, "float16")
    assert decode.normed is not None
    assert decode.query == NormedQuery(8, 16, 24, decode.normed.eps, owns_kv=True)
    assert decode.splits == 4
    assert combine == CombineSplits(4, 64, 4, "float16")

    _, sliding, _, _ = operators(attended(SHARING, 1))
    assert isinstance(sliding, SplitAttention)
    assert (sliding.cache_rows, sliding.window, sliding.splits) == (32, 8, 2)
    assert (sliding.head_dim, sliding.head.rotary_offset, sliding.owns_kv) == (32, 0, False)


def test_a_key_may_be_the_value() -> None:
    _, prepare, attention, _ = operators(attended(2, None, config=DENSE))
    assert isinstance(prepare, QkNormRopeCache)
    assert isinstance(attention, PrefillAttention)
    assert prepare.value_is_key
    assert (attention.kv_heads, attention.out_dtype) == (2, "float16")
    _, prepare, _, _ = operators(attended(0, None, config=DENSE))
    assert isinstance(prepare, QkNormRopeCache)
    assert not prepare.value_is_key
