"""Matmuls between steps that a checkpoint fixes: definitions next to NumPy, kernels to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.activation_quantization import byte_of
from gemma4_compile.operators.activations import (
    AS_FLOATS,
    IN_ORDER,
    INTERLEAVED,
    PACKED,
    STEPPED,
    STEPPED_INT8,
    SteppedOutput,
)
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.prologues import Combine, Norm
from gemma4_compile.operators.rows import CHUNK, ONE, Few, Rows
from gemma4_compile.operators.static_rounding import RoundToStep
from gemma4_compile.quantization.bfloat16 import BFloat16Scheme
from gemma4_compile.quantization.rows import RowScheme
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.spec import INT8
from tests.marks import shares
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.numerics.linear.test_linear import close, gelu, stored
from tests.web.dawn import VulkanDriver

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
FEW = 9
PAIRS, GATE, CAPPED = (
    one.value for one in (Epilogue.GELU_PAIRS, Epilogue.GELU_GATE, Epilogue.SOFTCAP)
)


def held(values: Floats, step: float | Floats) -> Floats:
    """As transformers rounds; NumPy's rounding takes the even of two."""
    return np.clip(np.round(values / step), -128, 127) * step


def layout(bits: int, cols: int, *rows: int) -> WeightLayout:
    return WeightLayout(bits, "float32", 32, cols, rows)


def by_rows(bits: int, cols: int, *rows: int, block: int = 0) -> WeightLayout:
    """As `RowScheme` has it."""
    return RowScheme(bits, block).layout(cols, rows)


def test_inputs_go_to_the_nearest_step_and_ties_to_the_even_one() -> None:
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 126.6, 500.0, -500.0]], np.float32)
    y = np.zeros_like(x)
    run(RoundToStep(x.shape[1], "float32", 2), x, np.array([1.0, 9.0], np.float32), y)
    assert y.tolist() == [[0, 2, 2, 0, -2, 0, 127, 127, -128]]


def test_a_step_of_zero_rounds_nothing() -> None:
    x = np.array([[0.3, -700.0]], np.float32)
    y = np.zeros_like(x)
    run(RoundToStep(2, "float32", 2), x, np.zeros(2, np.float32), y)
    assert (y == x).all()


@pytest.mark.parametrize("order", [IN_ORDER, INTERLEAVED])
def test_a_combine_of_splits_gives_integers_of_the_step_that_reads_it(order: str) -> None:
    heads, dim, splits, step = 3, 64, 5, np.float32(2.0**-5)
    rng = np.random.default_rng(11)
    partial = rng.normal(0, 2, (splits, heads, dim)).astype(np.float32)
    lse = rng.uniform(0.5, 3, (splits, heads, 2)).astype(np.float32)
    words = np.zeros((1, heads * dim // 4), np.uint32)

    operator = CombineSplits(
        heads, dim, splits, "float32", output=SteppedOutput((), True, 2, order)
    )
    run(operator, partial, lse, np.array([step, 9.0], np.float32), words)

    shares = np.exp(lse[..., 0].astype(np.float64)) * lse[..., 1]
    merged = np.einsum("sh,shd->hd", shares / shares.sum(axis=0), partial.astype(np.float64))
    steps = merged.reshape(-1, 4) / step
    assert np.abs(np.abs(steps) % 1 - 0.5).min() > 1e-4, "none is near an edge"
    expected = np.clip(np.rint(steps), -128, 127).astype(np.int8)
    places = [byte_of(byte, order == INTERLEAVED) for byte in range(4)]
    np.testing.assert_array_equal(words.view(np.int8).reshape(-1, 4), expected[:, places])


@pytest.mark.parametrize("epilogue", ["none", PAIRS])
def test_each_source_of_a_matrix_has_its_own_step(epilogue: str) -> None:
    rows, cols = 64, 96
    tensors, matrix = stored(4, "float32", (rows,))
    x = np.random.default_rng(1).normal(0, 1, (3, cols)).astype(np.float32)
    steps = np.array([0.0, 0.25, 0.0, 0.0625], np.float32)
    sections = (32, 32) if epilogue == PAIRS else (40, 24)
    y = np.zeros((3, rows // 2 if epilogue == PAIRS else rows), np.float32)

    operator = Linear(
        CHUNK, layout(4, cols, rows), "float32", epilogue, output=SteppedOutput(sections)
    )
    run(operator, x, *tensors, steps, y)

    sums = x.astype(np.float64) @ matrix.T
    if epilogue == PAIRS:
        close(y, gelu(held(sums[:, ::2], 0.25)) * held(sums[:, 1::2], 0.0625))
    else:
        close(y, held(sums, np.repeat([0.25, 0.0625], sections)))


OPERATORS = [
    RoundToStep(100, "float32", 4),
    RoundToStep(64, "float16", 2),
    Linear(ONE, layout(4, 96, 64, 40), "float32", output=SteppedOutput((64, 24, 16))),
    Linear(ONE, layout(8, 160, 72), "float32", PAIRS, output=SteppedOutput((36, 36))),
    Linear(ONE, layout(8, 96, 40), "float32", GATE, ple_width=200, output=SteppedOutput((40,))),
    Linear(CHUNK, layout(4, 96, 104), "float32", output=SteppedOutput((64, 40))),
    Linear(CHUNK, layout(8, 160, 200), "float32", PAIRS, output=SteppedOutput((100, 100))),
    Linear(
        CHUNK,
        WeightLayout(0, "float32", 0, 44, (70,)),
        "float32",
        CAPPED,
        cap=30.0,
        suppressed=(3,),
        output=SteppedOutput((70,)),
    ),
    Linear(Few(5), layout(4, 96, 64, 40), "float32", output=SteppedOutput((64, 24, 16))),
    # Words of 2 bits; a scale a row, and a block.
    Linear(ONE, by_rows(2, 96, 64, 40), "float32", output=SteppedOutput((104,))),
    Linear(ONE, by_rows(8, 160, 40), "float32", GATE, ple_width=200, output=SteppedOutput((40,))),
    Linear(CHUNK, by_rows(2, 144, 72), "float32", PAIRS, output=SteppedOutput((36, 36))),
    Linear(CHUNK, by_rows(4, 104, 70), "float32", output=SteppedOutput((30, 40))),
    Linear(Few(5), by_rows(2, 1536, 40), "float32", output=SteppedOutput((40,))),
    Linear(Few(5), by_rows(2, 96, 70), "float32", CAPPED, cap=30.0, output=SteppedOutput((70,))),
    Embedding(CHUNK, by_rows(2, 96, 64, 32), 0, 9.8, False),
    Embedding(ONE, by_rows(4, 512, 96, block=256), 0, 1.0, False),
    # What is bfloat16 in such a checkpoint.
    Linear(ONE, BFloat16Scheme().layout(96, (64, 40)), "float32"),
    Linear(CHUNK, BFloat16Scheme().layout(92, (70,)), "float32"),
    Linear(Few(5), BFloat16Scheme().layout(96, (40,)), "float32"),
    Linear(Few(5), layout(4, 96, 40), "float32", GATE, ple_width=200, output=SteppedOutput((40,))),
]


def stepped(
    rows: Rows,
    bits: int,
    cols: int,
    sections: tuple[int, ...],
    in_dtype: str = "float32",
    **more: Any,
) -> Linear:
    """A matmul that rounds its inputs, or has them in words; `more` are fields of it."""
    output = SteppedOutput(
        sections, True, more.pop("reader_steps", 0), more.pop("result", AS_FLOATS)
    )
    activations = more.pop("activations", STEPPED_INT8)
    weights = by_rows(bits, cols, *more.pop("split_rows", (sum(sections),)))
    return Linear(rows, weights, in_dtype, activations=activations, output=output, **more)


NORM, COMBINE = Norm(1e-6), Combine(heads=3, head_dim=64, splits=5)
ROUNDING = [
    RoundToStep(96, "float32", 4, INTERLEAVED),
    RoundToStep(96, "float16", 4, IN_ORDER),
    CombineSplits(3, 96, 7, "float32", output=SteppedOutput((), True, 2, INTERLEAVED)),
    CombineSplits(2, 256, 40, "float16", output=SteppedOutput((), True, 2, IN_ORDER)),
    # One position: words of 2, 4 and 8 bits, given, rounded by the kernel, and made by it.
    stepped(ONE, 2, 96, (64, 24, 16), split_rows=(64, 40)),
    stepped(ONE, 2, 1536, (70,), PACKED),
    stepped(ONE, 4, 96, (104,), PACKED),
    stepped(ONE, 8, 160, (40,), epilogue=GATE, ple_width=200),
    stepped(ONE, 8, 160, (40,), epilogue=GATE, ple_width=200, prologue=Norm(1e-6, normed=False)),
    stepped(
        ONE, 4, 288, (96, 96), epilogue=PAIRS, reader_steps=2, result=INTERLEAVED, prologue=NORM
    ),
    stepped(ONE, 2, 288, (100, 100), epilogue=PAIRS, reader_steps=2, result=IN_ORDER),
    stepped(ONE, 2, 192, (77,), prologue=COMBINE),
    stepped(ONE, 2, 192, (77,), epilogue=CAPPED, cap=30.0, suppressed=(3,)),
    # The same as floats.
    stepped(
        ONE,
        4,
        288,
        (96, 96),
        epilogue=PAIRS,
        reader_steps=2,
        activations=STEPPED,
        prologue=NORM,
    ),
    stepped(ONE, 2, 96, (70,), activations=STEPPED),
    stepped(ONE, 2, 192, (77,), activations=STEPPED, prologue=COMBINE),
    stepped(CHUNK, 2, 160, (72,), PACKED),
    stepped(CHUNK, 4, 96, (30, 40), PACKED),
    stepped(
        CHUNK,
        8,
        160,
        (100, 100),
        PACKED,
        epilogue=PAIRS,
        reader_steps=2,
        split_rows=(64, 136),
    ),
    stepped(Few(5), 2, 1536, (40,), PACKED),
    stepped(Few(5), 2, 96, (70,), PACKED, epilogue=CAPPED, cap=30.0),
    stepped(Few(5), 4, 160, (64, 40), PACKED, split_rows=(64, 40)),
    stepped(Few(5), 8, 96, (40,), PACKED, epilogue=GATE, ple_width=200),
]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_levels_of_a_row_are_multiplied_by_its_step(bits: int) -> None:
    """From weights through the scheme's words to products, without a rounding on the way."""
    rng, span = np.random.default_rng(bits), 1 << (bits - 1)
    steps = rng.uniform(0.001, 0.1, (40, 1)).astype(np.float32)
    matrix = rng.integers(-span, span, (40, 96)).astype(np.float32) * steps
    stored_arrays = RowScheme(bits).store(matrix, name="w", first_row=0)
    x = rng.normal(0, 1, (3, 96)).astype(np.float32)
    y = np.zeros((3, 40), np.float32)
    run(Linear(CHUNK, by_rows(bits, 96, 40), "float32"), x, *stored_arrays, y)
    close(y, x.astype(np.float64) @ matrix.T.astype(np.float64))


@pytest.mark.dawn
@pytest.mark.parametrize("numbered", shares(OPERATORS, 2, left=2))
def test_kernels_compute_what_the_definitions_do(
    numbered: list[tuple[int, Operator]], lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(operator, seed, rows=5) for seed, operator in numbered]
    results = run_on_dawn(cases, target_spec("webgpu"), lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.dawn
def test_kernels_round_their_inputs_as_the_definitions_do(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(operator, seed, rows=5) for seed, operator in enumerate(ROUNDING)]
    spec = replace(target_spec("webgpu"), activations=INT8)
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def test_of_values_that_are_off_as_many_move_as_they_are_off_in_steps() -> None:
    """What another order of a norm's sum does to the words that it rounds to."""
    x, step, part = np.random.default_rng(8).normal(0, 1, 1_000_000), 0.025, 2.0**-12
    moved = np.abs(held(x * (1 + part), step) - held(x, step)) / step
    assert np.rint(moved).max() == 1
    share = np.abs(x / step).mean() * part  # 0.8 %: 5 deviations of what is counted are 6 % of it
    assert abs(np.rint(moved).mean() / share - 1) < 0.06


def with_known_sums(
    rows: Rows, bits: int, cols: int, in_dtype: str = PACKED
) -> tuple[KernelCase, Floats32]:
    """A matmul whose outputs have no step, and what it gives: sums of integers, scaled once."""
    operator, rng = stepped(rows, bits, cols, (40,), in_dtype), np.random.default_rng(cols + bits)
    x = rng.integers(-128, 128, (rows.count(FEW), cols), dtype=np.int8)
    order = [4 * word + byte_of(byte, operator.interleaved)
             for word in range(cols // 4) for byte in range(4)]  # fmt: skip
    step = np.float32(2.0**-5)  # a quotient by it is exact
    given = np.ascontiguousarray(x[:, order]).view(np.uint32) if in_dtype == PACKED else x * step
    codes = rng.integers(0, 1 << bits, (40, cols)).astype(np.uint8)
    scales = rng.uniform(-0.02, 0.02, (40, 1)).astype(np.float32)
    packing = RowScheme(bits).packing
    steps, y = np.array([step, 0], np.float32), np.zeros((len(x), 40), np.float32)
    args = (given, packing.pack(codes), scales, steps, y)
    sums = x.astype(np.int64) @ (codes.astype(np.int64) - packing.zero_point).T
    assert np.abs(sums).max() < 1 << 24, "float32 holds them"
    expected = sums.astype(np.float32) * (scales * step).T
    return KernelCase(operator, args, (len(args) - 1,), (expected,)), expected


@pytest.mark.dawn
def test_a_row_of_a_few_has_the_bits_of_one_alone(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    """Lanes' sums are integers, so that their number, which is the kernel's own, says nothing."""
    wanted: list[tuple[Rows, int, int, str]] = [
        (rows, bits, cols, PACKED)
        for bits, cols in ((2, 1536), (4, 416), (8, 1536))
        for rows in (ONE, Few(FEW))
    ]
    found = [with_known_sums(*one) for one in [*wanted, (ONE, 4, 416, "float32")]]
    spec = replace(target_spec("webgpu"), activations=INT8)
    results = run_on_dawn([case for case, _ in found], spec, lavapipe, tmp_path)
    for (case, expected), (result,) in zip(found, results, strict=True):
        np.testing.assert_array_equal(result, expected, err_msg=str(case.operator))
