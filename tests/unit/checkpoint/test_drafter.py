"""Drafters' checkpoints: where they are, and damaged, strange and foreign ones."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint import hub
from gemma4_compile.checkpoint.drafter import (
    DrafterSource,
    check_tokenizer,
    match_drafter,
    open_drafter,
    with_drafter,
)
from gemma4_compile.checkpoint.match import Checkpoint
from gemma4_compile.errors import CheckpointError, ConfigError, Gemma4CompileError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.tiny import checkpoint
from tests import models
from tests.drafters import drafter_config, random_weights, write_drafter


def target_of(kind: str) -> Gemma4Config:
    return Gemma4Config.from_dict(models.config_file(models.KINDS[kind], "hub", "float32"))


def opened(directory: Path | str, kind: str = "e2b") -> tuple[DrafterSource, Gemma4Config]:
    with open_drafter(str(directory), target_of(kind), weights=True) as source:
        assert source is not None
        return source, with_drafter(target_of(kind), source)


def matched(directory: Path) -> None:
    source, config = opened(directory)
    assert source.checkpoint is not None
    match_drafter(source.checkpoint, config)


def test_a_directory_is_opened_and_matched(tmp_path: Path) -> None:
    written = write_drafter(tmp_path / "drafter", "e2b")
    source, config = opened(written.path)
    assert source.origin == {"kind": "directory"}
    assert config.drafter == written.config
    assert source.checkpoint is not None
    found = match_drafter(source.checkpoint, config)
    assert found.keys() == {f"drafter.{name}" for name in written.weights}


def test_what_is_said_of_quantised_weights_names_the_drafter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantised = {**drafter_config("e2b"), "quantization_config": {"load_in_4bit": True}}
    opened(write_drafter(tmp_path / "drafter", "e2b", values=quantised).path)
    assert "warning: --drafter: config.json has the checkpoint quant" in capsys.readouterr().err


def test_the_config_alone_needs_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(drafter_config("moe")))
    with open_drafter(str(tmp_path), target_of("moe"), weights=False) as source:
        assert source is not None
        assert source.checkpoint is None


def rewrite(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the weights."""

    def write(folder: Path) -> None:
        weights = random_weights(drafter_config("e2b"))
        change(weights)
        write_drafter(folder, "e2b", weights=weights)

    return write


ORDER = "masked_embedding.token_ordering"


def repeat(weights: dict[str, Any]) -> None:
    weights[ORDER][3] = weights[ORDER][4]


def beyond(weights: dict[str, Any]) -> None:
    weights[ORDER][7] = 1 << 40


def negative(weights: dict[str, Any]) -> None:
    weights[ORDER][7] = -1


def cut(folder: Path) -> None:
    write_drafter(folder, "e2b")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def no_json(folder: Path) -> None:
    write_drafter(folder, "e2b")
    (folder / "config.json").write_text("{")


def no_config(folder: Path) -> None:
    write_drafter(folder, "e2b")
    (folder / "config.json").unlink()


def of_another_model(folder: Path) -> None:
    write_drafter(folder, "moe")


def a_target(folder: Path) -> None:
    models.write_checkpoint(folder, models.E2B_LIKE)


def a_file(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("x")


def gguf(folder: Path) -> None:
    folder.mkdir()
    (folder / "drafter.gguf").write_bytes(b"GGUF")


def a_package(folder: Path) -> None:
    folder.mkdir()
    (folder / "provenance.json").write_text("{}")


DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "an id twice": (rewrite(repeat), "does not hold every token id from 0 to 255 once"),
    "an id beyond": (rewrite(beyond), "does not hold every token id"),
    "an id below": (rewrite(negative), "does not hold every token id"),
    "ids that are floats": (
        rewrite(lambda w: w.update({ORDER: w[ORDER].astype(np.float32)})),
        "has dtype F32, expected one of I32, I64",
    ),
    "weights that are integers": (
        rewrite(lambda w: w.update({"model.norm.weight": np.ones(32, np.int32)})),
        "has dtype I32, expected one of BF16",
    ),
    "a shape": (
        rewrite(lambda w: w.update({"pre_projection.weight": np.ones((32, 96), np.float32)})),
        r"has shape \(32, 96\), expected \(32, 192\)",
    ),
    "a tensor missing": (
        rewrite(lambda w: w.pop("post_projection.weight")),
        "`post_projection.weight` is missing",
    ),
    "a tensor too many": (
        rewrite(lambda w: w.update({"model.layers.0.self_attn.k_proj.weight": np.ones((1, 1))})),
        "k_proj.weight` in",
    ),
    "cut short": (cut, "--drafter: .*model.safetensors"),
    "no JSON": (no_json, "--drafter: `config.json` is damaged"),
    "no config": (no_config, "--drafter: `config.json` is missing from"),
    "of another model": (of_another_model, "the drafter does not fit its target"),
    "a target": (a_target, "'gemma4' is no drafter"),
    "a file": (a_file, "no directory"),
    "a GGUF file": (gguf, r"--drafter: the header of `drafter\.gguf` is damaged"),
    "a package": (a_package, r"--drafter: .* is a package, compiled already"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    write, message = DAMAGED[name]
    write(tmp_path / "drafter")
    with pytest.raises(Gemma4CompileError, match=message) as raised:
        matched(tmp_path / "drafter")
    assert isinstance(raised.value, (CheckpointError, ConfigError))
    assert raised.value.hint


def test_ids_of_32_bits_are_read_as_well(tmp_path: Path) -> None:
    rewrite(lambda w: w.update({ORDER: w[ORDER].astype(np.int32)}))(tmp_path / "drafter")
    source, config = opened(tmp_path / "drafter")
    assert source.checkpoint is not None
    assert match_drafter(source.checkpoint, config)[f"drafter.{ORDER}"].dtype == "I32"


@pytest.mark.parametrize("name", ["no such thing", "~no-such-user/drafter"])
def test_what_is_neither_a_directory_nor_an_id_is_said(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"--drafter: there is no `{name}`"):
        opened(name)


def test_keys_that_nobody_knows_are_the_drafter_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = drafter_config("e2b")
    (tmp_path / "config.json").write_text(json.dumps({**values, "strange": 1}))
    with open_drafter(str(tmp_path), target_of("e2b"), weights=False):
        assert "warning: --drafter: config.json: `strange` is unknown" in capsys.readouterr().err


def test_a_hub_s_errors_are_the_drafter_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with (
        pytest.raises(CheckpointError, match=r"^--drafter: "),
        open_drafter("nobody/nothing", target_of("e2b"), weights=False),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "revision"),
    [("some/drafter@v2", "v2"), ("some/drafter", None), ("some/drafter@", None)],
)
def test_a_revision_of_the_hub_stands_after_the_id(
    name: str, revision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = tmp_path / "0123abc"
    write_drafter(commit, "e2b")
    asked: list[tuple[str, str | None]] = []

    def fetch(model: str, revision: str | None) -> Path:
        asked.append((model, revision))
        return commit

    monkeypatch.setattr(hub, "fetch_config", fetch)
    monkeypatch.setattr(hub, "fetch", fetch)
    with open_drafter(name, target_of("e2b"), weights=True) as source:
        assert source is not None
        expected = {"kind": "hub", "model": "some/drafter", "revision": commit.name}
        assert source.origin == expected
    assert asked == [("some/drafter", revision), ("some/drafter", commit.name)]


def test_where_none_is_named_there_is_none() -> None:
    with open_drafter(None, target_of("e2b"), weights=True) as source:
        assert source is None


def test_tiny_s_own_drafter_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)  # a directory of its name is another
    target = Gemma4Config.from_dict(checkpoint.config())
    with open_drafter("tiny", target, weights=True) as source:
        assert source is not None
        assert source.origin == {"kind": "tiny"}
        assert source.checkpoint is not None
        assert match_drafter(source.checkpoint, with_drafter(target, source))
        assert len(list(temporary.iterdir())) == 1
    assert not list(temporary.iterdir())
    message = r"--drafter tiny: it drafts for the model `tiny` alone: .*backbone_hidden_size"
    with pytest.raises(ConfigError, match=message) as raised:
        opened("tiny")
    assert "of this very model" in str(raised.value.hint)
    assert not list(temporary.iterdir())


def test_a_tokenizer_of_other_tokens_is_refused(tmp_path: Path) -> None:
    target = models.write_checkpoint(tmp_path / "target", models.E2B_LIKE)
    write_drafter(tmp_path / "drafter", "e2b")
    pair = (Checkpoint.open(tmp_path / "drafter"), Checkpoint.open(target.path))
    check_tokenizer(*pair, 256)  # the drafter has none

    text = (target.path / "tokenizer.json").read_text()
    (tmp_path / "drafter" / "tokenizer.json").write_text(text)
    check_tokenizer(*pair, 256)

    values = json.loads(text)
    (tmp_path / "drafter" / "tokenizer.json").write_text(json.dumps(values, indent=3))
    check_tokenizer(*pair, 256)  # the same tokens in another form

    padded = {**values, "added_tokens": [*values["added_tokens"], {"id": 256, "content": "[PAD]"}]}
    (target.path / "tokenizer.json").write_text(json.dumps(padded))
    check_tokenizer(*pair, 256)
    with pytest.raises(CheckpointError, match=r"'\[PAD\]', expected 256") as told:
        check_tokenizer(*pair, 257)
    assert "leave out --drafter" in str(told.value.hint)
    (target.path / "tokenizer.json").write_text(text)

    vocabulary = values["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "drafter" / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"its tokenizer has .* for token 'a'"):
        check_tokenizer(*pair, 256)

    (tmp_path / "drafter" / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"^--drafter: `tokenizer.json` is damaged"):
        check_tokenizer(*pair, 256)


def test_without_a_drafter_the_config_stays_as_it_is() -> None:
    config = target_of("dense")
    assert with_drafter(config, None) is config
    assert replace(config, drafter=None) == config
