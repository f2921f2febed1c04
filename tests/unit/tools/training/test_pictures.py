from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tools.training.tiny import pictures
from tools.training.tiny.pictures import (
    APART,
    BLOCK,
    SAME_COLUMN,
    STOCK_GRID,
    Scene,
    block_classes,
    class_of,
    draw_grid,
    draw_scene,
    grid_is_held_out,
    grid_of,
    in_reading_order,
    place_of,
)
from tools.training.tiny.question import held_out


def scenes(count: int, *, test: bool = False, seed: int = 0) -> list[Scene]:
    rng = Random(seed)
    return [draw_scene(rng, draw_grid(rng, test=test), test=test) for _ in range(count)]


@pytest.mark.parametrize("budget", [70, 140, 280])
@pytest.mark.parametrize(("width", "height"), [(640, 480), (100, 2000), (3, 5), (5000, 3)])
def test_grids_are_those_of_the_preprocessing(width: int, height: int, budget: int) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import (
        get_aspect_ratio_preserving_size,
    )

    right = get_aspect_ratio_preserving_size(height, width, 16, 9 * budget, 3)
    assert grid_of(width, height, budget) == (right[1] // BLOCK, right[0] // BLOCK)


def test_shapes_lie_within_the_picture_and_apart() -> None:
    for scene in scenes(300):
        left, top, right, bottom = scene.area
        for shape in scene.shapes:
            assert left <= shape.x - shape.radius_x + 1e-6
            assert right >= shape.x + shape.radius_x - 1e-6
            assert top <= shape.y - shape.radius_y + 1e-6
            assert bottom >= shape.y + shape.radius_y - 1e-6
        for one in scene.shapes:
            for other in scene.shapes:
                beside = abs(one.x - other.x) > one.radius_x + other.radius_x
                above = abs(one.y - other.y) > one.radius_y + other.radius_y
                assert one is other or beside or above


def test_the_reading_order_is_never_in_doubt() -> None:
    seen = 0
    for scene in scenes(300):
        width = scene.area[2] - scene.area[0]
        for one, other in zip(scene.shapes, scene.shapes[1:], strict=False):
            across = (other.x - one.x) / width
            assert across >= APART or (abs(across) <= SAME_COLUMN and other.y > one.y)
            seen += across < APART
        assert in_reading_order(list(scene.shapes)[::-1], width) == scene.shapes
    assert seen, "some lie in one column"


def test_held_out_scenes_and_grids_are_never_trained_on() -> None:
    assert not any(held_out(scene.key) for scene in scenes(300) if scene.shapes)
    assert all(held_out(scene.key) for scene in scenes(50, test=True) if scene.shapes)
    rng = Random(1)
    assert not any(grid_is_held_out(draw_grid(rng, test=False)) for _ in range(2000))
    assert any(grid_is_held_out(draw_grid(rng, test=True)) for _ in range(2000))
    assert not grid_is_held_out(STOCK_GRID)


def test_rows_are_labelled_by_the_shape_that_they_show() -> None:
    for scene in scenes(100):
        labels = block_classes(scene).reshape(scene.down, scene.across)
        for shape in scene.shapes:
            row, column = int(shape.y // BLOCK), int(shape.x // BLOCK)
            assert labels[row, column] in {class_of(one) for one in scene.shapes}
        assert set(np.unique(labels)) <= {
            0, pictures.IGNORED, *(class_of(shape) for shape in scene.shapes)
        }  # fmt: skip


def test_a_place_is_given_only_where_it_is_clear() -> None:
    found = {place_of(scene, shape) for scene in scenes(400) for shape in scene.shapes}
    assert found == {None, *range(9)}
    for scene in scenes(200):
        for shape in scene.shapes:
            if place_of(scene, shape) == 0:
                assert shape.x < 0.34 * scene.across * BLOCK
                assert shape.y < 0.34 * scene.down * BLOCK


def test_a_seed_repeats_the_scenes() -> None:
    assert scenes(20, seed=4) == scenes(20, seed=4)
