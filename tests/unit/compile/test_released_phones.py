"""Checkpoints for phones by their config alone: the bits that are known of the released sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.compile.own_schemes import with_own_schemes
from gemma4_compile.compile.released_phones import as_phone, released_of
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config


@pytest.mark.parametrize(
    ("size", "coarse", "table"), [("E2B", 20, "q4f32_256"), ("E4B", 0, "q2f32_256")]
)
def test_of_a_config_alone_the_bits_are_those_of_the_released_size(
    size: str, coarse: int, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = f"gemma-4-{size}-it"
    request = CompileRequest(preset, "cpu", "mobile", Path("out"))
    with open_source(preset, None, weights=False) as source:
        phone = as_phone(request, source)
        assert as_phone(replace(request, quant="q4f16"), source) is source
    assert f"`{preset}-qat-mobile-transformers`" in capsys.readouterr().err
    assert phone.config.rounds_activations
    parameters = model_parameters(phone.config, ALL_COMPONENTS)
    found = dict(with_own_schemes(request, phone, parameters).overrides)
    assert found.pop("embed_tokens_per_layer") == table
    assert found.pop("per_layer_model_projection") == "q0bf16"
    assert set(found.values()) <= {"q2f32_row"}
    assert len(found) == 2 * coarse
    assert all(name.split(".")[2] == "mlp" and int(name.split(".")[1]) >= 15 for name in found)


def test_of_other_sizes_nothing_is_assumed() -> None:
    preset = "gemma-4-12B-it"
    assert released_of(Gemma4Config.from_preset(preset)) is None
    request = CompileRequest(preset, "cpu", "mobile", Path("out"))
    with open_source(preset, None, weights=False) as source:
        assert as_phone(request, source) is source
        with pytest.raises(UsageError, match="is none"):
            with_own_schemes(request, source, model_parameters(source.config, ALL_COMPONENTS))
