"""Known mistakes in Gemma 4 implementations, each planted into the compiler or its input.

The list is what implementations got wrong in public, and small variations of it. A mistake that
amounts to other weights or another config is planted there; the others replace a piece of the
compiler's code while a model is compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.text import (
    decoder,
    layer_plan,
    parameters,
    per_layer_embedding,
    scales,
)
from gemma4_compile.operators import linear, moe, qk_norm_rope_cache
from gemma4_compile.operators.base import te_prim_func
from gemma4_compile.operators.heads import Head, Put, norm_and_rotate
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.norms import TakeLastRow
from gemma4_compile.operators.tir import LocalVar, bind, store
from gemma4_compile.operators.types import Buffer, Expr, Index

Float32Array = npt.NDArray[np.float32]
Weights = Mapping[str, Float32Array]
FULL_HEAD_DIM = 64
Patch = Callable[[pytest.MonkeyPatch], None]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """What to change before compiling, and for which kind and checkpoint dtype it matters.

    `taken_from` names tensors of a layer that hold another tensor's values.
    """

    kind: str = "e2b"
    dtype: str = "float32"
    weights: Callable[[str, Float32Array], Float32Array] = lambda name, values: values
    taken_from: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    patch: Patch = lambda monkeypatch: None

    @property
    def is_of_weights(self) -> bool:
        """Whether the library is as it would be without the mistake."""
        return self.patch is Mistake.patch and not self.config

    def spoil(self, weights: Weights) -> dict[str, Float32Array]:
        """The weights with the mistake."""
        spoilt = {name: self.weights(name, values) for name, values in weights.items()}
        for target, source in self.taken_from.items():
            for name in weights:
                if name.endswith(target):
                    spoilt[name] = weights[name.removesuffix(target) + source]
        return spoilt


def _norm_as_one_plus_w(name: str, values: Float32Array) -> Float32Array:
    return values + np.float32(1) if "norm" in name else values


def _scores_divided(name: str, values: Float32Array) -> Float32Array:
    return values / np.float32(np.sqrt(len(values))) if "q_norm" in name else values


def _no_layer_scalar(name: str, values: Float32Array) -> Float32Array:
    return np.ones_like(values) if name.endswith("layer_scalar") else values


def _no_expert_scale(name: str, values: Float32Array) -> Float32Array:
    return np.ones_like(values) if name.endswith("per_expert_scale") else values


def _router_not_divided(name: str, values: Float32Array) -> Float32Array:
    factor = np.float32(np.sqrt(values.shape[-1]))
    return values * factor if name.endswith("router.scale") else values


def _halves_swapped(name: str, values: Float32Array) -> Float32Array:
    if not name.endswith("gate_up_proj"):
        return values
    return np.roll(values, values.shape[1] // 2, axis=1)


def _unused_columns(name: str, values: Float32Array) -> Float32Array:
    if not name.endswith("mlp.down_proj.weight"):
        return values
    return np.where(np.arange(values.shape[1]) < 128, values, np.float32(0))


def _shares_not_renormalised(monkeypatch: pytest.MonkeyPatch) -> None:
    right = moe.choose_experts

    def wrong(
        experts: int, top_k: int, scores: Any, expert_scale: Any, ids: Any, weights: Any, i: Any
    ) -> None:
        total = LocalVar("float32", f32(0.0))
        highest = LocalVar("float32", scores[0])
        with T.serial(0, experts) as e:
            highest.set(tirx.max(highest.value, scores[e]))
        with T.serial(0, experts) as e:
            total.add(tirx.exp(scores[e] - highest.value))
        kept = T.alloc_buffer((experts,), "float32", scope="local")
        with T.serial(0, experts) as e:
            store(kept, tirx.exp(scores[e] - highest.value) / total.value, e)
        right(experts, top_k, scores, expert_scale, ids, weights, i)
        with T.serial(0, top_k) as k:
            store(weights, kept[ids[i, k]] * expert_scale[ids[i, k]], i, k)

    monkeypatch.setattr(moe, "choose_experts", wrong)


def _no_embedding_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "embedding_scale", lambda config: 1.0)


def _no_per_layer_embedding_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (per_layer_embedding, parameters):
        monkeypatch.setattr(module, "per_layer_embedding_scale", lambda config: 1.0)


def _unrounded_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scales, "round_to_dtype", lambda value, dtype: value)


def _erf_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    def gelu(value: Any) -> Any:
        return f32(0.5) * value * (f32(1.0) + tirx.erf(value * f32(0.5**0.5)))

    monkeypatch.setattr(linear, "gelu_tanh", gelu)


def _exponent_over_rotated_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layer_plan._rotary_plan

    def wrong(*arguments: Any) -> Any:
        plan = right(*arguments)
        return dataclasses.replace(plan, head_dim=2 * plan.pairs)

    monkeypatch.setattr(layer_plan, "_rotary_plan", wrong)


def _first_layer_as_source(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layer_plan.layer_plans

    def wrong(config: Any) -> Any:
        plans = right(config)
        first = {plan.kind: plan.kv_slot for plan in reversed(plans) if plan.owns_kv}
        return tuple(
            plan if plan.owns_kv else dataclasses.replace(plan, kv_slot=first[plan.kind])
            for plan in plans
        )

    monkeypatch.setattr(decoder, "layer_plans", wrong)


def _interleaved_pairs(monkeypatch: pytest.MonkeyPatch) -> None:

    def wrong(
        head: Head,
        qkv: Buffer,
        i: Index,
        column: Expr,
        weight: Buffer | None,
        rotary: Buffer | None,
        step: Expr,
        put: Put,
    ) -> None:
        half = head.head_dim // 2

        class Permuted:
            """qkv with channels 0 2 4 ... 1 3 5 ... of this head, so that neighbours pair."""

            def __getitem__(self, at: tuple[Index, Expr]) -> Expr:
                d = at[1] - column
                return qkv[at[0], column + tirx.floormod(d, half) * 2 + tirx.floordiv(d, half)]

        norm_and_rotate(head, cast(Buffer, Permuted()), i, column, weight, rotary, step, put)

    monkeypatch.setattr(qk_norm_rope_cache, "norm_and_rotate", wrong)


def _value_not_normed(monkeypatch: pytest.MonkeyPatch) -> None:

    def wrong(
        head: Head,
        qkv: Buffer,
        i: Index,
        column: Expr,
        weight: Buffer | None,
        rotary: Buffer | None,
        step: Expr,
        put: Put,
    ) -> None:
        if weight is None:
            with T.serial(0, head.head_dim) as d:
                put(d, bind(as_f32(qkv[i, column + d])))
        else:
            norm_and_rotate(head, qkv, i, column, weight, rotary, step, put)

    monkeypatch.setattr(qk_norm_rope_cache, "norm_and_rotate", wrong)


def _value_is_the_rotated_key(monkeypatch: pytest.MonkeyPatch) -> None:
    of_key: list[Buffer | None] = []

    def wrong(
        head: Head,
        qkv: Buffer,
        i: Index,
        column: Expr,
        weight: Buffer | None,
        rotary: Buffer | None,
        step: Expr,
        put: Put,
    ) -> None:
        if weight is not None:
            of_key[:] = [weight, rotary]
        elif head.head_dim == FULL_HEAD_DIM:
            weight, rotary = of_key
        norm_and_rotate(head, qkv, i, column, weight, rotary, step, put)

    monkeypatch.setattr(qk_norm_rope_cache, "norm_and_rotate", wrong)


def _first_row_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def definition(self: TakeLastRow) -> tirx.PrimFunc:
        x = te.placeholder((tirx.Var("n", "int64"), self.width), self.dtype, name="x")
        return te_prim_func([x, te.compute((1, self.width), lambda i, j: x[i, j], name="y")])

    monkeypatch.setattr(TakeLastRow, "definition", definition)


MISTAKES: Mapping[str, Mistake] = {
    "norm weight as 1 + w": Mistake(weights=_norm_as_one_plus_w),
    "v norm missing": Mistake(patch=_value_not_normed),
    "value is the key after norm and RoPE": Mistake("dense", patch=_value_is_the_rotated_key),
    "scores divided by sqrt(head_dim)": Mistake(weights=_scores_divided),
    "window + 1": Mistake(config={"sliding_window": 9}),
    "window - 1": Mistake(config={"sliding_window": 7}),
    "RoPE exponent over the rotated channels": Mistake(patch=_exponent_over_rotated_channels),
    "interleaved RoPE pairs": Mistake(patch=_interleaved_pairs),
    "embedding scale missing": Mistake(patch=_no_embedding_scale),
    "embedding scales not rounded": Mistake(dtype="bfloat16", patch=_unrounded_scales),
    "per-layer embedding scale missing": Mistake(patch=_no_per_layer_embedding_scale),
    "layer scalar missing": Mistake(weights=_no_layer_scalar),
    "softcap missing": Mistake(config={"final_logit_softcapping": None}),
    "erf in GELU": Mistake(patch=_erf_gelu),
    "first layer's keys for all": Mistake(patch=_first_layer_as_source),
    "first row of a chunk for the last": Mistake(patch=_first_row_for_last),
    "half of the double-wide MLP": Mistake(weights=_unused_columns),
    "experts' scale missing": Mistake("moe", weights=_no_expert_scale),
    "router input not divided by sqrt(hidden_size)": Mistake("moe", weights=_router_not_divided),
    "gate and up of the experts swapped": Mistake("moe", weights=_halves_swapped),
    "experts' shares not renormalised": Mistake("moe", patch=_shares_not_renormalised),
    "experts fed with the MLP's norm": Mistake(
        "moe",
        taken_from={"pre_feedforward_layernorm_2.weight": "pre_feedforward_layernorm.weight"},
    ),
    "router fed with the MLP's norm": Mistake(
        "moe", taken_from={"router.scale": "pre_feedforward_layernorm.weight"}
    ),
}
