"""The drafter as a component: its tensors, and the function that it adds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from gemma4_compile import abi
from gemma4_compile.checkpoint.match import match
from gemma4_compile.checkpoint.safetensors_file import read_header
from gemma4_compile.compile.build import build_module, calls_of, decoder_options
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.component import VAR_BOUNDS_ATTR, model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS, COMPONENTS
from gemma4_compile.model_spec.drafter.component import DRAFTER
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from tests.drafters import write_drafter
from tests.unit.model_spec.drafter.test_parameters import drafted


def test_its_tensors_are_matched(tmp_path: Path) -> None:
    written = write_drafter(tmp_path, "e2b")
    tensors = read_header(tmp_path / "model.safetensors")
    found = match(tensors, drafted("e2b"), (DRAFTER,))
    assert found.keys() == {f"drafter.{name}" for name in written.weights}


@pytest.mark.parametrize(
    "name",
    ["pre_projection.weight", "model.norm.weight", "masked_embedding.token_ordering"],
)
def test_a_missing_tensor_has_its_own_name(name: str, tmp_path: Path) -> None:
    write_drafter(tmp_path, "e2b")
    tensors = read_header(tmp_path / "model.safetensors")
    del tensors[name]
    with pytest.raises(CheckpointError, match=f"`{name}` is missing"):
        match(tensors, drafted("e2b"), (DRAFTER,))


def test_it_adds_two_functions_of_which_one_has_a_tuple_of_its_own() -> None:
    config, recipe, target = drafted("e2b"), RECIPES["q4f16"], target_spec("webgpu")
    options = decoder_options(recipe, target, 16)
    module = build_module(config, recipe, target, options)
    plan = storage_plan(model_parameters(config, ALL_COMPONENTS), recipe, None)
    own = [t for stored in plan for t in stored.tensors if t.name.startswith("drafter.")]
    sizes = {
        name: len(module[name].params[-1].ty.fields)
        for name in (abi.DRAFT, abi.VERIFY, abi.PREFILL, abi.DECODE, abi.EMBED)
    }
    all_tensors = sum(len(stored.tensors) for stored in plan)
    assert sizes.pop(abi.DRAFT) == len(own)
    assert set(sizes.values()) == {all_tensors - len(own)}
    assert module[abi.VERIFY].attrs[VAR_BOUNDS_ATTR]["n"] == 9


def test_text_is_exported_as_without_it() -> None:
    config, recipe, target = drafted("moe"), RECIPES["f32"], target_spec("cpu")
    options = decoder_options(recipe, target, 16)
    plain = replace(config, drafter=None)
    plan = storage_plan(model_parameters(plain, COMPONENTS), recipe, None)
    module = build_module(plain, recipe, target, options, plan)
    alone = build_module(plain, recipe, target, options, plan, (TEXT,))
    tvm.ir.assert_structural_equal(module, alone, map_free_vars=True)
    assert abi.VERIFY not in {var.name_hint for var in module.get_global_vars()}


@pytest.mark.parametrize("name", ["cuda", "cpu", "metal", "webgpu"])
def test_drafts_of_several_sequences_read_their_keys_by_slot(name: str) -> None:
    """As rows of the model do, in a launch a layer, of which none writes keys."""
    config, recipe, target = drafted("e2b"), RECIPES["q4f16"], target_spec(name)
    whole = build_module(config, recipe, target, decoder_options(recipe, target, 16))
    functions = {var.name_hint for var in whole.get_global_vars()}
    joins = target.joins_sequences and not target.slots_apart
    assert (abi.DRAFT_ROWS in functions) == (abi.VERIFY_ROWS in functions) == joins
    if not joins:
        return
    found = Counter(one.rstrip("0123456789_") for one in calls_of(whole, abi.DRAFT_ROWS))
    assert config.drafter is not None
    assert found["joint_decode_attention"] == config.drafter.num_hidden_layers
    assert found["cluster_tokens"] == found["candidate_logits"] == found["best_token"] == 1
    assert not [one for one in found if "qk_norm" in one or one == "decode_attention"]
    if name == "cuda":
        assert not [one for one in found if one.startswith(("gemm", "int8_gemm", "prefill"))]
