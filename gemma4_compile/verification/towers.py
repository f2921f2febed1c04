"""transformers' vision and audio towers in float32, or 12B's projections: rows of media.

A tower is made whole, as it is smaller than the text decoder's tables, and dropped after its one
run. This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import Module, functional
from transformers.models.gemma4.configuration_gemma4 import (
    Gemma4AudioConfig,
    Gemma4TextConfig,
    Gemma4VisionConfig,
)
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.modeling_gemma4 import (
    Gemma4AudioModel,
    Gemma4MultimodalEmbedder,
    Gemma4VisionModel,
)
from transformers.models.gemma4_unified.configuration_gemma4_unified import (
    Gemma4UnifiedAudioConfig,
    Gemma4UnifiedTextConfig,
    Gemma4UnifiedVisionConfig,
)
from transformers.models.gemma4_unified.feature_extraction_gemma4_unified import (
    Gemma4UnifiedAudioFeatureExtractor,
)
from transformers.models.gemma4_unified.modeling_gemma4_unified import (
    Gemma4UnifiedMultimodalEmbedder,
    Gemma4UnifiedVisionEmbedder,
)

from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.limits import SAMPLE_RATE_HZ
from gemma4_compile.media.preprocess import Pixels
from gemma4_compile.model_spec.audio.parameters import TOWER as AUDIO_TOWER
from gemma4_compile.model_spec.config.vision import CHANNELS
from gemma4_compile.model_spec.vision.parameters import EMBED, EMBEDDER, PREFIX
from gemma4_compile.model_spec.vision.parameters import TOWER as VISION_TOWER
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.types import JsonObject

Float32Array = npt.NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]

_EMBED_AUDIO = "embed_audio"
_EAGER = {"attn_implementation": "eager", "dtype": torch.float32}
_INNER = "multimodal_embedder."  # of 12B's picture, which checkpoints name as others do


def scaled(rgb: Pixels, size: tuple[int, int]) -> Pixels:
    """A picture of a width and height, by the filter that transformers' processor calls."""
    if size == (rgb.shape[1], rgb.shape[0]):
        return rgb
    given = torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1)))[None]
    result = functional.interpolate(given, size[::-1], mode="bicubic", antialias=True)
    return np.ascontiguousarray(result[0].numpy().transpose(1, 2, 0))


def whole(name: str, read: RowReader, shapes: Shapes) -> torch.Tensor:
    """A tensor of the checkpoint."""
    shape = shapes[name]
    rows = int(np.prod(shape[:-1])) if len(shape) > 1 else int(np.prod(shape))
    # Copied only where it cannot be written to: matrices of experts are gigabytes.
    return torch.from_numpy(np.require(read(name, 0, rows).reshape(shape), np.float32, ["C", "W"]))


def medium_rows(
    values: Mapping[str, object],
    text: JsonObject,
    read: RowReader,
    shapes: Shapes,
    medium: Picture | Sound,
) -> Float32Array:
    """Rows (count, hidden_size) of a picture or a sound.

    Parameters
    ----------
    values : the checkpoint's whole `config.json`
    text : the text decoder's part of it
    read : reads rows of a checkpoint tensor, by the name of its source
    shapes : of those tensors
    """
    is_unified = text["model_type"] == "gemma4_unified_text"
    with torch.no_grad():
        section = values["audio_config" if isinstance(medium, Sound) else "vision_config"]
        assert isinstance(section, Mapping), "the package was made from it"
        model = _Model(dict(section), text, read, shapes)
        if isinstance(medium, Sound):
            result = _unified_sound(model, medium) if is_unified else _sound(model, medium)
        else:
            result = _unified_picture(model, medium) if is_unified else _picture(model, medium)
    return np.ascontiguousarray(result.numpy())


@dataclass(frozen=True)
class _Model:
    """Modules of transformers with the checkpoint's weights.

    Attributes
    ----------
    section : the config of the tower
    text : that of the text decoder
    """

    section: JsonObject
    text: JsonObject
    read: RowReader
    shapes: Shapes

    def filled(self, module: Module, prefix: str, named: Callable[[str], str] = str) -> Module:
        """The module with all its weights: `prefix` and its own names make the checkpoint's."""
        state = module.state_dict()
        for name, tensor in state.items():
            tensor.copy_(whole(prefix + named(name), self.read, self.shapes))
        module.eval()
        return module

    def tower(self, kind: Any, config: object, name: str) -> Any:
        """The tower, whose class is `kind`."""
        return self.filled(kind._from_config(config, **_EAGER), f"{PREFIX}{name}.")

    def embedded(self, embedder: Module, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the text decoder from those of the tower."""
        result: torch.Tensor = self.filled(embedder, f"{PREFIX}{name}.")(rows)
        return result


def _squares(pixels: Pixels, side: int, block: int) -> Float32Array:
    """Squares of `side` pixels of each block, row by row, (blocks, squares, side * side * 3)."""
    count = block // side
    cut = pixels.reshape(-1, count, side, count, side, CHANNELS).swapaxes(2, 3)
    return cut.reshape(len(pixels), count**2, -1).astype(np.float32) * np.float32(1 / 255)


def _picture(model: _Model, picture: Picture) -> torch.Tensor:
    config = Gemma4VisionConfig(**model.section)
    tower = model.tower(Gemma4VisionModel, config, VISION_TOWER)
    patch, pool = int(config.patch_size), int(config.pooling_kernel_size)
    patches = _squares(picture.pixels, patch, patch * pool)
    y, x = np.mgrid[:pool, :pool]
    inside = np.stack([x.ravel(), y.ravel()], axis=-1)
    places = (picture.positions[:, None] * pool + inside).reshape(-1, 2)
    # Row by row over the whole picture, as the processor has them; rows of it are those of blocks.
    order = np.lexsort((places[:, 0], places[:, 1]))
    given = torch.from_numpy(patches.reshape(len(places), -1)[order])[None]
    where = torch.from_numpy(places[order].astype(np.int64))[None]
    rows = tower(pixel_values=given, pixel_position_ids=where).last_hidden_state
    embedder = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(**model.text))
    return model.embedded(embedder, EMBED, rows.reshape(len(patches), -1))


def _unified_picture(model: _Model, picture: Picture) -> torch.Tensor:
    config = Gemma4UnifiedVisionConfig(**model.section)
    embedder: Any = Gemma4UnifiedVisionEmbedder(config, Gemma4UnifiedTextConfig(**model.text))

    def named(name: str) -> str:
        inner = name.removeprefix(_INNER)
        return f"{EMBED}.{inner}" if inner != name else f"{EMBEDDER}.{name}"

    given = torch.from_numpy(picture.pixels.astype(np.float32) * np.float32(1 / 255))[None]
    where = torch.from_numpy(picture.positions.astype(np.int64))[None]
    result: torch.Tensor = model.filled(embedder, PREFIX, named)(given, where).pooler_output[0]
    return result


def _sound(model: _Model, sound: Sound) -> torch.Tensor:
    config = Gemma4AudioConfig(**model.section)
    tower = model.tower(Gemma4AudioModel, config, AUDIO_TOWER)
    features, mask = _features(Gemma4AudioFeatureExtractor(), sound)
    found = tower(features, mask, return_dict=True)
    embedder = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(**model.text))
    rows = model.embedded(embedder, _EMBED_AUDIO, found.last_hidden_state)
    return rows[found.attention_mask]


def _unified_sound(model: _Model, sound: Sound) -> torch.Tensor:
    config = Gemma4UnifiedAudioConfig(**model.section)
    embedder = Gemma4UnifiedMultimodalEmbedder(config, Gemma4UnifiedTextConfig(**model.text))
    size = int(config.audio_samples_per_token)
    extractor = Gemma4UnifiedAudioFeatureExtractor(feature_size=size, audio_samples_per_token=size)
    features, mask = _features(extractor, sound)
    return model.embedded(embedder, _EMBED_AUDIO, features)[mask]


def _features(extractor: Any, sound: Sound) -> tuple[torch.Tensor, torch.Tensor]:
    """The features (1, frames, width) of a sound, and which of them are no padding."""
    made = extractor([sound.samples], return_tensors="np", sampling_rate=SAMPLE_RATE_HZ)
    features = torch.from_numpy(np.asarray(made["input_features"], np.float32))
    return features, torch.from_numpy(np.asarray(made["input_features_mask"], bool))
