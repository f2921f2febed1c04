"""Per-layer embeddings (PLE).

The inputs of all layers, computed once per token, and their injection at a layer's end.
"""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.config.text import TextConfig
from gemma4_compile.model_spec.layers.norm import Norm
from gemma4_compile.model_spec.matrices import Matrix
from gemma4_compile.model_spec.parameters import folded_scale
from gemma4_compile.model_spec.text.scales import (
    PER_LAYER_INPUT_SCALE,
    per_layer_embedding_scale,
    per_layer_projection_scale,
)
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.norms import PerLayerInputs
from gemma4_compile.operators.rows import rows_of_extent


def per_layer_inputs(
    config: TextConfig,
    table: Matrix,
    projection: Matrix,
    norm: Norm,
    ids: nn.Tensor,
    embeddings: nn.Tensor,
    places: nn.Tensor | None = None,
    *,
    context_scale: float | None = None,
    input_scale: float = PER_LAYER_INPUT_SCALE,
) -> nn.Tensor:
    """Per-layer inputs of every layer.

    The token's table row and a normed projection of its embedding.

    Parameters
    ----------
    table, projection, norm : the parameters `embed_tokens_per_layer`, `per_layer_model_projection`
        and `per_layer_projection_norm`
    ids : (rows,) int32; the pad token where the embedding is not a token's
    embeddings : (rows, hidden_size) float32, scaled
    places : (rows,) int32, the rows of the call that `ids` are of; None for their order
    context_scale : of the projection; None for what Gemma 4 divides it by
    input_scale : of the sum

    Returns
    -------
    nn.Tensor
        (rows, layers * hidden_size_per_layer_input) float32; layer i owns its i-th run of columns.
    """
    scale, rows = per_layer_embedding_scale(config), rows_of_extent(ids.shape[0])
    tokens = table.take(ids, rows, 1.0, places)
    context = projection.matmul(embeddings, rows)
    operator = PerLayerInputs(
        rows=rows,
        layers=config.num_hidden_layers,
        width=config.hidden_size_per_layer_input,
        eps=config.rms_norm_eps,
        context_scale=per_layer_projection_scale(config)
        if context_scale is None
        else context_scale,
        token_scale=scale / folded_scale(scale),
        input_scale=input_scale,
    )
    return emit(operator, [context, tokens, norm.weight], [(tuple(context.shape), "float32")])[0]


def inject(
    gate: Matrix,
    projection: Matrix,
    x: nn.Tensor,
    ple: nn.Tensor,
    layer: int,
) -> nn.Tensor:
    """``Wproj (gelu(Wgate x) * ple_layer)`` before its norm: (rows, hidden_size) float32.

    The input is the raw residual stream, which has no bound: it stays float32 in every recipe.
    """
    rows = rows_of_extent(x.shape[0])
    return projection.matmul(gate.matmul(x, rows, Epilogue.GELU_GATE, ple=ple, layer=layer), rows)
