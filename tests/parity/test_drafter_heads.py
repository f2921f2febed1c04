"""The head of a drafter's checkpoint: of embedding and head the matrix that transformers reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma4AssistantForCausalLM

from gemma4_compile.checkpoint.drafter import match_drafter, open_drafter, with_drafter
from gemma4_compile.checkpoint.match import row_reader
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from tests import models
from tests.drafters import drafter_config, random_weights, write_drafter
from tests.hf import Float32Array

pytestmark = pytest.mark.parity

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
HELD: Mapping[str, tuple[str, ...]] = {
    "the embedding alone": (EMBEDDING,),
    "a copy": (EMBEDDING, "copy"),
    "another": (EMBEDDING, HEAD),
    "the head alone": (HEAD,),
}


def held_weights(held: str) -> dict[str, Any]:
    weights = random_weights(drafter_config("e2b", tied=False))
    wanted = HELD[held]
    if "copy" in wanted:
        weights[HEAD] = weights[EMBEDDING].copy()
    absent = {EMBEDDING, HEAD} - {HEAD if name == "copy" else name for name in wanted}
    return {name: values for name, values in weights.items() if name not in absent}


def head_of_package(path: Path) -> Float32Array:
    """The rows that a package of the drafter would hold."""
    target = Gemma4Config.from_dict(models.config_file(models.E2B_LIKE, "hub", "float32"))
    with open_drafter(str(path), target, weights=True) as source:
        assert source is not None
        assert source.checkpoint is not None
        config = with_drafter(target, source)
        read = row_reader(match_drafter(source.checkpoint, config))
        name = "model.embed_tokens" if source.config.ties_head else "lm_head"
        return read(f"drafter.{name}.weight", 0, 256)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("tied", [True, False])
def test_it_is_that_of_transformers(tied: bool, held: str, tmp_path: Path) -> None:
    values, weights = drafter_config("e2b", tied=tied), held_weights(held)
    path = write_drafter(tmp_path / "drafter", "e2b", values=values, weights=weights).path
    if not tied and HEAD not in weights:  # transformers fills it at random
        with pytest.raises(CheckpointError, match=r"--drafter: .*`lm_head\.weight` is missing"):
            head_of_package(path)
        return
    model = Gemma4AssistantForCausalLM.from_pretrained(path, dtype=torch.float32)
    np.testing.assert_array_equal(head_of_package(path), model.lm_head.weight.detach().numpy())
