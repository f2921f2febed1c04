"""The EmbeddingGemma 2 encoder as Relax modules.

What differs from the text decoder: every row sees the rows on both sides of it, within its own
text, and nothing outlives a call; per-layer inputs are projections of the embeddings alone; the
mean of a text's rows is projected and scaled to length 1. The residual stream is float32 in every
recipe.

The rows of all texts of a call are one matrix, so that a call has no padding to compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.mlp import FeedForward
from gemma4_compile.model_spec.layers.norm import Norm, Vector
from gemma4_compile.model_spec.layers.plan import LayerPlan, RotaryPlan
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.layer_plan import layer_plans, rotary_plans
from gemma4_compile.model_spec.text.per_layer_embedding import inject
from gemma4_compile.model_spec.text.scales import embedding_scale
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.packed_texts import (
    MeanRows,
    QkvNormRope,
    SpanAttention,
    SpanRotary,
    UnitRows,
)
from gemma4_compile.operators.rows import CHUNK


@dataclass(frozen=True)
class Texts:
    """What every layer is told of the rows.

    Attributes
    ----------
    spans : (n, 2) int32, first row of each row's text and the one after its last
    rotary : (n, pairs of all kinds, 2) float32, cosines and sines of each row's place in its text
    per_layer : (n, layers * hidden_size_per_layer_input) float32
    """

    spans: nn.Tensor
    rotary: nn.Tensor
    per_layer: nn.Tensor


class SpanAttentionLayer(nn.Module):
    """Attention of a text's rows to one another."""

    def __init__(
        self,
        prefix: str,
        plan: LayerPlan,
        config: Gemma4Config,
        matrices: Matrices,
        dtype: str,
    ) -> None:
        self.plan, self.eps, self.dtype = plan, config.rms_norm_eps, dtype
        self.qkv_proj = matrices.matrix(f"{prefix}.qkv_proj")
        self.q_norm, self.k_norm = Vector(plan.head_dim), Vector(plan.head_dim)
        self.o_proj = matrices.matrix(f"{prefix}.o_proj")

    def __call__(self, hidden: nn.Tensor, texts: Texts) -> nn.Tensor:
        """(n, hidden_size) -> (n, hidden_size) float32."""
        plan, dtype, rows = self.plan, self.dtype, hidden.shape[0]
        heads, kv_heads, dim = plan.num_attention_heads, plan.num_key_value_heads, plan.head_dim
        total, rotary = texts.rotary.shape[1], plan.rotary
        prepare = QkvNormRope(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            pairs=rotary.pairs,
            rotary_offset=rotary.offset,
            rotary_total=int(total),
            eps=self.eps,
            kv_dtype=dtype,
        )
        qkv = self.qkv_proj.matmul(hidden, CHUNK)
        flat, kept = (rows, heads * dim), (rows, kv_heads, dim)
        args = [qkv, self.q_norm.weight, self.k_norm.weight, texts.rotary]
        q, k, v = emit(prepare, args, [(flat, "float32"), (kept, dtype), (kept, dtype)])
        attend = SpanAttention(heads, kv_heads, dim, plan.window, dtype, dtype)
        (attended,) = emit(attend, [texts.spans, q, k, v], [(flat, dtype)])
        return self.o_proj.matmul(attended, CHUNK)


class EncoderLayer(nn.Module):
    """Attention, MLP and per-layer input, each between two norms."""

    def __init__(
        self, plan: LayerPlan, config: Gemma4Config, matrices: Matrices, dtype: str
    ) -> None:
        prefix, width = f"layers.{plan.index}", (config.hidden_size, config.rms_norm_eps)
        self.index = plan.index
        self.input_layernorm = Norm(*width, dtype)
        self.self_attn = SpanAttentionLayer(f"{prefix}.self_attn", plan, config, matrices, dtype)
        self.post_attention_layernorm = Norm(*width)
        self.pre_feedforward_layernorm = Norm(*width, dtype)
        self.mlp = FeedForward(f"{prefix}.mlp", matrices)
        self.post_feedforward_layernorm = Norm(*width)
        self.per_layer_input_gate = matrices.matrix(f"{prefix}.per_layer_input_gate")
        self.per_layer_projection = matrices.matrix(f"{prefix}.per_layer_projection")
        self.post_per_layer_input_norm = Norm(*width)
        self.layer_scalar = Vector(1)

    def __call__(self, x: nn.Tensor, texts: Texts) -> nn.Tensor:
        """The residual stream (n, hidden_size) float32 after the layer."""
        h = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), texts))
        h = h + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(h)))
        gate, projection = self.per_layer_input_gate, self.per_layer_projection
        injected = inject(gate, projection, h, texts.per_layer, self.index)
        return (h + self.post_per_layer_input_norm(injected)) * self.layer_scalar.weight


class TextEncoder(nn.Module):
    """Embeddings of texts from their tokens; `embed_texts` is exported."""

    def __init__(self, config: Gemma4Config, matrices: Matrices, dtype: str) -> None:
        assert config.embedding is not None, "only components with parameters are exported"
        hidden, eps, ple = (
            config.hidden_size,
            config.rms_norm_eps,
            config.hidden_size_per_layer_input,
        )
        self.config, self.head = config, config.embedding
        self.kinds = tuple(_kind(plan) for plan in rotary_plans(config).values())
        self.embed_tokens = matrices.matrix("embed_tokens")
        self.per_layer_model_projection = matrices.matrix("per_layer_model_projection")
        # The projection's scale, hidden_size^-1/2, is in the norm behind it: its own eps.
        self.per_layer_projection_norm = Norm(ple, eps * hidden)
        plans = layer_plans(config)
        self.layers = nn.ModuleList([EncoderLayer(plan, config, matrices, dtype) for plan in plans])
        self.norm = Norm(hidden, eps)
        self.embedding_projection = matrices.matrix("embedding_projection")

    def embed_texts(self, ids: nn.Tensor, spans: nn.Tensor, ranges: nn.Tensor) -> nn.Tensor:
        """A vector of length 1 for each text.

        Parameters
        ----------
        ids : (n,) int32, the tokens of all texts, one text after the other
        spans : (n, 2) int32, for each token the first row of its text and the one after its last
        ranges : (texts, 2) int32, the same for each text

        Returns
        -------
        nn.Tensor
            (texts, embedding_dim) float32.
        """
        pooled = self.pool(self.encode(ids, spans), ranges)
        unit = UnitRows(self.head.dim)
        return emit(unit, [pooled], [(tuple(pooled.shape), "float32")])[0]

    def encode(self, ids: nn.Tensor, spans: nn.Tensor) -> nn.Tensor:
        """Rows (n, hidden_size) float32 after the last layer, before the norm."""
        x = self.embed_tokens.take(self._words(ids), CHUNK, embedding_scale(self.config))
        rotary = SpanRotary(self.kinds)
        shape = (ids.shape[0], rotary.pairs, 2)
        angles = emit(rotary, [spans], [(shape, "float32")])[0]
        texts = Texts(spans, angles, self._per_layer(x))
        for layer in self.layers:
            x = layer(x, texts)
        return x

    def pool(self, x: nn.Tensor, ranges: nn.Tensor) -> nn.Tensor:
        """Projected means (texts, embedding_dim) float32 of the rows of each text."""
        width, texts = self.config.hidden_size, ranges.shape[0]
        spec = ((texts, width), "float32")
        mean = emit(MeanRows(width), [ranges, self.norm(x)], [spec])[0]
        return self.embedding_projection.matmul(mean, CHUNK)

    def _words(self, ids: nn.Tensor) -> nn.Tensor:
        """The ids, with the pad token in the place of those that stand for pictures and sounds."""
        pad = nn.Tensor.from_scalar(max(self.config.pad_token_id, 0), "int32")
        for token in self.head.media_tokens:
            ids = nn.op.where(nn.op.equal(ids, nn.Tensor.from_scalar(token, "int32")), pad, ids)
        return ids

    def _per_layer(self, x: nn.Tensor) -> nn.Tensor:
        rows, layers, width = (
            x.shape[0],
            self.config.num_hidden_layers,
            self.config.hidden_size_per_layer_input,
        )
        projected = self.per_layer_model_projection.matmul(x, CHUNK)
        normed = self.per_layer_projection_norm(nn.op.reshape(projected, (rows * layers, width)))
        return nn.op.reshape(normed, (rows, layers * width))


def _kind(plan: RotaryPlan) -> tuple[int, int, float]:
    return plan.head_dim, plan.pairs, plan.theta
