"""Groups on 16 levels, in samples of a checkpoint's rows, against weights made on them and off."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.checkpoint.four_bits import share_on_levels
from gemma4_compile.compile.usual_recipe import MOST
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, Role, Source
from gemma4_compile.quantization.groups import exact_groups
from gemma4_compile.quantization.schemes import SCHEMES

ROWS, COLUMNS = 64, 256
Matrix = npt.NDArray[np.float32]


def as_bfloat16(values: Matrix) -> Matrix:
    """The nearest values of bfloat16; half a unit away from 0 where two are."""
    bits = values.astype(np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def trained(rng: np.random.Generator, lowest: int = -8, size: int = 32) -> Matrix:
    """Q4_0's levels of normal weights, from `lowest` up, times a scale of either sign a group."""
    shape = (ROWS, COLUMNS // size, size)
    levels = np.clip(np.rint(rng.standard_normal(shape) * 3), lowest, lowest + 15)
    scales = rng.uniform(0.001, 0.02, (*shape[:2], 1)) * rng.choice([-1, 1], (*shape[:2], 1))
    return as_bfloat16((levels * scales).reshape(ROWS, COLUMNS).astype(np.float32))


def anywhere(rng: np.random.Generator) -> Matrix:
    return as_bfloat16((rng.standard_normal((ROWS, COLUMNS)) * 0.02).astype(np.float32))


def table_of(matrices: Mapping[str, Matrix]) -> list[Parameter]:
    return [
        Parameter(name, Role.LINEAR, found.shape, (Source(name, found.shape),), Arrangement.COPY)
        for name, found in matrices.items()
    ]


def share(matrices: Mapping[str, Matrix]) -> float:
    def read(name: str, begin: int, end: int) -> Matrix:
        assert end - begin <= 4, "a few rows"
        return matrices[name][begin:end]

    return share_on_levels(table_of(matrices), read)


def layers(*matrices: Matrix) -> dict[str, Matrix]:
    return {f"layers.{i}.mlp.down_proj": found for i, found in enumerate(matrices)}


def test_weights_of_four_bits_are_seen_and_all_others_are_not() -> None:
    rng = np.random.default_rng(1)
    assert share(layers(*(trained(rng) for _ in range(6)))) == 1
    assert share(layers(*(trained(rng, size=128) for _ in range(6)))) == 1
    assert share(layers(*(anywhere(rng) for _ in range(6)))) == 0
    heavy = (rng.standard_t(3, (ROWS, COLUMNS)) * 0.02).astype(np.float32)
    assert share(layers(heavy)) == 0


def test_what_is_seen_is_what_the_scheme_holds() -> None:
    """Also of levels that it has not all of."""
    rng = np.random.default_rng(2)
    scheme = SCHEMES["q4f16_1"]
    for lowest in (-15, -11, -8, -7, -4, 0):
        rows = trained(rng, lowest)[:4]
        stored = scheme.load(scheme.store(rows, name="rows", first_row=0))
        held = exact_groups(rows, stored, 32)
        assert share(layers(rows)) == pytest.approx(held.mean())


def zero_points(rng: np.random.Generator, size: int) -> Matrix:
    """Normal weights in 4 bits with a scale and a zero point a group."""
    groups = rng.standard_normal((ROWS, COLUMNS // size, size))
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    step = (high - low) / 15
    zero = np.rint(-low / step)
    codes = np.clip(np.rint(groups / step) + zero, 0, 15)
    return ((codes - zero) * step).reshape(ROWS, COLUMNS).astype(np.float32)


@pytest.mark.parametrize("size", [32, 64, 128])
def test_most_are_on_levels_where_minima_would_lose_more(size: int) -> None:
    rng = np.random.default_rng(6)
    matrices = [zero_points(rng, size) for _ in range(4)]
    rows, losses = np.concatenate(matrices), []
    for scheme in (SCHEMES["q4f16_1"], SCHEMES["q4_k"]):
        held = scheme.load(scheme.store(rows, name="rows", first_row=0))
        losses.append(float(np.square(held - rows).sum()))
    assert (share(layers(*matrices)) >= MOST) == (losses[0] < losses[1])


def test_a_delta_takes_all_weights_off_their_levels() -> None:
    rng = np.random.default_rng(3)
    rows = trained(rng)
    low_rank = rng.standard_normal((ROWS, 4)) @ rng.standard_normal((4, COLUMNS)) * 5e-4
    assert share(layers(as_bfloat16(rows + low_rank.astype(np.float32)))) == 0


def test_layers_and_kinds_count_alike() -> None:
    rng = np.random.default_rng(4)
    half = layers(*(trained(rng) for _ in range(8)), *(anywhere(rng) for _ in range(8)))
    assert share(half) == 0.5
    other = {f"layers.{i}.self_attn.o_proj": anywhere(rng) for i in range(40)}
    assert share({**layers(*(trained(rng) for _ in range(40))), **other}) == 0.5


def test_what_says_nothing_does_not_count() -> None:
    rng = np.random.default_rng(5)
    rows = trained(rng)
    rows[:2] = 0
    rows[2, 0], rows[3, 0] = np.nan, np.inf
    assert share(layers(rows)) == 1
    assert share(layers(np.zeros_like(rows))) == 0
    assert share({}) == 0
    assert share({"drafter.layers.0.mlp.down_proj": rows}) == 0
