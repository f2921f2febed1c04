from __future__ import annotations

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch", reason="torch is not installed (make setup)")


def test_the_text_decoder_is_read_without_the_towers() -> None:
    from tools.training.tiny.model import SHIPPED_FILES, load, read_config

    model = load(read_config(SHIPPED_FILES), SHIPPED_FILES / "model.safetensors")
    assert not any("tower" in name for name in model.state_dict())
    tokenizer = Tokenizer.from_file(str(SHIPPED_FILES / "tokenizer.json"))
    asked = "<bos><|turn>user\nWhat is 8 plus 19?<turn|>\n<|turn>model\n"
    ids = tokenizer.encode(asked + "8 plus 19 is 27.<turn|>", add_special_tokens=False).ids
    before = len(tokenizer.encode(asked, add_special_tokens=False).ids)
    with torch.no_grad():
        found = model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
    assert found[before - 1 : -1] == ids[before:]
