"""`audio_config` of the checkpoint's `config.json` as frozen, checked fields.

The defaults are those of transformers 5.24, `models/gemma4/configuration_gemma4.py` and
`models/gemma4_unified/configuration_gemma4_unified.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.keys import IGNORED_TOWER_KEYS

SAMPLE_RATE_HZ = 16_000
MAX_LAYERS = 256
MAX_WIDTH = 1 << 16
MAX_HEADS = 1 << 8
MAX_CHANNELS = 1 << 10

_TOWER_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "subsampling_conv_channels": [128, 32],
    "conv_kernel_size": 5,
    "residual_weight": 0.5,
    "attention_chunk_size": 12,
    "attention_context_left": 13,
    "attention_context_right": 0,
    "attention_logit_cap": 50.0,
    "use_clipped_linears": True,
    "rms_norm_eps": 1e-6,
    "gradient_clipping": 1e10,
    "output_proj_dims": 1536,
}
_UNIFIED_DEFAULTS: Mapping[str, object] = {"audio_embed_dim": 640, "rms_norm_eps": 1e-6}


@dataclass(frozen=True)
class AudioTokens:
    """Ids of the tokens around and in the place of a sound's rows."""

    begin: int
    soft: int
    end: int


@dataclass(frozen=True)
class AudioConfig:
    """The audio tower of E2B and E4B.

    Attributes
    ----------
    conv_channels : of the two convolutions that halve time and frequency
    conv_kernel_size : frames of the depthwise convolution
    attention_context : frames that a frame sees, itself included
    position_offset : relative position of distance 0: the middle of a chunk's context, which the
        chunk and the frames before it share
    gradient_clipping : bound of the clamps between the parts of a layer
    output_dim : width of the tower's result
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    conv_channels: tuple[int, int]
    conv_kernel_size: int
    residual_weight: float
    attention_context: int
    position_offset: int
    attention_logit_cap: float
    use_clipped_linears: bool
    rms_norm_eps: float
    gradient_clipping: float
    output_dim: int
    tokens: AudioTokens

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class UnifiedAudioConfig:
    """The projection of 12B, which has no tower: one row of the decoder a frame of raw samples.

    Attributes
    ----------
    frame_size : samples of a frame
    """

    frame_size: int
    rms_norm_eps: float
    tokens: AudioTokens


AnyAudioConfig = AudioConfig | UnifiedAudioConfig


def read_audio(top: ConfigFields, vocab_size: int, unknown: list[str]) -> AnyAudioConfig:
    """Read `audio_config` and the ids of its tokens.

    Parameters
    ----------
    unknown : gets the keys that neither we nor transformers know

    Raises
    ------
    ConfigError
        For an impossible value (by name), or where the checkpoint has no sound input.
    """
    if top.get("audio_config") is None:
        raise ConfigError(
            "config key `audio_config` is missing: this checkpoint has no sound input",
            hint="leave `audio` out of --modalities",
        )
    ids = [
        top.media_token(names, default, vocab_size, "audio")
        for names, default in (
            (("boa_token_id",), 256_000),
            (("audio_token_id",), 258_881),
            (("eoa_token_id", "eoa_token_index"), 258_883),  # the second as transformers spells it
        )
    ]
    tokens = AudioTokens(*ids)
    is_unified = top.get("model_type") == "gemma4_unified"
    fields = top.fields("audio_config", _UNIFIED_DEFAULTS if is_unified else _TOWER_DEFAULTS)
    config = (_read_unified if is_unified else _read_tower)(fields, tokens)
    unknown += fields.unknown(IGNORED_TOWER_KEYS)
    return config


def _read_unified(fields: ConfigFields, tokens: AudioTokens) -> UnifiedAudioConfig:
    fields.fixed("model_type", "gemma4_unified_audio")
    for name in ("hidden_size", "output_proj_dims", "audio_samples_per_token"):
        fields.get(name)  # other names of audio_embed_dim
    return UnifiedAudioConfig(
        frame_size=fields.integer("audio_embed_dim", 1, MAX_WIDTH),
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 0.1),
        tokens=tokens,
    )


def _read_tower(fields: ConfigFields, tokens: AudioTokens) -> AudioConfig:
    fields.fixed("model_type", "gemma4_audio")
    fields.fixed("hidden_act", "silu")
    fields.fixed("attention_context_right", 0)
    hidden = fields.integer("hidden_size", 2, MAX_WIDTH)
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    if hidden % (2 * heads):
        raise ConfigError(
            f"config key `{fields.key('num_attention_heads')}`: {heads} heads do not share "
            f"hidden_size = {hidden} in even parts"
        )
    channels = fields.array("subsampling_conv_channels", 2)
    if any(type(count) is not int or not 1 <= count <= MAX_CHANNELS for count in channels):
        raise ConfigError(
            f"config key `{fields.key('subsampling_conv_channels')}`: expected two integers from 1 "
            f"to {MAX_CHANNELS}, found {channels}"
        )
    fields.get("attention_invalid_logits_value")  # -1e9, as good as minus infinity
    # Chunks are a layout of transformers' computation: what a frame sees is a matter of distance
    # alone. Only the relative position of distance 0 depends on them, 0 in every released model.
    before = fields.integer("attention_context_left", 2, 1 << 12) - 1
    chunk = fields.integer("attention_chunk_size", 1, 1 << 12)
    return AudioConfig(
        hidden_size=hidden,
        num_hidden_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_attention_heads=heads,
        conv_channels=(int(str(channels[0])), int(str(channels[1]))),
        conv_kernel_size=fields.integer("conv_kernel_size", 1, 64),
        residual_weight=fields.number("residual_weight", 0.0, 1e3),
        attention_context=before,
        position_offset=(chunk + before) // 2 - before,
        attention_logit_cap=fields.number("attention_logit_cap", 0.0, 1e6),
        use_clipped_linears=fields.boolean("use_clipped_linears"),
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 0.1),
        gradient_clipping=fields.number("gradient_clipping", 0.0, 1e30),
        output_dim=fields.integer("output_proj_dims", 1, MAX_WIDTH),
        tokens=tokens,
    )
