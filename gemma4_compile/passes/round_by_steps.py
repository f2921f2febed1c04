"""The steps of a checkpoint in the launches around them, and matmuls on integers of them.

Before::

    h = round_to_step(x, steps)
    y = linear(h, weights, steps)

After, of one position whose vector fits into a block's shared memory::

    y = stepped_linear(x, weights, steps)

to which other passes then add what makes x, or which reads words where a combine of splits stays a
launch of its own, which rounds. Gate and up of one position round their product for
down, which reads it alone. Where matrices have a scale a row, and the target has products of int8,
all of them multiply integers: of one position as above, of a chunk::

    words = round_to_step(x, steps)
    y = stepped_int8_linear(words, weights, steps)
"""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from gemma4_compile.operators.activation_quantization import GROUP, PACKED_ROWS
from gemma4_compile.operators.activations import (
    AS_FLOATS,
    IN_ORDER,
    INTERLEAVED,
    PACKED,
    STEPPED,
    STEPPED_INT8,
    SteppedOutput,
)
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.rows import One
from gemma4_compile.operators.static_rounding import RoundToStep, words_spec
from gemma4_compile.passes.fuse_attention_combine import combine_of
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import (
    OperatorCall,
    OperatorGraph,
    result_vars,
)

Matmul = OperatorCall[Linear]
Rounding = OperatorCall[RoundToStep]


def round_by_steps(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Let matmuls, or what they read, round to steps."""
    for linear in graph.calls(Linear):
        rounding = graph.only_producer(linear.args[0], RoundToStep)
        if rounding is None or linear.operator.stepped_out is None:
            continue
        if _is_on_integers(linear.operator, limits):
            _multiply_integers(graph, rounding, linear, limits)
        elif limits.folds_steps:
            _round_for_floats(graph, rounding, linear, limits)


def round_combines(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Let the combine of an attention's splits round for a matmul that did not take it in."""
    del limits
    for linear in graph.calls(Linear):
        combine = combine_of(graph, linear) if _rounds_itself(linear.operator) else None
        if combine is None or combine.operator.head_dim % GROUP:
            continue
        reader = linear.operator
        steps = linear.args[1 + len(reader.layout.shapes())]
        output = SteppedOutput((), True, int(steps.ty.shape[0]), _order_of(reader))
        operator = replace(combine.operator, output=output)
        (words,) = result_vars("words", [words_spec(reader.cols)])
        graph.replace(
            [combine, linear],
            [OperatorCall(operator, [*combine.args, steps], [words]), _on_words(linear, words)],
        )


def _rounds_itself(operator: Linear) -> bool:
    """Whether a matmul on integers of one position rounds a vector that it is given."""
    is_one = isinstance(operator.rows, One) and operator.is_plain
    return is_one and operator.steps_in and operator.is_int8 and operator.in_dtype != PACKED


def _is_on_integers(operator: Linear, limits: FusionLimits) -> bool:
    stepped = operator.stepped_out
    is_step = stepped is not None and stepped.has_input_step
    return limits.int8 and is_step and operator.layout.takes_steps


def _multiply_integers(
    graph: OperatorGraph, rounding: Rounding, linear: Matmul, limits: FusionLimits
) -> None:
    operator = linear.operator
    if isinstance(operator.rows, One):
        before = _gate_up_of(graph, rounding)
        if before is not None and before.operator.is_int8:
            (words,) = result_vars("words", [words_spec(before.operator.outputs)])
            _round_product(graph, before, rounding, linear, words)
            return
        if operator.cols <= limits.width:
            _round_in_matmul(graph, rounding, linear, as_int8=True)
            return
    (words,) = result_vars("words", [words_spec(operator.cols, rounding.args[0].ty.shape[0])])
    packing = replace(rounding.operator, result=_order_of(operator))
    graph.replace([rounding], [OperatorCall(packing, rounding.args, [words])])
    graph.replace([linear], [_on_words(linear, words)])


def _round_for_floats(
    graph: OperatorGraph, rounding: Rounding, linear: Matmul, limits: FusionLimits
) -> None:
    before = _gate_up_of(graph, rounding)
    if before is not None:
        _round_product(graph, before, rounding, linear, None)
    elif isinstance(linear.operator.rows, One) and linear.operator.cols <= limits.width:
        _round_in_matmul(graph, rounding, linear, as_int8=False)


def _round_in_matmul(
    graph: OperatorGraph, rounding: Rounding, linear: Matmul, *, as_int8: bool
) -> None:
    """Let the kernel of a matmul round its vector."""
    operator = replace(
        linear.operator,
        in_dtype=rounding.operator.in_dtype,
        activations=STEPPED_INT8 if as_int8 else STEPPED,
    )
    args = [*rounding.args[:1], *linear.args[1:]]
    graph.replace([rounding, linear], [OperatorCall(operator, args, linear.results)])


def _gate_up_of(graph: OperatorGraph, rounding: Rounding) -> Matmul | None:
    """The matmul of gate and up whose product is rounded, and read by nothing else."""
    before = graph.only_producer(rounding.args[0], Linear)
    if before is None or before.operator.stepped_out is None or not before.operator.is_paired:
        return None
    if before.operator.is_int8:
        return before if before.operator.layout.rows % PACKED_ROWS == 0 else None
    return before


def _round_product(
    graph: OperatorGraph,
    gate_up: Matmul,
    rounding: Rounding,
    linear: Matmul,
    words: relax.Var | None,
) -> None:
    """Let gate and up round their product: to floats, or to words for a matmul on integers."""
    stepped = gate_up.operator.stepped_out
    assert stepped is not None, "it has steps"
    form = AS_FLOATS if words is None else _order_of(linear.operator)
    output = replace(stepped, reader_steps=rounding.operator.count, result=form)
    operator = replace(gate_up.operator, output=output)
    behind_steps = 1 + len(operator.layout.shapes()) + 1
    args = [*gate_up.args[:behind_steps], rounding.args[1], *gate_up.args[behind_steps:]]
    results = rounding.results if words is None else [words]
    graph.replace([gate_up, rounding], [OperatorCall(operator, args, results)])
    if words is not None:
        graph.replace([linear], [_on_words(linear, words)])


def _order_of(operator: Linear) -> str:
    return INTERLEAVED if operator.layout.products.interleaved else IN_ORDER


def _on_words(linear: Matmul, words: relax.Var) -> Matmul:
    """The matmul on words in the place of its vector."""
    operator = replace(linear.operator, in_dtype=PACKED, activations=STEPPED_INT8)
    return OperatorCall(operator, [words, *linear.args[1:]], linear.results)
