"""The exported functions of a picture's part."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.component import VAR_BOUNDS_ATTR, Exported, ExportOptions
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import (
    CHANNELS,
    AnyVisionConfig,
    UnifiedVisionConfig,
)
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.vision.picture import ClientPicture, with_padding
from gemma4_compile.model_spec.vision.tower import TowerEmbedder
from gemma4_compile.model_spec.vision.unified import UnifiedEmbedder

_PACKED = {"param_mode": "packed", "effect_mode": "none"}


def _embedder(
    vision: AnyVisionConfig, matrices: Matrices, dtype: str
) -> UnifiedEmbedder | TowerEmbedder:
    if isinstance(vision, UnifiedVisionConfig):
        return UnifiedEmbedder(vision, matrices, dtype)
    return TowerEmbedder(vision, matrices, dtype)


def export_vision(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build `embed_image` and `image_embed`.

    `options.image_rows` bounds the blocks of a picture: more of them are refused when called.
    Positions beyond the position table are the caller's to refuse (`grid_size` of the config); the
    library reads the table's last row for them.
    """
    vision = config.vision
    assert vision is not None, "only components with parameters are exported"
    embedder = _embedder(vision, matrices, options.activation_dtype)
    client = ClientPicture(vision, options.client_blocks)

    def image_embed(picture: nn.Tensor) -> nn.Tensor:
        blocks, positions = client.read(picture)
        rows = embedder.embed(blocks, positions)
        return with_padding(rows, positions) if options.pads_pictures else rows

    # Functions are found by name on the module, whose parameters are theirs.
    setattr(embedder, abi.EMBED_IMAGE, embedder.embed)
    setattr(embedder, abi.IMAGE_ADAPTER, image_embed)
    blocks = nn.spec.Tensor(["n", vision.block_size**2 * CHANNELS], "float32")
    positions = nn.spec.Tensor(["n", 2], "int32")
    module, parameters = embedder.export_tvm(
        {
            abi.EMBED_IMAGE: {"pixels": blocks, "positions": positions, "$": _PACKED},
            abi.IMAGE_ADAPTER: {"picture": client.spec, "$": _PACKED},
        }
    )
    bounds = {"n": options.image_rows}
    module[abi.EMBED_IMAGE] = module[abi.EMBED_IMAGE].with_attr(VAR_BOUNDS_ATTR, bounds)
    return Exported(module, tuple(name for name, _ in parameters))
