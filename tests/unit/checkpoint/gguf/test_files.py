"""Which files are a model in GGUF: a file, its parts, or those of a folder."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from gemma4_compile.checkpoint.gguf.files import is_model, parts_of, towers_beside
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError
from tests import models
from tests.gguf_files import add_config, divisors, gguf_name


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> models.Checkpoint:
    weights = models.random_weights(models.E4B_LIKE)
    return models.Checkpoint(Path(), models.E4B_LIKE, weights, "float32")


def parts(folder: Path, checkpoint: models.Checkpoint, count: int = 3) -> list[Path]:
    """As llama.cpp's `gguf-split` makes them: the metadata is in the first."""
    names = list(checkpoint.weights)
    found = []
    for index in range(count):
        path = folder / f"m-{index + 1:05d}-of-{count:05d}.gguf"
        writer = gguf.GGUFWriter(path, "gemma4")
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(names) + 1)
        if index == 0:
            add_config(writer, checkpoint.text_config)
            writer.add_tensor("rope_freqs.weight", divisors(checkpoint.text_config))
        for name in names[index::count]:
            place = gguf_name(name, checkpoint.text_config["num_hidden_layers"])
            writer.add_tensor(place, checkpoint.weights[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found.append(path)
    return found


def test_parts_are_read_whichever_is_given(checkpoint: models.Checkpoint, tmp_path: Path) -> None:
    files = parts(tmp_path, checkpoint)
    for path in (tmp_path, files[0], files[2]):
        with open_source(str(path), None, weights=True) as source:
            assert source.checkpoint is not None
            tensors = source.checkpoint.tensors
            assert len(tensors) == len(checkpoint.weights)
            assert len({one.path for one in tensors.values()}) == 3
            assert source.origin["file"] == files[0].name
    files[1].unlink()
    for path in (tmp_path, files[2]):
        with (
            pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf` is missing"),
            open_source(str(path), None, weights=False),
        ):
            pytest.fail("must not open")


def test_of_several_models_one_is_to_be_given(tmp_path: Path) -> None:
    names = ["a-Q4_0.gguf", *(f"b-{part:05d}-of-00002.gguf" for part in (1, 2))]
    for name in ("mmproj-BF16.gguf", *names):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(
        CheckpointError, match=r"2 models in GGUF: `a-Q4_0\.gguf`, `b-00001-of"
    ) as e:
        parts_of(tmp_path)
    assert e.value.hint
    assert parts_of(tmp_path / names[0]) == (tmp_path / names[0],)
    assert parts_of(tmp_path / names[2]) == (tmp_path / names[1], tmp_path / names[2])
    assert towers_beside(tmp_path) == "mmproj-BF16.gguf"
    assert towers_beside(tmp_path / names[0]) is None


def test_a_number_of_parts_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "a-00001-of-99999.gguf"
    path.touch()
    with pytest.raises(CheckpointError, match="one of 99999 parts"):
        parts_of(path)


def test_a_link_out_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.gguf").symlink_to(tmp_path / "a.gguf")
    assert parts_of(tmp_path / "folder" / "a.gguf")
    with pytest.raises(CheckpointError, match=r"cannot read `a\.gguf`"):
        parts_of(tmp_path / "folder")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.gguf"], True),
        (["a.GGUF", "config.json", "README.md"], True),
        (["mmproj-a.gguf"], False),
        (["a.gguf", "model.safetensors"], False),
        (["a.gguf", "model.safetensors.index.json"], False),
        (["config.json"], False),
        ([], False),
    ],
)
def test_a_folder_is_a_model_where_nothing_else_is(
    names: list[str], expected: bool, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert is_model(tmp_path) is expected


def test_a_file_is_known_by_its_name_or_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    (tmp_path / "sha256-0").write_bytes(b"GGUF....")
    (tmp_path / "other").write_bytes(b"GGU")
    assert [is_model(tmp_path / name) for name in ("a.gguf", "sha256-0", "other", "none")] == [
        *(True, True, False, False)
    ]
