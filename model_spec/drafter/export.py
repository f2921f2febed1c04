"""The function of the drafter that a client calls, as an IRModule."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.component import Exported, ExportOptions
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.drafter import DrafterFunctions
from gemma4_compile.model_spec.matrices import Matrices


def export_drafter(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build the function of the drafter, on its own parameters."""
    vector = nn.spec.Tensor([1, config.hidden_size], "float32")
    spec = {
        abi.DRAFT: {
            "embedding": vector,
            "hidden": vector,
            "positions": nn.spec.Tensor([4], "int32"),
            "kv": nn.spec.Object(object_type=nn.Object),
            "$": {"param_mode": "packed", "effect_mode": "none"},
        }
    }
    module, parameters = DrafterFunctions(config, matrices, options).export_tvm(spec)
    return Exported(module, tuple(name for name, _ in parameters))
