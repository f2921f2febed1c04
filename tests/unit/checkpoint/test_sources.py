"""What a model's name stands for, and that the config is read before anything large."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4_compile import tiny
from gemma4_compile.checkpoint import hub
from gemma4_compile.checkpoint.chat_files import read_chat_template
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError, ConfigError, UsageError
from gemma4_compile.options import package as options
from tests.models import DENSE_LIKE, write_checkpoint


def test_tiny_is_written_and_removed_again() -> None:
    with open_source("tiny", None, weights=True) as source:
        assert source.origin == {"kind": "tiny"}
        assert source.checkpoint is not None
        path = source.checkpoint.path
        assert path.is_dir()
    assert not path.exists()


def test_directory(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, DENSE_LIKE)
    with open_source(str(tmp_path), None, weights=True) as source:
        assert source.origin == {"kind": "directory"}  # no path of this machine
        assert source.config.attention_k_eq_v
        assert source.checkpoint is not None


def test_config_alone_needs_no_weights(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, DENSE_LIKE)
    (tmp_path / "model.safetensors").unlink()
    with open_source(str(tmp_path), None, weights=False) as source:
        assert source.checkpoint is None


def test_preset_is_a_config_only() -> None:
    with open_source("gemma-4-E2B-it", None, weights=False) as source:
        assert source.origin == {"kind": "preset", "model": "gemma-4-E2B-it"}
        assert source.config.num_hidden_layers == 35
    with (
        pytest.raises(UsageError, match="without weights"),
        open_source("gemma-4-E2B-it", None, weights=True),
    ):
        pytest.fail("must not open")


@pytest.mark.parametrize(
    "model", ["no-such-model", "./none", "/none", "a/b/c", "", "a b/c", "~no-such-user/model"]
)
def test_name_that_means_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fetch_config", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(CheckpointError), open_source(model, None, weights=True):
        pytest.fail("must not open")


def test_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with (
        pytest.raises(CheckpointError, match="is no directory"),
        open_source(str(tmp_path / "model.safetensors"), None, weights=True),
    ):
        pytest.fail("must not open")


@pytest.mark.parametrize("model", ["tiny", "gemma-4-E2B-it", "."])
def test_revision_is_for_the_hub(model: str) -> None:
    with (
        pytest.raises(UsageError, match="--revision"),
        open_source(model, "main", weights=False),
    ):
        pytest.fail("must not open")


def test_hub_model_is_pinned_to_the_commit_of_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "0123abcd"
    write_checkpoint(snapshot, DENSE_LIKE)
    asked: list[str | None] = []
    monkeypatch.setattr(hub, "fetch_config", lambda model, revision: snapshot)

    def fetch(model: str, revision: str | None, *, has_texts: bool) -> Path:
        assert has_texts
        asked.append(revision)
        return snapshot

    monkeypatch.setattr(hub, "fetch", fetch)
    with open_source("google/gemma", "main", weights=True) as source:
        assert source.origin["revision"] == "0123abcd"
    assert asked == ["0123abcd"]


def test_the_config_of_a_hub_model_comes_with_its_generation_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library depends on it: see suppressed_tokens.py."""
    snapshot = tmp_path / "0123abcd"
    write_checkpoint(snapshot, DENSE_LIKE)
    monkeypatch.setattr(hub, "fetch_config", lambda model, revision: snapshot)
    asked: list[str] = []
    monkeypatch.setattr(hub, "fetch_generation_config", lambda *name: asked.extend(name))
    with open_source("google/gemma", "main", weights=False) as source:
        assert source.generation_config["do_sample"] is True
        assert source.checkpoint is None
    assert asked == ["google/gemma", "0123abcd"]


def test_unsupported_model_is_refused_before_its_weights_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma4_assistant"}')
    monkeypatch.setattr(hub, "fetch_config", lambda model, revision: tmp_path)
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: pytest.fail("downloaded"))
    with (
        pytest.raises(ConfigError, match="drafter"),
        open_source(options.DEFAULT_MODEL, None, weights=True),
    ):
        pytest.fail("must not open")


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("https://huggingface.co/google/gemma-4-E2B-it", "page is google/gemma-4-E2B-it"),
        ("https://huggingface.co/a/b.c/tree/main?x=1", "page is a/b.c"),
        ("hf.co/a/b", "page is a/b"),
        ("https://example.org/a/b", "give a directory, a hub id"),
    ],
)
def test_a_page_of_the_hub_is_answered_with_its_id(model: str, hint: str) -> None:
    with (
        pytest.raises(CheckpointError, match="there is no model") as caught,
        open_source(model, None, weights=False),
    ):
        pytest.fail("must not open")
    assert hint in str(caught.value.hint)


def test_a_revision_may_be_next_to_a_page_of_the_hub() -> None:
    with (
        pytest.raises(CheckpointError, match="there is no model"),
        open_source("https://huggingface.co/a/b", "main", weights=False),
    ):
        pytest.fail("must not open")


def test_unknown_keys_are_named_once_and_cannot_control_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path, DENSE_LIKE)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "\x1b]0;evil\x07": 1, "mystery": 2}))
    with open_source(str(tmp_path), None, weights=False):
        pass
    line, hint = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: config.json: `\\x1b]0;evil\\x07`, `mystery` are unknown")
    assert hint.startswith("hint: ")
    path.write_text(json.dumps({**config, **{f"{'x' * 999}{i}": i for i in range(9999)}}))
    with open_source(str(tmp_path), None, weights=False):
        pass
    line, _ = capsys.readouterr().err.splitlines()
    assert "and 9991 others" in line
    assert len(line) < 1000


@pytest.mark.parametrize("weights", [False, True])
def test_a_checkpoint_without_a_chat_template_is_told(
    weights: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.materialize(tmp_path)
    with open_source(str(tmp_path), None, weights=weights):
        assert capsys.readouterr().err == ""
    template = (tmp_path / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.jinja").unlink()
    with open_source(str(tmp_path), None, weights=weights):
        err = capsys.readouterr().err
    assert err.startswith("warning: the checkpoint has no chat template")
    assert "--raw" in err
    assert "/v1/completions" in err
    for stored in (template, [{"name": "default", "template": template}]):
        settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
        settings["chat_template"] = stored
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        with open_source(str(tmp_path), None, weights=weights) as source:
            assert capsys.readouterr().err == ""
            if source.checkpoint is not None:
                assert read_chat_template(source.checkpoint.path) == template


@pytest.mark.parametrize("name", ["model-Q4_0.gguf", "MODEL.GGUF"])
def test_a_gguf_file_is_opened_as_one_whatever_its_letters(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    for model in (tmp_path, tmp_path / name):
        with (
            pytest.raises(CheckpointError, match=rf"the header of `{name}` is damaged") as found,
            open_source(str(model), None, weights=False),
        ):
            pytest.fail("must not open")
        assert "download" in str(found.value.hint)


def test_a_package_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("{}")
    with (
        pytest.raises(CheckpointError, match="is a package, compiled already"),
        open_source(str(tmp_path), None, weights=True),
    ):
        pytest.fail("must not open")


def test_code_of_the_checkpoint_s_own_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers loads its own classes where it knows them, unless the code is trusted."""
    tiny.materialize(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    config["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig"}
    config["text_config"]["model_type"] = "my_gemma"
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with open_source(str(tmp_path), None, weights=False) as source:
        assert source.config.num_hidden_layers == config["text_config"]["num_hidden_layers"]
    said = capsys.readouterr().err
    assert "`auto_map` of config.json" in said
    assert "`text_config.model_type: my_gemma`" in said
