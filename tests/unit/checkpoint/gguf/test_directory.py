"""Tokenizers that are given for a model in GGUF: whole, and of its tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gemma4_compile.checkpoint.gguf.opening import Tokenizer
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError


def other_tokens(path: Path) -> None:
    tokenizer = json.loads((path / "tokenizer.json").read_bytes())
    vocabulary = tokenizer["model"]["vocab"]
    names = [*vocabulary]
    vocabulary[names[600]], vocabulary[names[601]] = vocabulary[names[601]], vocabulary[names[600]]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))


def writing(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "tokenizer.json").write_text(text)

    return write


def a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


TOKENIZERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "of other tokens": (other_tokens, "is another than that of `tiny-Q4_0.gguf`: token 60"),
    "none": (lambda path: (path / "tokenizer.json").unlink(), "`tokenizer.json` is missing from"),
    "damaged": (writing("{"), "is damaged"),
    "without a vocabulary": (writing("{}"), "no vocabulary"),
    "a file": (a_file, "no such directory"),
    "nothing": (shutil.rmtree, "no such directory, and no hub id"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_is_none_is_refused(
    name: str, file: Path, folder: Path, tmp_path: Path
) -> None:
    change, message = TOKENIZERS[name]
    shutil.copytree(folder, tmp_path / "tokenizer")
    change(tmp_path / "tokenizer")
    given = Tokenizer(True, str(tmp_path / "tokenizer"))
    with (
        pytest.raises(CheckpointError, match=message) as caught,
        open_source(str(file), None, weights=True, tokenizer=given),
    ):
        pytest.fail("must not open")
    assert caught.value.hint
