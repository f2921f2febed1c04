"""Memory of the sound input's activations."""

from __future__ import annotations

from tvm import DataType

from gemma4_compile.model_spec.audio.mel import BANDS
from gemma4_compile.model_spec.audio.parameters import FEED_FORWARD
from gemma4_compile.model_spec.audio.sizes import MAX_ROWS
from gemma4_compile.model_spec.component import ActivationMemory
from gemma4_compile.model_spec.config.audio import AudioConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.audio_features import halved


def activation_memory(config: Gemma4Config, dtype: str) -> ActivationMemory:
    """Bytes of a row's activations in `dtype` where they are bounded."""
    audio = config.audio
    if audio is None:
        return ActivationMemory((), ())
    f32, item = 4, DataType(dtype).bits // 8
    out = f32 * config.hidden_size
    if not isinstance(audio, AudioConfig):
        frame = (f32 * audio.frame_size, item * audio.frame_size, out)
        return ActivationMemory(frame, (frame,), MAX_ROWS)
    frequencies = int(halved(BANDS))
    first = 2 * item * frequencies * audio.conv_channels[0]  # of the two times of a row
    second = item * int(halved(frequencies)) * audio.conv_channels[1]
    hidden = f32 * audio.hidden_size
    subsampled = (first, second, hidden)
    inner = FEED_FORWARD * hidden
    layer = (hidden, hidden, inner, inner)
    return ActivationMemory((*subsampled, inner, out), (subsampled, layer), MAX_ROWS)
