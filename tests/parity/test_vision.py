"""A picture's rows from compiled CPU libraries against transformers in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import tvm

from gemma4_compile import abi
from gemma4_compile.device_check.definitions import run
from gemma4_compile.media.sizes import CLIENT_BLOCKS, SQUARE, client_blocks
from gemma4_compile.model_spec.vision.reference import embed_image
from gemma4_compile.operators.picture import PicturePositions, mark_row
from tests import tolerances
from tests.marks import slow_unless
from tests.vision_models import (
    KINDS,
    Compiled,
    Float32Array,
    Picture,
    Truth,
    Weights,
    compiled,
    config_of,
    random_picture,
    random_weights,
)

pytestmark = pytest.mark.parity

GRIDS = [(4, 3), (2, 7), (1, 9), (12, 1), (1, 1)]
ACROSS, DOWN = CLIENT_BLOCKS
# Each recipe with two kinds, each kind with one recipe or two: grids are the same for all.
OF_RECIPES = [
    *(("clipped", "q4f32"), ("clipped", "f16"), ("standard", "q8f16"), ("wide", "q4f32")),
    *(("unified", "q8f16"), ("unified", "f16")),
]


@cache
def case(kind: str, recipe: str) -> tuple[Compiled, Truth]:
    library = compiled(kind, recipe)
    return library, Truth(kind, library.weights)


def patch_of(kind: str) -> int:
    return int(KINDS[kind][1]["patch_size"])


def check(found: Float32Array, expected: Float32Array, recipe: str) -> None:
    assert np.isfinite(found).all()
    atol = tolerances.VISION_ROWS[recipe]
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("kind", "recipe", "grid"),
    slow_unless(
        lambda kind, recipe, grid: recipe == "f32" and grid in GRIDS[:2],
        [
            *product(KINDS, ["f32"], GRIDS),
            *((kind, recipe, grid) for kind, recipe in OF_RECIPES for grid in GRIDS[:3]),
        ],
    ),
)
def test_rows_of_any_aspect_ratio(kind: str, recipe: str, grid: tuple[int, int]) -> None:
    library, truth = case(kind, recipe)
    picture = random_picture(*grid, library.block)
    check(library.rows(picture), truth.rows(picture, patch_of(kind)), recipe)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_may_come_in_any_order(kind: str) -> None:
    library, truth = case(kind, "f32")
    picture = random_picture(4, 3, library.block)
    order = np.random.default_rng(1).permutation(12)
    pixels, positions = picture.cells(library.block)
    found = library.embed(pixels[order], positions[order])
    check(found, truth.rows(picture, patch_of(kind))[order], "f32")


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_row(kind: str) -> None:
    library, truth = case(kind, "f32")
    picture = random_picture(3, 2, library.block)
    pixels, positions = picture.cells(library.block)
    noise = random_picture(3, 1, library.block, seed=5).cells(library.block)[0]
    padded = np.concatenate([pixels, noise]), np.concatenate([positions, np.full((3, 2), -1)])
    found = library.embed(padded[0], padded[1].astype(np.int32))
    assert np.isfinite(found).all()
    check(found[:6], truth.rows(picture, patch_of(kind)), "f32")


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_transformers(kind: str) -> None:
    weights = random_weights(config_of(kind))
    truth, block = Truth(kind, weights), case(kind, "f32")[0].block
    for grid in GRIDS:
        picture = random_picture(*grid, block)
        named = {name.removeprefix("model."): value for name, value in weights.items()}
        found = embed_image(config_of(kind), named, picture.pixels)
        check(found, truth.rows(picture, patch_of(kind)), "f32")


def container(
    picture: Picture,
    columns: int,
    rows: int,
    noise: int = 1,
    blocks: tuple[int, int] = CLIENT_BLOCKS,
) -> Float32Array:
    """A picture's blocks as the stock client is given them: (1, height, width, 3)."""
    block, (across, down) = picture.block, blocks
    cells = across * down
    filled = np.random.default_rng(noise).integers(0, 256, (cells, block * block * 3))
    pixels, _ = picture.cells(block)
    filled[: len(pixels)] = pixels
    grid = filled.reshape(down, across, block, block, 3).swapaxes(1, 2)
    body = grid.reshape(1, down * block, across * block, 3)
    row = mark_row(columns, rows, across * block)
    return np.concatenate([body, row[None, None]], axis=1).astype(np.uint32)


def adapted(library: Compiled, pixels: Float32Array) -> Float32Array:
    picture = tvm.runtime.tensor(pixels.astype(np.uint32))
    return np.asarray(library.vm[abi.IMAGE_ADAPTER](picture, library.params).numpy())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clipped", "unified"])
@pytest.mark.parametrize(
    "grid",
    [(7, 9), (20, 14), (1, 19), (1, 1)],
    ids=str,
)
def test_a_containers_rows_are_those_of_its_picture(kind: str, grid: tuple[int, int]) -> None:
    library, truth = case(kind, "f32")
    picture = random_picture(*grid, library.block)
    found = adapted(library, container(picture, *grid))
    assert found.shape == (280, library.config.hidden_size)
    assert np.isfinite(found).all()
    check(found[: grid[0] * grid[1]], truth.rows(picture, patch_of(kind)), "f32")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "budget"), [("clipped", 70), ("unified", 280)])
def test_a_square_adapter_takes_stretched_pictures_and_containers(kind: str, budget: int) -> None:
    across, down = blocks = client_blocks(budget, SQUARE)
    library, truth = compiled(kind, blocks=blocks), case(kind, "f32")[1]
    picture = random_picture(across, down, library.block)
    expected = truth.rows(picture, patch_of(kind))
    plain = container(picture, across, down, blocks=blocks)
    plain[0, -1] = plain[0, -2]  # the row below a stretched picture is more of it
    for given in (plain, container(picture, across, down, blocks=blocks)):
        found = adapted(library, given)
        assert found.shape == (across * down, library.config.hidden_size)
        check(found, expected, "f32")
    other = random_picture(7, 9, library.block)
    found = adapted(library, container(other, 7, 9, blocks=blocks))
    check(found[:63], truth.rows(other, patch_of(kind)), "f32")


WRONG_GRIDS = [(0, 9), (9, 0), (29, 10), (281, 1), (1, 22), (65_535, 65_535)]
"""Of no block, of more than 280, and of sides beyond the position table."""


@pytest.mark.slow
def test_an_unmarked_picture_is_a_stretched_one() -> None:
    library, truth = case("clipped", "f32")
    picture = random_picture(ACROSS, DOWN, library.block)
    expected = truth.rows(picture, patch_of("clipped"))
    whole = container(picture, ACROSS, DOWN)
    unmarked = [container(picture, *grid) for grid in WRONG_GRIDS]
    for place in (0, 31, 40, 70):  # one bit of the mark, of the grid, of its inverted copy
        flipped = container(picture, 7, 9)
        flipped[0, -1, place] = 255 - flipped[0, -1, place]
        unmarked.append(flipped)
    for line in (0, 255):
        unmarked.append(whole.copy())
        unmarked[-1][0, -1] = line
    positions = positions_of(library, [whole, *unmarked])
    assert all(np.array_equal(positions[0], other) for other in positions[1:])
    check(adapted(library, unmarked[0]), expected, "f32")


def positions_of(library: Compiled, pictures: list[Float32Array]) -> list[npt.NDArray[np.int32]]:
    """What the adapter of a library makes of the mark, without the tower behind it."""
    longest = library.config.vision.grid_size if library.config.vision else 0
    operator = PicturePositions(ACROSS, DOWN, library.block, longest)
    found = []
    for picture in pictures:
        positions = np.full((ACROSS * DOWN, 2), -9, np.int32)
        run(operator, picture, positions)
        found.append(positions)
    return found


def changed(kind: str, change: Callable[[str, Float32Array], Float32Array]) -> Weights:
    return {name: change(name, value) for name, value in random_weights(config_of(kind)).items()}


MISTAKES: dict[str, tuple[str, Callable[[str, Float32Array], Float32Array]]] = {
    "no input clip": ("clipped", lambda n, w: w * 9 if ".input_m" in n else w),
    "no output clip": ("clipped", lambda n, w: w * 9 if ".output_m" in n else w),
    "no standardisation": ("standard", lambda n, w: np.ones_like(w) if "std_scale" in n else w),
    "no bias of standardisation": ("standard", lambda n, w: 0 * w if "std_bias" in n else w),
    "axes of positions exchanged": ("wide", lambda n, w: w[::-1] if "embedding_table" in n else w),
    "no bias of the dense layer": ("unified", lambda n, w: 0 * w if "dense.bias" in n else w),
}


@pytest.mark.parametrize("mistake", slow_unless(lambda name: "input" in name, MISTAKES))
def test_a_mistake_is_seen(mistake: str) -> None:
    kind, change = MISTAKES[mistake]
    library = compiled(kind, "f32", changed(kind, change))
    picture = random_picture(4, 3, library.block)
    expected = case(kind, "f32")[1].rows(picture, patch_of(kind))
    error = np.abs(library.rows(picture) - expected).max()
    assert error > 5 * tolerances.VISION_ROWS["f16"]


# In float16 these would be infinite; what a norm divides out stays right.
LARGE: dict[str, tuple[str, Callable[[str, Float32Array], Float32Array]]] = {
    "residuals": ("clipped", lambda n, w: w * 3e4 if "post_attention_layernorm" in n else w),
    "pooled rows": ("standard", lambda n, w: w * 1e4 if "post_feedforward_layernorm" in n else w),
    "dense sums": ("unified", lambda n, w: w * 1e5 if "dense" in n else w),
}


@pytest.mark.parametrize("what", slow_unless(lambda what: what == "residuals", LARGE))
def test_large_values_do_not_overflow_float16(what: str) -> None:
    kind, change = LARGE[what]
    library = compiled(kind, "q4f16" if what != "dense sums" else "f16", changed(kind, change))
    picture = random_picture(4, 3, library.block)
    expected = Truth(kind, library.weights).rows(picture, patch_of(kind))
    check(library.rows(picture), expected, "f16")


@pytest.mark.slow
def test_a_gated_product_beyond_float16_is_held_within_it() -> None:
    weights = changed("wide", lambda n, w: w * 900 if "gate_proj" in n or "up_proj" in n else w)
    library = compiled("wide", "f16", weights)
    assert np.isfinite(library.rows(random_picture(4, 3, library.block))).all()


@pytest.mark.slow
def test_open_bounds_are_stored_as_finite_numbers() -> None:
    weights = random_weights(config_of("clipped"))
    assert any(np.isinf(value).any() for value in weights.values())
    library = compiled("clipped", "f16", weights)
    assert all(np.isfinite(tensor.numpy()).all() for tensor in library.params)


def test_a_longer_picture_than_planned_is_refused() -> None:
    library, _ = case("unified", "f32")
    with pytest.raises(Exception, match=r"(?i)storage|alloc|size"):
        library.rows(Picture(np.zeros((12 * 29, 12 * 10, 3), np.uint8), 12))
