"""What stands between two matmuls, and the second of them may do in its own launch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import DataType
from tvm.relax.frontend import nn

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    QuantizedCombine,
    QuantizedNorm,
    QuantizeRows,
    quantized_specs,
)
from gemma4_compile.operators.attention import CombineSplits
from gemma4_compile.operators.base import TensorSpec, emit
from gemma4_compile.operators.moe import (
    ExpertResidualNorm,
    RouterScores,
    TopKExperts,
    routed_width,
)
from gemma4_compile.operators.norms import ResidualNorm


@dataclass(frozen=True)
class QuantizedVector:
    """Vectors in int8, as gemma4_compile/operators/activation_quantization.py describes them."""

    words: nn.Tensor
    scales: nn.Tensor


def quantize_rows(x: nn.Tensor, rows: int | None, interleaved: bool) -> QuantizedVector:
    """Pack the rows of a chunk for one matrix."""
    width = int(x.shape[1])
    operator = QuantizeRows(rows, width, x.dtype, interleaved)
    return QuantizedVector(*emit(operator, [x], quantized_specs(width, x.shape[0])))


class PendingNorm(ABC):
    """A new residual r' and the norm of it, in front of the matmul that reads the norm.

    Nothing is emitted until somebody asks for `residual` or `hidden`, or a matmul does it all by
    itself and says so with `done`.

    Attributes
    ----------
    arguments : of the norm, as the operators declare them
    shape : of the residual, (rows, width)
    rows : number of positions, None for a prefill chunk
    dtype : of `hidden`
    normed : whether `hidden` is the norm of r', or r' itself
    scaled : whether r' is multiplied by a scalar
    """

    branches: ClassVar[int] = 1  # vectors that are added to the residual
    normed: bool = True
    scaled: bool = False

    def __init__(
        self,
        arguments: Sequence[nn.Tensor],
        shape: Sequence[Any],
        rows: int | None,
        eps: float,
        dtype: str,
    ) -> None:
        self.arguments, self.shape = list(arguments), tuple(shape)
        self.rows, self.eps, self.dtype = rows, eps, dtype
        self._residual: nn.Tensor | None = None
        self._hidden: nn.Tensor | None = None

    @abstractmethod
    def _emit(self) -> None:
        """Set `_residual` and `_hidden` by a launch of its own."""

    @property
    def width(self) -> int:
        """Channels of a position."""
        return int(self.shape[1])

    @property
    def is_done(self) -> bool:
        """Whether the new residual exists already."""
        return self._residual is not None

    def done(self, residual: nn.Tensor) -> None:
        """A matmul has done the norm; this is the new residual."""
        self._residual = residual

    @property
    def residual(self) -> nn.Tensor:
        """The new residual: (rows, width) float32."""
        if self._residual is None:
            self._emit()
        assert self._residual is not None
        return self._residual

    @property
    def hidden(self) -> nn.Tensor:
        """The input of the next branch: (rows, width), activation dtype if normed."""
        if self._hidden is None:
            assert self._residual is None, "a fused norm has one reader"
            self._emit()
        assert self._hidden is not None
        return self._hidden

    def packed(self, interleaved: bool) -> QuantizedVector:
        """The input of the next branch, normed and packed, for one position and one reader."""
        assert self.rows == 1, "only one position is packed"
        assert self.normed, "a residual has no bound; its reader rounds it"
        assert self._residual is None, "a pending norm has one reader"
        operator = QuantizedNorm(self.width, self.eps, self.scaled, interleaved, self.branches)
        specs: list[TensorSpec] = [((1, self.width), "float32"), *quantized_specs(self.width)]
        self._residual, words, scales = emit(operator, self.arguments, specs)
        return QuantizedVector(words, scales)


class PendingResidualNorm(PendingNorm):
    """The end of a branch: ``r' = (r + norm(branch)) * scalar`` and ``hidden = norm(r')``.

    Parameters
    ----------
    branch, residual : (rows, width) float32
    norm, scalar, next_norm : (width,), (1,), (width,) float32; without next_norm hidden is r'
    activation_dtype : of hidden, if there is a next norm
    """

    def __init__(
        self,
        branch: nn.Tensor,
        residual: nn.Tensor,
        norm: nn.Tensor,
        scalar: nn.Tensor | None,
        next_norm: nn.Tensor | None,
        rows: int | None,
        eps: float,
        activation_dtype: str,
    ) -> None:
        given = [tensor for tensor in (scalar, next_norm) if tensor is not None]
        self.normed, self.scaled = next_norm is not None, scalar is not None
        dtype = activation_dtype if self.normed else "float32"
        super().__init__([branch, residual, norm, *given], residual.shape, rows, eps, dtype)

    def _emit(self) -> None:
        next_dtype = self.dtype if self.normed else None
        operator = ResidualNorm(self.rows, self.width, self.eps, self.scaled, next_dtype)
        specs: list[TensorSpec] = [(self.shape, "float32")]
        if next_dtype is not None:
            specs.append((self.shape, next_dtype))
        result = emit(operator, self.arguments, specs)
        self._residual, self._hidden = result[0], result[-1]


class PendingExpertNorm(PendingNorm):
    """The end of a layer with experts: ``r' = (r + norm(norm(dense) + norm(experts))) * scalar``.

    Parameters
    ----------
    dense, experts, residual : (rows, width) float32
    norms : (3, width) float32, of both branches and of their sum
    scalar, next_norm : (1,), (width,) float32
    activation_dtype : of hidden
    """

    branches = 2
    scaled = True

    def __init__(
        self,
        dense: nn.Tensor,
        experts: nn.Tensor,
        residual: nn.Tensor,
        norms: nn.Tensor,
        scalar: nn.Tensor,
        next_norm: nn.Tensor,
        rows: int | None,
        eps: float,
        activation_dtype: str,
    ) -> None:
        arguments = [dense, experts, residual, norms, scalar, next_norm]
        super().__init__(arguments, residual.shape, rows, eps, activation_dtype)

    def _emit(self) -> None:
        operator = ExpertResidualNorm(self.rows, self.width, self.eps, self.dtype)
        specs: list[TensorSpec] = [(self.shape, "float32"), (self.shape, self.dtype)]
        self._residual, self._hidden = emit(operator, self.arguments, specs)


class PendingRouting(PendingNorm):
    """What follows attention in a layer with experts: a norm for the dense MLP, and the router.

    Parameters
    ----------
    branch, residual : (rows, width) float32
    vectors : (4, width) float32, as `RoutedNorm` has them
    projection : (experts, width), the router's
    factor : the router's input is multiplied by it
    activation_dtype : of hidden
    """

    def __init__(
        self,
        branch: nn.Tensor,
        residual: nn.Tensor,
        vectors: nn.Tensor,
        projection: nn.Tensor,
        factor: float,
        rows: int | None,
        eps: float,
        activation_dtype: str,
    ) -> None:
        arguments = [branch, residual, vectors, projection]
        super().__init__(arguments, residual.shape, rows, eps, activation_dtype)
        self.vectors, self.projection, self.factor = vectors, projection, factor
        self._routed: nn.Tensor | None = None

    def found(self, routed: nn.Tensor) -> None:
        """A matmul has done the router's part, too: this is the result of `RouterScores`."""
        self._routed = routed

    @property
    def routed(self) -> nn.Tensor:
        """The result of `RouterScores`, of one position."""
        if self._routed is None:
            experts, dtype = int(self.projection.shape[0]), self.projection.dtype
            operator = RouterScores(self.width, experts, self.eps, self.factor, dtype)
            args = [self.residual, self.vectors, self.projection]
            spec = ((1, routed_width(experts, self.width)), "float32")
            (self._routed,) = emit(operator, args, [spec])
        return self._routed

    def packed(self, interleaved: bool) -> QuantizedVector:
        """The input of the dense MLP, normed, and packed in a launch of its own."""
        return quantize_rows(self.hidden, self.rows, interleaved)

    def _emit(self) -> None:
        count = int(self.vectors.shape[0])
        operator = ResidualNorm(self.rows, self.width, self.eps, False, self.dtype, count)
        specs: list[TensorSpec] = [(self.shape, "float32"), (self.shape, self.dtype)]
        self._residual, self._hidden = emit(operator, self.arguments[:3], specs)


@dataclass(frozen=True)
class PendingCombine:
    """The splits of one position's attention, not merged yet.

    Attributes
    ----------
    means, stats : results of `SplitAttention` or `DecodeAttention`
    dtype : of the means and of the merged vector
    """

    means: nn.Tensor
    stats: nn.Tensor
    dtype: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Splits, heads, head_dim."""
        splits, heads, dim = (int(size) for size in self.means.shape)
        return splits, heads, dim

    @property
    def nbytes(self) -> int:
        """What a block reads to merge by itself."""
        splits, heads, dim = self.shape
        return DataType(self.dtype).bits // 8 * splits * heads * dim

    def merge(self) -> nn.Tensor:
        """Merge in a launch of its own: (1, heads * head_dim)."""
        splits, heads, dim = self.shape
        operator = CombineSplits(heads, dim, splits, self.dtype)
        return emit(operator, [self.means, self.stats], [((1, heads * dim), self.dtype)])[0]

    def packed(self, interleaved: bool) -> QuantizedVector:
        """Merge and pack, in one launch if no group of channels lies in two heads."""
        splits, heads, dim = self.shape
        if dim % GROUP:
            return quantize_rows(self.merge(), 1, interleaved)
        operator = QuantizedCombine(heads, dim, splits, self.dtype, interleaved)
        words, scales = emit(operator, [self.means, self.stats], quantized_specs(heads * dim))
        return QuantizedVector(words, scales)


class PendingChoice:
    """The experts of one position, of which only the router's scores are known.

    Nothing is emitted until somebody asks for `weights`, or for `ids` that no matmul has found.

    Parameters
    ----------
    routed : result of `RouterScores`
    expert_scale : (experts,) float32
    width : channels of the experts' input, which lies behind the scores
    """

    def __init__(self, routed: nn.Tensor, expert_scale: nn.Tensor, top_k: int, width: int) -> None:
        self.routed, self.expert_scale, self.top_k = routed, expert_scale, top_k
        self.width = width
        self._ids: nn.Tensor | None = None
        self._weights: nn.Tensor | None = None

    def found(self, ids: nn.Tensor) -> None:
        """A matmul has chosen: (1, top_k) int32."""
        self._ids = ids

    @property
    def ids(self) -> nn.Tensor:
        """(1, top_k) int32."""
        if self._ids is None:
            self._choose()
        assert self._ids is not None
        return self._ids

    @property
    def weights(self) -> nn.Tensor:
        """(1, top_k) float32."""
        if self._weights is None:
            self._choose()
        assert self._weights is not None
        return self._weights

    def _choose(self) -> None:
        operator = TopKExperts(int(self.expert_scale.shape[0]), self.top_k, self.width)
        specs: list[TensorSpec] = [((1, self.top_k), "int32"), ((1, self.top_k), "float32")]
        self._ids, self._weights = emit(operator, [self.routed, self.expert_scale], specs)
