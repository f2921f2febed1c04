"""Matmul and row lookup on stored weights, against NumPy on weights unpacked value by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.rows import CHUNK, ONE
from tests.numerics.definitions import F32_ABSOLUTE, F32_RELATIVE, run, values

GROUP = 32
COLS = 96
LAYOUTS = [
    (4, "float16"),
    (4, "float32"),
    (6, "float16"),
    (8, "float16"),
    (0, "float16"),
    (0, "float32"),
]
Stored = tuple[list[npt.NDArray[Any]], npt.NDArray[np.float64]]


def code_at(words: npt.NDArray[np.uint32], bits: int, col: int) -> npt.NDArray[np.uint32]:
    """The stored integers of a column, as the documentation of the packings has them."""

    def cut(word: int, shift: int, width: int) -> npt.NDArray[np.uint32]:
        return (words[:, word] >> np.uint32(shift)) & np.uint32(2**width - 1)

    if 32 % bits == 0:
        return cut(col * bits // 32, col * bits % 32, bits)
    run, channel = divmod(col, 16)
    eight, within = divmod(channel, 8)
    pair, odd = divmod(within, 2)
    low = cut(3 * run + eight, 4 * within, 4)
    return low + 16 * cut(3 * run + 2, 8 * pair + 4 * eight + 2 * odd, 2)


def stored(bits: int, dtype: str, split_rows: tuple[int, ...], cols: int = COLS) -> Stored:
    """Random stored parts and the matrix that they mean."""
    rng = np.random.default_rng(bits + len(split_rows))
    tensors: list[npt.NDArray[Any]] = []
    meaning = []
    for rows in split_rows:
        if not bits:
            dense = rng.normal(0, 0.1, (rows, cols)).astype(dtype)
            tensors.append(dense)
            meaning.append(dense.astype(np.float64))
            continue
        words = rng.integers(0, 2**32, (rows, cols * bits // 32), dtype=np.uint32)
        signs = rng.choice([-1, 1], (rows, cols // GROUP))
        scales = (rng.uniform(0.001, 0.02, signs.shape) * signs).astype(dtype)
        tensors += [words, scales]
        matrix = np.zeros((rows, cols))
        for col in range(cols):
            stored_integer = code_at(words, bits, col)
            matrix[:, col] = (stored_integer - (2.0 ** (bits - 1) - 1)) * scales[:, col // GROUP]
        meaning.append(matrix)
    return tensors, np.concatenate(meaning)


def gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def close(found: npt.NDArray[Any], expected: npt.NDArray[np.float64]) -> None:
    size = float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=F32_RELATIVE, atol=F32_ABSOLUTE * size)


@pytest.mark.parametrize("rows", [None, 1])
@pytest.mark.parametrize("split_rows", [(64,), (64, 64, 40)])
@pytest.mark.parametrize(("bits", "dtype"), LAYOUTS)
def test_linear_over_parts(
    bits: int, dtype: str, split_rows: tuple[int, ...], rows: int | None
) -> None:
    tensors, matrix = stored(bits, dtype, split_rows)
    count = rows or 3
    x = values(1, count, COLS).astype(dtype)
    y = np.zeros((count, sum(split_rows)), np.float32)

    run(
        Linear(
            ONE if rows == 1 else CHUNK,
            WeightLayout(bits, dtype, GROUP if bits else 0, COLS, split_rows),
            dtype,
        ),
        x,
        *tensors,
        y,
    )

    close(y, x.astype(np.float64) @ matrix.T)


def test_gate_and_up_are_neighbouring_rows() -> None:
    tensors, matrix = stored(4, "float16", (64,))
    x, y = values(1, 2, COLS).astype(np.float16), np.zeros((2, 32), np.float32)

    epilogue = Epilogue.GELU_PAIRS.value
    run(
        Linear(CHUNK, WeightLayout(4, "float16", GROUP, COLS, (64,)), "float16", epilogue),
        x,
        *tensors,
        y,
    )

    sums = x.astype(np.float64) @ matrix.T
    close(y, gelu(sums[:, 0::2]) * sums[:, 1::2])


def test_products_beyond_float16_stay_finite() -> None:
    tensors, matrix = stored(4, "float16", (64,))
    x, y = np.full((1, COLS), 6e4, np.float16), np.zeros((1, 32), np.float32)

    epilogue = Epilogue.GELU_PAIRS.value
    run(
        Linear(ONE, WeightLayout(4, "float16", GROUP, COLS, (64,)), "float16", epilogue),
        x,
        *tensors,
        y,
    )

    sums = x.astype(np.float64) @ matrix.T
    assert np.abs(y).max() > 65504
    close(y, gelu(sums[:, 0::2]) * sums[:, 1::2])


@pytest.mark.parametrize("layer", [0, 2])
def test_the_gate_of_a_layer_meets_that_layers_inputs(layer: int) -> None:
    tensors, matrix = stored(8, "float16", (32,))
    x, ple = values(1, 2, COLS, deviation=1e3), values(2, 2, 3 * 32)
    y = np.zeros((2, 32), np.float32)

    operator = Linear(
        CHUNK,
        WeightLayout(8, "float16", GROUP, COLS, (32,)),
        "float32",
        Epilogue.GELU_GATE.value,
        ple_width=96,
    )
    run(operator, x, *tensors, ple, layer, y)

    sums = x.astype(np.float64) @ matrix.T
    close(y, gelu(sums) * ple[:, 32 * layer : 32 * (layer + 1)])


def test_the_soft_cap_bounds_the_logits() -> None:
    tensors, matrix = stored(0, "float32", (64,))
    x, y = values(1, 1, COLS, deviation=50.0), np.zeros((1, 64), np.float32)

    operator = Linear(
        ONE, WeightLayout(0, "float32", 0, COLS, (64,)), "float32", Epilogue.SOFTCAP.value, cap=30.0
    )
    run(operator, x, *tensors, y)

    assert np.abs(y).max() <= 30.0
    close(y, 30.0 * np.tanh(x.astype(np.float64) @ matrix.T / 30.0))


@pytest.mark.parametrize("cap", [None, 30.0])
@pytest.mark.parametrize("rows", [None, 1])
def test_suppressed_columns_are_so_low_that_nobody_chooses_them(
    rows: int | None, cap: float | None
) -> None:
    tensors, matrix = stored(4, "float16", (64, 64))
    x, y = values(1, rows or 3, COLS), np.zeros((rows or 3, 128), np.float32)

    epilogue = Epilogue.NONE if cap is None else Epilogue.SOFTCAP
    operator = Linear(
        ONE if rows == 1 else CHUNK,
        WeightLayout(4, "float16", GROUP, COLS, (64, 64)),
        "float32",
        epilogue.value,
        cap or 0.0,
        0,
        (0, 70),
    )
    run(operator, x, *tensors, y)

    assert (y[:, [0, 70]] == np.float32(-1e30)).all()
    sums = x.astype(np.float64) @ matrix.T
    expected = sums if cap is None else cap * np.tanh(sums / cap)
    close(np.delete(y, [0, 70], axis=1), np.delete(expected, [0, 70], axis=1))


@pytest.mark.parametrize("scale", [1.0, 39.25])
@pytest.mark.parametrize(("bits", "dtype"), LAYOUTS)
def test_embedding_reads_each_id_from_its_part(bits: int, dtype: str, scale: float) -> None:
    tensors, matrix = stored(bits, dtype, (64, 64, 32))
    ids = np.array([0, 63, 64, 127, 128, 159, 5], np.int32)
    out = np.zeros((len(ids), COLS), np.float32)

    operator = Embedding(
        CHUNK, WeightLayout(bits, dtype, GROUP if bits else 0, COLS, (64, 64, 32)), 0, scale, False
    )
    run(operator, ids, *tensors, out)

    np.testing.assert_allclose(out, matrix[ids] * scale, rtol=2.0**-22)


def test_a_table_too_large_for_one_kernel_is_read_by_several() -> None:
    tensors, matrix = stored(4, "float16", (64, 64, 32))
    ids = np.array([150, 3, 64, 128], np.int32)
    first, out = (np.zeros((len(ids), COLS), np.float32) for _ in range(2))

    head = Embedding(CHUNK, WeightLayout(4, "float16", GROUP, COLS, (64,)), 0, 2.0, False)
    rest = Embedding(CHUNK, WeightLayout(4, "float16", GROUP, COLS, (64, 32)), 64, 2.0, True)
    run(head, ids, *tensors[:2], first)
    run(rest, ids, *tensors[2:], first, out)

    np.testing.assert_allclose(out, matrix[ids] * 2.0, rtol=2.0**-22)
