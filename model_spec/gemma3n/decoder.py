"""Gemma 3n's text decoder as Relax modules.

What differs from Gemma 4's: several residual streams, which are predicted before a layer and
corrected after it (AltUp); a low-rank residual beside attention (LAUREL); gates of the first
layers that are cut off below a Gaussian's quantile; the per-layer input goes to every stream but
the first. Attention, KV sharing and the exported functions are Gemma 4's.

References
----------
transformers 5.24.0, models/gemma3n/modeling_gemma3n.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.component import ExportOptions
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.gemma3n.layer_plan import section
from gemma4_compile.model_spec.gemma3n.parameters import COLLAPSE, EXPAND
from gemma4_compile.model_spec.gemma3n.per_layer_embedding import per_layer_inputs
from gemma4_compile.model_spec.layers.attention import Attention, AttentionContext
from gemma4_compile.model_spec.layers.mlp import FeedForward
from gemma4_compile.model_spec.layers.norm import NormStack, rows_like
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.decoder import Gemma4ForCausalLM, Stream
from gemma4_compile.model_spec.text.per_layer_embedding import inject
from gemma4_compile.operators.altup import (
    VECTORS,
    AltupCollapse,
    AltupCorrect,
    AltupExpand,
    AltupInject,
    AltupPredict,
    SplitStreams,
    TakeStream,
)
from gemma4_compile.operators.base import TensorSpec, emit
from gemma4_compile.operators.laurel import LaurelResidual
from gemma4_compile.operators.rows import rows_of_extent
from gemma4_compile.operators.sparse_gate import SparseGate, deviations


@dataclass(frozen=True)
class StreamSizes:
    """Sizes of the residual streams.

    Attributes
    ----------
    streams, width : of a row, `streams` times `width` channels
    active : the stream that layers run on
    eps : of norms
    dtype : of activations before a matmul
    scaled : the active stream is scaled before the per-layer input
    """

    streams: int
    width: int
    active: int
    eps: float
    dtype: str
    scaled: bool


class Laurel(nn.Module):
    """``Wright (Wleft h)``, without its norm."""

    def __init__(self, prefix: str, matrices: Matrices) -> None:
        self.linear_left = matrices.matrix(f"{prefix}.linear_left")
        self.linear_right = matrices.matrix(f"{prefix}.linear_right")

    def __call__(self, hidden: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) -> (rows, hidden_size) float32."""
        rows = rows_of_extent(hidden.shape[0])
        return self.linear_right.matmul(self.linear_left.matmul(hidden, rows), rows)


class SparseFeedForward(FeedForward):
    """`FeedForward` of which only the largest gates count.

    Parameters
    ----------
    sparsity : share of the gates that is cut off, above 0
    """

    def __init__(self, prefix: str, matrices: Matrices, width: int, sparsity: float) -> None:
        super().__init__(prefix, matrices)
        self._width, self._deviations = width, deviations(sparsity)

    def __call__(self, hidden: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) -> (rows, hidden_size) float32."""
        rows = rows_of_extent(hidden.shape[0])
        pairs = self.gate_up_proj.matmul(hidden, rows)
        operator = SparseGate(rows, self._width, self._deviations)
        (gated,) = emit(operator, [pairs], [((pairs.shape[0], self._width), "float32")])
        return self.down_proj.matmul(gated, rows)


class Altup(nn.Module):
    """The router of a layer's streams and their coefficients."""

    def __init__(self, sizes: StreamSizes) -> None:
        self.modality_router = NormStack(sizes.streams, sizes.width)
        self.coefs = NormStack(sizes.streams * (sizes.streams + 1), sizes.streams)


class Gemma3nDecoderLayer(nn.Module):
    """A layer on the active stream, in the midst of all."""

    def __init__(
        self, plan: LayerPlan, config: Gemma4Config, matrices: Matrices, options: ExportOptions
    ) -> None:
        prefix, sizes = f"layers.{plan.index}", stream_sizes(config, options)
        self.plan, self._sizes = plan, sizes
        self.vectors = NormStack(VECTORS, config.hidden_size)
        self.altup = Altup(sizes)
        self.self_attn = Attention(
            f"{prefix}.self_attn", plan, matrices, sizes.eps, sizes.dtype, options.attention
        )
        self.laurel = Laurel(f"{prefix}.laurel", matrices)
        own, mlp = section(config), f"{prefix}.mlp"
        sparsity, width = own.sparsities[plan.index], own.intermediate_sizes[plan.index]
        self.mlp = (
            SparseFeedForward(mlp, matrices, width, sparsity)
            if sparsity
            else FeedForward(mlp, matrices)
        )
        self.per_layer_input_gate = matrices.matrix(f"{prefix}.per_layer_input_gate")
        self.per_layer_projection = matrices.matrix(f"{prefix}.per_layer_projection")

    def __call__(self, stream: Stream, context: AttentionContext) -> Stream:
        """Run the layer; `stream.residual` has all streams, (rows, streams * hidden_size)."""
        predicted, hidden = self._predict(stream.residual)
        attended = self.self_attn(hidden, context)
        predicted, ple = replace(stream, residual=predicted).rows_of(attended)
        assert ple is not None, "Gemma 3n has per-layer inputs"
        laurel = self.laurel(rows_like(hidden, attended))
        h, hidden = self._join(attended, laurel, predicted)
        corrected, first = self._correct(self.mlp(hidden), h, predicted)
        gate, projection = self.per_layer_input_gate, self.per_layer_projection
        injected = inject(gate, projection, first, ple, self.plan.index)
        return Stream(self._inject(injected, corrected), ple)

    def _predict(self, x: nn.Tensor) -> tuple[nn.Tensor, ...]:
        """All streams predicted, and the active one's norm."""
        sizes, rows = self._sizes, rows_of_extent(x.shape[0])
        operator = AltupPredict(
            rows, sizes.streams, sizes.width, sizes.active, sizes.eps, sizes.dtype
        )
        args = [x, self.vectors.weight, *self._routing()]
        hidden: TensorSpec = ((x.shape[0], sizes.width), sizes.dtype)
        return emit(operator, args, [(tuple(x.shape), "float32"), hidden])

    def _join(
        self, attended: nn.Tensor, laurel: nn.Tensor, predicted: nn.Tensor
    ) -> tuple[nn.Tensor, ...]:
        """The active stream after attention and LAUREL, and its norm."""
        sizes, rows = self._sizes, rows_of_extent(attended.shape[0])
        operator = LaurelResidual(
            rows, sizes.streams, sizes.width, sizes.active, sizes.eps, sizes.dtype
        )
        shape = (attended.shape[0], sizes.width)
        args = [attended, laurel, predicted, self.vectors.weight]
        return emit(operator, args, [(shape, "float32"), (shape, sizes.dtype)])

    def _correct(self, fed: nn.Tensor, h: nn.Tensor, predicted: nn.Tensor) -> tuple[nn.Tensor, ...]:
        """All streams corrected, and what the per-layer input is gated by."""
        sizes, rows = self._sizes, rows_of_extent(fed.shape[0])
        operator = AltupCorrect(
            rows, sizes.streams, sizes.width, sizes.active, sizes.eps, sizes.scaled
        )
        args = [fed, h, predicted, self.vectors.weight, *self._routing()]
        first: TensorSpec = ((fed.shape[0], sizes.width), "float32")
        return emit(operator, args, [(tuple(predicted.shape), "float32"), first])

    def _inject(self, injected: nn.Tensor, corrected: nn.Tensor) -> nn.Tensor:
        """The per-layer input on every stream but the first."""
        sizes, rows = self._sizes, rows_of_extent(injected.shape[0])
        operator = AltupInject(rows, sizes.streams, sizes.width, sizes.eps)
        args = [injected, corrected, self.vectors.weight]
        return emit(operator, args, [(tuple(corrected.shape), "float32")])[0]

    def _routing(self) -> tuple[nn.Tensor, nn.Tensor]:
        return self.altup.modality_router.weight, self.altup.coefs.weight


class Gemma3nForCausalLM(Gemma4ForCausalLM):
    """The decoder and its head. Its methods are the package's exported functions (abi.py)."""

    def __init__(self, config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> None:
        super().__init__(config, matrices, options)
        self._sizes = stream_sizes(config, options)
        self.altup_projections = matrices.matrix(EXPAND)
        others = range(self._sizes.streams - 1)
        self.altup_unembed_projections = nn.ModuleList(
            [matrices.matrix(f"{COLLAPSE}.{index}") for index in others]
        )

    def _layer(self, plan: LayerPlan, matrices: Matrices) -> Gemma3nDecoderLayer:
        return Gemma3nDecoderLayer(plan, self.config, matrices, self.options)

    def _per_layer_inputs(
        self, ids: nn.Tensor, residual: nn.Tensor, source: nn.Tensor | None
    ) -> nn.Tensor:
        assert source is None, "there are no pictures whose padding moves rows"
        return per_layer_inputs(
            self.config,
            self.embed_tokens_per_layer,
            self.per_layer_model_projection,
            self.per_layer_projection_norm,
            ids,
            residual,
        )

    def _streams(
        self,
        residual: nn.Tensor,
        tokens: nn.Tensor,
        context: AttentionContext,
        source: nn.Tensor | None = None,
    ) -> tuple[list[nn.Tensor], nn.Tensor]:
        """With `probe` the active stream after each layer, and what the head norms.

        Parameters
        ----------
        source : None; no row moves
        """
        ple = self._per_layer_inputs(tokens, residual, source)
        stream, probes = Stream(self._expand(residual), ple), []
        for layer in self.layers:
            stream = layer(stream, context)
            if self.options.probe:
                probes.append(self._take(stream.residual, self._sizes.active))
        return probes, self._collapse(stream.residual)

    def _expand(self, x: nn.Tensor) -> nn.Tensor:
        """The streams of an embedding: (rows, hidden_size) to (rows, streams * hidden_size)."""
        sizes, rows = self._sizes, rows_of_extent(x.shape[0])
        projected = self.altup_projections.matmul(x, rows)
        operator = AltupExpand(rows, sizes.streams, sizes.width)
        spec: TensorSpec = ((x.shape[0], sizes.streams * sizes.width), "float32")
        return emit(operator, [x, projected], [spec])[0]

    def _collapse(self, streams: nn.Tensor) -> nn.Tensor:
        """One stream of all: (rows, hidden_size) float32."""
        sizes, rows = self._sizes, rows_of_extent(streams.shape[0])
        spec: TensorSpec = ((streams.shape[0], sizes.width), "float32")
        apart = SplitStreams(rows, sizes.streams, sizes.width)
        first, *others = emit(apart, [streams], [spec] * sizes.streams)
        matrices = self.altup_unembed_projections
        projected = [
            matrix.matmul(other, rows) for matrix, other in zip(matrices, others, strict=True)
        ]
        operator = AltupCollapse(rows, sizes.streams, sizes.width, apart=True)
        return emit(operator, [first, *projected], [spec])[0]

    def _take(self, streams: nn.Tensor, index: int) -> nn.Tensor:
        sizes, rows = self._sizes, rows_of_extent(streams.shape[0])
        operator = TakeStream(rows, sizes.streams, sizes.width, index)
        return emit(operator, [streams], [((streams.shape[0], sizes.width), "float32")])[0]


def stream_sizes(config: Gemma4Config, options: ExportOptions) -> StreamSizes:
    """The sizes of a config's streams."""
    own = section(config)
    return StreamSizes(
        streams=own.streams,
        width=config.hidden_size,
        active=own.active,
        eps=config.rms_norm_eps,
        dtype=options.activation_dtype,
        scaled=own.scales_corrected,
    )
