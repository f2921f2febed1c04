"""The functions that turn a sound into rows of the text decoder.

``embed_audio(samples, params) -> rows``: samples (count,) float32, 16 kHz mono in [-1, 1], of any
count from `sizes.min_samples` to `sizes.MAX_SAMPLES`, not padded; rows (`sizes.sound_rows`,
hidden_size) float32, one every 40 ms, that replace the embeddings of the placeholder tokens, which
are not multiplied by sqrt(hidden_size). The count is the one symbolic size; everything else follows
from it, as it does in transformers, whose padding to 128 samples changes no row that its mask keeps
(see `tower.py`). ``audio_embed`` is the same function under the name that the WebLLM client's
manifest gives its adapter: the client hands over samples in this form.
"""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.audio.mel import log_mel
from gemma4_compile.model_spec.audio.parameters import PROJECTION
from gemma4_compile.model_spec.audio.sizes import MAX_SAMPLES
from gemma4_compile.model_spec.audio.tower import AudioTower
from gemma4_compile.model_spec.audio.unified import normed_frames
from gemma4_compile.model_spec.component import VAR_BOUNDS_ATTR, Exported, ExportOptions
from gemma4_compile.model_spec.config.audio import AudioConfig, UnifiedAudioConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.operators.rows import CHUNK


class SoundEncoder(nn.Module):
    """Everything between samples and the text decoder."""

    def __init__(self, config: Gemma4Config, matrices: Matrices, dtype: str) -> None:
        assert config.audio is not None, "a package that takes sounds"
        self.config, self.dtype = config.audio, dtype
        if isinstance(config.audio, AudioConfig):
            self.audio_tower = AudioTower(config.audio, matrices, dtype)
        self.audio_projection = matrices.matrix(PROJECTION)

    def embed_audio(self, samples: nn.Tensor) -> nn.Tensor:
        """Rows of the decoder: (rows, hidden_size) float32."""
        if isinstance(self.config, UnifiedAudioConfig):
            normed = normed_frames(self.config, samples, self.dtype)
        else:
            normed = self.audio_tower.forward(log_mel(samples))
        return self.audio_projection.matmul(normed, CHUNK)

    def audio_embed(self, samples: nn.Tensor) -> nn.Tensor:
        """The adapter of the WebLLM client: `embed_audio`."""
        return self.embed_audio(samples)


def export_audio(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build the functions of the sound input."""
    encoder = SoundEncoder(config, matrices, options.activation_dtype)
    mode = {"param_mode": "packed", "effect_mode": "none"}
    names = (abi.EMBED_AUDIO, abi.AUDIO_ADAPTER)
    samples = nn.spec.Tensor(["samples"], "float32")
    spec = {name: {"samples": samples, "$": mode} for name in names}
    module, parameters = encoder.export_tvm(spec)
    for name in names:
        module[name] = module[name].with_attr(VAR_BOUNDS_ATTR, {"samples": MAX_SAMPLES})
    return Exported(module, tuple(name for name, _ in parameters))
