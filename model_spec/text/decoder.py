"""The Gemma 4 text decoder as Relax modules, and the functions that a package exports.

What differs from a textbook decoder: norms before and after each branch; weights of norms are w,
not 1 + w; attention scale 1.0; V normalised without a weight; RoPE and head_dim by layer kind; the
last layers read other layers' K and V and, in prefill, run on the last position only; per-layer
embeddings; a scalar on the whole residual stream at each layer's end; softcap on the logits. The
residual stream is float32 in every recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.component import ExportOptions
from gemma4_compile.model_spec.config.drafter import MAX_VERIFIED
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.attention import (
    Attention,
    AttentionContext,
    last_visible_rows,
)
from gemma4_compile.model_spec.layers.kv_cache import KvTensors, create_kv_state, take_rows
from gemma4_compile.model_spec.layers.mlp import FeedForward
from gemma4_compile.model_spec.layers.moe import (
    ExpertWeights,
    MoeSizes,
    RouterWeights,
    run_experts,
)
from gemma4_compile.model_spec.layers.norm import (
    Norm,
    NormStack,
    StackedNorm,
    Vector,
    rms_norm,
    rows_like,
)
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.kv_layout import kv_layout
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.model_spec.text.parameters import HEAD
from gemma4_compile.model_spec.text.per_layer_embedding import inject, per_layer_inputs
from gemma4_compile.model_spec.text.scales import embedding_scale
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.moe import BRANCH_NORM, DENSE_NORM, VECTORS
from gemma4_compile.operators.rows import CHUNK, ONE, Joint, OneOf, Rows, rows_of_extent

MAX_ROWS = MAX_VERIFIED
"""Sequences of a step, at most: as many as rows of drafts, whose kernels they share."""


@dataclass(frozen=True)
class Stream:
    """State between two layers.

    Attributes
    ----------
    residual : (rows, hidden_size) float32
    ple : (rows, layers * ple width) float32, per-layer inputs of all layers, or None
    """

    residual: nn.Tensor
    ple: nn.Tensor | None = None

    def rows_of(self, attended: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor | None]:
        """Residual and per-layer inputs of the rows that attended: of all, or of the last."""
        ple = self.ple
        return rows_like(self.residual, attended), None if ple is None else rows_like(ple, attended)


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
        prefix, dtype = f"{stem}layers.{plan.index}", options.activation_dtype
        width = config.hidden_size, config.rms_norm_eps
        self.plan = plan
        self.input_layernorm = Norm(*width, dtype)
        self.self_attn = Attention(
            f"{prefix}.self_attn", plan, matrices, width[1], dtype, options.attention
        )
        self.post_attention_layernorm = Norm(*width)
        self.pre_feedforward_layernorm = Norm(*width, dtype)
        self.mlp = FeedForward(f"{prefix}.mlp", matrices)
        self.post_feedforward_layernorm = Norm(*width)
        if config.hidden_size_per_layer_input:
            self.per_layer_input_gate = matrices.matrix(f"{prefix}.per_layer_input_gate")
            self.per_layer_projection = matrices.matrix(f"{prefix}.per_layer_projection")
            self.post_per_layer_input_norm = Norm(*width)
        self.layer_scalar = Vector(1)

    def __call__(self, stream: Stream, context: AttentionContext) -> Stream:
        """Run the layer."""
        attended = self.self_attn(self.input_layernorm(stream.residual), context)
        h, ple = stream.rows_of(attended)
        h = h + self.post_attention_layernorm(attended)
        h = h + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(h)))
        if ple is not None:
            gate, projection = self.per_layer_input_gate, self.per_layer_projection
            injected = inject(gate, projection, h, ple, self.plan.index)
            h = h + self.post_per_layer_input_norm(injected)
        return Stream(h * self.layer_scalar.weight, ple)


class MoeDecoderLayer(nn.Module):
    """Attention, then the dense MLP and the chosen experts of the same residual."""

    def __init__(
        self, plan: LayerPlan, config: Gemma4Config, matrices: Matrices, options: ExportOptions
    ) -> None:
        hidden, prefix = config.hidden_size, f"layers.{plan.index}"
        eps, dtype = config.rms_norm_eps, options.activation_dtype
        self.plan = plan
        routed = options.routed_dtype or dtype
        self.sizes = MoeSizes(hidden, config.num_experts, config.top_k_experts, eps, routed)
        self.input_layernorm = Norm(hidden, eps, dtype)
        self.self_attn = Attention(
            f"{prefix}.self_attn", plan, matrices, eps, dtype, options.attention
        )
        self.mlp = FeedForward(f"{prefix}.mlp", matrices)
        self.pre_feedforward_vectors = NormStack(VECTORS, hidden)
        self.router = RouterWeights(f"{prefix}.router", self.sizes, matrices)
        self.experts = ExpertWeights(f"{prefix}.experts", matrices)
        self.post_feedforward_layernorms = NormStack(3, hidden)
        self.layer_scalar = Vector(1)
        before, after = self.pre_feedforward_vectors, self.post_feedforward_layernorms
        self._norm_attended = StackedNorm(before, BRANCH_NORM, eps)
        self._norm_for_mlp = StackedNorm(before, DENSE_NORM, eps, dtype)
        self._norm_dense, self._norm_chosen, self._norm_both = (
            StackedNorm(after, row, eps) for row in range(3)
        )

    def __call__(self, stream: Stream, context: AttentionContext) -> Stream:
        """Run the layer."""
        attended = self.self_attn(self.input_layernorm(stream.residual), context)
        h, _ = stream.rows_of(attended)
        h = h + self._norm_attended(attended)
        dense = self.mlp(self._norm_for_mlp(h))
        chosen = run_experts(self.sizes, self.router, self.experts, self.pre_feedforward_vectors, h)
        h = h + self._norm_both(self._norm_dense(dense) + self._norm_chosen(chosen))
        return Stream(h * self.layer_scalar.weight)


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
            limits=options.kv_limits,
        )
        self.last_owner = max(plan.index for plan in plans if plan.owns_kv)
        self.embed_tokens = matrices.matrix("embed_tokens")
        if config.hidden_size_per_layer_input:
            self.embed_tokens_per_layer = matrices.matrix("embed_tokens_per_layer")
            self.per_layer_model_projection = matrices.matrix("per_layer_model_projection")
            self.per_layer_projection_norm = Norm(
                config.hidden_size_per_layer_input, config.rms_norm_eps
            )
        self.layers = nn.ModuleList([self._layer(plan, matrices) for plan in plans])
        self.norm = Norm(config.hidden_size, config.rms_norm_eps, options.activation_dtype)
        if not config.ties_head:
            self.lm_head = matrices.matrix(HEAD)

    def _layer(self, plan: LayerPlan, matrices: Matrices) -> nn.Module:
        # A config has experts or per-layer embeddings, not both (config.py).
        layer = MoeDecoderLayer if self.config.num_experts else DecoderLayer
        return layer(plan, self.config, matrices, self.options)

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
        source, copies = None, None
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
        logits, probes = self._decode_stream(residual, tokens, tensors, last_rows, source)
        return logits, kv, *probes

    def decode_tokens(self, ids: nn.Tensor, kv: nn.Object) -> tuple[nn.Tensor | nn.Object, ...]:
        """Run one token: (1, 1) int32 -> logits (1, 1, vocab) f32, state, probes as in prefill."""
        tokens, tensors = nn.op.reshape(ids, (1,)), KvTensors(self.layout, kv)
        residual = self._embed(tokens, ONE)
        if self.layout.padding_slot is not None:
            tensors.count_padding(residual, ONE)
        logits, probes = self._decode_stream(residual, tokens, tensors)
        return logits, kv, *probes

    def verify_tokens(
        self, embeddings: nn.Tensor, ids: nn.Tensor, kv: nn.Object
    ) -> tuple[nn.Tensor | nn.Object, ...]:
        """Run a few tokens and keep what follows each of them, to hold drafts against it.

        (1, n, hidden_size) f32, (1, n) int32 -> logits (1, n, vocab) f32, the states after the
        final norm (n, hidden_size) f32, state.
        """
        length, config = ids.shape[1], self.config
        residual = nn.op.reshape(embeddings, (length, config.hidden_size))
        tokens = nn.op.reshape(ids, (length,))
        tensors = KvTensors(self.layout, kv)
        if self.layout.padding_slot is not None:  # there is none among drafts
            tensors.count_padding(residual, CHUNK)
        _, last = self._streams(residual, tokens, AttentionContext(tensors))
        logits = self._head(self.norm(last))
        normed = rms_norm(last, self.norm.weight, config.rms_norm_eps, "float32")
        return nn.op.reshape(logits, (1, length, config.vocab_size)), normed, kv

    def decode_rows(self, ids: nn.Tensor, kv: nn.Object) -> tuple[nn.Tensor | nn.Object, ...]:
        """Run a token of each of several sequences: (n,) int32 -> logits (1, n, vocab) f32, state.

        The state has the slot and the position of each.
        """
        rows = OneOf(MAX_ROWS) if self.options.slots_apart else Joint(MAX_ROWS)
        logits, _ = self._rows(ids, KvTensors(self.layout, kv, rows))
        return logits, kv

    def verify_rows(self, ids: nn.Tensor, kv: nn.Object) -> tuple[nn.Tensor | nn.Object, ...]:
        """Run some tokens of each of several sequences, as `verify_tokens` does of one.

        (n,) int32, those of a sequence one after another -> logits (1, n, vocab) f32, the states
        after the final norm (n, hidden_size) f32, state, which has slots and positions.
        """
        tensors = KvTensors(self.layout, kv, Joint(MAX_ROWS), are_shared=True)
        logits, last = self._rows(ids, tensors)
        eps = self.config.rms_norm_eps
        return logits, rms_norm(last, self.norm.weight, eps, "float32"), kv

    def _rows(self, ids: nn.Tensor, tensors: KvTensors) -> tuple[nn.Tensor, nn.Tensor]:
        """Logits (1, n, vocab) after tokens of several sequences, and what the head norms."""
        (length,) = ids.shape
        _, last = self._streams(self._embed(ids, CHUNK), ids, AttentionContext(tensors))
        logits = self._head(self.norm(last))
        return nn.op.reshape(logits, (1, length, self.config.vocab_size)), last

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
        self, ids: nn.Tensor, residual: nn.Tensor, source: nn.Tensor | None
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
            source,
        )

    def _decode_stream(
        self,
        residual: nn.Tensor,
        tokens: nn.Tensor,
        kv: KvTensors,
        last_rows: nn.Tensor | None = None,
        source: nn.Tensor | None = None,
    ) -> tuple[nn.Tensor, list[nn.Tensor]]:
        """Logits after the last position, and with `probe` its residual stream after each layer."""
        context = AttentionContext(kv, last_rows, cut_at=self.last_owner)
        streams, last = self._streams(residual, tokens, context, source)
        logits = self._head(self.norm(last))
        probes = [rows_like(x, logits) for x in streams] if self.options.probe else []
        return nn.op.reshape(logits, (1, 1, self.config.vocab_size)), probes

    def _head(self, hidden: nn.Tensor) -> nn.Tensor:
        """Logits (rows, vocab) of normed states."""
        cap, rows = self.config.final_logit_softcapping, rows_of_extent(hidden.shape[0])
        epilogue = Epilogue.NONE if cap is None else Epilogue.SOFTCAP
        head = self.embed_tokens if self.config.ties_head else self.lm_head
        return head.matmul(
            hidden, rows, epilogue, cap=cap or 0.0, suppressed=self.options.suppressed
        )

    def _streams(
        self,
        residual: nn.Tensor,
        tokens: nn.Tensor,
        context: AttentionContext,
        source: nn.Tensor | None = None,
    ) -> tuple[list[nn.Tensor], nn.Tensor]:
        """The residual stream after each layer, and what the head norms: the last of them.

        Parameters
        ----------
        source : (rows,) int32, the row of the call at each place; None where none has moved
        """
        stream, streams = Stream(residual, self._per_layer_inputs(tokens, residual, source)), []
        for layer in self.layers:
            stream = layer(stream, context)
            streams.append(stream.residual)
        return streams, stream.residual
