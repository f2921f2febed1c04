"""The exported functions of a picture's part."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.component import Exported, ExportOptions
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.config import Gemma4Config
from gemma4_compile.model_spec.text.export import VAR_BOUNDS_ATTR
from gemma4_compile.model_spec.vision.config import CHANNELS, UnifiedVisionConfig
from gemma4_compile.model_spec.vision.tower import TowerEmbedder
from gemma4_compile.model_spec.vision.unified import UnifiedEmbedder


def export_vision(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build `embed_image`; `options.image_rows` bounds the blocks of a picture."""
    vision, dtype = config.vision, options.activation_dtype
    assert vision is not None, "only components with parameters are exported"
    embedder: nn.Module
    if isinstance(vision, UnifiedVisionConfig):
        embedder = UnifiedEmbedder(vision, matrices, dtype)
    else:
        embedder = TowerEmbedder(vision, matrices, dtype)
    pixels = vision.block_size**2 * CHANNELS
    setattr(embedder, abi.EMBED_IMAGE, embedder.embed)
    module, parameters = embedder.export_tvm(
        {
            abi.EMBED_IMAGE: {
                "pixels": nn.spec.Tensor(["n", pixels], "float32"),
                "positions": nn.spec.Tensor(["n", 2], "int32"),
                "$": {"param_mode": "packed", "effect_mode": "none"},
            }
        }
    )
    bounds = {"n": options.image_rows}
    module[abi.EMBED_IMAGE] = module[abi.EMBED_IMAGE].with_attr(VAR_BOUNDS_ATTR, bounds)
    return Exported(module, tuple(name for name, _ in parameters))
