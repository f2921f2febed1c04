"""Adapters that are refused by name, warned of, and hostile ones; equality is tests/parity's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.sources import ModelSource, open_source
from gemma4_compile.errors import CheckpointError, Gemma4CompileError
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import models

TEXT = models.DENSE_LIKE
MODULE = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
Q_PROJ = "layers.0.self_attn.q_proj.weight"
ROWS, COLS, RANK = 256, 96, 4
CONFIG: Mapping[str, Any] = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8}
RNG = np.random.default_rng(0)
A = RNG.normal(size=(RANK, COLS)).astype(np.float32)
B = RNG.normal(size=(ROWS, RANK)).astype(np.float32)
PAIR = {f"{MODULE}.lora_A.weight": A, f"{MODULE}.lora_B.weight": B}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_checkpoint(tmp_path_factory.mktemp("base") / "base", TEXT).path


def write(
    folder: Path,
    tensors: Mapping[str, Any] = PAIR,
    config: Mapping[str, Any] = CONFIG,
    **more: Any,
) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**config, **more}))
    write_safetensors(folder / "adapter_model.safetensors", dict(tensors), "float32")
    return str(folder)


def opened(base: Path, *adapters: str, weights: bool = True) -> ModelSource:
    with open_source(str(base), None, weights=weights, adapters=adapters) as source:
        return source


def q_proj(source: ModelSource) -> Any:
    return first_rows(source, Q_PROJ, ROWS)


def first_rows(source: ModelSource, name: str, rows: int = 4) -> Any:
    assert source.checkpoint is not None
    matched = match(source.checkpoint.tensors, source.config)
    return row_reader(matched)(name, 0, rows)


def refused(base: Path, *adapters: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as found:
        opened(base, *adapters)
    assert found.value.hint
    return found.value


SPELLINGS: dict[str, Callable[[str], str]] = {
    "no front": lambda name: name.removeprefix("base_model.model."),
    "a text decoder": lambda name: name.replace("model.language_model.", "model."),
    "a name": lambda name: name.replace(".weight", ".default.weight"),
    "another name": lambda name: name.replace(".weight", ".my-run.weight"),
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "a wrapper": lambda name: name.replace(".self_attn.", ".module.self_attn."),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_names_of_every_spelling_are_read(spelling: str, base: Path, tmp_path: Path) -> None:
    adapter = write(tmp_path / "a", {SPELLINGS[spelling](n): t for n, t in PAIR.items()})
    before = q_proj(opened(base))
    merged = q_proj(opened(base, adapter))
    np.testing.assert_allclose(merged, before + 8 / RANK * (B @ A), rtol=1e-5, atol=1e-5)


def test_the_first_layout_of_experts_is_read(tmp_path: Path) -> None:
    """PEFT took the second axis of a stack for its inputs, whatever it is."""
    text = models.MOE_LIKE
    base = models.write_checkpoint(tmp_path / "base", text).path
    experts, rows, cols = text["num_experts"], text["hidden_size"], text["moe_intermediate_size"]
    a = RNG.normal(size=(experts * RANK, rows)).astype(np.float32)
    b = RNG.normal(size=(cols, experts * RANK)).astype(np.float32)
    module = MODULE.replace("self_attn.q_proj", "experts")
    pair = {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    adapter = write(tmp_path / "a", pair, target_parameters=["experts.down_proj"])
    name = "layers.0.experts.down_proj"
    found = []
    for given in ((), (adapter,)):
        checkpoint = opened(base, *given).checkpoint
        assert checkpoint is not None
        matched = match(checkpoint.tensors, opened(base).config)
        found.append(row_reader(matched)(name, 0, experts * rows).reshape(experts, rows, cols))
    expected = np.einsum(
        "ore,eri->eio",
        b.reshape(cols, RANK, experts),
        a.reshape(experts, RANK, rows),
    )
    np.testing.assert_allclose(found[1], found[0] + 2 * expected, rtol=1e-4, atol=1e-4)


def test_one_expert_of_its_own(tmp_path: Path) -> None:
    text = models.MOE_LIKE
    base = models.write_checkpoint(tmp_path / "base", text).path
    inner, cols = text["moe_intermediate_size"], text["hidden_size"]
    a = RNG.normal(size=(RANK, cols)).astype(np.float32)
    b = RNG.normal(size=(inner, RANK)).astype(np.float32)
    module = MODULE.replace("self_attn.q_proj", "experts.3.up_proj")
    adapter = write(tmp_path / "a", {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b})
    found = []
    for given in ((), (adapter,)):
        source = opened(base, *given)
        assert source.checkpoint is not None
        matched = match(source.checkpoint.tensors, source.config)
        count = 2 * inner * text["num_experts"]
        found.append(row_reader(matched)("layers.0.experts.gate_up_proj", 0, count))
    difference = found[1] - found[0]
    first = 3 * 2 * inner + inner
    np.testing.assert_allclose(difference[first : first + inner], 2 * b @ a, rtol=1e-3, atol=1e-4)
    difference[first : first + inner] = 0
    assert not difference.any()


REFUSED_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "VERA": ({"peft_type": "VERA"}, "VERA"),
    "prompts": ({"peft_type": "PROMPT_TUNING"}, "PROMPT_TUNING"),
    "none": ({"peft_type": None}, "no adapter of PEFT"),
    "MLX": ({"peft_type": None, "fine_tune_type": "lora"}, "MLX"),
    "aLoRA": ({"alora_invocation_tokens": [1, 2]}, "aLoRA"),
    "layers": ({"layer_replication": [[0, 4], [2, 5]]}, "layer_replication"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_16"}, "pissa_niter_16"),
    "OLoRA": ({"init_lora_weights": "olora"}, "olora"),
    "rank": ({"r": 8}, "rank of adapter_config.json, 8"),
    "a rank": ({"rank_pattern": {"q_proj": 2}}, "rank of adapter_config.json, 2"),
    "no rank": ({"r": 0}, "`r`"),
    "text": ({"lora_alpha": "16"}, "`lora_alpha`"),
    "huge": ({"lora_alpha": 10**60}, "`lora_alpha`"),
    "DoRA": ({"use_dora": True}, "no magnitudes"),
    "slow": ({"alpha_pattern": {r"(a)\1": 1}}, "may take long"),
    "long": ({"alpha_pattern": {"a" * 5000: 1, "a|" * 2500: 1}}, "may take long"),
    "broken": ({"alpha_pattern": {"(q": 1}}, "no regular expression"),
    "tokens": ({"trainable_token_indices": [-1]}, "trainable_token_indices"),
    "list": ({"rank_pattern": [1]}, "rank_pattern"),
}


@pytest.mark.parametrize("case", REFUSED_CONFIGS)
def test_configs_that_are_refused_by_name(case: str, base: Path, tmp_path: Path) -> None:
    more, words = REFUSED_CONFIGS[case]
    error = refused(base, write(tmp_path / "a", **more))
    assert words in str(error)
    assert f"--adapter {tmp_path / 'a'}" in str(error)


REFUSED_TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "no B": ({f"{MODULE}.lora_A.weight": A}, "no `lora_B`"),
    "width": ({**PAIR, f"{MODULE}.lora_A.weight": A[:, 1:]}, "expected (r, 96)"),
    "height": ({**PAIR, f"{MODULE}.lora_B.weight": B[1:]}, "expected (256, 4)"),
    "not finite": ({**PAIR, f"{MODULE}.lora_B.weight": B * np.float32(np.nan)}, "finite"),
    "a bias": ({**PAIR, f"{MODULE}.lora_B.bias": B[:, 0]}, "bias"),
    "LoHa": ({f"{MODULE}.hada_w1_a": A}, "no matrix of the model"),
    "kohya": ({f"{MODULE}.lora_down.weight": A}, "kohya's scripts"),
    "a layer": ({n.replace("layers.0", "layers.99"): t for n, t in PAIR.items()}, "no matrix"),
    "two": ({**PAIR, f"{MODULE}.lora_A.other.weight": A}, "more tensors than one"),
    "magnitudes": ({**PAIR, f"{MODULE}.lora_magnitude_vector": B[:, 0]}, "`use_dora`"),
    "empty": ({**PAIR, f"{MODULE}.lora_A.weight": A[:0]}, "without its values"),
    "resized": (
        {
            "base_model.model.model.language_model.embed_tokens.weight": np.zeros(
                (TEXT["vocab_size"] + 1, COLS), np.float32
            )
        },
        "expected (256, 96)",
    ),
}


@pytest.mark.parametrize("case", REFUSED_TENSORS)
def test_tensors_that_are_refused_by_name(case: str, base: Path, tmp_path: Path) -> None:
    tensors, words = REFUSED_TENSORS[case]
    error = refused(base, write(tmp_path / "a", tensors))
    assert words in str(error)
    assert f"--adapter {tmp_path / 'a'}" in str(error)


EMBEDDING = "base_model.model.model.language_model.embed_tokens"
TABLE = RNG.normal(size=(TEXT["vocab_size"], COLS)).astype(np.float32)


def test_a_module_that_was_saved_under_two_names_is_read_once(base: Path, tmp_path: Path) -> None:
    """As `save_pretrained(save_embedding_layers=True)` writes what was trained whole."""
    tensors = {
        f"{EMBEDDING}.weight": TABLE,
        f"{EMBEDDING}.modules_to_save.weight": TABLE,
        f"{EMBEDDING}.original_module.weight": 2 * TABLE,
    }
    found = opened(base, write(tmp_path / "a", tensors, modules_to_save=["embed_tokens"]))
    assert np.array_equal(first_rows(found, "embed_tokens.weight"), TABLE[:4])
    assert opened(base).config.ties_head
    assert not found.config.ties_head
    other = {**tensors, f"{EMBEDDING}.weight": 2 * TABLE}
    error = refused(base, write(tmp_path / "b", other, modules_to_save=["embed_tokens"]))
    assert "more tensors than one" in str(error)


def test_trained_rows_of_a_tied_head_are_the_embedding_s(base: Path, tmp_path: Path) -> None:
    rows, head = TABLE[:2], "base_model.model.lm_head.token_adapter.trainable_tokens_delta"
    tensors = {f"{EMBEDDING}.token_adapter.trainable_tokens_delta": rows, head: rows}
    adapter = write(tmp_path / "a", tensors, trainable_token_indices=[1, 3])
    merged, before = (first_rows(opened(base, *g), "embed_tokens.weight") for g in ((adapter,), ()))
    before[[1, 3]] = rows
    assert np.array_equal(merged, before)
    tensors[head] = 2 * rows
    error = refused(base, write(tmp_path / "b", tensors, trainable_token_indices=[1, 3]))
    assert "does not say which rows" in str(error)


@pytest.mark.parametrize("module", [EMBEDDING, "base_model.model.lm_head"])
def test_a_resized_vocabulary_is_called_that(module: str, base: Path, tmp_path: Path) -> None:
    adapter = write(tmp_path / "a", {f"{module}.weight": np.concatenate([TABLE, TABLE[:4]])})
    assert "the vocabulary was resized for the adapter" in (refused(base, adapter).hint or "")


def test_an_adapter_in_parts_is_called_that(base: Path, tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "a"))
    weights = folder / "adapter_model.safetensors"
    weights.rename(folder / "adapter_model-00001-of-00002.safetensors")
    error = refused(base, str(folder))
    assert "in parts (`adapter_model-00001-of-00002.safetensors` is one of 1)" in str(error)
    assert "join them" in (error.hint or "")
    (file := tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert "is a GGUF file, and adapters are read as PEFT saves them" in str(
        refused(base, str(file))
    )


@pytest.mark.parametrize(
    ("more", "is_warned"),
    [
        ({"target_modules": ["q_proj"]}, True),
        ({"target_modules": ["layers.0.self_attn.q_proj"]}, False),
        ({"target_modules": ".*q_proj"}, False),
        ({"target_modules": ["q_proj"], "layers_to_transform": [0]}, False),
        ({"target_modules": ["q_proj"], "exclude_modules": [r".*[1-5]\..*"]}, False),
    ],
)
def test_a_part_that_is_missing_is_warned_of(
    more: dict[str, Any],
    is_warned: bool,
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened(base, write(tmp_path / "a", **more))
    warned = capsys.readouterr().err
    assert ("has nothing for" in warned) is is_warned
    assert not is_warned or "layers.1.self_attn.q_proj.weight` (5 in all)" in warned


def test_the_same_adapter_twice_is_refused(base: Path, tmp_path: Path) -> None:
    twice = [write(tmp_path / name) for name in ("a", "b")]
    assert "twice" in str(refused(base, *twice))


def test_what_is_left_out_is_warned_of(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tower = MODULE.replace("language_model.layers", "vision_tower.encoder.layers")
    pair = {name.replace(MODULE, f"{tower}.linear"): t for name, t in PAIR.items()}
    opened(base, write(tmp_path / "a", {**PAIR, **pair}, target_modules=["q_proj", "linear"]))
    warned = capsys.readouterr().err
    assert "the vision tower" in warned
    assert "GGUF has text alone" in warned
    error = refused(base, write(tmp_path / "b", pair))
    assert "changes nothing" in str(error)
    other = {name.replace("q_proj", "o_proj"): t for name, t in PAIR.items()}
    opened(base, write(tmp_path / "c", {**PAIR, **other}, target_modules=["q_proj"]))
    assert "`target_modules`" in capsys.readouterr().err


NARROWED: dict[str, dict[str, Any]] = {
    "excluded": {"target_modules": ["q_proj", "o_proj"], "exclude_modules": ["self_attn.o_proj"]},
    "excluded from a pattern": {"target_modules": ".*_proj", "exclude_modules": ["o_proj"]},
    "excluded by a pattern": {"target_modules": ".*_proj", "exclude_modules": r".*\.o_proj"},
    "other layers": {"target_modules": ["q_proj"], "layers_to_transform": [0, 3]},
    "another layer": {"target_modules": ["q_proj"], "layers_to_transform": 0},
}


@pytest.mark.parametrize("case", NARROWED)
def test_what_the_config_excludes_is_left_out_as_in_peft(
    case: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instead = ("layers.0", "layers.1") if "layer" in case else ("q_proj", "o_proj")
    more = {name.replace(*instead): tensor for name, tensor in PAIR.items()}
    found = opened(base, write(tmp_path / "a", {**PAIR, **more}, **NARROWED[case]))
    warned = capsys.readouterr().err
    assert f"{instead[1]}." in warned or f"{instead[1]}`" in warned
    assert "(1 in all) is left out" in warned
    plain = opened(base, write(tmp_path / "b", PAIR))
    assert np.array_equal(q_proj(found), q_proj(plain))
    other = Q_PROJ.replace(*instead)
    assert np.array_equal(first_rows(found, other), first_rows(opened(base), other))


def test_another_base_model_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = models.write_checkpoint(tmp_path / "gemma-4-E2B-it", TEXT).path
    for name, is_other in (
        ("google/gemma-4-E2B", True),
        ("google/gemma-4-E4B-it", True),
        ("unsloth/gemma-4-e2b-it-unsloth-bnb-4bit", False),
    ):
        opened(base, write(tmp_path / "a", base_model_name_or_path=name))
        assert (name in capsys.readouterr().err) is is_other


def test_another_template_is_warned_of(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = write(tmp_path / "a")
    (tmp_path / "a" / "chat_template.jinja").write_text("{{ messages }}")
    opened(base, adapter)
    assert "another chat template" in capsys.readouterr().err


def test_provenance_names_adapters_without_paths(base: Path, tmp_path: Path) -> None:
    source = opened(base, write(tmp_path / "a", base_model_name_or_path="google/gemma-4-E2B-it"))
    noted: Any = source.origin["adapters"]
    assert [set(one) for one in noted] == [{"kind", "config", "weights", "base"}]
    assert str(tmp_path) not in json.dumps(dict(source.origin))


def test_a_library_reads_the_config_alone(base: Path, tmp_path: Path) -> None:
    adapter = write(tmp_path / "a", modules_to_save=["lm_head"])
    (tmp_path / "a" / "adapter_model.safetensors").unlink()
    assert not opened(base, adapter, weights=False).config.ties_head


def test_damaged_files_are_named(base: Path, tmp_path: Path) -> None:
    """Random damage of both files: an error of ours, or an adapter."""
    adapter = write(tmp_path / "a", rank_pattern={"q_proj": RANK}, target_modules=["q_proj"])
    files = [tmp_path / "a" / name for name in ("adapter_config.json", "adapter_model.safetensors")]
    original = [file.read_bytes() for file in files]
    rng = random.Random(0)
    for _ in range(150):
        for file, content in zip(files, original, strict=True):
            file.write_bytes(content)
        which = rng.randrange(2)
        damaged = bytearray(original[which])
        end = min(len(damaged), 400)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(end)] = rng.randrange(256)
        files[which].write_bytes(damaged[: rng.choice([len(damaged), end])])
        try:
            q_proj(opened(base, adapter))
        except Gemma4CompileError:
            continue


VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2.5,
    1e308,
    10**30,
    "x",
    "(",
    [],
    [1],
    ["q_proj"],
    {},
    {"q_proj": 1},
)


@pytest.mark.parametrize("field", [*CONFIG, "rank_pattern", "alpha_pattern", "target_modules",
                                   "modules_to_save", "trainable_token_indices", "use_dora",
                                   "use_rslora", "target_parameters", "init_lora_weights",
                                   "base_model_name_or_path", "layer_replication"])  # fmt: skip
def test_fields_of_any_type_are_named(field: str, base: Path, tmp_path: Path) -> None:
    for value in VALUES:
        try:
            opened(base, write(tmp_path / "a", **{field: value}))
        except Gemma4CompileError:
            continue
