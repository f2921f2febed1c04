"""`vision_config` of the checkpoint's `config.json` as frozen, checked fields.

The defaults are those of transformers 5.24, `models/gemma4/configuration_gemma4.py` and
`models/gemma4_unified/configuration_gemma4_unified.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.keys import IGNORED_TOWER_KEYS
from gemma4_compile.model_spec.config.variants import check_activation

CHANNELS = 3  # of a pixel: red, green, blue
MAX_LAYERS = 256
MAX_WIDTH = 1 << 16
MAX_HEADS = 1 << 8
MAX_HEAD_DIM = 1 << 10
MAX_TABLE = 1 << 16  # rows of a position table
MAX_PATCH = 1 << 8  # pixels

_TOWER_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "pooling_kernel_size": 3,
    "patch_size": 16,
    "position_embedding_size": 10_240,
    "use_clipped_linears": False,
    "standardize": False,
}
_UNIFIED_DEFAULTS: Mapping[str, object] = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
    "rms_norm_eps": 1e-6,
}
DEFAULT_ROPE_THETA = 100.0


@dataclass(frozen=True)
class ImageTokens:
    """Ids of the tokens around and in the place of a picture's rows."""

    begin: int
    soft: int
    end: int
    video: int


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower of E2B, E4B, 26B-A4B and 31B.

    Attributes
    ----------
    patch_size : pixels of a patch's side
    pooling_kernel_size : patches of a block's side; a block becomes one row of the decoder
    position_embedding_size : rows of the table of each axis
    use_clipped_linears : each linear layer clips its input and its output
    standardize : the pooled rows are shifted and scaled
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    pooling_kernel_size: int
    patch_size: int
    position_embedding_size: int
    use_clipped_linears: bool
    standardize: bool
    tokens: ImageTokens

    @property
    def block_size(self) -> int:
        """Pixels of a block's side."""
        return self.patch_size * self.pooling_kernel_size

    @property
    def grid_size(self) -> int:
        """Blocks of the longest side that the position tables allow."""
        return self.position_embedding_size // self.pooling_kernel_size


@dataclass(frozen=True)
class UnifiedVisionConfig:
    """The patch projection of 12B, which has no tower: one row of the decoder a block.

    Attributes
    ----------
    embed_dim : width of the projected block
    position_embedding_size : rows of the table of each axis
    """

    patch_size: int
    pooling_kernel_size: int
    embed_dim: int
    position_embedding_size: int
    rms_norm_eps: float
    tokens: ImageTokens

    @property
    def block_size(self) -> int:
        """Pixels of a block's side."""
        return self.patch_size * self.pooling_kernel_size

    @property
    def grid_size(self) -> int:
        """Blocks of the longest side that the position table allows."""
        return self.position_embedding_size


AnyVisionConfig = VisionConfig | UnifiedVisionConfig


def read_vision(top: ConfigFields, vocab_size: int, unknown: list[str]) -> AnyVisionConfig:
    """Read `vision_config` and the ids of its tokens.

    Parameters
    ----------
    unknown : gets the keys that neither we nor transformers know

    Raises
    ------
    ConfigError
        For an impossible value (by name), or where the checkpoint has no image input.
    """
    if top.get("vision_config") is None:
        raise ConfigError(
            "config key `vision_config` is missing: this checkpoint has no image input",
            hint="leave `image` out of --modalities",
        )
    tokens = ImageTokens(
        begin=_token(top, "boi_token_id", 255_999, vocab_size),
        soft=_token(top, "image_token_id", 258_880, vocab_size),
        end=_token(top, "eoi_token_id", 258_882, vocab_size),
        video=_token(top, "video_token_id", 258_884, vocab_size),
    )
    is_unified = top.get("model_type") == "gemma4_unified"
    fields = top.fields("vision_config", _UNIFIED_DEFAULTS if is_unified else _TOWER_DEFAULTS)
    config = (_read_unified if is_unified else _read_tower)(fields, tokens)
    unknown += fields.unknown(IGNORED_TOWER_KEYS)
    return config


def _token(top: ConfigFields, name: str, default: int, vocab_size: int) -> int:
    return top.media_token((name,), default, vocab_size, "image")


def _read_unified(fields: ConfigFields, tokens: ImageTokens) -> UnifiedVisionConfig:
    fields.fixed("model_type", "gemma4_unified_vision")
    fields.get("output_proj_dims")  # hidden_size of the decoder
    return UnifiedVisionConfig(
        patch_size=fields.integer("patch_size", 1, MAX_PATCH),
        pooling_kernel_size=fields.integer("pooling_kernel_size", 1, 16),
        embed_dim=fields.integer("mm_embed_dim", 2, MAX_WIDTH),
        position_embedding_size=fields.integer("mm_posemb_size", 1, MAX_TABLE),
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 0.1),
        tokens=tokens,
    )


def _read_tower(fields: ConfigFields, tokens: ImageTokens) -> VisionConfig:
    fields.fixed("model_type", "gemma4_vision")
    fields.fixed("attention_bias", False)
    check_activation(fields)
    fields.get("max_position_embeddings")  # of no effect: position_embedding_size is what counts
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    fields.fixed("num_key_value_heads", heads)
    head_dim = fields.integer("head_dim", 4, MAX_HEAD_DIM)
    if head_dim % 4:
        raise ConfigError(
            f"config key `{fields.key('head_dim')}`: expected a multiple of 4 (pairs of two axes), "
            f"found {head_dim}"
        )
    pooling = fields.integer("pooling_kernel_size", 1, 16)
    return VisionConfig(
        hidden_size=fields.integer("hidden_size", 2, MAX_WIDTH),
        intermediate_size=fields.integer("intermediate_size", 1, MAX_WIDTH),
        num_hidden_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        num_attention_heads=heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 0.0, 0.1),
        rope_theta=_rope_theta(fields),
        pooling_kernel_size=pooling,
        patch_size=fields.integer("patch_size", 1, MAX_PATCH),
        # A block, at least, which is the smallest picture.
        position_embedding_size=fields.integer("position_embedding_size", pooling, MAX_TABLE),
        use_clipped_linears=fields.boolean("use_clipped_linears"),
        standardize=fields.boolean("standardize"),
        tokens=tokens,
    )


def _rope_theta(fields: ConfigFields) -> float:
    if fields.get("rope_parameters") is None:
        return DEFAULT_ROPE_THETA
    rope = fields.fields("rope_parameters", {"rope_theta": DEFAULT_ROPE_THETA})
    if rope.get("rope_type") is not None:
        rope.one_of("rope_type", ("default", "axial"))  # both mean one rotation an axis here
    return rope.number("rope_theta", 1.0, 1e12)
