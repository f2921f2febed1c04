"""The exported function of an encoder."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.component import VAR_BOUNDS_ATTR, Exported, ExportOptions
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.embedding.encoder import TextEncoder
from gemma4_compile.model_spec.matrices import Matrices

_PACKED = {"param_mode": "packed", "effect_mode": "none"}


def export_embedding(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build `embed_texts`; a call has up to `options.prefill_chunk` tokens, and as many texts."""
    encoder = TextEncoder(config, matrices, options.activation_dtype)
    module, parameters = encoder.export_tvm(
        {
            abi.EMBED_TEXTS: {
                "ids": nn.spec.Tensor(["n"], "int32"),
                "spans": nn.spec.Tensor(["n", 2], "int32"),
                "ranges": nn.spec.Tensor(["texts", 2], "int32"),
                "$": _PACKED,
            }
        }
    )
    most = options.prefill_chunk
    bounds = {VAR_BOUNDS_ATTR: {"n": most, "texts": most}}
    module[abi.EMBED_TEXTS] = module[abi.EMBED_TEXTS].with_attrs(bounds)
    return Exported(module, tuple(name for name, _ in parameters))
