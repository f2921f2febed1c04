"""Texts that ship: each form is there, and is cut to the room that there is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from gemma4_compile.checkpoint.chat_files import ChatFiles
from gemma4_compile.errors import CheckpointError
from gemma4_compile.options.verify import CHAT, CODE, DOCUMENT, SCRIPT, TEXTS
from gemma4_compile.verification.texts import FOLDER, FormText, Reader, open_reader
from tests import models
from tests.packages import config_of


@pytest.fixture
def checkpoint(tmp_path: Path) -> models.Checkpoint:
    return models.write_checkpoint(tmp_path / "model", models.E2B_LIKE)


def read(checkpoint: models.Checkpoint, room: int) -> Reader:
    return open_reader(checkpoint.path, config_of(checkpoint), room)


def texts(reader: Reader, *names: str) -> dict[str, FormText]:
    return {text.name: text for text in reader.read(names)}


def test_each_text_is_of_its_form() -> None:
    code = (FOLDER / "code.txt").read_text("utf-8")
    compile(code.split("// ---")[0], "code.txt", "exec")
    script = (FOLDER / "script.txt").read_text("utf-8")
    letters = [letter for letter in script if letter.isalpha()]
    assert sum(not letter.isascii() for letter in letters) > 0.99 * len(letters)
    said = json.loads((FOLDER / "chat.json").read_text("utf-8"))
    assert [each["role"] for each in said] == ["user", "assistant"] * (len(said) // 2)
    words = (FOLDER / "document.txt").read_text("utf-8").split()
    assert len(words) > 4500, "with the text before it, 8,000 tokens of the released models"


def test_texts_are_cut_to_the_room_and_say_so(checkpoint: models.Checkpoint) -> None:
    found = texts(read(checkpoint, 40), *TEXTS)
    assert list(found) == list(TEXTS)
    whole = texts(read(checkpoint, 1 << 20), *TEXTS)
    for name, text in found.items():
        assert len(text.ids) == 40
        assert text.ids == whole[name].ids[:40]
        assert text.cut + 40 == len(whole[name].ids)
        assert whole[name].cut == 0
        assert text.sha256 == whole[name].sha256
        assert text.following == [*text.ids[1:], None]
    bos = config_of(checkpoint).bos_token_id
    assert all(text.ids[0] == bos != text.ids[1] for text in found.values())


def test_a_chat_is_as_the_template_writes_it(checkpoint: models.Checkpoint) -> None:
    reader = read(checkpoint, 1 << 20)
    chat = texts(reader, CHAT)[CHAT]
    shown = reader.tokenizer.decode(list(chat.ids), skip_special_tokens=False)
    assert shown.count("<|turn>user\n") == 7
    assert shown.count("<|turn>model\n") == 8, "the template opens the next turn"


def test_a_base_model_has_no_chat(checkpoint: models.Checkpoint) -> None:
    for path in checkpoint.path.glob("*template*"):
        path.unlink()
    assert ChatFiles.read(checkpoint.path).template is None
    assert list(texts(read(checkpoint, 40), *TEXTS)) == [DOCUMENT, CODE, SCRIPT]


def test_a_given_text_is_known_by_all_of_it(checkpoint: models.Checkpoint) -> None:
    text = "a" * 1_000_000
    found = read(checkpoint, 10).text("given", text)
    assert found is not None
    assert len(found.ids) == 10
    assert found.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert read(checkpoint, 10).text("given", "") is None


def test_a_damaged_tokenizer_is_named(checkpoint: models.Checkpoint) -> None:
    (checkpoint.path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot load the tokenizer"):
        read(checkpoint, 10)
