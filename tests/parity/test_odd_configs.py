"""Rotary embeddings and activations in the words of other configs: as transformers reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma4TextConfig
from transformers.activations import ACT2FN
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import RopeParameters
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from tests.models import E2B_LIKE, FULL, SLIDING

pytestmark = pytest.mark.parity

Change = Callable[[dict[str, Any]], Any]
ROPE: dict[str, Any] = E2B_LIKE["rope_parameters"]


def rope(kind: str, *without: str, **fields: Any) -> Change:
    """Change the entry of one kind of layers."""

    def change(config: dict[str, Any]) -> None:
        entry = {k: v for k, v in {**ROPE[kind], **fields}.items() if k not in without}
        config["rope_parameters"] = {**ROPE, kind: entry}

    return change


def keys(*without: str, **fields: Any) -> Change:
    def change(config: dict[str, Any]) -> None:
        config.update(fields)
        for name in without:
            del config[name]

    return change


def both(*changes: Change) -> Change:
    return lambda config: [change(config) for change in changes]


OTHER = {**ROPE, SLIDING: {"rope_type": "default", "rope_theta": 5e4}}
CASES: dict[str, Change] = {
    "the older name": keys("rope_parameters", rope_scaling=ROPE),
    "both names, of which the older holds": keys(rope_scaling=OTHER),
    "the older key of the type": rope(FULL, "rope_type", type="proportional"),
    "no type": rope(SLIDING, "rope_type"),
    "a share that the default type does not read": rope(SLIDING, partial_rotary_factor=0.5),
    "a length that nothing reads": rope(FULL, original_max_position_embeddings=512),
    "a factor of 1": rope(FULL, factor=1.0),
    "a factor that the default type does not read": rope(SLIDING, factor=4.0),
    "no share": rope(FULL, "partial_rotary_factor"),
    "a share beside": both(rope(FULL, "partial_rotary_factor"), keys(partial_rotary_factor=0.5)),
    "a base beside, and its own": keys(rope_theta=2e5),
}


def frequencies(rope: RopeParameters, head_dim: int) -> Any:
    """1 / theta^(2 i / head_dim) for the pairs that are rotated, 0 for the others."""
    pairs = np.arange(head_dim // 2)
    rotated = pairs < int(rope.partial_rotary_factor * head_dim // 2)
    return np.where(rotated, rope.rope_theta ** (-2.0 * pairs / head_dim), 0.0)


@pytest.mark.parametrize("case", CASES)
def test_rotary_embeddings_are_those_of_transformers(case: str) -> None:
    values: dict[str, Any] = {**E2B_LIKE}
    CASES[case](values)
    unknown: list[str] = []
    ours = Gemma4Config.from_dict(values, unknown.extend)
    theirs = Gemma4TextRotaryEmbedding(Gemma4TextConfig(**_copied(values)))
    for kind, rope, layer in ((SLIDING, ours.sliding_rope, 0), (FULL, ours.full_rope, -1)):
        expected = getattr(theirs, f"{kind}_inv_freq").numpy()
        found = frequencies(rope, ours.head_dim[layer])
        np.testing.assert_allclose(found, expected, rtol=4 * float(np.finfo(np.float32).eps))
    assert not unknown


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """transformers changes the dictionaries that it is given."""
    return {k: _copied(v) if isinstance(v, dict) else v for k, v in values.items()}


REFUSED: dict[str, tuple[Change, str]] = {
    "of another architecture": (
        keys(rope_scaling={"type": "linear", "factor": 2.0}),
        r"rope_scaling\.sliding_attention` is missing",
    ),
    "for longer texts": (rope(FULL, rope_type="yarn", factor=4.0), "found 'yarn'"),
    "a factor": (rope(FULL, factor=8.0), r"full_attention\.factor`: expected 1, found '8.0'"),
    "no base": (rope(SLIDING, "rope_theta"), r"sliding_attention\.rope_theta` is missing"),
    "unknown": (rope(FULL, stretch=2), "stretch` is unknown"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_rotary_embeddings_are_refused_by_name(case: str) -> None:
    change, words = REFUSED[case]
    values: dict[str, Any] = {**E2B_LIKE}
    change(values)
    with pytest.raises(ConfigError, match=words) as raised:
        Gemma4Config.from_dict(values)
    assert raised.value.hint


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"])
def test_names_of_gelu_by_tanh_are_one_function(name: str) -> None:
    """In transformers, whose functions differ by roundings of float32."""
    functions = [ACT2FN[one] for one in (name, "gelu_pytorch_tanh")]
    x = torch.linspace(-6, 6, 1001)
    found, expected = (function(x) for function in functions)
    torch.testing.assert_close(found, expected, rtol=0, atol=4 * 6 * torch.finfo(torch.float32).eps)
