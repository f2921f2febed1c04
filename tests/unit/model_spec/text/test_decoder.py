"""The decoder's functions, layer by layer, by the kinds of their operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tvm
from tvm import relax

from gemma4_compile import abi
from gemma4_compile.model_spec.component import Exported, ExportOptions
from gemma4_compile.model_spec.layers.attention import AttentionOptions
from gemma4_compile.model_spec.text.export import export_text
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.rows import ONE, Chunk
from tests.models import DENSE_LIKE, E2B_LIKE, MOE_LIKE
from tests.unit.model_spec.exported import config_of, kinds, matrices_of, operators

TEXTS: Mapping[str, dict[str, Any]] = {
    "e2b": E2B_LIKE,
    "dense": DENSE_LIKE,
    "uncapped": {**DENSE_LIKE, "final_logit_softcapping": None},
    "moe": MOE_LIKE,
}
OPTIONS = ExportOptions("float16", 16, 1, AttentionOptions(2, 4))
ATTENTION = ["linear", "decode_attention", "combine_splits", "linear"]
CHUNK = ["linear", "qk_norm_rope_cache", "prefill_attention", "linear"]
LAST_ROW = ["linear", "qk_norm_rope_cache", "take_last_row", "split_attention", "combine_splits"]
MLP = ["rms_norm", "rms_norm", "linear", "linear", "rms_norm"]  # attention's is the first
INJECTED = [*MLP, "linear", "linear", "rms_norm"]
BEFORE = ["embedding", "linear", "per_layer_inputs"]


@cache
def made(name: str, options: ExportOptions = OPTIONS) -> Exported:
    config = config_of(TEXTS[name])
    return export_text(config, matrices_of(config, "q4f16"), options)


def rows_of(operator: Operator) -> object:
    return getattr(operator, "rows", "none")


def test_a_step_of_a_plain_model() -> None:
    layer = ["rms_norm", *ATTENTION, *MLP]
    assert kinds(made("dense").module, abi.DECODE) == [
        *("embedding", *(layer * 6), "rms_norm", "linear")
    ]


def test_a_step_with_per_layer_embeddings() -> None:
    layer = ["rms_norm", *ATTENTION, *INJECTED]
    assert kinds(made("e2b").module, abi.DECODE) == [
        *("embedding", *BEFORE, *(layer * 7), "rms_norm", "linear")
    ]


def test_a_step_with_experts() -> None:
    experts = ["router_scores", "top_k_experts", "expert_gate_up", "expert_down"]
    norms, mlp = ["rms_norm"] * 3, ["rms_norm", "rms_norm", "linear", "linear"]
    layer = ["rms_norm", *ATTENTION, *mlp, *experts, *norms]
    assert kinds(made("moe").module, abi.DECODE) == [
        *("embedding", *(layer * 4), "rms_norm", "linear")
    ]


def test_layers_that_share_keys_run_on_the_last_position_alone() -> None:
    found = operators(made("e2b").module, abi.PREFILL)
    whole, shared = ["rms_norm", *CHUNK, *INJECTED], ["rms_norm", *ATTENTION, *INJECTED]
    # The last owner: residual and per-layer inputs are cut as well.
    last_owner = ["rms_norm", *LAST_ROW, "linear", "take_last_row", "take_last_row", *INJECTED]
    assert [operator.variant for operator in found] == [
        *(*BEFORE, *(whole * 2), *last_owner, *(shared * 4), "rms_norm", "linear")
    ]
    begin = len(BEFORE) + 1 + 2 * len(whole) + len(LAST_ROW)
    assert {rows_of(operator) for operator in found[begin:]} == {ONE, "none"}
    assert {rows_of(operator) for operator in found[: begin - 3]} == {Chunk()}


def test_without_sharing_only_the_last_layer_is_cut() -> None:
    last = ["rms_norm", *LAST_ROW, "linear", "take_last_row", *MLP]
    assert kinds(made("dense").module, abi.PREFILL) == [
        *(*(["rms_norm", *CHUNK, *MLP] * 5), *last, "rms_norm", "linear")
    ]


@pytest.mark.parametrize(
    ("name", "epilogue", "cap"),
    [("dense", Epilogue.SOFTCAP, 30.0), ("uncapped", Epilogue.NONE, 0.0)],
)
def test_the_head_is_the_embedding_s_table(name: str, epilogue: Epilogue, cap: float) -> None:
    first, *_, head = operators(made(name).module, abi.DECODE)
    assert isinstance(first, Embedding)
    assert isinstance(head, Linear)
    assert first.layout == head.layout
    assert first.scale == pytest.approx(96**0.5)
    assert (head.epilogue, head.cap, head.suppressed) == (epilogue, cap, ())


def test_suppressed_tokens_are_masked_in_the_head() -> None:
    module = made("dense", replace(OPTIONS, suppressed=(3, 9))).module
    for function in (abi.DECODE, abi.PREFILL):
        *_, head = operators(module, function)
        assert isinstance(head, Linear)
        assert head.suppressed == (3, 9)


def outputs(module: tvm.IRModule, function: str) -> list[list[int]]:
    types = module[function].ret_ty.fields
    return [list(map(int, one.shape)) for one in types if isinstance(one, relax.TensorType)]


@pytest.mark.parametrize("function", [abi.DECODE, abi.PREFILL])
def test_probes_are_the_residual_stream_after_each_layer(function: str) -> None:
    assert outputs(made("e2b").module, function) == [[1, 1, 256]]
    probed = made("e2b", replace(OPTIONS, probe=True)).module
    assert outputs(probed, function) == [[1, 1, 256], *[[1, 96]] * 7]


def test_keys_of_a_layer_are_written_once_and_read_by_those_that_share() -> None:
    module = made("e2b").module
    prepared = [op for op in operators(module, abi.DECODE) if op.variant == "decode_attention"]
    assert [getattr(op, "owns_kv", None) for op in prepared] == [True] * 3 + [False] * 4
    script = module[abi.DECODE].script()
    assert script.count("call_tir_inplace") == 3
    assert script.count(abi.KV_KEY) == 3


def test_a_row_of_no_token_has_the_pad_token_s_per_layer_inputs() -> None:
    script = made("e2b").module[abi.PREFILL].script()
    assert "R.where" in script
    assert "R.where" not in made("dense").module[abi.PREFILL].script()
