"""What stands in the place of a file is called what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile import tiny
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
