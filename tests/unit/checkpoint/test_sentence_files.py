"""sentence-transformers' files: prompts, and poolings that are refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.checkpoint.sentence_files import (
    PROMPTS,
    Prompts,
    longest_text,
    pooling_files,
    read_prompts,
)
from gemma4_compile.errors import CheckpointError
from gemma4_compile.tiny import materialize_embedding

PREFIX = "sentence_transformers.models."
INFINITE = '{"max_seq_length": 1e999}'  # a float to a reader of JSON


def write(folder: Path, name: str, values: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(values if isinstance(values, str) else json.dumps(values))


def test_without_files_the_prompts_are_the_model_cards(tmp_path: Path) -> None:
    assert read_prompts(tmp_path) == Prompts(PROMPTS)


def test_a_checkpoints_own_are_read(tmp_path: Path) -> None:
    materialize_embedding(tmp_path)
    assert read_prompts(tmp_path).by_task["query"] == "task: search result | query: "
    prompts = {"query": "q: ", "plain": None}
    given = {"prompts": prompts, "default_prompt_name": "query"}
    write(tmp_path, "config_sentence_transformers.json", given)
    assert read_prompts(tmp_path) == Prompts({"query": "q: ", "plain": ""}, "query")


@pytest.mark.parametrize(
    "values",
    [
        {"prompts": ["query"]},
        {"prompts": {"query": 1}},
        {"prompts": {"query": "x" * 5000}},
        {"prompts": {"query": "q"}, "default_prompt_name": "other"},
        {"prompts": {"query": "q"}, "default_prompt_name": ["query"]},
        "[",
    ],
)
def test_damaged_prompts_are_refused(values: Any, tmp_path: Path) -> None:
    write(tmp_path, "config_sentence_transformers.json", values)
    with pytest.raises(CheckpointError, match="config_sentence_transformers"):
        read_prompts(tmp_path)


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ({"pooling_mode_cls_token": True}, "mean of all tokens.*pooling_mode_cls_token"),
        ({"pooling_mode": "lasttoken"}, "found lasttoken"),
        ({"pooling_mode": ["mean", "max"]}, "found mean, max"),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, "found cls"),
        ({"pooling_mode": 5}, "found 5"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": False}, "the prompt's among them"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "max_tokens"),
    ],
)
def test_other_poolings_are_refused(pooling: Any, words: str, tmp_path: Path) -> None:
    write(tmp_path, "modules.json", [{"type": f"{PREFIX}Pooling", "path": "1_Pooling"}])
    write(tmp_path, "1_Pooling/config.json", pooling)
    with pytest.raises(CheckpointError, match=words):
        read_prompts(tmp_path)


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_mean_tokens": True},
        {"pooling_mode": "mean"},
        {"pooling_mode": ["mean"]},
        {"pooling_mode": "mean", "pooling_mode_cls_token": True},  # the newer form holds
        {"pooling_mode_cls_token": False, "word_embedding_dimension": 8},  # the mean is the default
    ],
)
def test_a_mean_is_taken_in_all_forms(pooling: Any, tmp_path: Path) -> None:
    dropout = {"type": f"{PREFIX}Dropout", "path": "2_Dropout"}  # which changes no vector
    write(tmp_path, "modules.json", [{"type": f"{PREFIX}Pooling", "path": "means"}, dropout])
    write(tmp_path, "means/config.json", pooling)
    assert read_prompts(tmp_path) == Prompts(PROMPTS)
    assert pooling_files(tmp_path) == ("means/config.json",)


@pytest.mark.parametrize("text", ['[{"type": "a.Pooling", "path": "../x"}]', "[", "{}", "[1]"])
def test_no_file_of_another_folder_is_a_poolings(text: str, tmp_path: Path) -> None:
    assert pooling_files(tmp_path) == ()
    write(tmp_path, "modules.json", text)
    assert pooling_files(tmp_path) == ()


@pytest.mark.parametrize(
    ("of_module", "of_tokenizer", "expected"),
    [
        ({}, {}, None),
        ({"max_seq_length": 64}, {"model_max_length": 32}, 64),
        ({"max_seq_length": None}, {"model_max_length": 32}, 32),
        ({}, {"model_max_length": 1e30}, int(1e30)),
    ],
)
def test_the_longest_text_is_that_of_sentence_transformers(
    of_module: Any, of_tokenizer: Any, expected: int | None, tmp_path: Path
) -> None:
    write(tmp_path, "sentence_bert_config.json", of_module)
    write(tmp_path, "tokenizer_config.json", of_tokenizer)
    assert longest_text(tmp_path) == expected


@pytest.mark.parametrize("given", [0, -1, "64", True, [64], INFINITE])
def test_a_longest_text_of_no_length_is_refused(given: Any, tmp_path: Path) -> None:
    assert longest_text(tmp_path) is None
    write(
        tmp_path,
        "sentence_bert_config.json",
        given if given == INFINITE else {"max_seq_length": given},
    )
    with pytest.raises(CheckpointError, match=r"`max_seq_length` is .* expected how many"):
        longest_text(tmp_path)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([{"type": f"{PREFIX}Dense", "path": "2_Dense"}], "module `Dense`"),
        ([{"type": f"{PREFIX}Pooling", "path": "../other"}], "no folder of the"),
        ([{"type": f"{PREFIX}Pooling", "path": ""}], "no folder of the"),
        ([{"type": f"{PREFIX}Pooling", "path": "a\0b"}], "no folder of the"),
        ({"modules": []}, "expected a list"),
        ("[", "damaged"),
    ],
)
def test_other_modules_are_refused(modules: Any, words: str, tmp_path: Path) -> None:
    write(tmp_path, "modules.json", modules)
    with pytest.raises(CheckpointError, match=words):
        read_prompts(tmp_path)


def test_the_hubs_cache_has_links_to_its_blobs(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    (snapshot / "1_Pooling").mkdir(parents=True)
    write(blobs, "modules", [{"type": f"{PREFIX}Pooling", "path": "1_Pooling"}])
    write(blobs, "pooling", {"pooling_mode_mean_tokens": True})
    (snapshot / "modules.json").symlink_to("../../blobs/modules")
    (snapshot / "1_Pooling" / "config.json").symlink_to("../../../blobs/pooling")
    assert read_prompts(snapshot) == Prompts(PROMPTS)
    (snapshot / "1_Pooling" / "config.json").unlink()
    (snapshot / "1_Pooling" / "config.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out of"):
        read_prompts(snapshot)


@pytest.mark.parametrize("kinds", [["Transformer"], ["Transformer", "Normalize"]])
def test_vectors_that_had_another_length_are_told(
    kinds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "modules.json", [{"type": PREFIX + kind, "path": ""} for kind in kinds])
    assert read_prompts(tmp_path) == Prompts(PROMPTS)
    assert ("has no Normalize" in capsys.readouterr().err) == ("Normalize" not in kinds)


@pytest.mark.parametrize(
    "kinds",
    [
        ["Transformer", "Normalize", "Pooling"],
        ["Pooling", "Transformer", "Normalize"],
        ["Transformer", "Pooling", "Pooling"],
    ],
)
def test_modules_in_another_order_are_refused(kinds: list[str], tmp_path: Path) -> None:
    modules = [{"type": PREFIX + kind, "path": f"1_{kind}"} for kind in kinds]
    write(tmp_path, "modules.json", modules)
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    with pytest.raises(CheckpointError, match="in this order"):
        read_prompts(tmp_path)


@pytest.mark.parametrize("lower", [True, False, None])
def test_texts_in_small_letters_are_refused(lower: bool | None, tmp_path: Path) -> None:
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": lower})
    with pytest.raises(CheckpointError, match="do_lower_case") if lower else nullcontext():
        read_prompts(tmp_path)
