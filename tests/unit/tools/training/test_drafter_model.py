"""The drafter in torch: its drafts are those of the reference."""

from __future__ import annotations

import json

import numpy as np
import torch

from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.drafter.reference import draft
from gemma4_compile.tiny import checkpoint
from tools.training.tiny import model as tiny_model
from tools.training.tiny.drafter_model import DrafterModel, drafter_config, read_target
from tools.training.tiny.train_drafter import losses, rounds

LENGTH = 45  # longer than the window
PLACES = (1, 7, 31, 33, 40)


def test_what_ships_has_the_config_of_the_training() -> None:
    shipped = checkpoint.shipped_file(f"{checkpoint.DRAFTER_FOLDER}/config.json")
    assert json.loads(shipped) == drafter_config(checkpoint.config())


def test_drafts_in_a_row_are_those_of_the_reference() -> None:
    config = tiny_model.read_config(tiny_model.SHIPPED_FILES)
    target = tiny_model.load(config, tiny_model.SHIPPED_FILES / "model.safetensors")
    torch.manual_seed(0)
    model = DrafterModel(drafter_config(config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    ids = torch.randint(107, 1000, (2, LENGTH))
    read = read_target(target, ids)
    with torch.no_grad():
        found = model(ids, read, 3)
    parsed = read_drafter(model.config)
    weights = {
        name.replace("/", ".").removeprefix("model."): value.detach().numpy()
        for name, value in model.tensors.items()
    }
    for place in PLACES:
        stored = {
            AttentionKind(kind): (
                key[1, :, :place].transpose(0, 1).numpy(),
                value[1, :, :place].transpose(0, 1).numpy(),
            )
            for kind, (key, value) in read.keys_values.items()
        }
        hidden = read.states[1, place - 1].numpy()
        for j in range(3):
            expected = draft(parsed, weights, read.embedded[1, place + j].numpy(), hidden, stored)
            np.testing.assert_allclose(
                found[j][1, place].numpy(), expected.logits, rtol=0, atol=2e-4
            )
            hidden = expected.hidden


def test_only_rows_of_the_models_own_tokens_are_trained() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 4]])
    wanted = torch.tensor([[False, False, True, True, False, True]])
    sure = [torch.zeros(1, 6, 16) for _ in range(2)]
    for j, (place, token) in enumerate(((1, 7), (1, 8))):
        sure[j][0, place, token] = 100.0
    first, second = losses(sure, ids, wanted)
    assert second < 1e-6, "of two in a row there is one place, and it is right"
    assert 1.5 < first < 2.0, "of three places one is right, and two are drafted evenly"


def test_rounds_end_with_the_first_wrong_draft_and_with_the_answer() -> None:
    said = np.array([[False, False, True, True, True, True, True, False, True]])
    right = np.array([[9, 2, 9, 9, 0, 4, 9, 4, 9]])
    assert rounds(right, said) == (6, 4)  # 3 tokens from 1, 1 from 4, 1 from 5; then 1 from 7
