"""Numbers of rows that sounds become, and their longest length."""

from __future__ import annotations

from gemma4_compile.model_spec.config.audio import (
    SAMPLE_RATE_HZ,
    AnyAudioConfig,
    UnifiedAudioConfig,
)
from gemma4_compile.operators.audio_features import halved
from gemma4_compile.operators.types import Index

MAX_SAMPLES = 30 * SAMPLE_RATE_HZ
MAX_ROWS = 750  # of so many samples: one every 40 ms
FRAME, HOP = 320, 160  # samples of a frame of the spectrum, and from one to the next


def mel_frames(samples: Index) -> Index:
    """Frames of the spectrum that a sound fills to the end; the first one begins before it.

    A frame looks at the sample behind it, too, as transformers' does: 161 samples are one frame.
    """
    return (samples - 1) // HOP


def sound_rows(config: AnyAudioConfig, samples: Index) -> Index:
    """Rows of the decoder that a sound of so many samples becomes."""
    if isinstance(config, UnifiedAudioConfig):
        return (samples + (config.frame_size - 1)) // config.frame_size
    return halved(halved(mel_frames(samples)))


def min_samples(config: AnyAudioConfig) -> int:
    """Samples of the shortest sound that becomes a row."""
    return 1 if isinstance(config, UnifiedAudioConfig) else HOP + 1
