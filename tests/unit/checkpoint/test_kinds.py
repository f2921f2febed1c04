"""Files that are no whole checkpoint are called by their names, with the way out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gemma4_compile import tiny
from gemma4_compile.checkpoint import kinds
from gemma4_compile.checkpoint.adapter_source import open_adapters
from gemma4_compile.checkpoint.chat_files import ChatFiles
from gemma4_compile.checkpoint.kinds import Listing
from gemma4_compile.checkpoint.match import Checkpoint
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError, ConfigError, Gemma4CompileError

PEFT = {"peft_type": "LORA", "base_model_name_or_path": "google/gemma-4-E2B-it", "r": 8}
MLX = {"fine_tune_type": "dora", "model": "mlx-community/gemma-4-E2B-it-bf16"}


def refused(path: Path, *, weights: bool = True) -> Gemma4CompileError:
    with (
        pytest.raises(Gemma4CompileError) as caught,
        open_source(str(path), None, weights=weights),
    ):
        pytest.fail("must not open")
    return caught.value


def without_weights(path: Path) -> Path:
    tiny.materialize(path)
    (path / "model.safetensors").unlink()
    return path


@pytest.mark.parametrize(
    ("config", "file", "words", "way_out"),
    [
        (PEFT, "adapter_model.safetensors", ("LoRA adapter", "google/"), "merge_and_unload"),
        (PEFT, "adapter_model.bin", ("LoRA adapter",), "merge_and_unload"),
        ({"peft_type": "OFT"}, "adapter_model.safetensors", ("OFT adapter",), "merge_and_unload"),
        ({}, "adapter_model.safetensors", ("an adapter",), "merge_and_unload"),
        (MLX, "adapters.safetensors", ("DORA adapter", "mlx-community/"), "mlx_lm.fuse"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("beside", ["nothing", "a config", "a model"])
def test_an_adapter_is_called_by_its_name(
    config: Mapping[str, object],
    file: str,
    words: tuple[str, ...],
    way_out: str,
    beside: str,
    tmp_path: Path,
) -> None:
    tiny.materialize(tmp_path)
    if beside != "a model":
        (tmp_path / "model.safetensors").unlink()
    if beside == "nothing":
        (tmp_path / "config.json").unlink()
    (tmp_path / file).write_bytes(b"x")
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    error = refused(tmp_path)
    assert all(word in str(error) for word in words)
    assert way_out in str(error.hint)
    assert ("gemma4-compile" in str(error.hint)) is (config.get("peft_type") == "LORA")
    assert ("beside a model" in str(error)) is (beside == "a model")
    assert ("remove adapter" in str(error.hint)) is (beside == "a model")


def test_a_library_alone_asks_for_no_weights(tmp_path: Path) -> None:
    tiny.materialize(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(PEFT))
    with open_source(str(tmp_path), None, weights=False) as source:
        assert source.checkpoint is None


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("gguf/gemma-4-E2B-it-Q4_K_M.gguf", "GGUF files, such as `gemma-4-E2B-it-Q4_K_M.gguf`"),
        ("onnx/decoder_model_merged_q4f16.onnx", "ONNX"),
        ("onnx/model.onnx_data_1", "ONNX"),
        ("gemma-4.litertlm", "LiteRT"),
        ("gemma-4.task", "LiteRT"),
        ("openvino_model.bin", "OpenVINO"),
        ("pytorch_model.bin", "only safetensors"),
        ("consolidated.00.pth", "only safetensors"),
        ("pytorch_model_fsdp_0/__0_0.distcp", "FSDP"),
        ("global_step500/mp_rank_00_model_states.pt", "DeepSpeed"),
        ("zero_to_fp32.py", "DeepSpeed"),
        ("flax_model.msgpack", "JAX"),
        ("_CHECKPOINT_METADATA", "JAX"),
        ("model.weights.h5", "Keras"),
        ("weights.00.npz", "MLX"),
        ("optimizer.pt", "training goes on from"),
        ("training_args.bin", "training goes on from"),
        ("mlc-chat-config.json", "MLC-LLM"),
        ("model_index.json", "diffusers"),
        ("gemma.nemo", "NeMo"),
        ("context/model.yaml", "NeMo"),
        ("latest_checkpointed_iteration.txt", "Megatron"),
        ("model-00001-of-00002.safetensors", "neither model.safetensors nor"),
        ("pytorch_model.safetensors", "neither model.safetensors nor"),
        ("checkpoint-500/model.safetensors", "its folder `checkpoint-500` holds one"),
        ("README.md", "no weights"),
    ],
)
@pytest.mark.parametrize("has_config", [True, False])
def test_other_files_are_called_by_their_names(
    file: str, what: str, has_config: bool, tmp_path: Path
) -> None:
    without_weights(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"x")
    if not has_config:
        (tmp_path / "config.json").unlink()
        if "/model.safetensors" in file:
            (tmp_path / file).with_name("config.json").write_bytes(b"x")
        elif file.endswith((".safetensors", ".md")):
            what = "`config.json` is missing"
    error = refused(tmp_path)
    assert what in str(error)
    assert error.hint


def test_the_last_of_the_folders_of_training_is_named(tmp_path: Path) -> None:
    without_weights(tmp_path)
    for step in (900, 1000, 50):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").touch()
    error = refused(tmp_path)
    assert "`checkpoint-1000` holds one, as 2 others do" in str(error)
    assert str(tmp_path / "checkpoint-1000") in str(error.hint)


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.bin"])
@pytest.mark.parametrize("has_config", [True, False])
def test_adapters_in_folders_of_training_are_named(
    file: str, has_config: bool, tmp_path: Path
) -> None:
    without_weights(tmp_path)
    (tmp_path / "training_args.bin").touch()
    if not has_config:
        (tmp_path / "config.json").unlink()
    for step in (900, 1000):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / file).touch()
    error = refused(tmp_path)
    assert "`checkpoint-1000` holds an adapter, as one other does" in str(error)
    assert "merge_and_unload" in str(error.hint)


@pytest.mark.parametrize(
    "index",
    ["model.fp16.safetensors.index.json", "model.safetensors.index.fp16.json",
     "consolidated.safetensors.index.json"],
)  # fmt: skip
def test_an_index_of_another_name_is_named(index: str, tmp_path: Path) -> None:
    without_weights(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    (tmp_path / index).touch()
    error = refused(tmp_path)
    assert f"`{index}`" in str(error)
    assert "name it model.safetensors.index.json" in str(error.hint)


@pytest.mark.parametrize("file", ["consolidated.safetensors", "model.fp16.safetensors"])
def test_a_single_file_of_another_name_is_named(file: str, tmp_path: Path) -> None:
    without_weights(tmp_path)
    (tmp_path / file).touch()
    assert f"if `{file}` is the whole model" in str(refused(tmp_path).hint)


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_a_file_that_is_cut_off_is_called_truncated(cut: int, tmp_path: Path) -> None:
    tiny.materialize(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    error = refused(tmp_path)
    assert "`model.safetensors`" in str(error)
    assert "truncated" in str(error)
    assert "again" in str(error.hint)


def test_a_model_beside_what_training_leaves_is_taken(tmp_path: Path) -> None:
    tiny.materialize(tmp_path)
    for name in ("optimizer.pt", "training_args.bin", "zero_to_fp32.py", "model.gguf", "x.onnx"):
        (tmp_path / name).touch()
    with open_source(str(tmp_path), None, weights=True) as source:
        assert source.checkpoint is not None


def test_a_pointer_in_the_place_of_the_tokenizer_is_named(tmp_path: Path) -> None:
    tiny.materialize(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match=r"`tokenizer\.json` is a pointer of Git LFS"):
        Checkpoint.open(tmp_path).tokenizer(1024)
    with pytest.raises(CheckpointError, match=r"`tokenizer_config\.json` is a pointer of Git LFS"):
        ChatFiles.read(tmp_path)


@pytest.mark.parametrize(
    ("config", "who"),
    [
        ({"quantization_config": {"quant_method": "torchao"}}, "torchao"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "MXFP4"),
        ({"quantization_config": {"quant_method": "hqq"}}, "hqq"),
        ({"quantization_config": {"quant_method": "newer"}}, "newer"),
        ({"quantization_config": {"quant_algo": "FP8", "producer": {}}}, "ModelOpt"),
    ],
)  # fmt: skip
def test_quantised_checkpoints_are_refused_by_name(
    config: dict[str, object], who: str, tmp_path: Path
) -> None:
    tiny.materialize(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **config}))
    error = refused(tmp_path)
    assert isinstance(error, ConfigError)
    assert f"quantised checkpoints ({who})" in str(error)
    assert "dequantize" in str(error.hint)


@pytest.mark.parametrize("model_type", ["gemma3", "gemma3_text", "gemma2", "diffusion_gemma"])
def test_other_gemmas_are_called_another_architecture(model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert "another architecture than Gemma 4" in str(refused(tmp_path))


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("model.layers.0.mlp.up_proj.qweight", "GPTQ or AWQ"),
        ("model.layers.0.mlp.up_proj.weight.absmax", "bitsandbytes"),
        ("model.layers.0.mlp.up_proj.weight_packed", "compressed-tensors"),
        ("model.layers.0.mlp.up_proj.weight_scale_inv", "FP8 or compressed-tensors"),
        ("model.layers.0.mlp.up_proj.weight_scale_2", "ModelOpt"),
        ("model.layers.0.mlp.up_proj.weight._scale", "quanto"),
        ("language_model.model.layers.0.mlp.up_proj.scales", "MLX"),
        ("model.layers.0.router.scale", None),
        ("model.layers.0.router.per_expert_scale", None),
        ("model.vision_tower.std_scale", None),
        ("model.layers.0.mlp.up_proj.weight", None),
    ],
)
def test_names_of_quantised_tensors(name: str, who: str | None) -> None:
    assert kinds.quantised_by(name) == who


NO_ADAPTERS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "a model": (("config.json", "model.safetensors"), "holds a model", "in place of MODEL"),
    "another name": (("adapter_config.json", "lora.safetensors"), "`lora.safetensors`", "name it"),
    "the hub's cache": (("refs/main", "snapshots/a/b"), "the hub's cache", "snapshots"),
    "a link to nothing": (
        ("adapter_config.json", "adapter_model.safetensors"),
        "a link to a file that is not there",
        "correct the link",
    ),
    "weights alone": (("adapter_model.safetensors",), "`adapter_config.json` is missing", "whole"),
    "nothing": ((), "`adapter_config.json` is missing", "whole"),
}


@pytest.mark.parametrize("case", NO_ADAPTERS)
def test_what_is_no_adapter_is_called_what_it_is(case: str) -> None:
    names, what, hint = NO_ADAPTERS[case]
    error = kinds.no_adapter(kinds.Listing("x", frozenset(names), lambda name: {}))
    assert what in str(error)
    assert hint in (error.hint or "")


def test_a_lost_config_of_an_adapter_is_named_and_not_its_weights(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").symlink_to(tmp_path / "blob")
    (tmp_path / "adapter_model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"`adapter_config.json` of .* is a link to a file"):
        open_adapters([str(tmp_path)], weights=True, base=None)


def test_folders_of_many_files_are_looked_at_up_to_a_limit(tmp_path: Path) -> None:
    for index in range(5000):
        (tmp_path / f"{index}.txt").touch()
    assert len(kinds.folder_names(tmp_path)) == 4096


def test_names_of_a_hub_get_a_way_to_a_folder() -> None:
    names = frozenset({"README.md", "bf16/config.json", "bf16/model.safetensors"})
    error = kinds.no_config(Listing("a/b", names, lambda name: {}, is_hub=True))
    assert "its folder `bf16` holds one" in str(error)
    assert '`hf download a/b --include "bf16/*" --local-dir FOLDER`' in str(error.hint)


@pytest.mark.parametrize(
    ("files", "proposed"),
    [
        (["m-Q4_K_M.gguf", "m-BF16.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf"], "m-Q8_0.gguf"),
        (["b/m-IQ2_M.gguf", "a/m-Q4_K_S.gguf"], "a/m-Q4_K_S.gguf"),
        (["q4/m-Q4_0-00001-of-00002.gguf", "m-F32.gguf"], "q4/m-Q4_0-00001-of-00002.gguf"),
    ],
)
def test_of_a_repository_of_gguf_a_file_that_is_read_is_proposed(
    files: list[str], proposed: str
) -> None:
    for config in ([], ["config.json"]):
        listing = kinds.Listing("a/b", frozenset([*files, *config]), lambda name: {}, is_hub=True)
        error = kinds.no_weights(listing) if config else kinds.no_config(listing)
        assert "has GGUF files" in str(error)
        whole = proposed
        if "-of-" in proposed:
            whole = '--include "q4/m-Q4_0-*-of-00002.gguf"'
        assert f"`hf download a/b {whole} --local-dir FOLDER`" in str(error.hint)
        assert f"FOLDER/{proposed}" in str(error.hint)
        assert ("Q8_0" in str(error.hint)) is ("Q8_0" in proposed or "K_S" in proposed)


def test_a_folder_of_the_hub_s_cache_is_called_by_its_name(tmp_path: Path) -> None:
    cached = tmp_path / "models--google--gemma-4-E2B-it"
    tiny.materialize(cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    error = refused(cached)
    assert "a folder of the hub's cache" in str(error)
    assert "google/gemma-4-E2B-it" in str(error.hint)
    assert f"{cached}/snapshots" in str(error.hint)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_links_to_nothing_are_named(name: str, tmp_path: Path) -> None:
    model = without_weights(tmp_path / "model")
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(tmp_path / "blob")
    assert f"`{name}` of `{model}` is a link to a file that is not there" in str(refused(model))


def test_a_download_that_has_not_ended_is_named(tmp_path: Path) -> None:
    model = without_weights(tmp_path / "model")
    (model / "model.safetensors.incomplete").write_bytes(b"x")
    error = refused(model)
    assert "a download that has not ended" in str(error)
    assert "hf download" in str(error.hint)


@pytest.mark.parametrize("is_hub", [False, True])
@pytest.mark.parametrize(
    ("names", "words", "way_out"),
    [
        ((), "`tokenizer.json` is missing from `a/b`", "of the model that it was trained from"),
        (("tokenizer.model",), "which has `tokenizer.model` alone", "sentencepiece"),
        (("tokenizer/tokenizer.json",), "its folder `tokenizer` holds one", "beside config.json"),
    ],
)
def test_a_checkpoint_without_a_tokenizer_is_told_where_to_take_one(
    names: tuple[str, ...], words: str, way_out: str, is_hub: bool
) -> None:
    found = Listing("a/b", frozenset({"config.json", *names}), lambda name: {}, is_hub)
    error = kinds.no_tokenizer(found)
    assert words in str(error)
    assert way_out in str(error.hint)
    assert ("hf download a/b" in str(error.hint)) is is_hub


def test_the_tokenizer_is_missed_where_it_is_needed(tmp_path: Path) -> None:
    tiny.materialize(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    checkpoint = Checkpoint.open(tmp_path)
    for need in (checkpoint.tokenizer_files, lambda: checkpoint.tokenizer(1024)):
        with pytest.raises(CheckpointError, match=r"`tokenizer\.json` is missing"):
            need()
    (tmp_path / "tokenizer.json").symlink_to(tmp_path / "blob")
    with pytest.raises(CheckpointError, match="a link to a file that is not there"):
        checkpoint.tokenizer(1024)
