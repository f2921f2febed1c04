"""The sound input of 12B, which has no tower: frames of samples, normed for the projection."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.audio.mel import sound_frames
from gemma4_compile.model_spec.audio.sizes import sound_rows
from gemma4_compile.model_spec.config.audio import UnifiedAudioConfig
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.conformer import ClippedNorm


def normed_frames(config: UnifiedAudioConfig, samples: nn.Tensor, dtype: str) -> nn.Tensor:
    """(count,) float32 -> (rows, frame_size) in `dtype`; the last frame ends in silence."""
    rows, width = sound_rows(config, samples.shape[0]), config.frame_size
    frames = sound_frames(samples, rows, width, width, 0, "float32")
    operator = ClippedNorm(width, config.rms_norm_eps, dtype, weighted=False)
    return emit(operator, [frames], [((rows, width), dtype)])[0]
