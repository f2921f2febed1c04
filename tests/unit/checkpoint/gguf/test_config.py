"""Configs of GGUF: what metadata and tensors say, and what does not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.checkpoint.gguf.model import open_model
from gemma4_compile.checkpoint.gguf.names import DRAFTER, TARGET
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError, ConfigError
from tests import models
from tests.gguf_files import Change, Type, adding, all_of, made, of_type


@pytest.mark.parametrize("share", [0.3, 0.77, 1.0, 0.1])
def test_as_many_pairs_are_rotated(share: float, tmp_path: Path) -> None:
    rope = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": share}
    text = {**models.DENSE_LIKE, "global_head_dim": 264, "head_dim": 72}
    text["rope_parameters"] = {**models.DENSE_LIKE["rope_parameters"], models.FULL: rope}
    _, path = made(tmp_path, text, all_of(Type.F32))
    with open_source(str(path), None, weights=False) as found:
        assert int(found.config.full_rope.partial_rotary_factor * 264 // 2) == int(share * 264 // 2)


WRONG: dict[str, tuple[Change, str]] = {
    "another model": (adding("general.architecture", "gemma3", "string"), "architecture 'gemma3'"),
    "Gemma 3n": (adding("general.architecture", "gemma3n", "string"), "architecture 'gemma3n'"),
    "no architecture": (adding("general.architecture", None), "architecture 'None'"),
    "towers": (adding("general.architecture", "clip", "string"), "pictures and sounds alone"),
    "a drafter": (adding("general.architecture", DRAFTER, "string"), "is a drafter"),
    "an adapter": (adding("general.type", "adapter", "string"), "is an adapter"),
    "no layers": (adding("gemma4.block_count", None), "block_count` of .* expected an integer"),
    "no window": (adding("gemma4.attention.sliding_window", None), "sliding_window"),
    "no kinds": (adding("gemma4.attention.sliding_window_pattern", None), "sliding_window_pattern"),
    "other kinds": (
        adding("gemma4.attention.sliding_window_pattern", [1, 0], "array"),
        "one value for each of 7 layers, found 2",
    ),
    "a text": (adding("gemma4.embedding_length", "96", "string"), "expected an integer, found 96"),
    "very many layers": (adding("gemma4.block_count", 1 << 31), "1 to 512"),
    "no width of heads": (adding("gemma4.attention.key_length", 0), "1 or more"),
    "rotated in part": (adding("gemma4.rope.dimension_count", 16), "rope.dimension_count"),
    "scaled positions": (adding("gemma4.rope.scaling.type", "yarn", "string"), "expected none"),
    "widths": (adding("gemma4.feed_forward_length", [9] * 6 + [8], "array"), "twice of it"),
    "half of a file": (adding("split.count", 2), "split.count"),
    "tensors elsewhere": (adding("split.tensors.count", 3), "split.tensors.count"),
    "an unknown tensor": (of_type("F32", "blk.0.attn_sinks.weight"), "belongs to no part"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    change, message = WRONG[name]
    _, path = made(tmp_path, models.E2B_LIKE, all_of(Type.F32), change=change)
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        open_model(path, TARGET)
    assert caught.value.hint
