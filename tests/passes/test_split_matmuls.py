"""Before and Expected of matmuls and lookups with more row splits than a kernel may bind."""

import pytest
from tvm.relax.frontend import nn

from gemma4_compile.operators.activations import SteppedOutput
from gemma4_compile.operators.drafting import CandidateLogits
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import OF_PLACES, WHOLE, Embedding
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.split_matmuls import split_calls, split_matmuls
from tests.passes.operator_modules import (
    F32,
    Tensors,
    assert_same,
    call,
    kinds,
    module,
    rewritten,
    weights,
)

LAYOUT = WeightLayout(4, "float16", 32, 64, (16, 16, 8))


def part(first: int, last: int) -> WeightLayout:
    return WeightLayout(4, "float16", 32, 64, LAYOUT.split_rows[first:last])


def names(first: int, last: int) -> list[str]:
    return [f"{kind}{i}" for i in range(first, last) for kind in ("q_weight", "q_scale")]


@pytest.mark.parametrize(
    ("count", "first", "later", "expected"),
    [
        (3, 3, 3, [(0, 3)]),
        (8, 3, 2, [(0, 3), (3, 5), (5, 7), (7, 8)]),
        (1, 4, 1, [(0, 1)]),
    ],
)
def test_splits_are_divided_among_calls(
    count: int, first: int, later: int, expected: list[tuple[int, int]]
) -> None:
    assert [(r.start, r.stop) for r in split_calls(count, first, later)] == expected


def test_a_matmul_becomes_several_whose_results_are_joined() -> None:
    inputs = {"x": ((1, 64), F32), **weights(LAYOUT)}

    def before(x: Tensors) -> list[nn.Tensor]:
        operator = Linear(rows=ONE, in_dtype=F32, suppressed=(3, 33), layout=LAYOUT)
        return call(operator, [x["x"], *(x[n] for n in names(0, 3))], ((1, 40), F32))

    def expected(x: Tensors) -> list[nn.Tensor]:
        results = []
        for (first, last), rows, suppressed in (((0, 2), 32, (3,)), ((2, 3), 8, (1,))):
            operator = Linear(
                rows=ONE, in_dtype=F32, suppressed=suppressed, layout=part(first, last)
            )
            args = [x["x"], *(x[n] for n in names(first, last))]
            results += call(operator, args, ((1, rows), F32))
        return [nn.op.concat(results, dim=1)]

    after = rewritten(module(inputs, before), FusionLimits(max_buffers=6), split_matmuls)
    assert_same(after, module(inputs, expected))
    whole = FusionLimits(max_buffers=8)
    assert_same(rewritten(module(inputs, before), whole, split_matmuls), module(inputs, before))


def test_rows_that_are_apart_keep_the_steps_of_their_sources() -> None:
    inputs = {"x": ((1, 64), F32), **weights(LAYOUT), "steps": ((6,), F32)}

    def matmul(
        x: Tensors, layout: WeightLayout, first: int, sections: tuple[int, ...]
    ) -> list[nn.Tensor]:
        operator = Linear(ONE, layout, F32, output=SteppedOutput(sections))
        last = first + len(layout.split_rows)
        args = [x["x"], *(x[n] for n in names(first, last)), x["steps"]]
        return call(operator, args, ((1, layout.rows), F32))

    def expected(x: Tensors) -> list[nn.Tensor]:
        results = [*matmul(x, part(0, 2), 0, (20, 12, 0)), *matmul(x, part(2, 3), 2, (0, 1, 7))]
        return [nn.op.concat(results, dim=1)]

    before = module(inputs, lambda x: matmul(x, LAYOUT, 0, (20, 13, 7)))
    after = rewritten(before, FusionLimits(max_buffers=7), split_matmuls)
    assert_same(after, module(inputs, expected))


@pytest.mark.parametrize("table", [WHOLE, OF_PLACES])
def test_a_lookup_passes_its_rows_on(table: str) -> None:
    inputs = {"ids": ((2,), "int32"), "places": ((2,), "int32"), **weights(LAYOUT)}
    shape = ((2, 64), F32)

    def first(x: Tensors) -> list[nn.Tensor]:
        return [x["ids"]] if table == WHOLE else [x["ids"], x["places"]]

    def before(x: Tensors) -> list[nn.Tensor]:
        operator = Embedding(CHUNK, LAYOUT, 0, 8.0, accumulate=False, table=table)
        return call(operator, [*first(x), *(x[n] for n in names(0, 3))], shape)

    def expected(x: Tensors) -> list[nn.Tensor]:
        previous: list[nn.Tensor] = []
        for begin, last, row in ((0, 2, 0), (2, 3, 32)):
            layout, is_later = part(begin, last), begin > 0
            operator = Embedding(CHUNK, layout, row, 8.0, accumulate=is_later, table=table)
            args = [*first(x), *(x[n] for n in names(begin, last)), *previous]
            previous = call(operator, args, shape)
        return previous

    limits = FusionLimits(max_buffers=6 if table == WHOLE else 7)
    after = rewritten(module(inputs, before), limits, split_matmuls)
    assert_same(after, module(inputs, expected))


def test_logits_of_candidates_pass_on_those_of_other_rows() -> None:
    inputs = {"x": ((1, 64), F32), "tokens": ((5,), "int32"), **weights(LAYOUT)}
    shape = ((1, 5), F32)

    def before(x: Tensors) -> list[nn.Tensor]:
        args = [x[n] for n in ("x", "tokens", *names(0, 3))]
        return call(CandidateLogits(5, LAYOUT, F32), args, shape)

    def expected(x: Tensors) -> list[nn.Tensor]:
        previous: list[nn.Tensor] = []
        for first, last, row in ((0, 2, 0), (2, 3, 32)):
            operator = CandidateLogits(5, part(first, last), F32, row, first > 0)
            args = [x[n] for n in ("x", "tokens", *names(first, last))]
            previous = call(operator, [*args, *previous], shape)
        return previous

    after = rewritten(module(inputs, before), FusionLimits(max_buffers=7), split_matmuls)
    assert_same(after, module(inputs, expected))


def test_experts_in_several_calls_add_up() -> None:
    inputs = {
        "x": ((2, 64), F32),
        "ids": ((1, 2), "int32"),
        "chosen": ((1, 2), F32),
        **weights(WeightLayout(4, "float16", 32, 64, (32, 32))),
    }
    layout = WeightLayout(4, "float16", 32, 64, (32, 32))

    def before(x: Tensors) -> list[nn.Tensor]:
        operator = ExpertLinear(
            layout, expert_rows=16, experts=4, top_k=2, in_dtype=F32, epilogue="none"
        )
        args = [x[n] for n in ("x", "ids", "chosen", *names(0, 2))]
        return call(operator, args, ((1, 16), F32))

    def expected(x: Tensors) -> list[nn.Tensor]:
        previous: list[nn.Tensor] = []
        half = WeightLayout(4, "float16", 32, 64, (32,))
        for index in range(2):
            operator = ExpertLinear(
                half,
                expert_rows=16,
                experts=4,
                top_k=2,
                in_dtype=F32,
                expert_begin=2 * index,
                accumulate=index > 0,
                epilogue="none",
            )
            args = [x[n] for n in ("x", "ids", "chosen", *names(index, index + 1))]
            previous = call(operator, [*args, *previous], ((1, 16), F32))
        return previous

    after = rewritten(module(inputs, before), FusionLimits(max_buffers=7), split_matmuls)
    assert_same(after, module(inputs, expected))
    assert kinds(after) == ["expert_down", "expert_down"]
