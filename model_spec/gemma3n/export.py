"""The functions of decoder and sampler that the client calls, as one IRModule: Gemma 4's."""

from __future__ import annotations

from gemma4_compile.model_spec.component import Exported, ExportOptions
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.gemma3n.decoder import Gemma3nForCausalLM
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.export import export_decoder


def export_gemma3n(config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> Exported:
    """Build the functions of the decoder and of the sampler."""
    return export_decoder(Gemma3nForCausalLM(config, matrices, options))
