"""Templates and special tokens of a checkpoint's files, as transformers loads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from gemma4_compile.checkpoint.chat_files import ChatFiles, read_chat_template
from gemma4_compile.errors import CheckpointError
from gemma4_compile.template.chat_template import templates_of
from gemma4_compile.tiny.checkpoint import TOKENIZER_FILES, shipped_file

pytestmark = pytest.mark.parity

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in TOKENIZER_FILES:
        (tmp_path / name).write_bytes(shipped_file(name))
    return tmp_path


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def store(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def in_config(value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "chat_template.jinja").unlink()
        edit(folder, lambda values: values.update(chat_template=value))

    return change


def beside(folder: Path) -> None:
    store(folder, "additional_chat_templates/tool_use.jinja", "tools")


def beside_alone(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    store(folder, "additional_chat_templates/default.jinja", "plain")


def beside_default(folder: Path) -> None:
    """One that holds in the place of `chat_template.jinja`."""
    store(folder, "additional_chat_templates/default.jinja", "plain")


def file_and_config(folder: Path) -> None:
    edit(folder, lambda values: values.update(chat_template="in the config"))


LISTED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
PLACES: dict[str, Callable[[Path], None]] = {
    "a file": lambda folder: None,
    "a text in the config": in_config("text"),
    "a list in the config": in_config(LISTED),
    "a list with others": in_config([*LISTED, {"name": "rag", "template": "documents"}]),
    "names in the config": in_config({"default": "plain", "tool_use": "tools"}),
    "a file beside": beside,
    "a file beside alone": beside_alone,
    "a default file beside": beside_default,
    "a file, which holds, and the config": file_and_config,
}


def in_map(tokens: dict[str, Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        edit(folder, lambda values: [values.pop(name, None) for name in NAMES])
        store(folder, "special_tokens_map.json", json.dumps(tokens))

    return change


def listed(folder: Path) -> None:
    """A config that lists its tokens: the other file is read no more."""
    in_map({"bos_token": "<bos>"})(folder)
    token = {"content": "<pad>", "special": True}
    edit(folder, lambda values: values.update(added_tokens_decoder={"0": token}))


def of_class(name: str | None) -> Callable[[Path], None]:
    """The class in `config.json`, beside another one or none in the tokenizer's."""

    def change(folder: Path) -> None:
        edit(folder, lambda values: [values.pop(each, None) for each in NAMES])
        edit(folder, lambda values: values.update(tokenizer_class=name))
        store(folder, "config.json", json.dumps({"tokenizer_class": "GemmaTokenizer"}))

    return change


MAPS: dict[str, Callable[[Path], None]] = {
    "texts": in_map({"bos_token": "<bos>", "eos_token": "<eos>"}),
    "objects": in_map({"bos_token": {"content": "<bos>", "lstrip": False}}),
    "of the model": in_map({"bos_token": "<bos>", "extra_special_tokens": {"boi_token": "x"}}),
    "against the config": lambda folder: store(
        folder, "special_tokens_map.json", json.dumps({"bos_token": "<eos>"})
    ),
    "a null": lambda folder: store(
        folder, "special_tokens_map.json", json.dumps({"bos_token": None})
    ),
    "listed": listed,
    "by the model's config": of_class(None),
    "by the tokenizer's class alone": of_class("PreTrainedTokenizerFast"),
}
PACKAGED = {**PLACES, **MAPS}


@pytest.mark.parametrize("name", PACKAGED)
def test_templates_and_tokens_are_those_of_transformers(name: str, folder: Path) -> None:
    PACKAGED[name](folder)
    truth = AutoTokenizer.from_pretrained(folder)
    files = ChatFiles.read(folder)
    assert files.template == truth.get_chat_template()
    assert (files.tool_use or files.template) == truth.get_chat_template(tools=[TOOL])
    assert files.special_tokens == truth.special_tokens_map


@pytest.mark.parametrize("name", PACKAGED)
def test_a_package_holds_them_in_one_form(name: str, folder: Path, tmp_path_factory: Any) -> None:
    """What the runtime reads, and transformers, of the files that a package gets."""
    PACKAGED[name](folder)
    package = tmp_path_factory.mktemp("package")
    rewritten = ChatFiles.read(folder).rewritten()
    for file in TOKENIZER_FILES:
        if file not in rewritten and (folder / file).exists():
            (package / file).write_bytes((folder / file).read_bytes())
    for file, content in rewritten.items():
        if content is not None:
            (package / file).write_text(json.dumps(content))
    before, after = ChatFiles.read(folder), ChatFiles.read(package)
    assert after.templates == before.templates
    assert after.special_tokens == before.special_tokens
    there = AutoTokenizer.from_pretrained(package)
    assert there.get_chat_template(tools=[TOOL]) == (before.tool_use or before.template)
    assert rewritten == {} or name not in ("a file", "a text in the config", "a list in the config")


@pytest.mark.parametrize("file", ["chat_template.json", "processor_config.json"])
def test_processors_have_files_of_their_own(file: str, folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    store(folder, file, json.dumps({"chat_template": "of a processor"}))
    files = ChatFiles.read(folder)
    assert files.template == read_chat_template(folder) == "of a processor"
    found = files.rewritten()
    assert found["chat_template.jinja"] is None
    assert templates_of(found["tokenizer_config.json"] or {}) == {"default": "of a processor"}


def test_several_templates_and_no_default_are_refused_as_there(folder: Path) -> None:
    in_config([{"name": "rag", "template": "x"}])(folder)
    with pytest.raises(ValueError, match="no default"):
        AutoTokenizer.from_pretrained(folder).get_chat_template()
    with pytest.raises(CheckpointError, match="templates for rag, and no default one") as raised:
        ChatFiles.read(folder)
    assert raised.value.hint


def test_a_config_may_be_missing(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    store(folder, "special_tokens_map.json", json.dumps({"bos_token": "<bos>"}))
    files = ChatFiles.read(folder)
    assert files.special_tokens == {"bos_token": "<bos>"}
    assert files.rewritten() == {"tokenizer_config.json": {"bos_token": "<bos>"}}


def test_links_and_numbers_of_templates_are_bounded(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x.jinja"
    elsewhere.write_text("x")
    (folder / "additional_chat_templates").mkdir()
    link = folder / "additional_chat_templates" / "tool_use.jinja"
    link.symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="a link that leads out"):
        ChatFiles.read(folder)
    link.unlink()
    for index in range(65):
        store(folder, f"additional_chat_templates/{index}.jinja", "x")
    with pytest.raises(CheckpointError, match="holds 65 chat templates, at most 64"):
        ChatFiles.read(folder)


def test_the_hubs_cache_may_hold_them(folder: Path, tmp_path_factory: Any) -> None:
    snapshot = tmp_path_factory.mktemp("models--a--b") / "snapshots" / "1"
    blobs = snapshot.parent.parent / "blobs"
    more = snapshot / "additional_chat_templates"
    more.mkdir(parents=True)
    blobs.mkdir()
    for name in TOKENIZER_FILES:
        (blobs / name).write_bytes((folder / name).read_bytes())
        (snapshot / name).symlink_to(Path("../../blobs", name))
    (blobs / "tools").write_text("tools")
    (more / "tool_use.jinja").symlink_to(Path("../../../blobs/tools"))
    assert ChatFiles.read(snapshot).tool_use == "tools"
