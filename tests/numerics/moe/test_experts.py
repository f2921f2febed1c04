"""Mixture of experts: every operator's definition against NumPy in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.moe import (
    CombineExperts,
    PermuteByExpert,
    Router,
)
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.rows import CHUNK, ONE
from tests.numerics.definitions import ROUNDED, run, values
from tests.numerics.linear.test_linear import COLS, GROUP, LAYOUTS, close, gelu, stored

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

EXPERTS, TOP_K, WIDTH, EPS = 8, 3, 64, 1e-6
TILE = 4


def rms(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS)


# --- router ---------------------------------------------------------------------------------------


def route(
    x: Float32Array, projection: npt.NDArray[Any], *, top_k: int = TOP_K, dtype: str = "float32"
) -> tuple[IntArray, Float32Array, npt.NDArray[Any]]:
    """Run a router whose scales are `router_scales()`."""
    scale, expert_scale, w = router_scales()
    vectors = np.stack([np.full_like(w, np.nan), np.full_like(w, np.nan), scale, w])
    rows, width = x.shape
    operator = Router(
        rows=ONE if rows == 1 else CHUNK,
        width=width,
        experts=len(projection),
        top_k=top_k,
        eps=EPS,
        factor=width**-0.5,
        weight_dtype=str(projection.dtype),
        out_dtype=dtype,
    )
    ids = np.full((rows, top_k), -1, np.int32)
    weights, hidden = np.zeros((rows, top_k), np.float32), np.zeros((rows, width), dtype)
    run(operator, x, vectors, projection, expert_scale, ids, weights, hidden)
    return ids, weights, hidden


def router_scales() -> tuple[Float64Array, Float64Array, Float32Array]:
    """scale, expert_scale, w"""
    return 1 + values(2, WIDTH) / 5, 1 + values(3, EXPERTS) / 5, values(4, WIDTH)


def expected_probabilities(x: Float32Array, projection: Any) -> npt.NDArray[np.float64]:
    scores = rms(x) * router_scales()[0] * WIDTH**-0.5 @ projection.astype(np.float64).T
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("top_k", [1, 3, EXPERTS])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_router_takes_the_most_probable_experts(rows: int, top_k: int, dtype: str) -> None:
    x = values(1, rows, WIDTH, deviation=30.0)
    projection = values(5, EXPERTS, WIDTH).astype(dtype)
    ids, weights, hidden = route(x, projection, top_k=top_k, dtype=dtype)

    probabilities = expected_probabilities(x, projection)
    order = np.argsort(-probabilities, axis=1)[:, :top_k]
    assert np.array_equal(ids, order)
    chosen = np.take_along_axis(probabilities, order, axis=1)
    share = chosen / chosen.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, share * router_scales()[1][order], rtol=2e-5)
    np.testing.assert_allclose(hidden, rms(x) * router_scales()[2], **ROUNDED[dtype])


@pytest.mark.parametrize("equal", [(0, 1), (2, 5, 7), tuple(range(EXPERTS))])
def test_of_equal_experts_the_lower_index_wins(equal: tuple[int, ...]) -> None:
    x = values(1, 4, WIDTH)
    projection = values(5, EXPERTS, WIDTH)
    projection[list(equal)] = values(6, WIDTH)
    ids, weights, _ = route(x, projection)

    probabilities = expected_probabilities(x, projection)
    probabilities[:, list(equal)] = probabilities[:, [equal[0]]]  # to the last bit
    assert np.array_equal(ids, np.argsort(-probabilities, axis=1, kind="stable")[:, :TOP_K])
    assert np.isfinite(weights).all()


def test_of_nearly_equal_experts_the_larger_wins() -> None:
    x = np.zeros((2, WIDTH), np.float32)
    x[:, 0] = (1.0, 4.0)  # one channel, so that scores are products
    projection = np.zeros((EXPERTS, WIDTH), np.float32)
    projection[1:, 0] = 1.0
    projection[6, 0] += 2.0**-20
    ids, _, _ = route(x, projection)
    assert ids.tolist() == [[6, 1, 2]] * 2


@pytest.mark.parametrize("size", [1e-6, 1e5, 1e9])
def test_residuals_of_any_size_give_finite_weights(size: float) -> None:
    x = values(1, 3, WIDTH, deviation=size)
    projection = values(5, EXPERTS, WIDTH, deviation=50.0)
    _, weights, hidden = route(x, projection)
    assert np.isfinite(weights).all()
    assert np.isfinite(hidden).all()


def test_an_expert_without_probability_can_still_be_chosen() -> None:
    x = np.ones((1, WIDTH), np.float32)
    projection = np.full((EXPERTS, WIDTH), -1e4, np.float32)
    projection[4] = 1e4
    ids, weights, _ = route(x, projection)
    assert ids.tolist() == [[4, 0, 1]]
    assert weights[0, 1:].tolist() == [0.0, 0.0]


# --- grouping -------------------------------------------------------------------------------------

CHOICES = {
    "spread": np.stack([np.random.default_rng(i).permutation(EXPERTS)[:TOP_K] for i in range(9)]),
    "all rows the same": np.tile([6, 1, 3], (11, 1)),
    "one row": np.array([[7, 0, 4]]),
    "full tiles only": np.tile([0, 7, 2], (2 * TILE, 1)),
    "last expert": np.tile([5, 6, 7], (TILE + 1, 1)),
}


def group(ids: IntArray) -> tuple[IntArray, IntArray]:
    operator = PermuteByExpert(EXPERTS, TOP_K, TILE)
    order = np.full(ids.size, -1, np.int32)
    tiles = np.full((int(operator.tile_count(ids.size)), 3), -1, np.int32)
    run(operator, ids.astype(np.int32), order, tiles)
    return order, tiles


@pytest.mark.parametrize("name", CHOICES)
def test_pairs_are_ordered_by_expert_and_then_by_position(name: str) -> None:
    ids = CHOICES[name]
    order, _ = group(ids)
    assert np.array_equal(order, np.argsort(ids.reshape(-1), kind="stable"))


@pytest.mark.parametrize("name", CHOICES)
def test_tiles_hold_rows_of_one_expert_and_every_row_once(name: str) -> None:
    ids = CHOICES[name]
    order, tiles = group(ids)
    sorted_experts = ids.reshape(-1)[order]
    covered: list[int] = []
    for expert, begin, end in tiles:
        assert end - begin <= TILE
        assert (sorted_experts[begin:end] == expert).all()
        covered += range(begin, end)
    assert covered == list(range(ids.size))
    used = [tuple(tile) for tile in tiles if tile[1] < tile[2]]
    assert [tuple(tile) for tile in tiles[: len(used)]] == used  # those not needed come last
    counts = np.bincount(ids.reshape(-1), minlength=EXPERTS)
    assert len(used) == sum(-(-count // TILE) for count in counts)


# --- matmuls --------------------------------------------------------------------------------------

EXPERT_ROWS = 64
PARTS = [(8,), (3, 3, 2)]  # experts of each part
DIVISIONS = [  # parts, and calls that go through them
    (PARTS[0], 1),
    pytest.param(PARTS[1], 1, marks=pytest.mark.slow),
    (PARTS[1], 3),
]


def stack(bits: int, dtype: str, parts: tuple[int, ...]) -> tuple[list[Any], Any]:
    """Stored parts of the experts' matrices, and (experts, rows, cols) that they mean."""
    tensors, matrix = stored(bits, dtype, tuple(count * EXPERT_ROWS for count in parts))
    return tensors, matrix.reshape(sum(parts), EXPERT_ROWS, COLS)


def fields(bits: int, dtype: str, parts: tuple[int, ...], in_dtype: str) -> dict[str, Any]:
    return {
        "layout": WeightLayout(
            bits, dtype, GROUP if bits else 0, COLS, tuple(n * EXPERT_ROWS for n in parts)
        ),
        "expert_rows": EXPERT_ROWS,
        "experts": EXPERTS,
        "top_k": TOP_K,
        "in_dtype": in_dtype,
    }


def run_in_calls(inputs: list[Any], stored_parts: Any, calls: int, out: Any, **more: Any) -> None:
    """All parts at once, or one call for each part, which adds to the one before."""
    tensors, parts, layout = stored_parts
    if calls == 1:
        run(ExpertLinear(**layout, **more), *inputs, *tensors, out)
        return
    per_part, previous, begin = len(tensors) // len(parts), None, 0
    for index, count in enumerate(parts):
        held_rows = dataclasses.replace(layout["layout"], split_rows=(count * EXPERT_ROWS,))
        rows = {**layout, "layout": held_rows}
        held = tensors[index * per_part : (index + 1) * per_part]
        added: list[Float32Array] = [] if previous is None else [previous]
        description = ExpertLinear(
            **rows, **more, expert_begin=begin, accumulate=previous is not None
        )
        out[:] = np.nan
        run(description, *inputs, *held, *added, out)
        previous, begin = out.copy(), begin + count


def behind_scores(scores: Any, x: Any) -> Float32Array:
    """One position as `RouterScores` leaves it: scores, zeros up to a multiple of 4, and x."""
    gap = np.zeros((1, -scores.shape[1] % 4))
    return np.concatenate([scores, gap, x], axis=1).astype(np.float32)


IDS = [[5, 0, 7], [2, 3, 4], [7, 6, 5], [0, 1, 2]]


@pytest.mark.parametrize("ids", IDS, ids=str)
@pytest.mark.parametrize(("parts", "calls"), DIVISIONS)
@pytest.mark.parametrize(("bits", "dtype"), LAYOUTS)
def test_gate_and_up_of_the_chosen_experts(
    bits: int, dtype: str, parts: tuple[int, ...], calls: int, ids: list[int]
) -> None:
    tensors, matrices = stack(bits, dtype, parts)
    x = values(1, 1, COLS)
    out = np.zeros((TOP_K, EXPERT_ROWS // 2), np.float32)

    weights = (tensors, parts, fields(bits, dtype, parts, "float32"))
    routed = behind_scores(values(7, 1, EXPERTS), x)
    run_in_calls([routed, np.array([ids], np.int32)], weights, calls, out)

    sums = matrices[ids] @ x[0].astype(np.float64)
    close(out, gelu(sums[:, 0::2]) * sums[:, 1::2])


@pytest.mark.parametrize("ids", IDS, ids=str)
@pytest.mark.parametrize(("parts", "calls"), DIVISIONS)
@pytest.mark.parametrize(("bits", "dtype"), LAYOUTS)
def test_down_of_the_chosen_experts_is_their_weighted_sum(
    bits: int, dtype: str, parts: tuple[int, ...], calls: int, ids: list[int]
) -> None:
    tensors, matrices = stack(bits, dtype, parts)
    x, shares = values(1, TOP_K, COLS), np.array([[0.5, 0.125, 0.375]], np.float32)
    out = np.zeros((1, EXPERT_ROWS), np.float32)

    weights = (tensors, parts, fields(bits, dtype, parts, "float32"))
    inputs = [x, np.array([ids], np.int32), shares]
    run_in_calls(inputs, weights, calls, out, epilogue=Epilogue.NONE.value)

    each = [share * matrices[e] @ row for share, e, row in zip(shares[0], ids, x, strict=True)]
    close(out[0], np.sum(each, axis=0))


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize(("parts", "calls"), [(PARTS[0], 1), (PARTS[1], 3)])
@pytest.mark.parametrize(("bits", "dtype"), [LAYOUTS[0], LAYOUTS[-1]])
def test_a_chunk_grouped_by_expert_equals_its_positions_one_by_one(
    bits: int, dtype: str, parts: tuple[int, ...], calls: int, name: str
) -> None:
    ids = CHOICES[name]
    order, tiles = group(ids)
    tensors, matrices = stack(bits, dtype, parts)
    x = values(1, len(ids), COLS).astype(dtype)
    layout = fields(bits, dtype, parts, dtype)
    gated = np.zeros((ids.size, EXPERT_ROWS // 2), np.float32)
    run_in_calls([x, order, tiles], (tensors, parts, layout), calls, gated, tile=TILE, rows=CHUNK)

    sums = np.einsum("prc,pc->pr", matrices[ids.reshape(-1)], np.repeat(x, TOP_K, axis=0))
    expected = gelu(sums[:, 0::2]) * sums[:, 1::2]
    close(gated, expected[order])  # by expert

    y = values(2, ids.size, COLS)  # row m belongs to pair order[m]
    layout = fields(bits, dtype, parts, "float32")
    out = np.zeros((ids.size, EXPERT_ROWS), np.float32)
    epilogue = Epilogue.NONE.value
    inputs = [y, order, tiles]
    run_in_calls(
        inputs, (tensors, parts, layout), calls, out, rows=CHUNK, tile=TILE, epilogue=epilogue
    )

    by_pair = np.empty_like(y)
    by_pair[order] = y
    close(out, np.einsum("prc,pc->pr", matrices[ids.reshape(-1)], by_pair))  # by position


# --- what follows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 4])
def test_outputs_of_a_position_are_summed_by_their_weights(rows: int) -> None:
    outputs, weights = values(1, rows * TOP_K, WIDTH), values(2, rows, TOP_K)
    y = np.zeros((rows, WIDTH), np.float32)
    run(CombineExperts(ONE if rows == 1 else CHUNK, TOP_K, WIDTH), outputs, weights, y)
    close(y, np.einsum("ik,ikj->ij", weights, outputs.reshape(rows, TOP_K, WIDTH)))


@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rows", [1, 4])
def test_both_branches_are_normed_added_and_normed_again(
    rows: int, dtype: str, size: float
) -> None:
    dense, experts = values(1, rows, WIDTH, deviation=size), values(2, rows, WIDTH)
    residual = values(3, rows, WIDTH, deviation=size)
    w_branches, w_next = values(4, 3, WIDTH), values(5, WIDTH)
    scalar = np.array([0.09], np.float32)
    out, hidden = np.zeros((rows, WIDTH), np.float32), np.zeros((rows, WIDTH), dtype)

    operator = ResidualNorm(ONE if rows == 1 else CHUNK, WIDTH, EPS, True, dtype, branches=2)
    run(operator, dense, experts, residual, w_branches, scalar, w_next, out, hidden)

    expected = behind_experts(dense, experts, residual, w_branches) * scalar
    close(out, expected)
    np.testing.assert_allclose(hidden, rms(expected) * w_next, **ROUNDED[dtype])


def behind_experts(dense: Any, experts: Any, residual: Any, w_branches: Any) -> Any:
    """The residual behind a layer with experts, before its scalar."""
    both = rms(dense) * w_branches[0] + rms(experts) * w_branches[1]
    return residual + rms(both) * w_branches[2]
