"""A checkpoint's conversation in its package: files, warnings, provenance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gemma4_compile import tiny
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import CheckpointError
from gemma4_compile.runtime.package.package import read_provenance
from tests import models
from tests.packages import Silent
from tests.unit.package.test_client_form import CHATML, REFUSING

pytestmark = pytest.mark.package


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny.materialize(tmp_path / "model")
    return tmp_path / "model"


def compiled(model: Path, target: str = "webgpu", **more: Any) -> Path:
    output = model.parent / f"package-{target}"
    more = {"only": "weights", "force": True, **more}
    request = CompileRequest(str(model), target, "q4f32", output, **more)
    compile_model(request, Silent())
    return output


def rename(model: Path) -> None:
    """Give unused tokens ChatML's names, as tools for fine-tuning do."""
    names = {"<unused0>": "<|im_start|>", "<unused1>": "<|im_end|>"}
    path = model / "tokenizer.json"
    values: dict[str, Any] = json.loads(path.read_text())
    for token in values["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = values["model"]["vocab"]
    values["model"]["vocab"] = {names.get(key, key): i for key, i in vocabulary.items()}
    path.write_text(json.dumps(values))


def chat_config(package: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((package / "mlc-chat-config.json").read_text())
    return values


def test_the_shipped_model_is_compiled_without_a_word(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = compiled(model)
    assert capsys.readouterr().err == ""
    assert "conversation" not in read_provenance(package).build
    assert chat_config(package)["first_user"] == "<|turn>user\n"
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        assert (package / name).read_bytes() == (model / name).read_bytes()


def test_other_names_of_turns_reach_the_client(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename(model)
    (model / "chat_template.jinja").write_text(CHATML)
    template = chat_config(compiled(model))["conv_template"]
    assert template["roles"] == {
        "user": "<|im_end|>\n<|im_start|>user\n",
        "assistant": "<|im_end|>\n<|im_start|>assistant\n",
    }
    assert template["system_template"] == "<|im_start|>system\n{system_message}"
    said = capsys.readouterr().err  # which ends by no stop token, but differs in nothing
    assert "ends a reply by `<|im_end|>`, which is no stop token" in said
    assert "in browsers" not in said


def test_a_difference_is_a_warning_and_in_provenance_for_browsers_alone(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "chat_template.jinja").write_text(REFUSING)
    found = read_provenance(compiled(model)).build["conversation"]
    assert {one["dialogue"] for one in found} >= {"a system message"}
    said = capsys.readouterr().err
    assert "in browsers prompts differ from the checkpoint's chat template: a system" in said
    assert "refuses it" in said
    native = compiled(model, "cpu")
    assert capsys.readouterr().err == ""
    assert "conversation" not in read_provenance(native).build


def test_a_date_stays_that_of_the_compilation_in_browsers(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dated = CHATML.replace("{{- bos_token -}}", "{{- bos_token + strftime_now('%Y') -}}")
    (model / "chat_template.jinja").write_text(dated)
    compiled(model)
    assert "asks for the date" in capsys.readouterr().err
    compiled(model, "cpu")
    assert "asks for the date" not in capsys.readouterr().err


def test_turns_without_any_form_are_gemmas_and_said(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt that has no part for each message."""
    template = "{{ bos_token }}{{ messages | map(attribute='content') | join('|') | upper }}<turn|>"
    (model / "chat_template.jinja").write_text(template)
    package = compiled(model)
    assert chat_config(package)["conv_template"]["system_template"].startswith("<|turn>system")
    assert "in browsers prompts differ" in capsys.readouterr().err
    assert read_provenance(package).build["conversation"]


def test_tokens_of_another_file_are_in_the_package(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model / "tokenizer_config.json"
    values = json.loads(path.read_text())
    del values["bos_token"]
    path.write_text(json.dumps(values))
    compiled(model, "cpu")
    assert "no file of the checkpoint names `bos_token`" in capsys.readouterr().err
    (model / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<bos>"}))
    package = compiled(model, "cpu")
    assert capsys.readouterr().err == ""
    assert json.loads((package / "tokenizer_config.json").read_text())["bos_token"] == "<bos>"


def test_tokens_that_transformers_adds_are_named(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "added_tokens.json").write_text(json.dumps({"<call>": 1024}))
    (model / "special_tokens_map.json").write_text(
        json.dumps({"additional_special_tokens": ["<bos>", "<end>"]})
    )
    compiled(model, "cpu")
    said = capsys.readouterr().err
    assert "transformers adds tokens that tokenizer.json does not have: '<end>', '<call>'" in said


def test_of_an_encoder_they_are_named_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    tiny.materialize_embedding(model)
    compiled(model)
    assert capsys.readouterr().err == ""
    (model / "added_tokens.json").write_text(json.dumps({"<new>": 1024}))
    compiled(model)
    assert "transformers adds tokens that tokenizer.json does not have: '<new>'" in (
        capsys.readouterr().err
    )


def test_an_encoders_longest_text_is_the_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    tiny.materialize_embedding(model)
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    assert chat_config(compiled(model))["embedding"]["max_tokens"] == 20
    capsys.readouterr()
    longer = compiled(model, context_length=64)
    assert "max_tokens" not in chat_config(longer)["embedding"]
    assert "sentence-transformers reads up to 20 tokens" in capsys.readouterr().err
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 4096}))
    assert "max_tokens" not in chat_config(compiled(model))["embedding"]


def test_merges_are_not_left_out_at_random(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = model / "tokenizer.json"
    values = json.loads(file.read_text())
    values["model"]["dropout"] = 0.9
    file.write_text(json.dumps(values))
    written = Tokenizer.from_file(str(compiled(model, "cpu") / "tokenizer.json"))
    assert "`dropout` of its model is 0.9" in capsys.readouterr().err
    values["model"]["dropout"] = None
    text = "Hello, what is twelve plus thirty-four? " * 4
    expected = Tokenizer.from_str(json.dumps(values)).encode(text).ids
    assert all(written.encode(text).ids == expected for _ in range(4))


def set_ids(path: Path, **ids: object) -> None:
    values = {**json.loads(path.read_text()), **ids}
    path.write_text(json.dumps(values))


@pytest.mark.slow
@pytest.mark.parametrize("bos", [-1, 1024])
@pytest.mark.parametrize("eos", [[1, 1024, -1], 1024, []])
def test_ids_of_no_token_are_left_out(
    model: Path, bos: int, eos: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer's `<bos>` still begins prompts, and `<turn|>` ends replies."""
    expected = chat_config(compiled(model))["conv_template"]
    set_ids(model / "config.json", bos_token_id=bos, eos_token_id=eos)
    set_ids(model / "generation_config.json", bos_token_id=bos, eos_token_id=eos)
    found = chat_config(compiled(model))["conv_template"]
    assert set(found["stop_token_ids"]) == {106, *([1] if isinstance(eos, list) and eos else [])}
    assert {**found, "stop_token_ids": 0} == {**expected, "stop_token_ids": 0}
    assert capsys.readouterr().err == ""


def test_a_model_whose_replies_never_end_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models.write_checkpoint(tmp_path / "model", models.E2B_LIKE).path
    (path / "tokenizer.json").write_text(
        json.dumps({**models.character_tokenizer(), "added_tokens": []})
    )
    set_ids(path / "config.json", eos_token_id=[-1])
    set_ids(path / "generation_config.json", eos_token_id=[-1])
    package = compiled(path, "cpu")
    assert "no token ends a reply" in capsys.readouterr().err
    assert chat_config(package)["conv_template"]["stop_token_ids"] == []


def test_turns_without_tokens_of_their_own_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers runs it: the words of the template are spelt in letters, and nothing stops."""
    path = models.write_checkpoint(tmp_path / "model", models.E2B_LIKE).path
    tokenizer = {**models.character_tokenizer(), "added_tokens": []}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    compiled(path, "cpu")
    said = capsys.readouterr().err
    assert "transformers adds tokens that tokenizer.json does not have: '<bos>'" in said
    assert "the chat template ends a reply by '<turn|>" in said
    assert "which begins with no stop token" in said


def test_a_token_that_the_model_has_no_row_for_is_text(model: Path) -> None:
    path = model / "tokenizer.json"
    values = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    values["added_tokens"].append({"id": 1024, "content": "[PAD]", "special": True, **flags})
    path.write_text(json.dumps(values))
    tokenizer = Tokenizer.from_file(str(compiled(model) / "tokenizer.json"))
    ids = tokenizer.encode("a [PAD] b", add_special_tokens=False).ids
    assert max(ids) < 1024
    assert tokenizer.decode(ids) == "a [PAD] b"
    assert tokenizer.get_vocab_size() == 1024


def test_what_training_left_in_a_tokenizer_cuts_and_fills_no_prompt(model: Path) -> None:
    """A client in a browser does what the package's file says; transformers does not."""
    path, text = model / "tokenizer.json", "What is 12 plus 34? And times two?"
    expected = Tokenizer.from_file(str(path)).encode(text).ids
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=64, pad_token="<pad>")
    tokenizer.save(str(path))
    assert len(Tokenizer.from_file(str(path)).encode(text).ids) == 64
    packaged = Tokenizer.from_file(str(compiled(model) / "tokenizer.json"))
    assert packaged.encode(text).ids == expected


def test_a_template_that_is_damaged_is_to_be_corrected(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ bos_token }")
    with pytest.raises(CheckpointError, match="the chat template is damaged") as found:
        compiled(model)
    assert (found.value.hint or "").startswith("correct the chat template")


def test_a_template_that_writes_such_a_token_is_refused(model: Path) -> None:
    path = model / "tokenizer.json"
    values = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    values["added_tokens"].append({"id": 1024, "content": "<|begin|>", "special": True, **flags})
    path.write_text(json.dumps(values))
    template = model / "chat_template.jinja"
    template.write_text("<|begin|>" + template.read_text())
    with pytest.raises(CheckpointError, match="token id 1024, and the model has 1024 tokens"):
        compiled(model)
