"""The streamed model gives every matrix the inputs of the whole one, and goes on as it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import hf, models

pytestmark = pytest.mark.parity

import torch  # noqa: E402

from gemma4_compile.calibration.streaming import Layer, StreamedModel, text_config  # noqa: E402

ROWS = [[int(one) for one in models.prompt(length)] for length in (23, 40, 31)]


def pair(kind: str) -> tuple[StreamedModel, Any]:
    """The streamed model, and transformers' whole one."""
    text = models.KINDS[kind]
    weights = models.random_weights(text, dtype="bfloat16")

    def read(name: str, begin: int, end: int) -> np.ndarray:
        values = weights[name]
        return (values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values)[begin:end]

    shapes = {name: values.shape for name, values in weights.items()}
    config = text_config(models.config_file(text, "hub", "bfloat16"))
    return StreamedModel(config, "bfloat16", read, shapes), hf.load(text, weights, "bfloat16")


def inputs_of(whole: Any, row: list[int]) -> dict[str, torch.Tensor]:
    """Rows that the matrices of the whole model get, one sequence alone."""
    found: dict[str, torch.Tensor] = {}

    def note(name: str) -> Any:
        return lambda _, given: found.__setitem__(
            f"{name}.weight", given[0].reshape(-1, given[0].shape[-1])
        )

    hooks = [
        module.register_forward_pre_hook(note(name.removeprefix("model.")))
        for name, module in whole.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    hf.logits(whole, row)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("kind", list(models.KINDS))
def test_inputs_are_those_of_each_sequence_alone(kind: str) -> None:
    streamed, whole = pair(kind)
    found: dict[str, torch.Tensor] = {}
    layers: list[Layer] = []

    def visit(layer: Layer) -> None:
        found.update(layer.inputs)
        layers.append(layer)

    streamed.visit(ROWS, visit)
    expected = [inputs_of(whole, row) for row in ROWS]
    matrices = {name for name in expected[0] if name.startswith(("layers.", "per_layer_model"))}
    assert found.keys() == matrices
    for name in matrices:
        rows = torch.cat([one[name] for one in expected])
        torch.testing.assert_close(found[name], rows, rtol=1e-3, atol=2e-3, msg=name)
    assert all((layer.routed is not None) == (kind == "moe") for layer in layers if layer.prefix)
    assert all(parameter.is_meta for parameter in streamed.model.layers.parameters())


@pytest.mark.parametrize("kind", ["e2b", "dense"])
def test_a_text_goes_on_as_the_whole_model_would(kind: str) -> None:
    streamed, whole = pair(kind)
    prompts, suppressed = [row[:9] for row in ROWS[:1]] + [ROWS[1][:5]], [7, 60]
    written = streamed.continued(prompts, 4, 5, suppressed, (), lambda count: None)
    dice = torch.Generator().manual_seed(5)
    rows = [list(row) for row in prompts]
    for _ in range(4):
        logits = torch.stack([torch.from_numpy(hf.logits(whole, row)[-1]) for row in rows])
        logits[:, suppressed] = -torch.inf
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=dice)
        rows = [[*row, int(one)] for row, one in zip(rows, drawn[:, 0], strict=True)]
    assert written == rows


def test_a_text_ends_with_its_first_end() -> None:
    streamed, _ = pair("dense")
    steps: list[int] = []
    ends = range(models.KINDS["dense"]["vocab_size"])
    written = streamed.continued(ROWS, 4, 0, (), ends, steps.append)
    assert [len(row) for row in written] == [len(row) + 1 for row in ROWS]
    assert steps == [1]
