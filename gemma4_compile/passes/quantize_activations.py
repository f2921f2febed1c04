"""Dynamic activation quantisation: matmuls that multiply int8 groups (W4A8, W8A8).

Of one position::

    y = linear(x, weights)                    y = int8_linear(x, weights)

which rounds x by itself; where no fusion took the norm or the combine before it afterwards::

    residual, hidden = residual_norm(...)     residual, words, scales = quantized_norm(...)
    y = int8_linear(hidden, weights)          y = int8_linear(words, scales, weights)

Gate and up give their product quantised for down. Of a chunk::

    y = linear(x, weights)                    words, scales = quantize_rows(x)
                                              y = int8_linear(words, scales, weights)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    PACKED_ROWS,
    QuantizeRows,
    quantized_specs,
)
from gemma4_compile.operators.activations import INT8, PACKED, PackedOutput
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.moe import TopKExperts
from gemma4_compile.operators.rows import One
from gemma4_compile.passes.fuse_attention_combine import combine_of
from gemma4_compile.passes.fuse_norm_linear import (
    NormCall,
    int8_matmuls,
    is_stacked,
    norm_of,
)
from gemma4_compile.passes.fusion_limits import FusionLimits, buffers
from gemma4_compile.passes.operator_graph import (
    AnyCall,
    OperatorCall,
    OperatorGraph,
    is_call_of,
    result_vars,
)

Matmul = OperatorCall[Linear | ExpertLinear]


def quantize_activations(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Let every matmul whose weights allow it multiply int8 groups."""
    if not limits.int8:
        return
    for linear in graph.calls(Linear):
        if not linear.operator.layout.takes_int8 or linear.operator.stepped_out is not None:
            continue  # the steps of such inputs are the checkpoint's
        if not isinstance(linear.operator.rows, One):
            _quantize_before(graph, linear)
        elif _may_round(graph, linear, limits):
            operator = replace(linear.operator, activations=INT8)
            graph.replace([linear], [OperatorCall(operator, linear.args, linear.results)])
    for gate_up in _by_groups(graph):
        _quantize_product(graph, gate_up)
    for experts in graph.calls(ExpertLinear):
        if isinstance(experts.operator.rows, One):
            if experts.operator.is_gate_up:
                _quantize_experts(graph, experts, limits)
        elif experts.operator.layout.takes_int8:
            _quantize_before(graph, experts)


def quantize_unfused(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Quantise what no matmul does for itself, in the launch that makes it: after the fusions."""
    del limits
    for linear in _by_groups(graph):
        operator = linear.operator
        if not (isinstance(operator.rows, One) and operator.is_plain):
            continue
        if operator.in_dtype == PACKED:
            continue
        norm, combine = norm_of(graph, linear), combine_of(graph, linear)
        if norm is not None and len(norm.results) > 1:
            _quantize_norm(graph, norm, linear)
        elif combine is not None:
            _quantize_combine(graph, combine, linear)


def _by_groups(graph: OperatorGraph) -> list[OperatorCall[Linear]]:
    """The matmuls on int8 that is not the checkpoint's."""
    return [call for call in int8_matmuls(graph) if call.operator.is_by_groups]


def _may_round(graph: OperatorGraph, linear: OperatorCall[Linear], limits: FusionLimits) -> bool:
    """Return whether the kernel can round its vector, or what makes the vector can."""
    if linear.operator.cols <= limits.width or combine_of(graph, linear) is not None:
        return True
    norm, before = norm_of(graph, linear), graph.producer(linear.args[0])
    if norm is not None and len(norm.results) > 1:
        return True
    return before is not None and _may_quantize_product(graph, before)


def _may_quantize_product(graph: OperatorGraph, gate_up: AnyCall) -> bool:
    """Return whether a matmul is gate and up of one position with a quantisable product."""
    operator = gate_up.operator
    return (
        type(operator) is Linear
        and operator.is_by_groups
        and isinstance(operator.rows, One)
        and operator.epilogue == Epilogue.GELU_PAIRS.value
        and operator.layout.rows % PACKED_ROWS == 0
        and graph.reader_count(gate_up.results[0]) == 1
    )


def _on_packed(matmul: Matmul, packed: Sequence[relax.Var]) -> AnyCall:
    """The matmul on words and scales in the place of its vector."""
    operator = replace(matmul.operator, in_dtype=PACKED, activations=INT8)
    return OperatorCall(operator, [*packed, *matmul.args[1:]], matmul.results)


def _quantize_before(graph: OperatorGraph, matmul: Matmul) -> None:
    """The rows in a launch of their own, before the matmul."""
    rounding, packed = _rounding(matmul.args[0], matmul)
    graph.replace([matmul], [rounding, _on_packed(matmul, packed)])


def _rounding(x: relax.Expr, matmul: Matmul) -> tuple[AnyCall, list[relax.Var]]:
    """The call that quantises the rows of x for a matmul, and its words and scales."""
    operator = matmul.operator
    width = int(x.ty.shape[1])
    order = PackedOutput(operator.layout.products.interleaved)
    quantize = QuantizeRows(operator.rows, width, str(x.ty.dtype), order)
    packed = result_vars("quantized", quantized_specs(width, x.ty.shape[0]))
    return OperatorCall(quantize, [x], packed), packed


def _quantize_product(graph: OperatorGraph, gate_up: OperatorCall[Linear]) -> None:
    """Gate and up whose one reader takes int8: their product leaves the kernel quantised."""
    down = graph.only_reader(gate_up.results[0])
    if not is_call_of(down, Linear) or type(down.operator) is not Linear:
        return
    if not down.operator.is_by_groups:
        return
    if not _may_quantize_product(graph, gate_up):
        return
    interleaved = down.operator.layout.products.interleaved
    operator = replace(gate_up.operator, output=PackedOutput(interleaved))
    packed = result_vars("product", quantized_specs(operator.outputs))
    graph.replace([gate_up], [OperatorCall(operator, gate_up.args, packed)])
    graph.replace([down], [_on_packed(down, packed)])


def _quantize_norm(graph: OperatorGraph, norm: NormCall, linear: OperatorCall[Linear]) -> None:
    if is_stacked(norm):
        _quantize_before(graph, linear)
        return
    order = linear.operator.layout.products.interleaved
    quantize = replace(norm.operator, output=PackedOutput(order))
    packed = result_vars("quantized", quantized_specs(norm.operator.width))
    made = OperatorCall(quantize, norm.args, [norm.results[0], *packed])
    graph.replace([norm, linear], [made, _on_packed(linear, packed)])


def _quantize_combine(
    graph: OperatorGraph, combine: OperatorCall[CombineSplits], linear: OperatorCall[Linear]
) -> None:
    operator = combine.operator
    if operator.head_dim % GROUP:  # a group of channels is in two heads
        _quantize_before(graph, linear)
        return
    order = linear.operator.layout.products.interleaved
    quantize = replace(operator, output=PackedOutput(order))
    packed = result_vars("quantized", quantized_specs(operator.heads * operator.head_dim))
    made = OperatorCall(quantize, combine.args, packed)
    graph.replace([combine, linear], [made, _on_packed(linear, packed)])


def _quantize_experts(
    graph: OperatorGraph, gate_up: OperatorCall[ExpertLinear], limits: FusionLimits
) -> None:
    """Both matmuls of the chosen experts, which then choose and weigh by themselves."""
    routed, ids, *gate_up_weights = gate_up.args
    choice, down = graph.producer(ids), graph.only_reader(gate_up.results[0])
    if not is_call_of(choice, TopKExperts) or not is_call_of(down, ExpertLinear):
        return
    first, second, down_weights = gate_up.operator, down.operator, down.args[3:]
    int8 = first.layout.takes_int8 and second.layout.takes_int8
    fits = limits.max_buffers is None or (
        max(buffers(gate_up_weights), buffers(down_weights)) + _DOWN_BUFFERS <= limits.max_buffers
    )
    if not int8 or not fits or first.expert_rows % PACKED_ROWS or first.cols > limits.width:
        return
    width = first.expert_rows // 2
    words, scales = result_vars("product", quantized_specs(width, first.top_k))
    output = PackedOutput(second.layout.products.interleaved)
    new_gate_up = replace(first, activations=INT8, output=output)
    new_down = replace(second, activations=INT8, in_dtype=PACKED)
    expert_scale = choice.args[1]
    graph.replace(
        [choice, gate_up],
        [OperatorCall(new_gate_up, [routed, *gate_up_weights], [words, scales, ids])],
    )
    args = [words, scales, ids, routed, expert_scale, *down_weights]
    graph.replace([down], [OperatorCall(new_down, args, down.results)])


_DOWN_BUFFERS = 6  # of down, besides its weights
