"""Work of a step by the plan, beside sums over the released sizes' shapes."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.package.step_work import AttentionWork, StepWork
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.planning.step_work import count_step_work
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec


def work_of(preset: str, quant: str = "q4f16", kv_dtype: str = "float16") -> StepWork:
    config = Gemma4Config.from_preset(preset)
    stored = storage_plan(model_parameters(config, ALL_COMPONENTS), RECIPES[quant], None)
    return count_step_work(config, stored, kv_dtype)


def test_layers_behind_the_last_owner_of_keys_are_of_a_chunks_last_row() -> None:
    """E2B: 35 layers, 4 sliding and 1 full in turns; 20 at the end make no keys, twice as wide."""
    hidden, vocab, of_layer = 1536, 262144, 256
    sliding, full = 8 * 256, 8 * 512  # queries; one KV head
    extra = 2 * hidden * of_layer

    def layer(queries: int, keys: int, inner: int) -> int:
        return hidden * (queries + keys + queries) + 3 * hidden * inner + extra

    own_sliding, own_full = layer(sliding, 2 * 256, 6144), layer(full, 2 * 512, 6144)
    makes_keys = hidden * (full + 2 * 512)  # of layer 14, the last that has any
    each = hidden * 35 * of_layer + 12 * own_sliding + 2 * own_full + makes_keys
    last = own_full - makes_keys + hidden * vocab
    last += 16 * layer(sliding, 0, 12288) + 4 * layer(full, 0, 12288)
    work = work_of("gemma-4-E2B-it")
    assert (work.products, work.chunk_products) == (each, last)
    assert set(work.attention) == {
        AttentionWork(28, 12, sliding, 2 * 256 * 2, 512),
        AttentionWork(7, 2, full, 2 * 512 * 2, None),
    }


def test_of_experts_those_of_one_token_count() -> None:
    """26B-A4B: 30 layers, every sixth full with keys as values, 8 of 128 experts of 704."""
    hidden, vocab = 2816, 262144
    dense, router, chosen = 3 * hidden * 2112, hidden * 128, 8 * 3 * hidden * 704
    sliding = hidden * (2 * 16 * 256 + 2 * 8 * 256)
    full = hidden * (2 * 16 * 512 + 2 * 512)  # two KV heads, and no projection of values
    whole = 25 * sliding + 5 * full + 30 * (dense + router + chosen) + hidden * vocab
    work = work_of("gemma-4-26B-A4B-it")
    assert work.products + work.chunk_products == whole


@pytest.mark.parametrize("kv_dtype", ["float16", "float32"])
def test_bytes_are_those_of_the_plan(kv_dtype: str) -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it")
    plan = make_plan(config, "q4f16", target_spec("metal", "default"), 4096, 512)
    work = work_of("gemma-4-E2B-it", kv_dtype=kv_dtype)
    assert work.weight_bytes == plan.recipe.bytes_per_token
    item = {"float16": 2, "float32": 4}[kv_dtype]
    assert work.token_bytes(0) == work.weight_bytes
    # One position: 28 layers read 1 head of 256 for keys and values, 7 one of 512.
    assert work.token_bytes(1) - work.token_bytes(0) == (28 * 256 + 7 * 512) * 2 * item
