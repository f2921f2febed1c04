"""What stands in the place of a file is called what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile import tiny
from gemma4_compile.checkpoint.safetensors_file import read_header
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError


@pytest.mark.parametrize(
    ("content", "what", "way_out"),
    [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "pointer of Git LFS",
            "git lfs pull",
        ),
        ("# xet version 0\nfilesize = 1\n", "pointer of Xet", "git xet install"),
        ("<!DOCTYPE html>\n<html>", "web page", "resolve"),
        ("\n <HTML>", "web page", "resolve"),
        ("<?xml version='1.0'?><Error>AccessDenied</Error>", "refused", "hf auth login"),
        ("Entry not found", "refused", "hf download"),
        ("Access to model google/x is restricted.", "refused", "hf auth login"),
        ('{"error":"Repository not found"}', "refused", "hf auth login"),
        ("GGUF" + 100 * "x", "GGUF", "ends in .gguf"),
        ("PK\x03\x04" + 100 * "x", "ZIP", "save_pretrained"),
    ],
)
@pytest.mark.parametrize(
    "file",
    ["config.json", "model.safetensors", "generation_config.json", "chat_template.jinja",
      "model.safetensors.index.json"],
)  # fmt: skip
def test_what_stands_in_the_place_of_a_file_is_named(
    content: str, what: str, way_out: str, file: str, tmp_path: Path
) -> None:
    tiny.materialize(tmp_path)
    if "index" in file:
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / file).write_text(content)
    with (
        pytest.raises(CheckpointError) as caught,
        open_source(str(tmp_path), None, weights=True),
    ):
        pytest.fail("must not open")
    error = caught.value
    assert f"`{file}`" in str(error)
    assert what in str(error)
    assert way_out in str(error.hint)


@pytest.mark.parametrize(
    ("begin", "what", "way_out"),
    [
        (b"\x1f\x8b\x08\0", "gzip", "unpack it"),
        (b"\x28\xb5\x2f\xfd\x84", "zstd", "unpack it"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9", "a pickle", "save_pretrained"),
        (b"\x93NUMPY\x01\0", "NumPy", "save_pretrained"),
        (b"\x89HDF\r\n\x1a\n", "HDF5", "save_pretrained"),
        (bytes(64), "begins with zeros", "to its end"),
    ],
)
def test_other_formats_are_named(begin: bytes, what: str, way_out: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(begin + 100 * b"\xff")
    with pytest.raises(CheckpointError, match=what) as caught:
        read_header(tmp_path / "model.safetensors")
    assert way_out in str(caught.value.hint)


def test_a_header_may_begin_as_other_formats_do(tmp_path: Path) -> None:
    text = b"{}".ljust(0x088B1F)  # a length of the bytes of gzip
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert read_header(tmp_path / "model.safetensors") == {}
