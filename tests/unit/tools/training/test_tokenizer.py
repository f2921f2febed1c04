"""The shipped tokenizer is the one that the dialogues give."""

from __future__ import annotations

import json

import pytest

from gemma4_compile.tiny.checkpoint import shipped_file
from tools.training.tiny.tokenizer import tokenizer_json


@pytest.mark.slow
def test_shipped_tokenizer_is_what_the_dialogues_give() -> None:
    text = json.dumps(tokenizer_json(), ensure_ascii=False, indent=1) + "\n"
    assert text.encode() == shipped_file("tokenizer.json")
