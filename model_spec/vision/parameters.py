"""The parameter table of a picture's part: of a vision tower, or of 12B's patch projection.

Sources keep their whole names in the checkpoint: its parts have prefixes of their own.
"""

from __future__ import annotations

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import CHANNELS, UnifiedVisionConfig, VisionConfig
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, Role, Source

PREFIX = "model."
"""Of sources; parameters are named without it."""
TOWER, EMBEDDER, EMBED = "vision_tower", "vision_embedder", "embed_vision"
BOUNDS = ("input_min", "input_max", "output_min", "output_max")
NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def _source(name: str, *shape: int) -> Source:
    return Source(f"{PREFIX}{name}", shape)


def _matrix(name: str, rows: int, cols: int) -> Parameter:
    source = _source(f"{name}.weight", rows, cols)
    return Parameter(name, Role.VISION_LINEAR, (rows, cols), (source,))


def _vector(name: str, size: int) -> Parameter:
    return Parameter(name, Role.VECTOR, (size,), (_source(f"{name}.weight", size),))


def _stack(name: str, sources: tuple[str, ...], size: int) -> Parameter:
    found = tuple(_source(source, size) for source in sources)
    return Parameter(name, Role.VECTOR, (len(found), size), found, Arrangement.STACK)


def _linear(name: str, rows: int, cols: int, is_clipped: bool) -> list[Parameter]:
    """A linear layer of the tower and, if it has them, its bounds."""
    table = [_matrix(f"{name}.linear", rows, cols)]
    if is_clipped:
        sources = tuple(_source(f"{name}.{bound}") for bound in BOUNDS)
        shape = (len(sources),)
        table.append(Parameter(f"{name}.bounds", Role.VECTOR, shape, sources, Arrangement.SCALARS))
    return table


def _feed_forward(prefix: str, config: VisionConfig) -> list[Parameter]:
    hidden, width = config.hidden_size, config.intermediate_size
    if config.use_clipped_linears:  # each with bounds of its own
        up = _linear(f"{prefix}.up_proj", width, hidden, True)
        gate = _linear(f"{prefix}.gate_proj", width, hidden, True)
        return [*up, *gate, *_linear(f"{prefix}.down_proj", hidden, width, True)]
    sources = tuple(
        _source(f"{prefix}.{name}_proj.linear.weight", width, hidden) for name in ("gate", "up")
    )
    gate_up = Parameter(
        f"{prefix}.gate_up_proj",
        Role.VISION_LINEAR,
        (2 * width, hidden),
        sources,
        Arrangement.INTERLEAVE_ROWS,
    )
    return [gate_up, *_linear(f"{prefix}.down_proj", hidden, width, False)]


def _layer(prefix: str, config: VisionConfig) -> list[Parameter]:
    hidden, inner = config.hidden_size, config.num_attention_heads * config.head_dim
    clipped, attention = config.use_clipped_linears, f"{prefix}.self_attn"
    table = [_vector(f"{prefix}.{name}", hidden) for name in NORMS]
    for name in ("q", "k", "v"):
        table += _linear(f"{attention}.{name}_proj", inner, hidden, clipped)
    table += [_vector(f"{attention}.{name}_norm", config.head_dim) for name in ("q", "k")]
    table += _linear(f"{attention}.o_proj", hidden, inner, clipped)
    return table + _feed_forward(f"{prefix}.mlp", config)


def _tower(config: VisionConfig) -> list[Parameter]:
    hidden, size = config.hidden_size, config.position_embedding_size
    patches = f"{TOWER}.patch_embedder"
    name = f"{patches}.position_embedding_table"
    table = [
        _matrix(f"{patches}.input_proj", hidden, config.patch_size**2 * CHANNELS),
        Parameter(name, Role.VISION_LINEAR, (2 * size, hidden), (_source(name, 2, size, hidden),)),
    ]
    for index in range(config.num_hidden_layers):
        table += _layer(f"{TOWER}.encoder.layers.{index}", config)
    if config.standardize:
        sources = (f"{TOWER}.std_bias", f"{TOWER}.std_scale")
        table.append(_stack(f"{TOWER}.standardize", sources, hidden))
    return table


def _unified(config: UnifiedVisionConfig) -> list[Parameter]:
    pixels, width = config.block_size**2 * CHANNELS, config.embed_dim
    size, name = config.position_embedding_size, f"{EMBEDDER}.pos_embedding"
    ends = ("weight", "bias")
    first = tuple(f"{EMBEDDER}.patch_ln1.{end}" for end in ends)
    after = tuple(f"{EMBEDDER}.{norm}.{end}" for norm in ("patch_ln2", "pos_norm") for end in ends)
    return [
        _stack(f"{EMBEDDER}.pixel_vectors", first, pixels),
        _matrix(f"{EMBEDDER}.patch_dense", width, pixels),
        # In the order of `PositionNorms`.
        _stack(f"{EMBEDDER}.position_vectors", (f"{EMBEDDER}.patch_dense.bias", *after), width),
        Parameter(name, Role.VISION_LINEAR, (2 * size, width), (_source(name, size, 2, width),)),
    ]


def parameter_table(config: Gemma4Config) -> tuple[Parameter, ...]:
    """Every parameter of a picture's part; none where the config has no such part."""
    vision = config.vision
    if vision is None:
        return ()
    if isinstance(vision, UnifiedVisionConfig):
        table, width = _unified(vision), vision.embed_dim
    else:
        table, width = _tower(vision), vision.hidden_size
    projection = _matrix(f"{EMBED}.embedding_projection", config.hidden_size, width)
    return (*table, projection)
