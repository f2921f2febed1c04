"""GGUF as MODEL: a file, its parts, a folder; its tokenizer, and what goes into the package."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gemma4_compile.checkpoint import hub
from gemma4_compile.checkpoint.drafter import check_tokenizer, match_drafter, open_drafter
from gemma4_compile.checkpoint.gguf.opening import Tokenizer
from gemma4_compile.checkpoint.match import row_reader
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import CheckpointError, Gemma4CompileError, UsageError
from gemma4_compile.model_spec.modality import Modality
from tests import drafters, models
from tests.gguf_files import Type, add_config, all_of, divisors, gguf_name, of_name, write_gguf
from tests.packages import Silent

WANTED = Tokenizer(is_wanted=True)


def opened(path: Path, tokenizer: Tokenizer = WANTED, **options: Any) -> dict[str, Any]:
    """What a model has, as names and parsed files."""
    with open_source(str(path), None, weights=True, tokenizer=tokenizer, **options) as source:
        assert source.checkpoint is not None
        names = sorted(each.name for each in source.checkpoint.path.iterdir())
        own = source.checkpoint.tokenizer(source.config.vocab_size)[0] if WANTED else {}
        return {
            "origin": source.origin,
            "files": names,
            "tokenizer": own,
            "generation": source.generation_config,
            "tensors": len(source.checkpoint.tensors),
        }


def test_a_file_says_where_it_is_from_without_a_path(file: Path) -> None:
    found = opened(file)
    assert found["origin"] == {"kind": "gguf", "file": "tiny-Q4_0.gguf"}
    assert found["files"] == [
        *("chat_template.jinja", "config.json", "generation_config.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    assert found["generation"]["eos_token_id"] == [1, 50, 106]


def test_a_folder_a_link_and_a_file_of_another_name_are_the_same(
    file: Path, tmp_path: Path
) -> None:
    expected = opened(file)
    (tmp_path / "folder").mkdir()
    shutil.copy(file, tmp_path / "folder" / "tiny-Q4_0.GGUF")
    (tmp_path / "folder" / "mmproj-tiny.gguf").write_bytes(b"GGUF")
    (tmp_path / "folder" / "config.json").write_text("{}")  # of the hub, for its statistics
    blob = tmp_path / "sha256-0123"
    blob.symlink_to(file)
    for path in (tmp_path / "folder", blob):
        found = opened(path)
        assert {**found, "origin": None} == {**expected, "origin": None}


def test_configs_alone_make_no_tokenizer(file: Path) -> None:
    with open_source(str(file), None, weights=False, tokenizer=WANTED) as source:
        assert source.checkpoint is None
        assert source.config.vocab_size == 1024
    with open_source(str(file), None, weights=True) as source:
        assert source.checkpoint is not None
        assert not (source.checkpoint.path / "tokenizer.json").exists()
        directory = source.checkpoint.path
    assert not directory.exists()


def test_beside_safetensors_nothing_is_read(file: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "both")
    shutil.copy(file, tmp_path / "both")
    with open_source(str(tmp_path / "both"), None, weights=True) as source:
        assert source.origin == {"kind": "directory"}


def test_the_given_tokenizer_is_taken(
    file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = opened(file, Tokenizer(True, str(folder)))
    assert found["origin"]["tokenizer"] == "directory"
    assert found["tokenizer"] == json.loads((folder / "tokenizer.json").read_bytes())
    assert found["generation"] == json.loads((folder / "generation_config.json").read_bytes())
    monkeypatch.setattr(hub, "fetch_tokenizer", lambda model, revision: folder)
    of_hub = opened(file, Tokenizer(True, "google/gemma@main"))
    assert of_hub["origin"]["tokenizer"] == f"google/gemma@{folder.name}"
    beside = tmp_path / "beside"
    beside.mkdir()
    shutil.copy(file, beside)
    shutil.copy(folder / "tokenizer.json", beside)
    assert opened(beside)["tokenizer"] == found["tokenizer"]
    assert "chat_template.jinja" in opened(beside)["files"]  # the file's


def test_what_the_model_must_not_say_stays(
    checkpoint: models.Checkpoint, folder: Path, tmp_path: Path
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_array("tokenizer.ggml.suppress_tokens", [1017, 1018])

    path = tmp_path / "a.gguf"
    write_gguf(path, checkpoint, all_of(Type.F16), tokenizer=folder, change=change)
    for given in (WANTED, Tokenizer(True, str(folder))):
        assert opened(path, given)["generation"]["suppress_tokens"] == [1017, 1018]


def test_the_option_is_for_gguf_alone(folder: Path, tmp_path: Path) -> None:
    for model in ("tiny", str(folder), "google/gemma-4-E2B-it"):
        with (
            pytest.raises(UsageError, match="--tokenizer is for GGUF files"),
            open_source(model, None, weights=False, tokenizer=Tokenizer(True, str(folder))),
        ):
            pytest.fail("must not open")


def test_pictures_and_sounds_are_not_read(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="the text decoder is read alone"):
        opened(file, modalities=frozenset({Modality.TEXT, Modality.IMAGE}))
    shutil.copy(file, tmp_path)
    (tmp_path / "mmproj-BF16.gguf").touch()
    opened(tmp_path, modalities=None)
    assert "`mmproj-BF16.gguf` of" in capsys.readouterr().err


def test_a_base_model_is_called_one(
    checkpoint: models.Checkpoint, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["tokenizer.chat_template"]

    path = tmp_path / "a.gguf"
    write_gguf(path, checkpoint, all_of(Type.F16), tokenizer=folder, change=change)
    found = opened(path)
    assert "has no chat template" in capsys.readouterr().err
    assert found["generation"]["eos_token_id"] == [1]


def write_drafter_gguf(path: Path, made: drafters.Drafter, *, clusters: bool) -> Path:
    """As llama.cpp's converter does, which leaves the clusters out; others keep them."""
    text = made.values["text_config"]
    writer = gguf.GGUFWriter(path, "gemma4-assistant")
    add_config(writer, {**text, "use_double_wide_mlp": False})
    writer.add_embedding_length_out(made.values["backbone_hidden_size"])
    writer.add_uint32("gemma4-assistant.nextn_predict_layers", text["num_hidden_layers"])
    writer.add_token_list([f"t{index}" for index in range(text["vocab_size"])])
    writer.add_tensor("rope_freqs.weight", divisors(text))
    names = {
        "pre_projection.weight": "nextn.pre_projection.weight",
        "post_projection.weight": "nextn.post_projection.weight",
        "masked_embedding.centroids.weight": "masked_embd_centroids.weight",
        "masked_embedding.token_ordering": "masked_embd_ordering",
    }
    for name, values in made.weights.items():
        if "masked" in name and not clusters:
            continue
        place = names.get(name) or gguf_name(name.removeprefix("model."), text["num_hidden_layers"])
        stored = values.astype(np.int32 if name.endswith("ordering") else np.float32)
        writer.add_tensor(place, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("clusters", [True, False])
@pytest.mark.parametrize("kind", ["e2b", "dense", "moe"])
def test_drafters(kind: str, clusters: bool, tmp_path: Path) -> None:
    target = models.write_checkpoint(tmp_path / "target", models.KINDS[kind])
    made = drafters.write_drafter(tmp_path / "drafter", kind)
    path = write_drafter_gguf(tmp_path / "drafter.gguf", made, clusters=clusters)
    with (
        open_source(str(target.path), None, weights=True) as source,
        open_drafter(str(made.path), source.config, weights=True) as expected,
        open_drafter(str(path), source.config, weights=True) as found,
    ):
        assert expected is not None
        assert found is not None
        assert expected.checkpoint is not None
        assert found.checkpoint is not None
        assert source.checkpoint is not None
        assert found.origin == {"kind": "gguf", "file": "drafter.gguf"}
        assert found.config.hidden_size == expected.config.hidden_size
        assert found.config.layer_types == expected.config.layer_types
        has_clusters = clusters and expected.config.num_centroids > 0
        assert found.config.num_centroids == (expected.config.num_centroids if has_clusters else 0)
        both = []
        for config, stored in (
            (expected.config, expected.checkpoint),
            (found.config, found.checkpoint),
        ):
            matched = match_drafter(stored, replace(source.config, drafter=config))
            read = row_reader(matched)
            both.append({name: read(name, 0, one.row_count) for name, one in matched.items()})
        assert both[1].keys() <= both[0].keys()
        assert all(np.array_equal(values, both[0][name]) for name, values in both[1].items())
        with pytest.raises(CheckpointError, match="its tokenizer has"):
            check_tokenizer(found.checkpoint, source.checkpoint, source.config.vocab_size)


def test_a_model_is_no_drafter_and_a_drafter_no_model(file: Path, tmp_path: Path) -> None:
    made = drafters.write_drafter(tmp_path / "drafter", "dense")
    path = write_drafter_gguf(tmp_path / "drafter.gguf", made, clusters=False)
    with pytest.raises(CheckpointError, match=r"`drafter\.gguf` is a drafter"):
        opened(path)
    with open_source(str(file), None, weights=False) as source:
        with (
            pytest.raises(CheckpointError, match=r"--drafter: `tiny-Q4_0\.gguf` is no drafter"),
            open_drafter(str(file), source.config, weights=False),
        ):
            pytest.fail("must not open")
        with (
            pytest.raises(Gemma4CompileError, match="the drafter does not fit its target"),
            open_drafter(str(path), source.config, weights=False),
        ):
            pytest.fail("must not open")


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_packages_hold_the_weights_of_the_safetensors_checkpoint(
    kind: str, checkpoint: models.Checkpoint, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, checkpoint, all_of(of_name(kind)), tokenizer=folder)
    made = []
    for index, model in enumerate((folder, path)):
        output = tmp_path / str(index)
        compile_model(CompileRequest(str(model), "cpu", "q4f16", output, only="weights"), Silent())
        made.append({one.name: one.read_bytes() for one in output.iterdir()})
    same = [name for name in made[0] if name.startswith(("params_shard", "chat_template"))]
    assert len(same) >= 2
    for name in (*same, "tensor-cache.json"):
        assert made[0][name] == made[1][name], name
    noted = json.loads(made[1]["provenance.json"])["build"]
    assert noted["source"]["file"] == "tiny.gguf"
    assert set(noted["inputs"]["model"]) >= {"tiny.gguf", "config.json", "tokenizer.json"}
    assert str(tmp_path).encode() not in made[1]["provenance.json"]
