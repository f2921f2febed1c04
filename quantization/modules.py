"""Relax modules that hold stored weights: matrices, the experts' matrices, and what makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.matrices import Experts
from gemma4_compile.model_spec.pending import PendingChoice, QuantizedVector, quantize_rows
from gemma4_compile.operators.activation_quantization import quantized_specs
from gemma4_compile.operators.base import TensorSpec, emit
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import (
    ExpertDown,
    ExpertGateUp,
    ExpertGemm,
    OverExperts,
)
from gemma4_compile.operators.int8_linear import (
    PACKED,
    PACKED_ROWS,
    Int8ExpertDown,
    Int8ExpertGateUp,
    Int8ExpertGemm,
)
from gemma4_compile.quantization.matrix import KernelLimits, QuantizedMatrix
from gemma4_compile.quantization.recipe import StoredParameter

_INT8_BUFFERS = 6  # of Int8ExpertDown, besides its weights


class QuantizedExperts(QuantizedMatrix):
    """The stored matrices of all experts; only those that a position chose are read."""

    @property
    def interleaved(self) -> bool | None:
        """The byte order of packed vectors that they multiply; None if they take several calls."""
        limit = self.limits.max_buffers
        fits = limit is None or len(self.stored.tensors) + _INT8_BUFFERS <= limit
        return super().interleaved if fits else None

    def _fields(self, top_k: int, in_dtype: str) -> dict[str, Any]:
        rows = self.stored.parameter.row_group
        return {
            "expert_rows": rows,
            "experts": self.stored.parameter.shape[0] // rows,
            "top_k": top_k,
            "in_dtype": in_dtype,
        }

    def _run(
        self,
        operator: type[ExpertGateUp] | type[ExpertDown] | type[ExpertGemm],
        inputs: Sequence[nn.Tensor],
        shape: tuple[Any, ...],
        top_k: int,
        **fields: Any,
    ) -> nn.Tensor:
        result: nn.Tensor | None = None
        expert_rows = self.stored.parameter.row_group
        in_dtype = PACKED if issubclass(operator, Int8ExpertGemm) else inputs[0].dtype
        for parts in self._calls(len(inputs) + 1, len(inputs) + 2):
            description = operator(
                **self._layout_fields(parts),
                **self._fields(top_k, in_dtype),
                expert_begin=parts[0].row_begin // expert_rows,
                accumulate=result is not None,
                **fields,
            )
            previous = [] if result is None else [result]
            args = [*inputs, *self._tensors(parts), *previous]
            (result,) = emit(description, args, [(shape, "float32")])
        assert result is not None, "a stored matrix has at least one part"
        return result

    def _run_int8(
        self, operator: OverExperts, inputs: Sequence[nn.Tensor], specs: Sequence[TensorSpec]
    ) -> tuple[nn.Tensor, ...]:
        return emit(operator, [*inputs, *self._tensors(self.stored.parts)], specs)

    def gate_up(self, choice: PendingChoice, reader: Experts) -> nn.Tensor | QuantizedVector:
        """Gate and up of one position's experts, in the form that `reader` takes.

        (top_k, width) float32 or packed. The int8 form chooses by itself.
        """
        top_k, rows = choice.top_k, self.stored.parameter.row_group
        order = reader.interleaved
        packs = self.interleaved is not None and order is not None
        cols = self.stored.parameter.shape[1]
        if not packs or rows % PACKED_ROWS or cols > self.limits.fused_width:
            return self._run(ExpertGateUp, [choice.routed, choice.ids], (top_k, rows // 2), top_k)
        operator = Int8ExpertGateUp(
            **self._layout_fields(self.stored.parts),
            **self._fields(top_k, choice.routed.dtype),
            interleaved_out=bool(order),
        )
        specs: list[TensorSpec] = [*quantized_specs(rows // 2, top_k), ((1, top_k), "int32")]
        words, scales, ids = self._run_int8(operator, [choice.routed], specs)
        choice.found(ids)
        return QuantizedVector(words, scales)

    def down(self, x: nn.Tensor | QuantizedVector, choice: PendingChoice) -> nn.Tensor:
        """Weighted down of one position's experts: (top_k, width) -> (1, hidden_size) f32."""
        top_k, shape = choice.top_k, (1, self.stored.parameter.row_group)
        if not isinstance(x, QuantizedVector):
            return self._run(ExpertDown, [x, choice.ids, choice.weights], shape, top_k)
        operator = Int8ExpertDown(
            **self._layout_fields(self.stored.parts), **self._fields(top_k, PACKED)
        )
        inputs = [x.words, x.scales, choice.ids, choice.routed, choice.expert_scale]
        return self._run_int8(operator, inputs, [(shape, "float32")])[0]

    def grouped(
        self, x: nn.Tensor, order: nn.Tensor, tiles: nn.Tensor, top_k: int, epilogue: Epilogue
    ) -> nn.Tensor:
        """Matmul of a chunk's pairs in the order of `PermuteByExpert`: (pairs, outputs) f32."""
        rows = self.stored.parameter.row_group
        outputs = rows // 2 if epilogue is Epilogue.GELU_PAIRS else rows
        shape, interleaved = (order.shape[0], outputs), super().interleaved
        if interleaved is None:
            return self._run(ExpertGemm, [x, order, tiles], shape, top_k, epilogue=epilogue.value)
        packed = quantize_rows(x, None, interleaved)
        inputs = [packed.words, packed.scales, order, tiles]
        return self._run(Int8ExpertGemm, inputs, shape, top_k, epilogue=epilogue.value)


class StoredMatrices:
    """Makes the matrices of a model from its storage plan, by parameter name."""

    def __init__(self, plan: Sequence[StoredParameter], limits: KernelLimits) -> None:
        self._stored = {stored.parameter.name: stored for stored in plan}
        self._limits = limits

    def matrix(self, name: str) -> QuantizedMatrix:
        """The matrix of parameter `name`."""
        return QuantizedMatrix(self._stored[name], self._limits)

    def experts(self, name: str) -> QuantizedExperts:
        """The matrices of all experts, parameter `name`."""
        return QuantizedExperts(self._stored[name], self._limits)
