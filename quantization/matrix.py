"""Stored matrices in the model: matmuls, row lookups, and the experts' matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.parameters import Role, steps_name
from gemma4_compile.operators.activations import FLOAT32, SteppedOutput
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.drafting import CandidateLogits
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import OF_PLACES, OF_ROWS, WHOLE, Embedding, table_shapes
from gemma4_compile.operators.rows import CHUNK, Rows, rows_of_extent
from gemma4_compile.operators.static_rounding import RoundToStep
from gemma4_compile.operators.types import Index
from gemma4_compile.operators.vision import AddPatchPositions
from gemma4_compile.operators.vision_unified import PositionNorms
from gemma4_compile.quantization.recipe import StoredParameter


def layout_of(stored: StoredParameter) -> WeightLayout:
    """The layout of a stored matrix, over all of its row splits."""
    rows = tuple(split.rows for split in stored.row_splits)
    return stored.scheme.layout(stored.parameter.shape[1], rows)


class ExpertFields(TypedDict):
    """Fields of an operator over experts."""

    layout: WeightLayout
    expert_rows: int
    experts: int
    top_k: int
    in_dtype: str


class StoredMatrix(nn.Module):
    """The tensors of a stored matrix as parameters of the model."""

    def __init__(self, stored: StoredParameter) -> None:
        self._parameter, self._layout = stored.parameter, layout_of(stored)
        self._tensors: list[nn.Tensor] = []
        stem = f"{stored.parameter.name}."
        shapes: Sequence[Sequence[Index]] = [tensor.shape for tensor in stored.tensors]
        if self._is_windowed:
            shapes = [shape for _, shape, _ in table_shapes(self._layout)]
        for tensor, shape in zip(stored.tensors, shapes, strict=True):
            # Attribute names become parameter names, which the package lists: `q_weight.part0`.
            parameter = nn.Parameter(shape, tensor.dtype)
            setattr(self, tensor.name.removeprefix(stem), parameter)
            self._tensors.append(parameter)

    @property
    def _is_windowed(self) -> bool:
        """Whether rows are looked up alone, so that a window does in its place."""
        return self._parameter.role is Role.PER_LAYER_EMBEDDING


class Steps(nn.Module):
    """What a checkpoint rounds the inputs and outputs of a matrix to.

    Parameters
    ----------
    sections : rows of each matrix of the checkpoint that is in this one
    has_input_step : the step of the inputs is no 0
    """

    def __init__(self, sections: tuple[int, ...], has_input_step: bool) -> None:
        self.output = SteppedOutput(sections, has_input_step)
        self.weight = nn.Parameter((self.output.step_count,), "float32")

    def rounded(self, x: nn.Tensor) -> nn.Tensor:
        """The inputs: (rows, cols) float32."""
        operator = RoundToStep(int(x.shape[1]), x.dtype, self.output.step_count)
        return emit(operator, [x, self.weight], [(tuple(x.shape), "float32")])[0]


class QuantizedMatrix(StoredMatrix):
    """A stored matrix as a matmul (`matmul`) and as a table of rows (`take`).

    Parameters
    ----------
    is_stepped : its inputs and outputs are rounded to steps of the checkpoint
    """

    def __init__(self, stored: StoredParameter, *, is_stepped: bool = False) -> None:
        super().__init__(stored)
        self.steps: Steps | None = None
        if is_stepped:
            rows = tuple(source.shape[0] for source in stored.parameter.sources)
            self.steps = Steps(rows, stored.scheme.takes_int8 and self._layout.takes_steps)

    def matmul(
        self,
        x: nn.Tensor,
        rows: Rows,
        epilogue: Epilogue = Epilogue.NONE,
        *,
        cap: float = 0.0,
        ple: nn.Tensor | None = None,
        layer: int = 0,
        suppressed: Sequence[int] = (),
    ) -> nn.Tensor:
        """``epilogue(x W^T)``: (rows, cols) -> (rows, outputs) float32.

        Columns in `suppressed` are MASKED instead.
        """
        own = []
        if self.steps is not None:
            x, own = self.steps.rounded(x), [self.steps.weight]
        operator = Linear(
            rows=rows,
            layout=self._layout,
            in_dtype=x.dtype,
            epilogue=epilogue.value,
            cap=cap,
            ple_width=0 if ple is None else int(ple.shape[1]),
            suppressed=tuple(suppressed),
            output=FLOAT32 if self.steps is None else self.steps.output,
        )
        after = [] if ple is None else [ple, tirx.const(layer, "int64")]
        args = [x, *self._tensors, *own, *after]
        return emit(operator, args, [((x.shape[0], operator.outputs), "float32")])[0]

    def bounded(
        self,
        x: nn.Tensor,
        bounds: nn.Tensor | None,
        epilogue: Epilogue = Epilogue.NONE,
        *,
        partner: nn.Tensor | None = None,
        out_dtype: str = "float32",
    ) -> nn.Tensor:
        """``epilogue(clip(clip(x) W^T))`` of any number of rows, in `out_dtype`."""
        operator = BoundedLinear(
            rows=CHUNK,
            layout=self._layout,
            in_dtype=x.dtype,
            epilogue=epilogue.value,
            clipped=bounds is not None,
            out_dtype=out_dtype,
        )
        before = [] if bounds is None else [bounds]
        after = [] if partner is None else [partner]
        args = [*before, x, *self._tensors, *after]
        return emit(operator, args, [((x.shape[0], operator.outputs), out_dtype)])[0]

    def add_positions(self, x: nn.Tensor, positions: nn.Tensor, pooling: int) -> nn.Tensor:
        """``x`` and its patches' rows of this table: (patches, cols) float32."""
        operator = AddPatchPositions(pooling, self._layout)
        args = [positions, x, *self._tensors]
        return emit(operator, args, [(tuple(x.shape), "float32")])[0]

    def position_norms(
        self, x: nn.Tensor, positions: nn.Tensor, vectors: nn.Tensor, eps: float, out_dtype: str
    ) -> nn.Tensor:
        """`PositionNorms` of x with this table: (blocks, cols) in `out_dtype`."""
        operator = PositionNorms(self._layout, eps, out_dtype)
        args = [positions, x, vectors, *self._tensors]
        return emit(operator, args, [(tuple(x.shape), out_dtype)])[0]

    def take(
        self, ids: nn.Tensor, rows: Rows, scale: float, places: nn.Tensor | None = None
    ) -> nn.Tensor:
        """Rows by token id, times `scale`: (rows,) int32 -> (rows, cols) float32."""
        table, before = WHOLE, [ids]
        if self._is_windowed:
            table = OF_ROWS if places is None else OF_PLACES
            before += [] if places is None else [places]
        operator = Embedding(rows, self._layout, 0, scale, accumulate=False, table=table)
        specs = [((ids.shape[0], operator.cols), "float32")]
        return emit(operator, [*before, *self._tensors], specs)[0]

    def matmul_of(self, x: nn.Tensor, ids: nn.Tensor) -> nn.Tensor:
        """Products with some rows: (rows, cols) and ids -> (rows, count) float32.

        Ids are int32, (count,) of one row, (rows, count) of others.
        """
        count, extent = int(ids.shape[-1]), x.shape[0]
        rows = rows_of_extent(extent)
        operator = CandidateLogits(count, self._layout, x.dtype, rows=rows)
        return emit(operator, [x, ids, *self._tensors], [((extent, count), "float32")])[0]


class QuantizedExperts(StoredMatrix):
    """The stored matrices of all experts; only those that a position chose are read."""

    def gate_up(self, routed: nn.Tensor, ids: nn.Tensor, top_k: int) -> nn.Tensor:
        """Gate and up of one position's experts: (top_k, width) float32."""
        operator = ExpertLinear(**self._fields(top_k, routed.dtype))
        return self._emit(operator, [routed, ids], (top_k, operator.outputs))

    def down(self, x: nn.Tensor, ids: nn.Tensor, weights: nn.Tensor, top_k: int) -> nn.Tensor:
        """Weighted down of one position's experts: (top_k, width) -> (1, hidden_size) f32."""
        operator = ExpertLinear(**self._fields(top_k, x.dtype), epilogue=Epilogue.NONE.value)
        return self._emit(operator, [x, ids, weights], (1, operator.expert_rows))

    def grouped(
        self, x: nn.Tensor, order: nn.Tensor, tiles: nn.Tensor, top_k: int, epilogue: Epilogue
    ) -> nn.Tensor:
        """Matmul of a chunk's pairs in the order of `PermuteByExpert`: (pairs, outputs) f32."""
        fields = self._fields(top_k, x.dtype)
        operator = ExpertLinear(**fields, rows=CHUNK, epilogue=epilogue.value)
        return self._emit(operator, [x, order, tiles], (order.shape[0], operator.outputs))

    def _fields(self, top_k: int, in_dtype: str) -> ExpertFields:
        rows = self._parameter.row_group
        experts = self._parameter.shape[0] // rows
        return {
            "layout": self._layout,
            "expert_rows": rows,
            "experts": experts,
            "top_k": top_k,
            "in_dtype": in_dtype,
        }

    def _emit(
        self, operator: ExpertLinear, inputs: Sequence[nn.Tensor], shape: tuple[Index, ...]
    ) -> nn.Tensor:
        return emit(operator, [*inputs, *self._tensors], [(shape, "float32")])[0]


class StoredMatrices:
    """Makes the matrices of a model from its storage plan, by parameter name."""

    def __init__(self, plan: Sequence[StoredParameter]) -> None:
        self._stored = {stored.parameter.name: stored for stored in plan}

    def matrix(self, name: str) -> QuantizedMatrix:
        """The matrix of parameter `name`."""
        is_stepped = steps_name(name) in self._stored
        return QuantizedMatrix(self._stored[name], is_stepped=is_stepped)

    def experts(self, name: str) -> QuantizedExperts:
        """The matrices of all experts, parameter `name`."""
        return QuantizedExperts(self._stored[name])

    def dense(self, name: str) -> nn.Parameter:
        """The one tensor of parameter `name`, which is stored densely."""
        (tensor,) = self._stored[name].tensors
        return nn.Parameter(tensor.shape, tensor.dtype)
