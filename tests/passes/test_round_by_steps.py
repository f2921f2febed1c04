"""Before and Expected of rounding to a checkpoint's steps in the launches around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile.operators.activations import (
    INTERLEAVED,
    PACKED,
    STEPPED,
    STEPPED_INT8,
    Activations,
    SteppedOutput,
)
from gemma4_compile.operators.attention_splits import CombineSplits, splits_specs
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import CHUNK, ONE, Rows
from gemma4_compile.operators.static_rounding import RoundToStep, words_spec
from gemma4_compile.operators.types import Index
from gemma4_compile.passes.fuse_attention_combine import fuse_attention_combine
from gemma4_compile.passes.fuse_norm_linear import fuse_norm_linear
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.quantize_activations import quantize_activations, quantize_unfused
from gemma4_compile.passes.round_by_steps import round_by_steps, round_combines
from gemma4_compile.quantization.rows import RowScheme
from gemma4_compile.targets.tuning import FusionTuning
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

COLS, WIDE = 64, 128
LAYOUT = RowScheme(4).layout(COLS, (WIDE,))
DOWN = RowScheme(2).layout(COLS, (40,))
OUTPUT = SteppedOutput((WIDE,), True)
NAMES = ("q_weight0", "q_scale0", "steps")
FLOATS, INT8 = FusionLimits(None), FusionLimits(None, int8=True)
PASSES = (round_by_steps, quantize_activations, quantize_unfused)


def inputs(layout: WeightLayout = LAYOUT, rows: Index = 1) -> dict[str, TensorSpec]:
    return {"x": ((rows, COLS), F32), **weights(layout), "steps": ((2,), F32)}


def rounded_matmul(
    x: Tensors, layout: WeightLayout = LAYOUT, rows: Rows = ONE, output: SteppedOutput = OUTPUT
) -> list[nn.Tensor]:
    """As the model has it."""
    held = call(RoundToStep(COLS, F32, 2), [x["x"], x["steps"]], (tuple(x["x"].shape), F32))
    operator = Linear(rows, layout, F32, output=output)
    return call(operator, [*held, *(x[name] for name in NAMES)], ((x["x"].shape[0], WIDE), F32))


@pytest.mark.parametrize(
    ("limits", "activations"), [(FLOATS, STEPPED), (INT8, STEPPED_INT8)], ids=["floats", "int8"]
)
def test_one_position_is_rounded_by_its_matmul(
    limits: FusionLimits, activations: Activations
) -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        operator = Linear(ONE, LAYOUT, F32, activations=activations, output=OUTPUT)
        return call(operator, [x[name] for name in ("x", *NAMES)], ((1, WIDE), F32))

    before = module(inputs(), rounded_matmul)
    assert_same(rewritten(before, limits, *PASSES), module(inputs(), expected))


@pytest.mark.parametrize(
    ("layout", "output"),
    [
        (LAYOUT, replace(OUTPUT, has_input_step=False)),
        (WeightLayout(4, "float16", 32, COLS, (WIDE,)), OUTPUT),
        (RowScheme(4, 32).layout(COLS, (WIDE,)), OUTPUT),
    ],
    ids=["step may be 0", "groups", "blocks"],
)
def test_others_are_multiplied_as_floats(layout: WeightLayout, output: SteppedOutput) -> None:
    before = module(inputs(layout), lambda x: rounded_matmul(x, layout, output=output))
    assert kinds(rewritten(before, INT8, *PASSES)) == ["stepped_linear"]


def test_a_chunk_meets_integers_as_words() -> None:
    n = tirx.Var("n", "int64")

    def expected(x: Tensors) -> list[nn.Tensor]:
        rounding = RoundToStep(COLS, F32, 2, INTERLEAVED)
        words = call(rounding, [x["x"], x["steps"]], words_spec(COLS, x["x"].shape[0]))
        operator = Linear(CHUNK, LAYOUT, PACKED, activations=STEPPED_INT8, output=OUTPUT)
        args = [*words, *(x[name] for name in NAMES)]
        return call(operator, args, ((x["x"].shape[0], WIDE), F32))

    before = module(inputs(rows=n), lambda x: rounded_matmul(x, rows=CHUNK))
    assert_same(rewritten(before, INT8, *PASSES), module(inputs(rows=n), expected))
    assert kinds(rewritten(before, FLOATS, *PASSES)) == ["round_to_step", "linear"]


@pytest.mark.parametrize("is_small", [True, False])
def test_a_combine_of_its_own_rounds_for_the_matmul_behind_it(is_small: bool) -> None:
    heads, dim, splits = 2, COLS // 2, 4
    combine = CombineSplits(heads, dim, splits, F32)
    partial, lse = splits_specs(combine, F32)
    shapes = {"o_partial": partial, "split_lse": lse, **inputs()}
    names = ("o_partial", "split_lse")

    def before(x: Tensors) -> list[nn.Tensor]:
        (merged,) = call(combine, [x[name] for name in names], ((1, COLS), F32))
        return rounded_matmul({**x, "x": merged})

    def expected(x: Tensors) -> list[nn.Tensor]:
        steps = SteppedOutput((), True, 2, INTERLEAVED)
        made = [x[name] for name in (*names, "steps")]
        words = call(replace(combine, output=steps), made, words_spec(COLS))
        operator = Linear(ONE, LAYOUT, PACKED, activations=STEPPED_INT8, output=OUTPUT)
        return call(operator, [*words, *(x[name] for name in NAMES)], ((1, WIDE), F32))

    most = 4 * splits * COLS - (not is_small)  # bytes that every block would read
    limits = replace(INT8, max_buffers=9, tuning=FusionTuning(max_combine_bytes=most))
    passes = (round_by_steps, quantize_activations, fuse_attention_combine, round_combines)
    after = rewritten(module(shapes, before), limits, *passes)
    if is_small:
        assert kinds(after) == ["combined_stepped_int8_linear"]
    else:
        assert_same(after, module(shapes, expected))


def test_a_vector_that_no_block_holds_has_a_launch_of_its_own() -> None:
    before = module(inputs(), rounded_matmul)
    for limits, kind in ((FLOATS, "linear"), (INT8, "stepped_int8_linear")):
        found = kinds(rewritten(before, replace(limits, width=COLS - 1), *PASSES))
        assert found == ["round_to_step", kind]
    host = replace(FLOATS, folds_steps=False)
    assert kinds(rewritten(before, host, *PASSES)) == ["round_to_step", "linear"]


def gated(x: Tensors) -> list[nn.Tensor]:
    """Gate, up and down as the model has them."""
    held = call(RoundToStep(COLS, F32, 4), [x["x"], x["steps"]], ((1, COLS), F32))
    gate_up = Linear(ONE, LAYOUT, F32, "gelu_pairs", output=SteppedOutput((64, 64), True))
    product = call(gate_up, [*held, *(x[name] for name in NAMES)], ((1, COLS), F32))
    return down_of(
        x, call(RoundToStep(COLS, F32, 2), [*product, x["down_steps"]], ((1, COLS), F32))
    )


def down_of(x: Tensors, held: list[nn.Tensor], **fields: Any) -> list[nn.Tensor]:
    down = Linear(ONE, DOWN, **{"in_dtype": F32, **fields}, output=SteppedOutput((40,), True))
    names = ("down_weight", "down_scale", "down_steps")
    return call(down, [*held, *(x[name] for name in names)], ((1, 40), F32))


GATED: dict[str, TensorSpec] = {
    **inputs(),
    "steps": ((4,), F32),
    **{f"down{name[1:-1]}": spec for name, spec in weights(DOWN).items()},
    "down_steps": ((2,), F32),
}


@pytest.mark.parametrize("as_int8", [False, True])
def test_gate_and_up_round_their_product(as_int8: bool) -> None:
    def expected(x: Tensors) -> list[nn.Tensor]:
        output = SteppedOutput((64, 64), True, 2)
        own: dict[str, Any] = {"activations": STEPPED}
        fields: dict[str, Any] = {}
        spec: TensorSpec = ((1, COLS), F32)
        if as_int8:
            output, own = replace(output, result=INTERLEAVED), {"activations": STEPPED_INT8}
            spec, fields = words_spec(COLS), {"in_dtype": PACKED, **own}
        gate_up = Linear(ONE, LAYOUT, F32, "gelu_pairs", output=output, **own)
        args = [x[name] for name in ("x", *NAMES, "down_steps")]
        return down_of(x, call(gate_up, args, spec), **fields)

    after = rewritten(module(GATED, gated), INT8 if as_int8 else FLOATS, *PASSES)
    assert_same(after, module(GATED, expected))


def test_a_product_that_something_else_reads_stays_as_it_is() -> None:
    def twice(x: Tensors) -> list[nn.Tensor]:
        held = call(RoundToStep(COLS, F32, 4), [x["x"], x["steps"]], ((1, COLS), F32))
        gate_up = Linear(ONE, LAYOUT, F32, "gelu_pairs", output=SteppedOutput((64, 64), True))
        product = call(gate_up, [*held, *(x[name] for name in NAMES)], ((1, COLS), F32))
        again = call(RoundToStep(COLS, F32, 2), [*product, x["down_steps"]], ((1, COLS), F32))
        return [*product, *down_of(x, again)]

    after = kinds(rewritten(module(GATED, twice), INT8, *PASSES))
    assert after == ["stepped_int8_linear", "stepped_int8_linear"]


def test_a_norm_before_it_goes_into_the_same_launch() -> None:
    names = ("branch", "residual", "w_branch", "w_next")
    every: dict[str, TensorSpec] = {
        name: ((1, COLS) if i < 2 else (COLS,), F32) for i, name in enumerate(names)
    }
    every |= {name: spec for name, spec in inputs().items() if name != "x"}

    def before(x: Tensors) -> list[nn.Tensor]:
        norm = ResidualNorm(ONE, COLS, 1e-6, False, F32)
        row = ((1, COLS), F32)
        residual, hidden = call(norm, [x[name] for name in names], row, row)
        return [residual, *rounded_matmul({**x, "x": hidden})]

    passes = (round_by_steps, quantize_activations, fuse_norm_linear, quantize_unfused)
    for limits, kind in ((FLOATS, "stepped_linear"), (INT8, "stepped_int8_linear")):
        assert kinds(rewritten(module(every, before), limits, *passes)) == [f"normed_{kind}"]
