"""Small random vision towers of every kind, compiled for the CPU, and transformers beside them.

`CLIPPED` (E2B, E4B): bounds that clip in every linear layer, some of them infinite. `STANDARD`
(26B-A4B, 31B): standardised, heads of 72 channels, a width that no group divides. `UNIFIED` (12B):
no tower. `WIDE`: the released patches, heads of another width than the residual stream, rows long
enough to be quantised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import tvm
from transformers import Gemma4TextConfig, Gemma4UnifiedTextConfig, Gemma4VisionConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder, Gemma4VisionModel
from transformers.models.gemma4_unified.configuration_gemma4_unified import (
    Gemma4UnifiedVisionConfig,
)
from transformers.models.gemma4_unified.modeling_gemma4_unified import Gemma4UnifiedVisionEmbedder
from tvm import relax

from gemma4_compile import abi
from gemma4_compile.compile.build import decoder_options
from gemma4_compile.media.sizes import CLIENT_BLOCKS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.vision.component import VISION
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization.convert import conversion_steps
from gemma4_compile.quantization.matrix import StoredMatrices
from gemma4_compile.quantization.recipe import StoredParameter, storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from tests import models
from tests.machines import unlinked
from tests.random_values import bell_curve, random_tensor

Float32Array = npt.NDArray[np.float32]
Weights = dict[str, Float32Array]

CLIPPED = {
    "model_type": "gemma4_vision",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "pooling_kernel_size": 3,
    "patch_size": 4,
    "position_embedding_size": 64,
    "use_clipped_linears": True,
    "standardize": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}
STANDARD = {
    **CLIPPED,
    **{"hidden_size": 144, "intermediate_size": 208, "head_dim": 72},
    **{"use_clipped_linears": False, "standardize": True},
}
WIDE = {
    **CLIPPED,
    **{"num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 5},
    **{"hidden_size": 256, "intermediate_size": 320},
    **{"use_clipped_linears": False, "patch_size": 16, "position_embedding_size": 48},
}
UNIFIED = {
    "model_type": "gemma4_unified_vision",
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 64,
    "mm_posemb_size": 40,
    "output_proj_dims": 64,
    "rms_norm_eps": 1e-6,
}
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "clipped": ("e2b", CLIPPED),
    "standard": ("dense", STANDARD),
    "wide": ("e4b", WIDE),
    "unified": ("unified", UNIFIED),
}
"""The decoder's kind (tests/models.py) and `vision_config`, by kind."""
TOKENS = {
    "boi_token_id": 250,
    "image_token_id": 251,
    "eoi_token_id": 252,
    "video_token_id": 253,
}
_BOUNDS = {"input_min": -1.5, "input_max": 1.75, "output_min": -1.25, "output_max": 1.0}


def config_values(kind: str) -> dict[str, Any]:
    """`config.json` of a kind."""
    text, vision = KINDS[kind]
    values = models.config_file(models.KINDS[text], "hub", "float32")
    return {**values, **TOKENS, "vision_config": vision}


def config_of(kind: str) -> Gemma4Config:
    return Gemma4Config.from_dict(
        config_values(kind), modalities=frozenset({Modality.TEXT, Modality.IMAGE})
    )


def random_weights(config: Gemma4Config, seed: int = 0) -> Weights:
    """Values of every source: as text weights, and bounds that clip a part of all values."""
    weights = {}
    for parameter in VISION.parameters(config):
        for source in parameter.sources:
            end = source.name.rsplit(".", 1)[-1]
            if end in _BOUNDS:
                shift = 0.25 * float(bell_curve(source.name, seed, 1)[0])
                bound = np.float32(_BOUNDS[end] * (1 + 0.2 * np.tanh(shift)))
                is_open = "layers.1." in source.name and "k_proj" in source.name
                weights[source.name] = np.array(np.copysign(np.inf, bound) if is_open else bound)
            elif end in ("position_embedding_table", "pos_embedding", "std_bias"):
                values = bell_curve(source.name, seed, int(np.prod(source.shape)))
                weights[source.name] = (0.5 * values.reshape(source.shape)).astype(np.float32)
            elif end == "std_scale" or (end == "weight" and "ln" in source.name):
                values = bell_curve(source.name, seed, source.shape[0])
                weights[source.name] = (1.0 + 0.2 * values).astype(np.float32)
            elif end == "bias":
                values = bell_curve(source.name, seed, source.shape[0])
                weights[source.name] = (0.3 * values).astype(np.float32)
            else:
                weights[source.name] = random_tensor(source.name, source.shape, seed)
    return weights


def reader(weights: Weights) -> Any:
    """Reads rows as `checkpoint.match.row_reader` does."""
    largest = np.finfo(np.float32).max

    def read(name: str, begin: int, end: int) -> Float32Array:
        values = np.asarray(weights[name], np.float32)
        if not values.shape:
            return np.clip(values.reshape(1), -largest, largest)
        rows = values if values.ndim == 1 else values.reshape(-1, values.shape[-1])
        return rows[begin:end]

    return read


def stored_tensors(
    plan: Sequence[StoredParameter], weights: Weights
) -> tuple[list[npt.NDArray[Any]], Weights]:
    """The package's tensors in order, and the weights that they mean, by source name."""
    read, tensors, meant = reader(weights), {}, dict(weights)
    for stored in plan:
        for tensor in stored.tensors:
            tensors[tensor.name] = np.empty(tensor.shape, tensor.dtype)
        for step in conversion_steps(stored):
            for block in step.run(read):
                flat = tensors[block.tensor.name].reshape(-1).view(np.uint8)
                data = np.ascontiguousarray(block.data).reshape(-1).view(np.uint8)
                flat[block.offset_bytes : block.offset_bytes + data.size] = data
        if len(stored.parameter.shape) == 2 and "vectors" not in stored.parameter.name:
            meant.update(_meant(stored, tensors))
    ordered = [tensors[tensor.name] for stored in plan for tensor in stored.tensors]
    return ordered, meant


def _meant(stored: StoredParameter, tensors: Mapping[str, npt.NDArray[Any]]) -> Weights:
    arrays = [tensors[tensor.name] for tensor in stored.tensors]
    scheme, sources = stored.scheme, stored.parameter.sources
    values = scheme.load(arrays)
    if len(sources) == 2 and values.shape[0] == 2 * sources[0].shape[0]:
        return {source.name: values[index::2] for index, source in enumerate(sources)}
    if len(sources) > 1:
        return {source.name: values[index] for index, source in enumerate(sources)}
    return {sources[0].name: values.reshape(sources[0].shape)}


@dataclass(frozen=True)
class Picture:
    """A random picture as a grid of blocks: pixels (rows, cols, 3), 0..255."""

    pixels: npt.NDArray[np.uint8]
    block: int

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks across and down."""
        return self.pixels.shape[1] // self.block, self.pixels.shape[0] // self.block

    def cells(self, size: int) -> tuple[Float32Array, npt.NDArray[np.int32]]:
        """Squares of `size` pixels, row-major and each flattened HWC, and their (x, y)."""
        across, down = self.pixels.shape[1] // size, self.pixels.shape[0] // size
        squares = self.pixels.reshape(down, size, across, size, 3).swapaxes(1, 2)
        y, x = np.mgrid[:down, :across]
        positions = np.stack([x.ravel(), y.ravel()], axis=-1).astype(np.int32)
        return squares.reshape(down * across, -1).astype(np.float32), positions


def random_picture(across: int, down: int, block: int, seed: int = 0) -> Picture:
    rng = np.random.default_rng([seed, across, down])
    noise = rng.integers(0, 256, (down * block, across * block, 3))
    waves = 127 + 127 * np.sin(np.arange(across * block) / 7)[None, :, None]
    return Picture(((noise + waves) / 2).astype(np.uint8), block)


@cache
def executable(
    kind: str, recipe: str, blocks: tuple[int, int] = CLIENT_BLOCKS
) -> relax.VMExecutable:
    config, target = config_of(kind), target_spec("cpu")
    plan = storage_plan(VISION.parameters(config), RECIPES[recipe], target.max_binding_bytes)
    options = replace(decoder_options(RECIPES[recipe], target, 16), client_blocks=blocks)
    exported = VISION.export(config, StoredMatrices(plan), options)
    names = tuple(tensor.name for stored in plan for tensor in stored.tensors)
    assert exported.parameters == names
    return generate(lower(exported.module, target), target)


@dataclass(frozen=True)
class Compiled:
    """A kind's library with weights, and the weights that it holds."""

    vm: relax.VirtualMachine
    params: Sequence[tvm.runtime.Tensor]
    weights: Weights
    config: Gemma4Config

    @property
    def block(self) -> int:
        assert self.config.vision is not None
        return self.config.vision.block_size

    def embed(self, pixels: Float32Array, positions: npt.NDArray[np.int32]) -> Float32Array:
        args = [tvm.runtime.tensor(value) for value in (pixels, positions)]
        return np.asarray(self.vm[abi.EMBED_IMAGE](*args, self.params).numpy())

    def rows(self, picture: Picture) -> Float32Array:
        return self.embed(*picture.cells(picture.block))


def compiled(
    kind: str,
    recipe: str = "f32",
    weights: Weights | None = None,
    blocks: tuple[int, int] = CLIENT_BLOCKS,
) -> Compiled:
    config = config_of(kind)
    plan = storage_plan(VISION.parameters(config), RECIPES[recipe], None)
    tensors, meant = stored_tensors(plan, random_weights(config) if weights is None else weights)
    vm = unlinked(executable(kind, recipe, blocks))
    return Compiled(vm, [tvm.runtime.tensor(t) for t in tensors], meant, config)


class Truth:
    """transformers' modules in float32 on given weights."""

    def __init__(self, kind: str, weights: Weights) -> None:
        text, vision = KINDS[kind]
        self._unified = vision["model_type"] == "gemma4_unified_vision"
        self._tensors = {name: torch.from_numpy(np.array(v)) for name, v in weights.items()}
        if self._unified:
            self._load_unified(vision, models.KINDS[text])
        else:
            self._load_tower(vision, models.KINDS[text])

    def _load_unified(self, vision: dict[str, Any], text: dict[str, Any]) -> None:
        config = Gemma4UnifiedVisionConfig(**vision)
        embedder = Gemma4UnifiedVisionEmbedder(config, Gemma4UnifiedTextConfig(**text))
        renamed = {"multimodal_embedder.embedding_projection.weight": self._projection()}
        embedder.load_state_dict({**self._state("model.vision_embedder."), **renamed})
        self._embedder: Any = embedder.eval()

    def _load_tower(self, vision: dict[str, Any], text: dict[str, Any]) -> None:
        config = Gemma4VisionConfig(**vision)
        self._tower = Gemma4VisionModel._from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation="eager", dtype=torch.float32
        ).eval()
        self._tower.load_state_dict(self._state("model.vision_tower."), strict=True)
        embedder = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(**text))
        embedder.load_state_dict({"embedding_projection.weight": self._projection()}, strict=True)
        self._embedder = embedder.eval()

    def _projection(self) -> torch.Tensor:
        return self._tensors["model.embed_vision.embedding_projection.weight"]

    def _state(self, prefix: str) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix(prefix): value
            for name, value in self._tensors.items()
            if name.startswith(prefix)
        }

    def rows(self, picture: Picture, patch: int) -> Float32Array:
        """Rows of a picture; `patch` is its side where there is a tower."""
        cells, positions = picture.cells(picture.block if self._unified else patch)
        values = torch.from_numpy(cells[None] * np.float32(1 / 255))
        where = torch.from_numpy(positions[None].astype(np.int64))
        with torch.no_grad():
            if self._unified:
                result = self._embedder(values, where).pooler_output[0]
            else:
                tower = self._tower(pixel_values=values, pixel_position_ids=where)
                result = self._embedder(tower.last_hidden_state)
        return np.asarray(result.numpy().reshape(-1, result.shape[-1]))
