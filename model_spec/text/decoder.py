"""The Gemma 4 text decoder as Relax modules, and the functions that a package exports.

What differs from a textbook decoder: norms before and after each branch; weights of norms are w,
not 1 + w; attention scale 1.0; V normalised without a weight; RoPE and head_dim by layer kind; the
last layers read other layers' K and V and, in prefill, run on the last position only; per-layer
embeddings; a scalar on the whole residual stream at each layer's end; softcap on the logits. The
residual stream is float32 in every recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.component import ExportOptions
from gemma4_compile.model_spec.layers.attention import Attention, last_visible_rows
from gemma4_compile.model_spec.layers.mlp import FeedForward
from gemma4_compile.model_spec.layers.moe import (
    ExpertWeights,
    MoeSizes,
    RouterWeights,
    add_attention,
    add_branches,
    run_experts,
)
from gemma4_compile.model_spec.layers.norm import (
    NormStack,
    Vector,
    add_normed,
    add_normed_and_norm,
    rms_norm,
    take_last_row,
)
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.config import Gemma4Config
from gemma4_compile.model_spec.text.kv_cache import (
    KvTensors,
    create_kv_state,
    kv_layout,
    take_rows,
)
from gemma4_compile.model_spec.text.layer_plan import LayerPlan, layer_plans
from gemma4_compile.model_spec.text.parameters import HEAD
from gemma4_compile.model_spec.text.per_layer_embedding import inject, per_layer_inputs
from gemma4_compile.model_spec.text.scales import embedding_scale
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.moe import VECTORS
from gemma4_compile.operators.rows import CHUNK, ONE, Chunk, One, Rows


@dataclass(frozen=True)
class Stream:
    """State between two layers.

    Attributes
    ----------
    residual : (rows, hidden_size) float32
    hidden : (rows, hidden_size) activation dtype, the normed input of the next layer
    ple : (rows, layers * ple width) float32, per-layer inputs of all layers, or None
    rows : number of positions, None for a prefill chunk
    last_rows : (rows,) int32, the last row of the chunk that each row sees on sliding layers, or
        None where that is the row itself
    """

    residual: nn.Tensor
    hidden: nn.Tensor
    ple: nn.Tensor | None
    rows: Rows
    last_rows: nn.Tensor | None = None

    def last_row(self) -> Stream:
        """Only the last position, where nobody reads the others."""
        if not isinstance(self.rows, Chunk):
            return self
        residual = take_last_row(self.residual)
        ple = None if self.ple is None else take_last_row(self.ple)
        return Stream(residual, self.hidden, ple, ONE)


class LayerConfig(Protocol):
    """The part of a config that a layer without experts asks for."""

    @property
    def hidden_size(self) -> int: ...  # noqa: D102

    @property
    def rms_norm_eps(self) -> float: ...  # noqa: D102

    @property
    def hidden_size_per_layer_input(self) -> int: ...  # noqa: D102


class DecoderLayer(nn.Module):
    """Attention, MLP and per-layer input, each between two norms.

    `forward` ends with the norm that the next layer (or the head) begins with.

    Parameters
    ----------
    stem : of the parameters' names, before the layer's own
    """

    def __init__(
        self,
        plan: LayerPlan,
        config: LayerConfig,
        matrices: Matrices,
        options: ExportOptions,
        stem: str = "",
    ) -> None:
        hidden, prefix = config.hidden_size, f"{stem}layers.{plan.index}"
        self.plan, self.eps, self.dtype = plan, config.rms_norm_eps, options.activation_dtype
        self.input_layernorm = Vector(hidden)
        self.self_attn = Attention(
            f"{prefix}.self_attn", plan, matrices, self.eps, self.dtype, options.attention
        )
        self.post_attention_layernorm = Vector(hidden)
        self.pre_feedforward_layernorm = Vector(hidden)
        self.mlp = FeedForward(f"{prefix}.mlp", matrices)
        self.post_feedforward_layernorm = Vector(hidden)
        if config.hidden_size_per_layer_input:
            self.per_layer_input_gate = matrices.matrix(f"{prefix}.per_layer_input_gate")
            self.per_layer_projection = matrices.matrix(f"{prefix}.per_layer_projection")
            self.post_per_layer_input_norm = Vector(hidden)
        self.layer_scalar = Vector(1)

    def forward(
        self, stream: Stream, kv: KvTensors, next_norm: Vector, last_row_only: bool
    ) -> Stream:
        """Run the layer.

        Parameters
        ----------
        stream : state before the layer
        next_norm : the weight of the norm that follows the layer
        last_row_only : nobody reads the other rows of the result (K and V are written for all)
        """
        attended = self.self_attn.forward(
            stream.hidden, kv, stream.rows, last_row_only, stream.last_rows
        )
        stream = stream.last_row() if last_row_only else stream
        rows, ple = stream.rows, stream.ple
        add = partial(add_normed_and_norm, rows=rows, eps=self.eps, dtype=self.dtype)
        norm, mlp_norm = self.post_attention_layernorm, self.pre_feedforward_layernorm
        residual, hidden = add(stream.residual, attended, norm, mlp_norm)
        branch, norm = self.mlp.forward(hidden, rows), self.post_feedforward_layernorm
        if ple is not None:
            residual = add_normed(residual, branch, norm, rows, self.eps)
            gate, projection = self.per_layer_input_gate, self.per_layer_projection
            branch = inject(gate, projection, residual, ple, self.plan.index, rows)
            norm = self.post_per_layer_input_norm
        residual, hidden = add(residual, branch, norm, next_norm, scalar=self.layer_scalar)
        return Stream(residual, hidden, ple, rows, stream.last_rows)


class MoeDecoderLayer(nn.Module):
    """Attention, then the dense MLP and the chosen experts of the same residual."""

    def __init__(
        self, plan: LayerPlan, config: Gemma4Config, matrices: Matrices, options: ExportOptions
    ) -> None:
        hidden, prefix = config.hidden_size, f"layers.{plan.index}"
        eps, dtype = config.rms_norm_eps, options.activation_dtype
        self.plan = plan
        self.sizes = MoeSizes(hidden, config.num_experts, config.top_k_experts, eps, dtype)
        self.input_layernorm = Vector(hidden)
        self.self_attn = Attention(
            f"{prefix}.self_attn", plan, matrices, eps, dtype, options.attention
        )
        self.mlp = FeedForward(f"{prefix}.mlp", matrices)
        self.pre_feedforward_vectors = NormStack(VECTORS, hidden)
        self.router = RouterWeights(f"{prefix}.router", self.sizes, matrices)
        self.experts = ExpertWeights(f"{prefix}.experts", matrices)
        self.post_feedforward_layernorms = NormStack(3, hidden)
        self.layer_scalar = Vector(1)

    def forward(
        self, stream: Stream, kv: KvTensors, next_norm: Vector, last_row_only: bool
    ) -> Stream:
        """Run the layer; parameters as of `DecoderLayer.forward`."""
        attended = self.self_attn.forward(
            stream.hidden, kv, stream.rows, last_row_only, stream.last_rows
        )
        stream = stream.last_row() if last_row_only else stream
        sizes, norms, rows = self.sizes, self.pre_feedforward_vectors, stream.rows
        residual, hidden = add_attention(sizes, stream.residual, attended, norms, rows)
        dense = self.mlp.forward(hidden, rows)
        chosen = run_experts(sizes, self.router, self.experts, norms, residual, rows)
        norms, scalar = self.post_feedforward_layernorms, self.layer_scalar
        residual, hidden = add_branches(
            sizes, residual, dense, chosen, norms, scalar, next_norm, rows
        )
        return Stream(residual, hidden, None, rows, stream.last_rows)


class Gemma4ForCausalLM(nn.Module):
    """The decoder and its head. Its methods are the package's exported functions (abi.py)."""

    def __init__(self, config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> None:
        plans = layer_plans(config)
        self.config = config
        self.options = options
        self.layout = kv_layout(
            config,
            plans,
            options.activation_dtype,
            options.prefill_chunk,
            pads_pictures=options.pads_pictures,
        )
        self.last_owner = max(plan.index for plan in plans if plan.owns_kv)
        self.embed_tokens = matrices.matrix("embed_tokens")
        if config.hidden_size_per_layer_input:
            self.embed_tokens_per_layer = matrices.matrix("embed_tokens_per_layer")
            self.per_layer_model_projection = matrices.matrix("per_layer_model_projection")
            self.per_layer_projection_norm = Vector(config.hidden_size_per_layer_input)
        # A config has experts or per-layer embeddings, not both (config.py).
        layer = MoeDecoderLayer if config.num_experts else DecoderLayer
        self.layers = nn.ModuleList([layer(plan, config, matrices, options) for plan in plans])
        self.norm = Vector(config.hidden_size)
        if not config.ties_head:
            self.lm_head = matrices.matrix(HEAD)

    def embed(self, ids: nn.Tensor) -> nn.Tensor:
        """Token embeddings: (n,) int32 -> (n, hidden_size) float32, times sqrt(hidden_size)."""
        return self._embed(ids, CHUNK)

    def prefill_tokens(
        self, embeddings: nn.Tensor, ids: nn.Tensor, modality: nn.Tensor, kv: nn.Object
    ) -> tuple[nn.Tensor | nn.Object, ...]:
        """Run a chunk; a picture is in one chunk where its rows see one another.

        (1, n, hidden_size) f32, (1, n) int32, (1, n) int32 -> logits (1, 1, vocab) f32, state, and
        with `probe` the residual stream (1, hidden_size) f32 of the last position after each layer.
        """
        length, hidden = ids.shape[1], self.config.hidden_size
        residual = nn.op.reshape(embeddings, (length, hidden))
        tokens = nn.op.reshape(ids, (length,))
        kinds = nn.op.reshape(modality, (length,))
        tensors = KvTensors(self.layout, kv)
        copies = None
        if self.layout.padding_slot is not None:
            source, copies = tensors.count_padding(residual, CHUNK)
            residual, tokens, kinds = (take_rows(x, source) for x in (residual, tokens, kinds))
            tensors.has_copies = True
        last_rows = None
        if self.config.whole_images:
            last_rows = last_visible_rows(self._kinds_of_rows(kinds, tokens))
            if copies is not None:  # they see what the row does that they are of
                last_rows = nn.op.maximum(last_rows, copies)
        if self.config.hidden_size_per_layer_input:
            # A row that comes from an adapter has no token: its table half is the pad token's.
            is_text = nn.op.equal(kinds, nn.Tensor.from_scalar(abi.MODALITY_TEXT, "int32"))
            pad = nn.Tensor.from_scalar(max(self.config.pad_token_id, 0), "int32")
            tokens = nn.op.where(is_text, tokens, pad)
        logits, probes = self._decode_stream(residual, tokens, tensors, CHUNK, last_rows)
        return logits, kv, *probes

    def decode_tokens(self, ids: nn.Tensor, kv: nn.Object) -> tuple[nn.Tensor | nn.Object, ...]:
        """Run one token: (1, 1) int32 -> logits (1, 1, vocab) f32, state, probes as in prefill."""
        tokens, tensors = nn.op.reshape(ids, (1,)), KvTensors(self.layout, kv)
        residual = self._embed(tokens, ONE)
        if self.layout.padding_slot is not None:
            tensors.count_padding(residual, ONE)
        logits, probes = self._decode_stream(residual, tokens, tensors, ONE)
        return logits, kv, *probes

    def verify_tokens(
        self, embeddings: nn.Tensor, ids: nn.Tensor, kv: nn.Object
    ) -> tuple[nn.Tensor | nn.Object, ...]:
        """Run a few tokens and keep what follows each of them, to hold guesses against it.

        (1, n, hidden_size) f32, (1, n) int32 -> logits (1, n, vocab) f32, the states after the
        final norm (n, hidden_size) f32, state.
        """
        length, config = ids.shape[1], self.config
        residual = nn.op.reshape(embeddings, (length, config.hidden_size))
        tokens = nn.op.reshape(ids, (length,))
        tensors = KvTensors(self.layout, kv)
        if self.layout.padding_slot is not None:  # there is none among guesses
            tensors.count_padding(residual, CHUNK)
        stream, _ = self._layers_stream(residual, tokens, tensors, CHUNK, None, keeps_rows=True)
        logits = self._head(stream.hidden, CHUNK)
        normed = rms_norm(stream.residual, self.norm, CHUNK, config.rms_norm_eps, "float32")
        return nn.op.reshape(logits, (1, length, config.vocab_size)), normed, kv

    def create_kv_cache(
        self,
        max_sequences: tirx.Var,
        total_length: tirx.Var,
        prefill_chunk: tirx.Var,
        page_size: tirx.Var,
        sliding: tirx.Var,
    ) -> nn.Object:
        """Make the KV state; it has no pages, so the client's page_size is not used."""
        del page_size
        arguments = (max_sequences, total_length, prefill_chunk, sliding)
        return create_kv_state(
            self.layout, arguments, self.options.device_type, self.options.package
        )

    def _kinds_of_rows(self, kinds: nn.Tensor, ids: nn.Tensor) -> nn.Tensor:
        """Modality of every row, (rows,) int32: rows of sounds by their id as well.

        The stock client has one modality for pictures and sounds.
        """
        if self.config.audio is None:
            return kinds
        soft = nn.Tensor.from_scalar(self.config.audio.tokens.soft, "int32")
        is_sound = nn.op.equal(ids, soft)
        audio = nn.Tensor.from_scalar(abi.MODALITY_AUDIO, "int32")
        return nn.op.where(is_sound, audio, kinds)

    def _embed(self, ids: nn.Tensor, rows: Rows) -> nn.Tensor:
        return self.embed_tokens.take(ids, rows, embedding_scale(self.config))

    def _per_layer_inputs(
        self, ids: nn.Tensor, residual: nn.Tensor, rows: Rows
    ) -> nn.Tensor | None:
        if not self.config.hidden_size_per_layer_input:
            return None
        return per_layer_inputs(
            self.config,
            self.embed_tokens_per_layer,
            self.per_layer_model_projection,
            self.per_layer_projection_norm,
            ids,
            residual,
            rows,
        )

    def _decode_stream(
        self,
        residual: nn.Tensor,
        tokens: nn.Tensor,
        kv: KvTensors,
        rows: Rows,
        last_rows: nn.Tensor | None = None,
    ) -> tuple[nn.Tensor, list[nn.Tensor]]:
        """Logits after the last position, and with `probe` its residual stream after each layer."""
        stream, streams = self._layers_stream(residual, tokens, kv, rows, last_rows)
        logits = self._head(stream.hidden, ONE)
        probes = [_last_row(stream) for stream in streams] if self.options.probe else []
        return nn.op.reshape(logits, (1, 1, self.config.vocab_size)), probes

    def _head(self, hidden: nn.Tensor, rows: Rows) -> nn.Tensor:
        """Logits (rows, vocab) of normed states."""
        cap = self.config.final_logit_softcapping
        epilogue = Epilogue.NONE if cap is None else Epilogue.SOFTCAP
        head = self.embed_tokens if self.config.ties_head else self.lm_head
        return head.matmul(
            hidden, rows, epilogue, cap=cap or 0.0, suppressed=self.options.suppressed
        )

    def _layers_stream(
        self,
        residual: nn.Tensor,
        tokens: nn.Tensor,
        kv: KvTensors,
        rows: Rows,
        last_rows: nn.Tensor | None,
        *,
        keeps_rows: bool = False,
    ) -> tuple[Stream, list[Stream]]:
        """The state after all layers, and that after each of them.

        Where the last owner of keys and values leaves the last position alone, unless `keeps_rows`.
        """
        config = self.config
        ple = self._per_layer_inputs(tokens, residual, rows)
        eps, dtype = config.rms_norm_eps, self.options.activation_dtype
        hidden = rms_norm(residual, self.layers[0].input_layernorm, rows, eps, dtype)
        stream = Stream(residual, hidden, ple, rows, last_rows)
        following = [*(layer.input_layernorm for layer in self.layers), self.norm][1:]
        streams = []
        for layer, next_norm in zip(self.layers, following, strict=True):
            last_row_only = layer.plan.index == self.last_owner and not keeps_rows
            stream = layer.forward(stream, kv, next_norm, last_row_only)
            streams.append(stream)
        return stream, streams


def _last_row(stream: Stream) -> nn.Tensor:
    """The residual stream of the last position: (1, hidden_size)."""
    return stream.residual if isinstance(stream.rows, One) else take_last_row(stream.residual)
