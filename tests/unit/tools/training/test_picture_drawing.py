from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tools.training.tiny.media_batches import Pictures
from tools.training.tiny.pictures import BLOCK, SHAPES, Scene, Shape, draw_scene

torch = pytest.importorskip("torch", reason="torch is not installed (make setup)")

GRID = (6, 5)


def pixels(scene: Scene, seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    from tools.training.tiny.picture_drawing import draw

    drawn = draw(Pictures.of([scene]), seed, "cpu")[0].permute(1, 2, 0)
    return np.asarray(drawn.numpy(), np.float32)


def one_shape(kind: str, *, bars: float = 0.0) -> Scene:
    width, height = GRID[0] * BLOCK, GRID[1] * BLOCK
    shape = Shape(kind, "red", 120, 130, 90, 60, 0.0, (1.0, 0.0, 0.0))
    area = (bars, 0.0, width - bars, float(height))
    return Scene(*GRID, (shape,), area, ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)), 0.0, 0.0)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("seed", range(6))  # sizes of the drawing, edges, noise
def test_a_shape_has_its_colour_in_the_middle_and_the_paper_around(kind: str, seed: int) -> None:
    image = pixels(one_shape(kind), seed)
    assert image.shape == (GRID[1] * BLOCK, GRID[0] * BLOCK, 3)
    assert np.all(image == image.round())
    assert image.min() >= 0
    assert image.max() <= 255
    np.testing.assert_allclose(image[125:136, 115:126].mean((0, 1)), (255, 0, 0), atol=15)
    np.testing.assert_allclose(image[:20, :20].mean((0, 1)), (255, 255, 255), atol=15)
    near_corner = image[130 - 55 : 130 - 50, 120 - 85 : 120 - 80].mean((0, 1))
    np.testing.assert_allclose(near_corner, (255, 255, 255), atol=15)


def test_areas_are_those_of_the_shapes() -> None:
    share = {
        kind: float((pixels(one_shape(kind))[..., 1] < 128).sum() / (90 * 60)) for kind in SHAPES
    }
    assert share["circle"] == pytest.approx(np.pi, rel=0.05)
    assert share["square"] == pytest.approx(1.6**2, rel=0.05)
    assert share["triangle"] == pytest.approx(0.75 * np.sqrt(3), rel=0.05)
    assert 0.9 < share["star"] < 1.6


def test_triangles_stand_on_their_base_and_stars_on_two_points() -> None:
    for kind in ("triangle", "star"):
        dark = pixels(one_shape(kind))[..., 1] < 128
        widths = dark.sum(1)
        top, bottom = np.flatnonzero(widths)[[0, -1]]
        assert widths[top + 2] < widths[bottom - 2]


def test_bars_are_black_and_an_empty_picture_is_empty() -> None:
    image = pixels(one_shape("circle", bars=20.0))
    assert image[:, :15].max() < 60
    empty = next(
        scene
        for seed in range(1000)
        if not (scene := draw_scene(Random(seed), GRID, test=False)).shapes
    )
    assert pixels(empty, 1).std((0, 1)).max() < 60


def test_patches_are_those_of_transformers() -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import convert_image_to_patches

    from tools.training.tiny.picture_drawing import patches, positions

    image = pixels(one_shape("star"))
    found = patches(torch.from_numpy(image).permute(2, 0, 1)[None])[0].numpy()
    expected = convert_image_to_patches(image.transpose(2, 0, 1), 16) / np.float32(255)
    np.testing.assert_array_equal(found, expected)
    where = positions(GRID, "cpu").numpy()
    assert where[0].tolist() == [0, 0]
    assert where[1].tolist() == [1, 0]
    assert where[-1].tolist() == [GRID[0] * 3 - 1, GRID[1] * 3 - 1]
