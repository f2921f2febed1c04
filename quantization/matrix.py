"""A stored matrix in the model: a matmul and a row lookup, in parts where the target needs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.matrices import Matrix
from gemma4_compile.model_spec.pending import (
    PendingCombine,
    PendingNorm,
    PendingRouting,
    QuantizedVector,
    quantize_rows,
)
from gemma4_compile.operators.base import TensorSpec, emit
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.fused_linear import (
    MERGED_BUFFERS,
    CombinedLinear,
    NormedLinear,
    RoutedLinear,
)
from gemma4_compile.operators.int8_linear import (
    PACKED,
    PACKED_ROWS,
    Int8CombinedLinear,
    Int8Linear,
    Int8NormedLinear,
    Int8RoutedLinear,
    takes_int8,
)
from gemma4_compile.operators.linear import Embedding, Linear, WeightLayout
from gemma4_compile.quantization.recipe import Part, StoredParameter
from gemma4_compile.quantization.scheme import DenseScheme


def layout_of(stored: StoredParameter, parts: Sequence[Part]) -> WeightLayout:
    """The layout of some parts of a stored matrix."""
    scheme, cols = stored.scheme, stored.parameter.shape[1]
    rows = tuple(part.rows for part in parts)
    if isinstance(scheme, DenseScheme):
        return WeightLayout(0, scheme.dtype, 0, cols, rows)
    return WeightLayout(scheme.bits, scheme.scale_dtype, scheme.group_size, cols, rows)


def split_calls(count: int, first: int, later: int) -> Iterator[range]:
    """Divide `count` parts among calls.

    At most `first` in the first call, `later` in each that follows.
    """
    begin, limit = 0, first
    while begin < count:
        yield range(begin, min(begin + limit, count))
        begin, limit = begin + limit, later


MAX_MERGED_SPLITS = 16  # their loads stand in the kernel's text, all under way at once
MAX_MERGE_BYTES = 64 << 10  # of attention splits, read by every block of the matmul behind them

# Every block of a fused matmul repeats the norm. In a matrix of more weights than this the blocks
# pay more for it than a launch costs (measured: docs/performance.md, 31B). Those of the int8 form
# take several tiles each; only the head is too large for them.
MAX_EXACT_FUSED_WEIGHTS = 40 << 20
MAX_INT8_FUSED_WEIGHTS = 256 << 20


@dataclass(frozen=True)
class KernelLimits:
    """What one kernel may bind and keep.

    Attributes
    ----------
    max_buffers : storage buffers, None for any number
    fused_width : longest vector that a kernel may norm or round for itself
    int8 : vectors of one position are rounded to int8 where the matrix allows it
    """

    max_buffers: int | None
    fused_width: int
    int8: bool = False


def _joined(results: Sequence[nn.Tensor]) -> nn.Tensor:
    """What the calls made, side by side."""
    return results[0] if len(results) == 1 else nn.op.concat(list(results), dim=1)


class QuantizedMatrix(nn.Module):
    """A stored matrix as a matmul (`matmul`) and as a table of rows (`take`).

    Parameters
    ----------
    stored : the matrix and its parts
    limits : what one kernel may bind and keep
    """

    def __init__(self, stored: StoredParameter, limits: KernelLimits) -> None:
        self.stored = stored
        self.limits = limits
        stem = f"{stored.parameter.name}."
        for tensor in stored.tensors:
            # Attribute names become parameter names, which the package lists: `q_weight.part0`.
            setattr(self, tensor.name.removeprefix(stem), nn.Parameter(tensor.shape, tensor.dtype))

    def _tensors(self, parts: Sequence[Part]) -> list[nn.Tensor]:
        stem = f"{self.stored.parameter.name}."
        return [
            getattr(self, tensor.name.removeprefix(stem))
            for part in parts
            for tensor in part.tensors
        ]

    def _calls(self, other_buffers: int, later_buffers: int) -> Iterator[list[Part]]:
        parts = self.stored.parts
        per_part = len(parts[0].tensors)
        if self.limits.max_buffers is None:
            yield list(parts)
            return
        limit = self.limits.max_buffers
        first, later = ((limit - other) // per_part for other in (other_buffers, later_buffers))
        for indices in split_calls(len(parts), first, later):
            yield [parts[i] for i in indices]

    @property
    def interleaved(self) -> bool | None:
        """The byte order of packed vectors that it multiplies; None if it takes none."""
        layout = layout_of(self.stored, self.stored.parts)
        return layout.bits == 4 if self.limits.int8 and takes_int8(layout) else None

    def gated(
        self, x: nn.Tensor | PendingNorm, rows: int | None, reader: Matrix
    ) -> nn.Tensor | QuantizedVector:
        """`matmul` of gate and up rows with GELU_PAIRS, in the form that `reader` takes."""
        fields = self._epilogue_fields(Epilogue.GELU_PAIRS)
        order = reader.interleaved
        packs = rows == 1 and self.interleaved is not None and order is not None
        if not packs or self.stored.parameter.shape[0] % PACKED_ROWS:
            return self._multiply(x, rows, [], fields)
        fields |= {"packed_out": True, "interleaved_out": order}
        calls = self._multiply_int8(x, [], fields)
        if calls is None:
            return self._multiply(x, rows, [], self._epilogue_fields(Epilogue.GELU_PAIRS))
        words, scales = (_joined(results) for results in zip(*calls, strict=True))
        return QuantizedVector(words, scales)

    def matmul(
        self,
        x: nn.Tensor | QuantizedVector | PendingNorm | PendingCombine,
        rows: int | None,
        epilogue: Epilogue = Epilogue.NONE,
        *,
        cap: float = 0.0,
        ple: nn.Tensor | None = None,
        layer: int = 0,
        suppressed: Sequence[int] = (),
    ) -> nn.Tensor:
        """``epilogue(x W^T)``: (rows, cols) -> (rows, outputs) float32.

        One launch, unless there are too many parts. A norm or merge that is still pending is done
        in the same launch where buffers and memory allow it. Columns in `suppressed` are MASKED
        instead.
        """
        epilogue_args = [] if ple is None else [ple, tirx.const(layer, "int64")]
        width = 0 if ple is None else int(ple.shape[1])
        fields = self._epilogue_fields(
            epilogue, cap=cap, ple_width=width, suppressed=tuple(suppressed)
        )
        return self._multiply(x, rows, epilogue_args, fields)

    @staticmethod
    def _epilogue_fields(
        epilogue: Epilogue,
        *,
        cap: float = 0.0,
        ple_width: int = 0,
        suppressed: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        return {
            "epilogue": epilogue.value,
            "cap": cap,
            "ple_width": ple_width,
            "suppressed": suppressed,
        }

    def _multiply(
        self,
        x: nn.Tensor | QuantizedVector | PendingNorm | PendingCombine,
        rows: int | None,
        epilogue_args: list[Any],
        fields: dict[str, Any],
    ) -> nn.Tensor:
        if self.interleaved is not None:
            if rows != 1:
                return self._multiply_chunk_int8(x, rows, epilogue_args, fields)
            calls = self._multiply_int8(x, epilogue_args, fields)
            if calls is not None:
                return _joined([y for (y,) in calls])
        assert not isinstance(x, QuantizedVector), "packed for a matrix that takes none"
        epilogue = Epilogue(fields["epilogue"])
        if isinstance(x, PendingNorm):
            if self._fuses(x, epilogue, MAX_EXACT_FUSED_WEIGHTS):
                return self._normed(x, NormedLinear, x.dtype, epilogue_args, fields)[0]
            x = x.hidden
        elif isinstance(x, PendingCombine):
            if self._fuses_merge(x):
                return self._merged(x, CombinedLinear, x.dtype, fields)[0]
            x = x.merge()
        results: list[nn.Tensor] = []
        others = 3 if epilogue_args else 2
        for parts, inside in self._part_fields(fields, others):
            operator = Linear(rows=rows, in_dtype=x.dtype, **inside)
            args = [x, *self._tensors(parts), *epilogue_args]
            results += emit(operator, args, [((x.shape[0], operator.outputs), "float32")])
        return _joined(results)

    def _multiply_chunk_int8(
        self,
        x: nn.Tensor | QuantizedVector | PendingNorm | PendingCombine,
        rows: int | None,
        epilogue_args: list[Any],
        fields: dict[str, Any],
    ) -> nn.Tensor:
        """A chunk's rows are rounded in a launch of their own, which they can afford."""
        assert not isinstance(x, QuantizedVector | PendingCombine), "made of one position"
        hidden = x.hidden if isinstance(x, PendingNorm) else x
        packed = quantize_rows(hidden, rows, bool(self.interleaved))
        results: list[nn.Tensor] = []
        for parts, inside in self._part_fields(fields, 4 if epilogue_args else 3):
            operator = Int8Linear(rows=rows, in_dtype=PACKED, **inside)
            args = [packed.words, packed.scales, *self._tensors(parts), *epilogue_args]
            results += emit(operator, args, [((hidden.shape[0], operator.outputs), "float32")])
        return _joined(results)

    def _part_fields(
        self, fields: dict[str, Any], others: int
    ) -> Iterator[tuple[list[Part], dict[str, Any]]]:
        """The parts of each call, and an operator's fields for them."""
        suppressed = fields["suppressed"]
        for parts in self._calls(others, others):
            begin, end = parts[0].row_begin, parts[-1].row_end
            hidden = tuple(row - begin for row in suppressed if begin <= row < end)
            yield parts, {**fields, **self._layout_fields(parts), "suppressed": hidden}

    def _multiply_int8(
        self,
        x: nn.Tensor | QuantizedVector | PendingNorm | PendingCombine,
        epilogue_args: list[Any],
        fields: dict[str, Any],
    ) -> list[tuple[nn.Tensor, ...]] | None:
        """The results of each call on a rounded vector; None where the exact form has to do."""
        packs, order = fields.get("packed_out", False), self.interleaved
        assert order is not None, "a matrix that takes packed vectors"
        if isinstance(x, PendingNorm):
            if self._fuses(x, Epilogue(fields["epilogue"]), MAX_INT8_FUSED_WEIGHTS, packs):
                return [self._normed(x, Int8NormedLinear, "float32", epilogue_args, fields)]
            x = x.packed(order) if x.normed and not x.is_done else x.hidden
        elif isinstance(x, PendingCombine):
            if self._fuses_merge(x):
                return [self._merged(x, Int8CombinedLinear, x.dtype, fields)]
            x = x.packed(order)
        if isinstance(x, QuantizedVector):
            args, dtype = [x.words, x.scales], PACKED
        elif self.stored.parameter.shape[1] <= self.limits.fused_width:
            args, dtype = [x], x.dtype
        else:
            return None
        calls = []
        others = len(args) + (len(epilogue_args) > 0) + (2 if packs else 1)
        for parts, inside in self._part_fields(fields, others):
            operator = Int8Linear(rows=1, in_dtype=dtype, **inside)
            inputs = [*args, *self._tensors(parts), *epilogue_args]
            calls.append(emit(operator, inputs, operator.result_specs))
        return calls

    def _layout_fields(self, parts: Sequence[Part]) -> dict[str, Any]:
        layout = layout_of(self.stored, parts)
        return {
            "bits": layout.bits,
            "weight_dtype": layout.dtype,
            "group_size": layout.group_size,
            "cols": layout.cols,
            "part_rows": layout.part_rows,
        }

    def _fuses(
        self, x: PendingNorm, epilogue: Epilogue, max_weights: int, packs: bool = False
    ) -> bool:
        """Whether one launch can do the norm, too."""
        rows, width = self.stored.parameter.shape
        if x.rows != 1 or x.is_done or width > self.limits.fused_width:
            return False
        if rows * width > max_weights:
            return False
        others = len(x.arguments) + 2 + packs + (epilogue is Epilogue.GELU_GATE)
        others += isinstance(x, PendingRouting)
        limit = self.limits.max_buffers
        return limit is None or len(self.stored.tensors) + others <= limit

    def _normed(
        self,
        x: PendingNorm,
        kind: type[NormedLinear] | type[Int8NormedLinear],
        in_dtype: str,
        epilogue_args: list[Any],
        fields: dict[str, Any],
    ) -> tuple[nn.Tensor, ...]:
        parts = self.stored.parts
        if isinstance(x, PendingRouting):
            kind = RoutedLinear if kind is NormedLinear else Int8RoutedLinear
            experts, dtype = int(x.projection.shape[0]), x.projection.dtype
            fields = {**fields, "experts": experts, "factor": x.factor, "router_dtype": dtype}
        operator = kind(
            rows=1,
            in_dtype=in_dtype,
            eps=x.eps,
            scaled=x.scaled,
            normed=x.normed,
            branches=x.branches,
            **self._layout_fields(parts),
            **fields,
        )
        args = [*x.arguments, *self._tensors(parts), *epilogue_args]
        specs: list[TensorSpec] = [((1, operator.cols), "float32"), *operator.result_specs]
        residual, *results = emit(operator, args, specs)
        x.done(residual)
        if isinstance(x, PendingRouting):
            x.found(results.pop(0))
        return tuple(results)

    def _fuses_merge(self, x: PendingCombine) -> bool:
        """Whether one launch can merge, too: all of it is read by every block."""
        if self.stored.parameter.shape[1] > self.limits.fused_width:
            return False
        if self.limits.max_buffers is None:
            return True
        buffers = len(self.stored.tensors) + MERGED_BUFFERS
        is_small = x.nbytes <= MAX_MERGE_BYTES and x.shape[0] <= MAX_MERGED_SPLITS
        return buffers <= self.limits.max_buffers and is_small

    def _merged(
        self,
        x: PendingCombine,
        kind: type[CombinedLinear] | type[Int8CombinedLinear],
        in_dtype: str,
        fields: dict[str, Any],
    ) -> tuple[nn.Tensor, ...]:
        splits, heads, head_dim = x.shape
        operator = kind(
            rows=1,
            in_dtype=in_dtype,
            heads=heads,
            head_dim=head_dim,
            splits=splits,
            **self._layout_fields(self.stored.parts),
            **fields,
        )
        args = [x.means, x.stats, *self._tensors(self.stored.parts)]
        return emit(operator, args, operator.result_specs)

    def take(self, ids: nn.Tensor, rows: int | None, scale: float) -> nn.Tensor:
        """Rows by token id, times `scale`: (rows,) int32 -> (rows, cols) float32."""
        result: nn.Tensor | None = None
        for parts in self._calls(2, 3):
            operator = Embedding(
                rows=rows,
                **self._layout_fields(parts),
                row_begin=parts[0].row_begin,
                scale=scale,
                accumulate=result is not None,
            )
            args = [ids, *self._tensors(parts), *([] if result is None else [result])]
            (result,) = emit(operator, args, [((ids.shape[0], operator.cols), "float32")])
        assert result is not None, "a stored matrix has at least one part"
        return result
