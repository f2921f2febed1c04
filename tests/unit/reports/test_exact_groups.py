"""Weights that lie on levels are found by their values, in the formats that checkpoints have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.quantization.groups import exact_groups
from gemma4_compile.quantization.schemes import SCHEMES
from gemma4_compile.reports.exact_groups import Exact, FourBits, exact_lines
from gemma4_compile.reports.quantization_report import ParameterLoss, report_model, report_text
from gemma4_compile.tiny.safetensors_file import rounded
from tests import models
from tests.packages import Silent

GROUP = 32
FOUR_BITS = SCHEMES["q4f16_1"]


def on_levels(shape: tuple[int, ...], seed: int) -> models.Float32Array:
    """Weights of 16 levels, the odd one of either sign."""
    random = np.random.default_rng(seed)
    levels = random.integers(-8, 8, (int(np.prod(shape)) // GROUP, GROUP))
    steps = random.uniform(1e-3, 2e-2, (len(levels), 1)).astype(np.float32)
    steps *= random.choice([-1, 1], steps.shape)
    return (levels * steps).astype(np.float32).reshape(shape)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_on_levels_are_exact_whatever_floats_they_are_stored_as(dtype: str) -> None:
    weights = rounded(on_levels((16, 96), 1), dtype)
    weights[5, 32:64] = 0
    stored = FOUR_BITS.load(FOUR_BITS.store(weights, name="x", first_row=0))
    assert exact_groups(weights, stored, GROUP).all()
    weights[2, 7] *= np.float32(1.05)
    weights[9, 90] = 1e-6
    stored = FOUR_BITS.load(FOUR_BITS.store(weights, name="x", first_row=0))
    assert 45 <= exact_groups(weights, stored, GROUP).sum() < 48


@pytest.mark.parametrize("name", ["q4f16_1", "q8f16_1"])
def test_no_group_of_other_weights_is_exact(name: str) -> None:
    weights = np.random.default_rng(2).standard_normal((512, 96)).astype(np.float32)
    scheme = SCHEMES[name]
    stored = scheme.load(scheme.store(weights, name="x", first_row=0))
    assert not exact_groups(weights, stored, GROUP).any()


def losses(model: Path, quant: str, **overrides: str) -> list[ParameterLoss]:
    request = CompileRequest(str(model), "cpu", quant, Path(), overrides=tuple(overrides.items()))
    return report_model(request, Silent())[0]


def test_a_mixed_checkpoint_is_told_by_its_values(tmp_path: Path) -> None:
    weights = models.random_weights(models.E2B_LIKE)
    names = ("embed_tokens", "layers.0.mlp.up_proj", "layers.0.mlp.gate_proj")
    for seed, name in enumerate(names):
        weights[f"{name}.weight"] = on_levels(weights[f"{name}.weight"].shape, seed)
    path = models.write_checkpoint(
        tmp_path, models.E2B_LIKE, weights=weights, dtype="bfloat16"
    ).path
    found = losses(path, "q4f16", embed_tokens="q8f16_1")
    by_name = {loss.name: loss for loss in found}
    exact = 2 * weights[f"{names[1]}.weight"].size // GROUP
    of_role = [one for one in found if one.role == by_name["layers.0.mlp.gate_up_proj"].role]
    assert len(of_role) > 20
    for one in of_role:
        assert one.four_bits is None
        assert one.loss.groups == np.prod(one.shape) // GROUP
        is_exact = one.name == "layers.0.mlp.gate_up_proj"
        assert one.loss.exact_groups == (exact if is_exact else 0), one.name
    head = by_name["embed_tokens"]
    assert head.loss.scheme == "q8f16_1"
    assert head.four_bits is not None
    assert head.four_bits.exact_groups == head.four_bits.groups == 256 * 96 // GROUP
    text = report_text(found)
    every = sum(one.loss.groups for one in of_role)
    assert f"exact: {exact:,} of {every:,} groups" in text
    assert text.endswith('--recipe with {"schemes": {"embed_tokens": "q4f16_1"}}')


def test_all_layers_are_a_pattern_and_some_are_names() -> None:
    def one(exact: int) -> Exact:
        return Exact(4, 0, FourBits("q4f16_1", 4, exact))

    found = [
        ("embed_tokens", "a", Exact(4, 4, None)),
        ("layers.0.all", "b", one(4)),
        ("layers.1.some", "b", one(4)),
        ("layers.10.some", "b", one(3)),
        ("layers.11.all", "b", one(4)),
    ]
    text = "\n".join(exact_lines(found))
    expected = '{"schemes": {"layers.*.all": "q4f16_1", "layers.1.some": "q4f16_1"}}'
    assert text.endswith(f"--recipe with {expected}")
    assert "exact: 4 of 4 groups" in text
    assert "exact: 0 of 16 groups" in text


def test_a_plain_checkpoint_has_no_exact_groups(tmp_path: Path) -> None:
    path = models.write_checkpoint(tmp_path, models.E2B_LIKE).path
    text = report_text(losses(path, "q8f16"))
    assert "exact: 0 of " in text
    assert "4 bits hold exactly" not in text
