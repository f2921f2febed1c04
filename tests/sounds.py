"""Small random sound inputs: transformers in float32, and a library for the CPU, same weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import tvm
from torch import nn
from transformers import (
    Gemma4AudioConfig,
    Gemma4AudioFeatureExtractor,
    Gemma4AudioModel,
    Gemma4TextConfig,
    Gemma4UnifiedAudioConfig,
    Gemma4UnifiedAudioFeatureExtractor,
    Gemma4UnifiedTextConfig,
)
from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder
from transformers.models.gemma4_unified.modeling_gemma4_unified import (
    Gemma4UnifiedMultimodalEmbedder,
)
from tvm import relax

from gemma4_compile import abi
from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.model_spec.audio.component import AUDIO
from gemma4_compile.model_spec.audio.parameters import parameter_table
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization.convert import conversion_steps
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.types import Array
from tests.machines import unlinked
from tests.models import E2B_LIKE, UNIFIED_LIKE, config_file
from tests.random_values import bell_curve, random_tensor

Float32Array = npt.NDArray[np.float32]
Weights = dict[str, Float32Array]

RATE = 16_000
TOWER: Mapping[str, Any] = {
    "model_type": "gemma4_audio",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [128, 8],
    "output_proj_dims": 96,
}
UNIFIED: Mapping[str, Any] = {
    "model_type": "gemma4_unified_audio",
    "audio_embed_dim": 640,
    "output_proj_dims": 640,
    "hidden_size": 640,
    "audio_samples_per_token": 640,
}
CPU = target_spec("cpu")


def config_of(audio: Mapping[str, Any]) -> Gemma4Config:
    """The model's config with this sound input."""
    text = UNIFIED_LIKE if audio["model_type"] == "gemma4_unified_audio" else E2B_LIKE
    ids = {"boa_token_id": 250, "audio_token_id": 251, "eoa_token_id": 252}
    values = {**config_file(text, "hub", "float32"), "audio_config": dict(audio), **ids}
    return Gemma4Config.from_dict(values, modalities={Modality.TEXT, Modality.AUDIO})


def _bound(name: str) -> float:
    """A bound that some of the values at its place are beyond.

    Of the two around SiLU one hides the other, so the first feed-forward block has one that clips,
    and the second block the other.
    """
    *_, block, linear, place = name.split(".")
    side, end = place.split("_")
    if linear == "ffw_layer_1" and side == "output":
        size = {"feed_forward1": (0.35, 0.7)}.get(block, (3.0, 3.0))[end == "max"]
    elif side == "input" and linear in ("ffw_layer_2", "linear_end"):  # results of SiLU
        size = 0.15 if end == "min" else 0.6
    else:
        sizes = {"post": (0.2, 0.1), "ffw_layer_2": (0.0, 0.25), "linear_end": (0.0, 0.25)}
        size = sizes.get(linear, (1.2, 1.0))[side == "output"]
    return -size if end == "min" else size


def random_weights(audio: Mapping[str, Any], seed: int = 0) -> Weights:
    """Values by checkpoint name; bounds of which every one clips some values."""
    return weights_of(config_of(audio), seed)


def weights_of(config: Gemma4Config, seed: int = 0) -> Weights:
    """The same for a whole config."""
    shapes = {s.name: s.shape for p in parameter_table(config) for s in p.sources}
    weights = {}
    for name, shape in shapes.items():
        if shape:
            values = random_tensor(name, shape, seed)
            if name.endswith(".bias") or name.endswith("per_dim_scale"):
                values = random_tensor(name, (*shape, 1), seed)[:, 0]
        else:
            values = np.asarray(_bound(name) * (1.0 + 0.1 * float(bell_curve(name, seed, 1)[0])))
        weights[name] = np.asarray(values, np.float32)
    return weights


class Truth(nn.Module):
    """transformers' modules under the names of a checkpoint, with its own feature extractor."""

    def __init__(self, audio: Mapping[str, Any], weights: Weights) -> None:
        super().__init__()
        self.is_unified = audio["model_type"] == "gemma4_unified_audio"
        self.extractor: Any
        self.embed_audio: nn.Module
        if self.is_unified:
            text = Gemma4UnifiedTextConfig(**UNIFIED_LIKE)
            config = Gemma4UnifiedAudioConfig(**audio)
            self.embed_audio = Gemma4UnifiedMultimodalEmbedder(config, text)
            self.extractor = Gemma4UnifiedAudioFeatureExtractor()
        else:
            tower = Gemma4AudioConfig(**audio)
            self.audio_tower = Gemma4AudioModel._from_config(  # type: ignore[no-untyped-call]  # so it is there
                tower, attn_implementation="eager", dtype=torch.float32
            )
            self.embed_audio = Gemma4MultimodalEmbedder(tower, Gemma4TextConfig(**E2B_LIKE))
            self.extractor = Gemma4AudioFeatureExtractor()
        state = {
            name.removeprefix("model."): torch.from_numpy(np.array(value))
            for name, value in weights.items()
        }
        self.load_state_dict(state, strict=True)
        self.eval()

    def features(self, samples: Float32Array) -> tuple[Float32Array, npt.NDArray[np.bool_]]:
        """The extractor's features and mask of one sound."""
        made = self.extractor([samples], return_tensors="np", sampling_rate=RATE)
        return made["input_features"][0], made["input_features_mask"][0].astype(bool)

    def rows(self, samples: Float32Array) -> Float32Array:
        """What replaces the placeholders: the rows that the mask keeps."""
        features, mask = (torch.from_numpy(item)[None] for item in self.features(samples))
        with torch.no_grad():
            if self.is_unified:
                return np.asarray(self.embed_audio(features)[mask].numpy())
            out = self.audio_tower(features, mask, return_dict=True)
            return np.asarray(self.embed_audio(out.last_hidden_state)[out.attention_mask].numpy())


def _stored(stored: StoredParameter, weights: Weights) -> list[Array]:
    """The stored tensors of a parameter."""

    def read(name: str, begin: int, end: int) -> Float32Array:
        values = weights[name]
        return values.reshape((-1, *values.shape[1:][-1:]))[begin:end]

    steps = [step.run(read) for step in conversion_steps(stored)]
    count = len(stored.tensors)
    return [np.concatenate([blocks[index].data for blocks in steps]) for index in range(count)]


@dataclass(frozen=True)
class Sound:
    """A compiled sound input and transformers on the weights that it holds."""

    vm: relax.VirtualMachine
    params: list[tvm.runtime.Tensor]
    truth: Truth
    weights: Weights
    config: Gemma4Config

    def rows(self, samples: Float32Array, name: str = abi.EMBED_AUDIO) -> Float32Array:
        """Rows of a sound from the library."""
        return np.asarray(self.vm[name](tvm.runtime.tensor(samples), self.params).numpy())


@dataclass(frozen=True)
class Model:
    """A sound input in a recipe: its module for a target, its stored tensors, their truth."""

    config: Gemma4Config
    module: tvm.IRModule
    tensors: list[Array]
    weights: Weights
    truth: Truth


def model(audio: Mapping[str, Any], recipe_name: str, target: TargetSpec) -> Model:
    """The weights are those of transformers after they were stored."""
    config, recipe = config_of(audio), RECIPES[recipe_name]
    given = random_weights(audio)
    plan = storage_plan(parameter_table(config), recipe, target.max_binding_bytes)
    held: Weights = {}
    tensors: list[Array] = []
    for stored in plan:
        arrays = _stored(stored, given)
        tensors += arrays
        values = stored.scheme.load(arrays)
        sources = stored.parameter.sources
        parts = values if len(sources) > 1 else [values]
        for source, value in zip(sources, parts, strict=True):
            held[source.name] = np.asarray(value, np.float32).reshape(source.shape)
    options = decoder_options(recipe, target, 16)
    module = lower(build_module(config, recipe, target, options, plan, (AUDIO,)), target)
    return Model(config, module, tensors, held, Truth(audio, held))


def build(audio: Mapping[str, Any], recipe_name: str, target: TargetSpec = CPU) -> Sound:
    """Compile for the CPU."""
    made = model(audio, recipe_name, target)
    vm = unlinked(generate(made.module, target))
    params = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in made.tensors]
    return Sound(vm, params, made.truth, made.weights, made.config)


def speech(samples: int, seed: int = 0, level: float = 0.3) -> Float32Array:
    """Tones that come and go, over noise, with silence in between; a few samples are full scale."""
    time = np.arange(samples) / RATE
    rng = np.random.default_rng([seed, samples])
    sound = sum(
        np.sin(2 * np.pi * rate * time + phase) * np.maximum(0.0, np.sin(2 * np.pi * beat * time))
        for rate, phase, beat in zip(
            rng.uniform(80, 7000, 6), rng.uniform(0, 6, 6), rng.uniform(0.5, 4, 6), strict=True
        )
    )
    noise = rng.normal(0.0, 0.02, samples)
    return np.clip(level * sound + noise, -1.0, 1.0).astype(np.float32)
