"""transformers' vision and audio towers in float32, or 12B's projections: rows of media.

A tower is made whole, as it is smaller than the text decoder's tables, and dropped after its one
run. This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional
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
from gemma4_compile.model_spec.vision.config import CHANNELS
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
    return torch.from_numpy(np.array(read(name, 0, rows).reshape(shape), np.float32))


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
        if isinstance(medium, Sound):
            run = _unified_sound if is_unified else _sound
            section = values["audio_config"]
        else:
            run = _unified_picture if is_unified else _picture
            section = values["vision_config"]
        assert isinstance(section, Mapping), "the package was made from it"
        result = run(dict(section), text, _Filler(read, shapes), medium)
    return np.ascontiguousarray(result.numpy())


class _Filler:
    """Gives modules of transformers their weights."""

    def __init__(self, read: RowReader, shapes: Shapes) -> None:
        self._read, self._shapes = read, shapes

    def fill(
        self, module: torch.nn.Module, prefix: str, named: Callable[[str], str] = str
    ) -> torch.nn.Module:
        """The module with all its weights: `prefix` and its own names make the checkpoint's."""
        state = module.state_dict()
        for name, tensor in state.items():
            tensor.copy_(whole(prefix + named(name), self._read, self._shapes))
        return module.eval()


def _squares(pixels: Pixels, side: int, block: int) -> Float32Array:
    """Squares of `side` pixels of each block, row by row, (blocks, squares, side * side * 3)."""
    count = block // side
    cut = pixels.reshape(-1, count, side, count, side, CHANNELS).swapaxes(2, 3)
    return cut.reshape(len(pixels), count**2, -1).astype(np.float32) * np.float32(1 / 255)


def _picture(
    section: JsonObject, text: JsonObject, weights: _Filler, medium: Picture | Sound
) -> torch.Tensor:
    assert isinstance(medium, Picture), "as the caller chose"
    config = Gemma4VisionConfig(**section)
    kind: Any = Gemma4VisionModel
    tower = kind._from_config(config, **_EAGER)
    weights.fill(tower, f"{PREFIX}{VISION_TOWER}.")
    patch, pool = int(config.patch_size), int(config.pooling_kernel_size)
    patches = _squares(medium.pixels, patch, patch * pool)
    y, x = np.mgrid[:pool, :pool]
    inside = np.stack([x.ravel(), y.ravel()], axis=-1)
    places = (medium.positions[:, None] * pool + inside).reshape(-1, 2)
    # Row by row over the whole picture, as the processor has them; rows of it are those of blocks.
    order = np.lexsort((places[:, 0], places[:, 1]))
    given = torch.from_numpy(patches.reshape(len(places), -1)[order])[None]
    where = torch.from_numpy(places[order].astype(np.int64))[None]
    rows = tower(pixel_values=given, pixel_position_ids=where).last_hidden_state
    embedder = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(**text))
    weights.fill(embedder, f"{PREFIX}{EMBED}.")
    result: torch.Tensor = embedder(rows.reshape(len(patches), -1))
    return result


def _unified_picture(
    section: JsonObject, text: JsonObject, weights: _Filler, medium: Picture | Sound
) -> torch.Tensor:
    assert isinstance(medium, Picture), "as the caller chose"
    config = Gemma4UnifiedVisionConfig(**section)
    embedder: Any = Gemma4UnifiedVisionEmbedder(config, Gemma4UnifiedTextConfig(**text))

    def named(name: str) -> str:
        inner = name.removeprefix(_INNER)
        return f"{EMBED}.{inner}" if inner != name else f"{EMBEDDER}.{name}"

    weights.fill(embedder, PREFIX, named)
    given = torch.from_numpy(medium.pixels.astype(np.float32) * np.float32(1 / 255))[None]
    where = torch.from_numpy(medium.positions.astype(np.int64))[None]
    result: torch.Tensor = embedder(given, where).pooler_output[0]
    return result


def _sound(
    section: JsonObject, text: JsonObject, weights: _Filler, medium: Picture | Sound
) -> torch.Tensor:
    assert isinstance(medium, Sound), "as the caller chose"
    config = Gemma4AudioConfig(**section)
    kind: Any = Gemma4AudioModel
    tower = kind._from_config(config, **_EAGER)
    weights.fill(tower, f"{PREFIX}{AUDIO_TOWER}.")
    features, mask = _features(Gemma4AudioFeatureExtractor(), medium)
    found = tower(features, mask, return_dict=True)
    embedder = Gemma4MultimodalEmbedder(config, Gemma4TextConfig(**text))
    weights.fill(embedder, f"{PREFIX}{_EMBED_AUDIO}.")
    result: torch.Tensor = embedder(found.last_hidden_state)[found.attention_mask]
    return result


def _unified_sound(
    section: JsonObject, text: JsonObject, weights: _Filler, medium: Picture | Sound
) -> torch.Tensor:
    assert isinstance(medium, Sound), "as the caller chose"
    config = Gemma4UnifiedAudioConfig(**section)
    embedder = Gemma4UnifiedMultimodalEmbedder(config, Gemma4UnifiedTextConfig(**text))
    weights.fill(embedder, f"{PREFIX}{_EMBED_AUDIO}.")
    size = int(config.audio_samples_per_token)
    extractor = Gemma4UnifiedAudioFeatureExtractor(feature_size=size, audio_samples_per_token=size)
    features, mask = _features(extractor, medium)
    result: torch.Tensor = embedder(features)[mask]
    return result


def _features(extractor: Any, sound: Sound) -> tuple[torch.Tensor, torch.Tensor]:
    """The features (1, frames, width) of a sound, and which of them are no padding."""
    made = extractor([sound.samples], return_tensors="np", sampling_rate=SAMPLE_RATE_HZ)
    features = torch.from_numpy(np.asarray(made["input_features"], np.float32))
    return features, torch.from_numpy(np.asarray(made["input_features_mask"], bool))
