"""Names of files that are no checkpoint: one kind each, and none of a checkpoint's own."""

import pytest

from gemma4_compile.checkpoint.file_kinds import FILE_KINDS


def kinds_of(name: str) -> list[str]:
    return [kind.what for kind in FILE_KINDS if kind.first([name])]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.safetensors.incomplete", "a download that has not ended"),
        ("model-00001-of-00002.safetensors.crdownload", "a download that has not ended"),
        ("gemma-4.zip", "an archive"),
        ("checkpoint.tar.gz", "an archive"),
        ("model.onnx", "ONNX"),
        ("pytorch_model.bin", "a pickle"),
    ],
)
def test_a_name_says_what_a_file_is(name: str, what: str) -> None:
    assert what in kinds_of(name)[0]


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "README.md"],
)
def test_a_checkpoint_s_own_files_are_of_no_other_kind(name: str) -> None:
    assert kinds_of(name) == []


def test_the_nearest_file_is_named() -> None:
    archive = next(kind for kind in FILE_KINDS if kind.first(["a.zip"]))
    assert archive.first(["b.zip", "a.zip", "c.txt"]) == "a.zip"
    assert archive.first(["c.txt"]) is None
