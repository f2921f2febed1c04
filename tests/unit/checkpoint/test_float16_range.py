"""Norms whose results float16 cannot hold are found before anything is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint.float16_range import LARGEST, check_norms
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets.libraries import fitting_forms
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import models
from tests.packages import compile_small

KINDS = {
    name: Gemma4Config.from_dict({**text, "dtype": "float32"})
    for name, text in models.KINDS.items()
}


def vectors(config: Gemma4Config) -> dict[str, np.ndarray]:
    table = parameter_table(config)
    found = [p for p in table if p.role is Role.VECTOR]
    return {s.name: np.ones(s.shape, np.float32) for p in found for s in p.sources}


def check(config: Gemma4Config, weights: dict[str, np.ndarray], recipe: str = "q4f16") -> None:
    table: tuple[Parameter, ...] = parameter_table(config)
    check_norms(table, RECIPES[recipe], lambda name, begin, end: weights[name][begin:end])


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_that_of_one_channel(kind: str) -> None:
    """By a second computation: the norm of a vector with one value, in float64."""
    config = KINDS[kind]
    weights = vectors(config)
    for name in ("layers.1.input_layernorm.weight", "norm.weight"):
        (size,) = weights[name].shape
        x = np.zeros(size)
        x[3] = 1e6
        normed = x / np.sqrt(np.mean(x * x))
        for share, fits in ((0.999, True), (1.001, False)):
            weights[name][3] = -share * LARGEST / normed[3]
            if fits:
                check(config, weights)
            else:
                with pytest.raises(QuantizationError, match=f"`{name}` makes values of"):
                    check(config, weights)
            check(config, weights, "q4f32")
        weights[name][3] = 1


STORED = ["pre_feedforward_layernorm", "self_attn.k_norm", "input_layernorm"]
FREE = ["post_attention_layernorm", "post_feedforward_layernorm", "self_attn.q_norm"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*STORED, *FREE])
def test_only_what_is_stored_counts(name: str, kind: str) -> None:
    weights = vectors(KINDS[kind])
    weights[f"layers.0.{name}.weight"][-1] = 1e30
    if name in FREE:
        check(KINDS[kind], weights)
        return
    with pytest.raises(QuantizationError, match=name) as caught:
        check(KINDS[kind], weights)
    assert caught.value.hint == "use --quant q4f32 or f32, whose activations are float32"


@pytest.mark.parametrize(
    "name",
    [
        "model.vision_embedder.patch_ln1.weight",
        "model.vision_tower.encoder.layers.0.input_layernorm.weight",
        "model.vision_tower.encoder.layers.2.self_attn.k_norm.weight",
        "model.audio_tower.layers.1.lconv1d.conv_norm.weight",
    ],
)
def test_norms_of_pictures_and_sounds_count(name: str) -> None:
    preset = "gemma-4-12B-it" if "embedder" in name else "gemma-4-E2B-it"
    table = model_parameters(Gemma4Config.from_preset(preset, None), COMPONENTS)

    def read(source: str, begin: int, end: int) -> np.ndarray:
        return np.full(end - begin, 1e5 if source == name else 1.0, np.float32)

    with pytest.raises(QuantizationError, match=f"`{name}` makes values"):
        check_norms(table, RECIPES["q4f16"], read)


def test_what_is_not_finite_is_left_to_the_conversion() -> None:
    config = next(iter(KINDS.values()))
    weights = vectors(config)
    weights["norm.weight"][:] = np.nan
    weights["layers.0.input_layernorm.weight"][0] = np.inf
    check(config, weights)


def loud_model(folder: Path) -> Path:
    """A checkpoint with a norm whose result float16 does not hold."""
    text = models.DENSE_LIKE
    model = models.write_checkpoint(folder, text, dtype="float32").path
    weights = models.random_weights(text)
    weights["layers.1.input_layernorm.weight"][5] = 2e4
    tensors = {f"model.language_model.{name}": values for name, values in weights.items()}
    write_safetensors(model / "model.safetensors", tensors, "float32")
    return model


def test_the_compiler_refuses_before_it_begins(tmp_path: Path) -> None:
    model = loud_model(tmp_path / "model")
    for quant in ("q4f16", "q8f16", "f16"):
        with pytest.raises(QuantizationError, match=r"layers\.1\.input_layernorm"):
            compile_small(CompileRequest(str(model), "cpu", quant, tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    wide = CompileRequest(str(model), "cpu", "q4f32", tmp_path / "out", only="weights")
    compile_small(wide)


def test_libraries_that_compute_in_float32_take_what_the_others_do_not(tmp_path: Path) -> None:
    model, out = loud_model(tmp_path / "model"), tmp_path / "out"

    def asked(*names: str) -> CompileRequest:
        forms = fitting_forms(names, has_float16=True, takes_int8=True)
        return CompileRequest(str(model), "webgpu", "q4f16", out, only="weights", libraries=forms)

    with pytest.raises(QuantizationError, match=r"layers\.1\.input_layernorm") as caught:
        compile_small(asked("default", "f16"))
    hint = "use --libraries default,h200-f32, which compute in float32 with the same weights"
    assert caught.value.hint == hint
    compile_small(asked("default", "h200-f32"))
