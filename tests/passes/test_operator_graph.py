"""Functions as lists of operator calls: who makes and reads a tensor, and what a change leaves."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn

from gemma4_compile.operators.base import emit_inplace
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import ResidualNorm, RmsNorm
from gemma4_compile.operators.rows import ONE
from gemma4_compile.operators.sampling import LogitBias
from gemma4_compile.passes.operator_graph import (
    AnyCall,
    OperatorCall,
    OperatorGraph,
    is_call_of,
    result_vars,
    rewrite,
)
from tests.passes.operator_modules import F32, Tensors, assert_same, call, kinds, module, weights

EPS, ROW, WEIGHT = 1e-6, ((1, 64), F32), ((64,), F32)
LAYOUT = WeightLayout(4, "float16", 32, 64, (64,))
INPUTS = {"x": ROW, "residual": ROW, "w": WEIGHT, "next": WEIGHT, **weights(LAYOUT)}
NORM = RmsNorm(ONE, 64, EPS, F32)


def body(x: Tensors) -> list[nn.Tensor]:
    """`residual_norm`, `linear`, a built-in addition, `rms_norm`."""
    norm = ResidualNorm(ONE, 64, EPS, False, F32)
    residual, hidden = call(norm, [x[n] for n in ("x", "residual", "w", "next")], ROW, ROW)
    stored = [x[name] for name in ("q_weight0", "q_scale0")]
    (y,) = call(Linear(rows=ONE, in_dtype=F32, layout=LAYOUT), [hidden, *stored], ROW)
    total = nn.op.add(y, residual)
    return [*call(NORM, [total, x["w"]], ROW), residual]


BEFORE = module(INPUTS, body)


def graph_of(before: tvm.IRModule = BEFORE) -> OperatorGraph:
    return OperatorGraph(before, "main")


def calls_of(graph: OperatorGraph) -> list[AnyCall]:
    return [step for step in graph.steps if isinstance(step, OperatorCall)]


def test_steps_are_the_launches_in_order_and_built_in_operators_between() -> None:
    steps = graph_of().steps
    found = [
        step.operator.kind if isinstance(step, OperatorCall) else type(step).__name__
        for step in steps
    ]
    launches = ["residual_norm", "linear", "BuiltIn", "rms_norm"]
    assert [name for name in found if name != "Other"] == launches


def test_a_call_has_the_arguments_and_results_of_its_operator() -> None:
    norm, linear, last = calls_of(graph_of())
    assert [arg.name for arg in norm.args] == ["x", "residual", "w", "next"]
    assert [result.ty.dtype for result in norm.results] == [F32, F32]
    assert linear.args[0].same_as(norm.results[1])
    assert (len(linear.results), len(last.args)) == (1, 2)


def test_a_result_that_nobody_reads_is_still_a_result() -> None:
    def first_only(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(ONE, 64, EPS, False, "float16")
        args = [x[name] for name in ("x", "residual", "w", "next")]
        both = nn.op.tensor_ir_op(
            norm.prim_func(),
            norm.name,
            args,
            [nn.Tensor.placeholder(*ROW), nn.Tensor.placeholder((1, 64), "float16")],
        )
        return [both[0]]

    before = module(INPUTS, first_only)
    (norm,) = calls_of(graph_of(before))
    assert [str(result.ty.dtype) for result in norm.results] == [F32, "float16"]
    assert graph_of(before).reader_count(norm.results[1]) == 0


def test_calls_of_a_class_leave_derived_ones_out() -> None:
    def both(x: Tensors) -> list[nn.Tensor]:
        stored = [x[name] for name in ("q_weight0", "q_scale0")]
        return [
            *call(Linear(rows=ONE, in_dtype=F32, layout=LAYOUT), [x["x"], *stored], ROW),
            *call(BoundedLinear(rows=ONE, in_dtype=F32, layout=LAYOUT), [x["x"], *stored], ROW),
        ]

    graph = graph_of(module(INPUTS, both))
    plain, bounded = calls_of(graph)
    assert graph.calls(Linear) == [plain]
    assert graph.calls(BoundedLinear) == [bounded]
    assert is_call_of(bounded, Linear)
    assert not is_call_of(plain, BoundedLinear)
    assert not is_call_of(None, Linear)


def test_producers_are_calls_of_operators_alone() -> None:
    graph = graph_of()
    norm, linear, last = calls_of(graph)
    assert graph.producer(norm.results[0]) is norm
    assert graph.producer(linear.args[0]) is norm
    assert graph.producer(norm.args[0]) is None, "a parameter"
    assert graph.producer(last.args[0]) is None, "made by a built-in operator"
    assert graph.producer(relax.const(1)) is None


def test_readers_are_calls_built_in_operators_and_the_result() -> None:
    graph = graph_of()
    norm, linear, last = calls_of(graph)
    residual, hidden = norm.results
    assert graph.reader_count(hidden) == 1
    assert graph.only_reader(hidden) is linear
    assert graph.reader_count(residual) == 2, "the addition and the function's result"
    assert graph.only_reader(residual) is None
    assert graph.only_reader(linear.results[0]) is None, "its reader is no operator"
    assert graph.reader_count(norm.args[2]) == 2, "a weight of two norms"
    assert graph.reader_count(last.results[0]) == 1


def test_an_argument_that_is_given_twice_is_read_twice() -> None:
    def twice(x: Tensors) -> list[nn.Tensor]:
        (y,) = call(NORM, [x["x"], x["w"]], ROW)
        args = [y, y, x["w"]]
        return call(ResidualNorm(ONE, 64, EPS, False, None), args, ROW)

    graph = graph_of(module(INPUTS, twice))
    (y,) = calls_of(graph)[0].results
    assert graph.reader_count(y) == 2
    assert graph.only_reader(y) is None


def test_a_result_of_the_function_is_read() -> None:
    builder = relax.BlockBuilder()
    params = [
        relax.Var("x", relax.TensorType([1, 64], F32)),
        relax.Var("w", relax.TensorType([64], F32)),
    ]
    with builder.function("main", params):
        with builder.dataflow():
            norm = builder.add_func(NORM.prim_func(), "rms_norm")
            called = relax.call_tir(norm, params, relax.TensorType([1, 64], F32))
            output = builder.emit_output(called)
        builder.emit_func_output(output)
    graph = graph_of(builder.get())
    (result,) = calls_of(graph)[0].results
    assert graph.reader_count(result) == 1
    assert graph.only_reader(result) is None


def test_reads_between_two_calls_are_those_of_neither() -> None:
    graph = graph_of()
    norm, linear, last = calls_of(graph)
    residual, hidden = norm.results
    assert not graph.is_read_between(residual, norm, linear)
    assert graph.is_read_between(residual, linear, last), "by the addition"
    assert not graph.is_read_between(hidden, linear, last)


def test_what_replaces_calls_stands_in_the_place_of_the_last_one() -> None:
    graph = graph_of()
    norm, linear, last = calls_of(graph)
    residual, hidden = norm.results
    new = OperatorCall(NORM, [norm.args[0], norm.args[2]], linear.results)
    kept = OperatorCall(NORM, [norm.args[1], norm.args[2]], [residual])
    graph.replace([norm, linear], [kept, new])

    assert calls_of(graph) == [kept, new, last]
    assert graph.producer(residual) is kept
    assert graph.producer(linear.results[0]) is new
    assert graph.producer(hidden) is None
    assert graph.reader_count(hidden) == 0
    assert graph.reader_count(norm.args[2]) == 3
    assert graph.reader_count(norm.args[0]) == 1


def test_a_function_without_a_change_stays_as_it_is() -> None:
    assert_same(rewrite(BEFORE, lambda graph: None), BEFORE)


def drop_the_matmul(graph: OperatorGraph) -> None:
    for linear in graph.calls(Linear):
        new = OperatorCall(NORM, [linear.args[0], graph.calls(RmsNorm)[0].args[1]], linear.results)
        graph.replace([linear], [new])


def test_operators_that_nothing_calls_any_more_are_gone() -> None:
    after = rewrite(BEFORE, drop_the_matmul)
    relax.analysis.well_formed(after)
    assert kinds(after) == ["residual_norm", "rms_norm", "relax.add", "rms_norm"]
    functions = [f for _, f in after.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) == 2, "both calls of the norm share one function"


def test_what_is_no_operator_stays_in_the_module() -> None:
    before = BEFORE.clone()
    plain = NORM.definition().with_attr("global_symbol", "helper")
    before["helper"] = plain
    x = relax.Var("x", relax.TensorType([1, 64], F32))
    before["identity"] = relax.Function([x], x, x.ty)
    after = rewrite(before, drop_the_matmul)
    names = {var.name_hint for var, _ in after.functions_items()}
    assert {"helper", "identity", "main"} <= names


def test_calls_in_place_are_left_as_they_are_with_what_they_call() -> None:
    spec = ((1, 64), F32)
    inputs = {"logits": spec, "map": ((2,), "int32"), "ids": ((2,), "int32"), "bias": ((2,), F32)}

    def biased(x: Tensors) -> list[nn.Tensor]:
        return list(emit_inplace(LogitBias(64), [x[name] for name in inputs], [0], [spec]))

    before = module(inputs, biased)
    graph = graph_of(before)
    assert not calls_of(graph)
    assert graph.reader_count(before["main"].params[0]) == 1
    assert_same(rewrite(before, lambda graph: None), before)


def test_every_function_is_changed() -> None:
    other = module(INPUTS, body)
    both = tvm.IRModule({**dict(BEFORE.functions_items())})
    both.update(tvm.IRModule({"second": other["main"]}))
    seen: list[int] = []
    rewrite(both, lambda graph: seen.append(len(graph.steps)))
    assert len(seen) == 2


def test_new_results_have_their_shapes_and_types() -> None:
    n = tirx.Var("n", "int64")
    first, second = result_vars("y", [((n, 4), F32), ((1,), "int32")])
    assert isinstance(first, relax.DataflowVar)
    assert first.ty.shape[0].same_as(n)
    assert (str(second.ty.dtype), int(second.ty.shape[0])) == ("int32", 1)
    assert not first.same_as(second)


def test_control_flow_in_a_block_is_an_error() -> None:
    x = relax.Var("x", relax.TensorType([1], "float32"))
    y = relax.DataflowVar("y", x.ty)
    inner = relax.Function([x], x, x.ty)
    block = relax.DataflowBlock([relax.VarBinding(y, inner)])
    function = relax.Function([x], relax.SeqExpr([block], x), x.ty)
    with pytest.raises(AssertionError, match="in a dataflow block"):
        OperatorGraph(tvm.IRModule({"main": function}), "main")


def test_built_in_operators_are_found_by_name_and_by_their_result() -> None:
    graph = graph_of()
    (addition,) = graph.calls_of_built_in("relax.add")
    (total,) = addition.results
    assert graph.built_in(total, "relax.add") is addition
    assert graph.built_in(total, "relax.multiply") is None
    assert graph.producer(total) is None, "no operator of ours"
    *_, norm = calls_of(graph)
    assert norm.args[0].same_as(total)
    assert graph.built_in(norm.results[0], "relax.add") is None
    replaced = OperatorCall(norm.operator, [addition.args[1], norm.args[1]], norm.results)
    graph.replace([addition, norm], [replaced])
    assert graph.calls_of_built_in("relax.add") == []
    assert graph.built_in(total, "relax.add") is None
    assert graph.reader_count(addition.args[0]) == 0
