"""Recipe files: what a pattern changes, and what is refused."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gemma4_compile.errors import QuantizationError, UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.recipe_file import (
    MAX_PATTERN_LETTERS,
    check_overrides,
    read_recipe_file,
    with_overrides,
)
from gemma4_compile.quantization.schemes import RECIPES, SCHEMES

TABLE = parameter_table(Gemma4Config.from_preset("gemma-4-E2B-it"))


def write(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "recipe.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_patterns_change_what_they_match_and_nothing_else(tmp_path: Path) -> None:
    schemes = {"embed_tokens": "q8f16_1", "layers.*.mlp.*": "q8f16_1", "layers.3.mlp.*": "q0f16"}
    overrides = read_recipe_file(write(tmp_path, {"schemes": schemes}))
    recipe = with_overrides("q4f16", overrides)
    check_overrides(recipe, TABLE)
    plain = {s.parameter.name: s for s in storage_plan(TABLE, RECIPES["q4f16"], None)}
    assert any(stored.scheme == SCHEMES["q4f16_1"] for stored in plain.values())
    for stored in storage_plan(TABLE, recipe, None):
        name = stored.parameter.name
        if name.startswith("layers.3.mlp."):  # the last match counts
            expected = SCHEMES["q0f16"]
        elif name == "embed_tokens" or ".mlp." in name:
            expected = SCHEMES["q8f16_1"]
        else:
            expected = plain[name].scheme
        assert stored.scheme == expected, name


def test_a_head_of_its_own_has_a_name_of_its_own() -> None:
    table = parameter_table(replace(Gemma4Config.from_preset("gemma-4-E2B-it"), ties_head=False))
    recipe = with_overrides("q4f16", [("lm_head", "q0f16")])
    check_overrides(recipe, table)
    schemes = {s.parameter.name: s.scheme.name for s in storage_plan(table, recipe, None)}
    assert (schemes["lm_head"], schemes["embed_tokens"]) == ("q0f16", "q8f16_1")
    with pytest.raises(QuantizationError, match="`lm_head` matches no parameter") as found:
        check_overrides(recipe, TABLE)
    assert "stored in `embed_tokens`" in str(found.value.hint)


def test_no_overrides_is_the_named_recipe() -> None:
    assert with_overrides("q4f32", ()) == RECIPES["q4f32"]
    assert {scheme for scheme in SCHEMES.values()} >= {
        scheme for recipe in RECIPES.values() for scheme in recipe.schemes.values()
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("\x00", "is damaged"),
        ('{"schemes": {"a": "q0f16", "a": "q0f32"}}', "a key appears twice"),
        ([], "has no `schemes`"),
        ({"schemes": []}, "has no `schemes`"),
        ({"schemes": {}}, "has no `schemes`"),
        ({"schemes": {"a": "q0f16"}, "base": "q4f16"}, "has no `schemes` alone"),
        ({"schemes": {"a": "q3f16"}}, "`: unknown scheme 'q3f16' for `a`"),
        ({"schemes": {"a": 8}}, "unknown scheme '8' for `a`"),
        (" " * (1 << 20) + "{}", "more than 1048576 bytes"),
        ({"schemes": {"x" * 1025: "q0f16"}}, r"`x{80}\.\.\.` has 1025 letters; expected at most"),
        ({"schemes": {"x" * 1_000_000: "q3f16"}}, "has 1000000 letters"),
        ({"schemes": {f"{i}*": "q0f16" for i in range(1025)}}, "has 1025 patterns"),
    ],
)
def test_damaged_file(content: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as found:
        read_recipe_file(write(tmp_path, content))
    assert len(str(found.value)) < 400
    assert found.value.hint


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_recipe_file(tmp_path / "nothing.json")


def test_a_file_that_leads_nowhere_or_never_ends(tmp_path: Path) -> None:
    loop, pipe = tmp_path / "loop.json", tmp_path / "pipe"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    for path in (loop, pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="cannot read"):
            read_recipe_file(path)
    arguments = ["tiny", "--target", "cpu", "-o", str(tmp_path / "out"), "--recipe", str(loop)]
    with pytest.raises(UsageError, match="--recipe: cannot read"):
        COMMAND.parse(arguments)


def test_no_pattern_takes_longer_than_its_letters() -> None:
    """The shell's patterns have no alternatives to go back to: each star is tried once."""
    for pattern in ("*a" * 500 + "b", "*?" * 500, "*[a-z]*" * 140, "*.*" * 300 + "z"):
        assert len(pattern) <= MAX_PATTERN_LETTERS
        begin = time.process_time()
        with pytest.raises(QuantizationError, match="matches no parameter"):
            check_overrides(with_overrides("q4f16", [(pattern, "q8f16_1")]), TABLE)
        assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("layers.99.*", "matches no parameter"),
        ("embed", "matches no parameter"),
        ("*norm*", "`per_layer_projection_norm`, whose scheme is fixed, and no matrix"),
        ("layers.0.layer_scalar", "`layers.0.layer_scalar`, whose scheme is fixed"),
    ],
)
def test_pattern_that_cannot_be(pattern: str, message: str) -> None:
    recipe = with_overrides("q4f16", [(pattern, "q8f16_1")])
    with pytest.raises(QuantizationError, match=message):
        check_overrides(recipe, TABLE)


@pytest.mark.parametrize(
    ("model", "pattern", "ends"),
    [
        ("E2B", "*self_attn*", {"qkv_proj", "o_proj"}),
        ("E2B", "*mlp*", {"gate_up_proj", "down_proj"}),
        ("E2B", "layers.0.*", {"qkv_proj", "o_proj", "gate_up_proj", "down_proj",
                               "per_layer_input_gate", "per_layer_projection"}),
        ("26B-A4B", "*experts*", {"gate_up_proj", "down_proj"}),
        ("26B-A4B", "layers.*", {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
    ],
)  # fmt: skip
def test_a_pattern_of_matrices_and_vectors_names_the_matrices(
    model: str, pattern: str, ends: set[str]
) -> None:
    table = parameter_table(Gemma4Config.from_preset(f"gemma-4-{model}-it"))
    recipe = with_overrides("q4f32", [(pattern, "q0f16")])
    check_overrides(recipe, table)
    plain = RECIPES["q4f32"]
    changed = [item for item in table if recipe.scheme(item) != plain.scheme(item)]
    assert {item.name.rpartition(".")[2] for item in changed} == ends
    assert all(fnmatchcase(item.name, pattern) for item in changed)
    assert all(recipe.scheme(item) == SCHEMES["q0f16"] for item in changed)
    fixed = [item for item in table if fnmatchcase(item.name, pattern) and item not in changed]
    assert {item.role for item in fixed} <= {Role.VECTOR, Role.ROUTER}


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("*q_proj", "stored in `layers.0.self_attn.qkv_proj`"),
        ("layers.20.mlp.up_proj", "stored in `layers.20.mlp.gate_up_proj`"),
        ("model.language_model.layers.3.self_attn.o_proj.weight", "`layers.3.self_attn.o_proj`"),
        ("model.embed_tokens.weight", "stored in `embed_tokens`"),
        ("layers.99.mlp.down_proj", r"called like `layers.\*.mlp.down_proj`"),
        ("layers.*.attn.qkv_proj", r"`layers.\*.self_attn.qkv_proj`"),
        ("vision_tower.*", "with --modalities image alone"),
        ("audio_tower.*", "with --modalities audio alone"),
        ("drafter.*", "with --drafter alone"),
        ("\x00", "matrices are called like `embed_tokens`"),
    ],
)
def test_a_pattern_that_matches_nothing_is_told_what_is_near(pattern: str, hint: str) -> None:
    with pytest.raises(QuantizationError, match="matches no parameter") as found:
        check_overrides(with_overrides("q4f16", [(pattern, "q8f16_1")]), TABLE)
    assert re.search(hint, str(found.value.hint)), found.value.hint


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="unknown quantisation `q5`"):
        with_overrides("q5", ())
    with pytest.raises(UsageError, match="unknown scheme `q5`"):
        with_overrides("q4f16", [("embed_tokens", "q5")])
