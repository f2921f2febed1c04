"""The functions of the drafter that a client calls, as an IRModule."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.component import (
    FEW_ROWS_ATTR,
    VAR_BOUNDS_ATTR,
    Exported,
    ExportOptions,
)
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.drafter import DrafterFunctions
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.decoder import MAX_ROWS


def export_drafter(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build the functions of the drafter, on its own parameters."""
    vector, vectors = (nn.spec.Tensor([rows, config.hidden_size], "float32") for rows in (1, "n"))
    state = nn.spec.Object(object_type=nn.Object)
    mode = {"param_mode": "packed", "effect_mode": "none"}
    functions = DrafterFunctions(config, matrices, options)
    spec: dict[str, dict[str, object]] = {
        abi.DRAFT: {
            "embedding": vector,
            "hidden": vector,
            "positions": nn.spec.Tensor([4], "int32"),
            "kv": state,
            "$": mode,
        }
    }
    joins_rows = options.joins_rows and functions.drafter.layout.joins
    if joins_rows:
        spec[abi.DRAFT_ROWS] = {"embeddings": vectors, "hidden": vectors, "kv": state, "$": mode}
    module, parameters = functions.export_tvm(spec)
    if joins_rows:
        attrs = {VAR_BOUNDS_ATTR: {"n": MAX_ROWS}, FEW_ROWS_ATTR: MAX_ROWS}
        module[abi.DRAFT_ROWS] = module[abi.DRAFT_ROWS].with_attrs(attrs)
    return Exported(module, tuple(name for name, _ in parameters))
