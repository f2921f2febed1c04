"""Per-layer embeddings (PLE): Gemma 4's, with a table that is shorter than the vocabulary."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.config.text import TextConfig
from gemma4_compile.model_spec.gemma3n.scales import (
    per_layer_input_scale,
    per_layer_projection_scale,
)
from gemma4_compile.model_spec.layers.norm import Norm
from gemma4_compile.model_spec.matrices import Matrix
from gemma4_compile.model_spec.text import per_layer_embedding as text


def per_layer_inputs(
    config: TextConfig,
    table: Matrix,
    projection: Matrix,
    norm: Norm,
    ids: nn.Tensor,
    embeddings: nn.Tensor,
) -> nn.Tensor:
    """Per-layer inputs of every layer, as of Gemma 4; tokens that the table lacks are token 0.

    ids (rows,) int32, embeddings (rows, hidden_size) f32 -> (rows, layers * ple width) f32.
    """
    if config.vocab_size_per_layer_input < config.vocab_size:
        end = nn.Tensor.from_scalar(config.vocab_size_per_layer_input, "int32")
        ids = nn.op.where(nn.op.less(ids, end), ids, nn.Tensor.from_scalar(0, "int32"))
    return text.per_layer_inputs(
        config,
        table,
        projection,
        norm,
        ids,
        embeddings,
        context_scale=per_layer_projection_scale(config),
        input_scale=per_layer_input_scale(config),
    )
