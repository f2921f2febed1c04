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
from gemma4_compile.model_spec.parameters import folded_scale
from gemma4_compile.model_spec.text.scales import per_layer_embedding_scale
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.norms import PerLayerInputs
from gemma4_compile.operators.rows import rows_of_extent


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
    scale, rows = per_layer_embedding_scale(config), rows_of_extent(ids.shape[0])
    if config.vocab_size_per_layer_input < config.vocab_size:
        end = nn.Tensor.from_scalar(config.vocab_size_per_layer_input, "int32")
        ids = nn.op.where(nn.op.less(ids, end), ids, nn.Tensor.from_scalar(0, "int32"))
    tokens = table.take(ids, rows, 1.0)
    context = projection.matmul(embeddings, rows)
    operator = PerLayerInputs(
        rows=rows,
        layers=config.num_hidden_layers,
        width=config.hidden_size_per_layer_input,
        eps=config.rms_norm_eps,
        context_scale=per_layer_projection_scale(config),
        token_scale=scale / folded_scale(scale),
        input_scale=per_layer_input_scale(config),
    )
    return emit(operator, [context, tokens, norm.weight], [(tuple(context.shape), "float32")])[0]
