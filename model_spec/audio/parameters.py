"""The parameter table of the sound input: the tower of E2B and E4B, the projection of 12B."""

from __future__ import annotations

from math import prod

from gemma4_compile.model_spec.audio.mel import BANDS
from gemma4_compile.model_spec.config.audio import AudioConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, Role, Source
from gemma4_compile.operators.audio_features import KERNEL, halved
from gemma4_compile.operators.conformer import BOUNDS

TOWER = "audio_tower"
PROJECTION = "audio_projection"
BOUND_NAMES = ("input_min", "input_max", "output_min", "output_max")
FEED_FORWARD = 4  # hidden sizes of a feed-forward block's inner vector


def _matrix(name: str, rows: int, cols: int, source: str | None = None) -> Parameter:
    found = Source(source or f"model.{name}.weight", (rows, cols))
    return Parameter(name, Role.AUDIO_LINEAR, (rows, cols), (found,))


def _values(name: str, shape: tuple[int, ...], source: str | None = None) -> Parameter:
    """A vector, or the weight of a convolution, whose rows are all dimensions but the last."""
    found = Source(source or f"model.{name}.weight", shape)
    stored = (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else shape
    return Parameter(name, Role.VECTOR, stored, (found,))


def _linear(config: AudioConfig, name: str, rows: int, cols: int) -> list[Parameter]:
    """A matmul that may be clipped: its matrix, and its bounds as one parameter."""
    matrix = _matrix(f"{name}.linear", rows, cols)
    if not config.use_clipped_linears:
        return [matrix]
    sources = tuple(Source(f"model.{name}.{bound}", ()) for bound in BOUND_NAMES)
    bounds = Parameter(f"{name}.bounds", Role.VECTOR, (BOUNDS,), sources, Arrangement.SCALARS)
    return [matrix, bounds]


def _feed_forward(config: AudioConfig, prefix: str) -> list[Parameter]:
    hidden, inner = config.hidden_size, FEED_FORWARD * config.hidden_size
    return [
        _values(f"{prefix}.pre_layer_norm", (hidden,)),
        *_linear(config, f"{prefix}.ffw_layer_1", inner, hidden),
        *_linear(config, f"{prefix}.ffw_layer_2", hidden, inner),
        _values(f"{prefix}.post_layer_norm", (hidden,)),
    ]


def _attention(config: AudioConfig, prefix: str) -> list[Parameter]:
    hidden, name = config.hidden_size, f"{prefix}.per_dim_scale"
    return [
        *_linear(config, f"{prefix}.q_proj", hidden, hidden),
        *_linear(config, f"{prefix}.k_proj", hidden, hidden),
        *_linear(config, f"{prefix}.v_proj", hidden, hidden),
        *_linear(config, f"{prefix}.post", hidden, hidden),
        _matrix(f"{prefix}.relative_k_proj", hidden, hidden),
        _values(name, (config.head_dim,), f"model.{name}"),
    ]


def _convolution(config: AudioConfig, prefix: str) -> list[Parameter]:
    hidden = config.hidden_size
    return [
        _values(f"{prefix}.pre_layer_norm", (hidden,)),
        *_linear(config, f"{prefix}.linear_start", 2 * hidden, hidden),
        _values(f"{prefix}.depthwise_conv1d", (hidden, 1, config.conv_kernel_size)),
        _values(f"{prefix}.conv_norm", (hidden,)),
        *_linear(config, f"{prefix}.linear_end", hidden, hidden),
    ]


def _layer(config: AudioConfig, prefix: str) -> list[Parameter]:
    hidden = config.hidden_size
    return [
        *_feed_forward(config, f"{prefix}.feed_forward1"),
        _values(f"{prefix}.norm_pre_attn", (hidden,)),
        *_attention(config, f"{prefix}.self_attn"),
        _values(f"{prefix}.norm_post_attn", (hidden,)),
        *_convolution(config, f"{prefix}.lconv1d"),
        *_feed_forward(config, f"{prefix}.feed_forward2"),
        _values(f"{prefix}.norm_out", (hidden,)),
    ]


def _tower(config: AudioConfig) -> list[Parameter]:
    begin, channels = f"{TOWER}.subsample_conv_projection", (1, *config.conv_channels)
    table = []
    for index in range(2):
        layer, shape = f"{begin}.layer{index}", (channels[index + 1], channels[index])
        table += [
            _values(f"{layer}.conv", (*shape, KERNEL, KERNEL)),
            _values(f"{layer}.norm", shape[:1]),
        ]
    subsampled = int(halved(halved(BANDS))) * channels[-1]
    table.append(_matrix(f"{begin}.input_proj_linear", config.hidden_size, subsampled))
    for index in range(config.num_hidden_layers):
        table += _layer(config, f"{TOWER}.layers.{index}")
    name = f"{TOWER}.output_proj"
    return [
        *table,
        _matrix(name, config.output_dim, config.hidden_size),
        _values(f"{TOWER}.output_bias", (config.output_dim,), f"model.{name}.bias"),
    ]


def parameter_table(config: Gemma4Config) -> tuple[Parameter, ...]:
    """Every parameter of the sound input, none where a package takes no sounds."""
    audio = config.audio
    if audio is None:
        return ()
    tower = _tower(audio) if isinstance(audio, AudioConfig) else []
    width = audio.output_dim if isinstance(audio, AudioConfig) else audio.frame_size
    source = "model.embed_audio.embedding_projection.weight"
    return (*tower, _matrix(PROJECTION, config.hidden_size, width, source))
