"""Scaling and cutting, beside transformers' processors and the kernel of torch under them."""

from __future__ import annotations

import base64
import importlib.util
import io

import numpy as np
import pytest
from PIL import Image

from gemma4_compile.media.decode import decode_image
from gemma4_compile.media.preprocess import blocks, preprocess_image, scaled, timestamp
from gemma4_compile.media.sizes import BUDGETS, target_size
from tests.marks import slow_unless
from tests.media_files import noise, saved, smooth

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
SIZES = [  # height, width
    (480, 640),
    (1080, 1920),
    (768, 768),
    (224, 224),
    (100, 2000),
    (1, 2000),
    (2000, 1),
    (1, 1),
    (3, 5),
    (17, 1),
    (3000, 2200),
]


@pytest.mark.parametrize(
    ("width", "height", "sizes"),
    [  # rows and sizes of the processor, by budget
        (640, 480, [(432, 336), (624, 480), (912, 672), (1296, 960), (1824, 1344)]),
        (1920, 1080, [(528, 288), (720, 384), (1056, 576), (1488, 816), (2112, 1200)]),
        (224, 224, [(384, 384), (528, 528), (768, 768), (1104, 1104), (1584, 1584)]),
        (2000, 100, [(1776, 48), (2496, 96), (3552, 144), (5040, 240), (7152, 336)]),
    ],
)
def test_sizes_are_those_of_the_models(
    width: int, height: int, sizes: list[tuple[int, int]]
) -> None:
    assert [target_size(width, height, budget, 48) for budget in BUDGETS] == sizes


@needs_torch
def test_every_size_is_that_of_transformers() -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import (
        get_aspect_ratio_preserving_size,
    )

    rng = np.random.default_rng(1)
    sides = [*range(1, 60), *(int(2**power) for power in rng.uniform(0, 15, 300))]
    for height, width in zip(rng.permutation(sides), sides, strict=True):
        for budget in BUDGETS:
            theirs = get_aspect_ratio_preserving_size(int(height), width, 16, 9 * budget, 3)
            assert target_size(width, int(height), budget, 48) == theirs[::-1]


def transparent_pictures() -> dict[str, bytes]:
    """PNGs of every kind that says what is transparent."""
    rgba = np.array([[[255, 0, 0, 0], [255, 0, 0, 128], [10, 20, 30, 255]]], np.uint8)
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    grey, rgb = Image.fromarray(rgba[..., 2]), Image.fromarray(rgba[..., :3])
    return {
        "RGBA": saved(Image.fromarray(rgba)),
        "LA": saved(Image.fromarray(rgba[..., 2:])),
        "P": saved(palette, transparency=0),
        "L": saved(grey, transparency=30),
        "RGB": saved(rgb, transparency=(10, 20, 30)),
    }


@needs_torch
@pytest.mark.parametrize("mode", transparent_pictures())
def test_what_is_transparent_is_what_the_processor_makes_of_it(mode: str) -> None:
    """Of an opened picture; its loader of files and addresses drops transparency before."""
    from transformers.image_transforms import convert_to_rgb
    from transformers.image_utils import load_image

    content = transparent_pictures()[mode]
    opened = Image.open(io.BytesIO(content))
    assert opened.mode == mode
    found = decode_image(content)
    assert (found == np.asarray(convert_to_rgb(opened, return_numpy=True))).all()
    loaded = np.asarray(load_image(base64.b64encode(content).decode()))
    assert (found != loaded).any(), "docs/media.md names this as a difference"


@needs_torch
def test_shades_of_16_bits_are_cut_off_by_both_ways_of_transformers() -> None:
    """Beyond 255 all is white there; here brightness is kept, which docs/media.md says."""
    from transformers.image_transforms import convert_to_rgb
    from transformers.image_utils import load_image

    shades = np.array([[0, 255, 256, 32_768, 65_535]], np.uint16)
    content = saved(Image.fromarray(shades))
    cut = np.minimum(shades, 255)[0].tolist()
    opened = Image.open(io.BytesIO(content))
    assert np.asarray(convert_to_rgb(opened, return_numpy=True))[0, :, 0].tolist() == cut
    loaded = load_image(base64.b64encode(content).decode())
    assert np.asarray(loaded)[0, :, 0].tolist() == cut
    assert decode_image(content)[0, :, 0].tolist() == [0, 1, 1, 128, 255]


@needs_torch
@pytest.mark.parametrize(
    ("size", "budget"),
    slow_unless(
        lambda _, budget: budget == BUDGETS[1],
        [
            (size, budget)
            for budget in BUDGETS
            for size in SIZES[:: 1 if budget == BUDGETS[1] else 4]
        ],
    ),
)
def test_resampling_is_that_of_the_processor(size: tuple[int, int], budget: int) -> None:
    """Its backend scales bytes with torch's bicubic filter, which torchvision only passes on."""
    import torch

    for rgb in (noise(*size), smooth(*size)):
        width, height = target_size(size[1], size[0], budget, 48)
        found = scaled(rgb, budget, 48)
        assert found.shape == (height, width, 3)
        if size == (height, width):
            assert found is rgb
            continue
        planes = torch.from_numpy(rgb).permute(2, 0, 1)[None].contiguous()
        theirs = torch.nn.functional.interpolate(
            planes, size=(height, width), mode="bicubic", antialias=True
        )
        difference = np.abs(found.astype(int) - theirs[0].permute(1, 2, 0).numpy())
        assert difference.mean() < 0.1  # of 255 levels; it is at most 0.03
        assert difference.max() <= 2


@needs_torch
@pytest.mark.parametrize("size", [(480, 640), (1, 2000), (2000, 1), (30, 20)])
def test_blocks_are_those_of_the_processor(size: tuple[int, int]) -> None:
    """Nine of its patches are one of our blocks; its positions are of patches."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    for budget in (70, 280):
        processor = Gemma4ImageProcessorPil(max_soft_tokens=budget)
        theirs = processor(Image.fromarray(noise(*size)), return_tensors="np")
        count = theirs["num_soft_tokens_per_image"][0]
        patches = theirs["pixel_values"][0][: 9 * count].reshape(-1, 16, 16, 3)
        places = theirs["image_position_ids"][0][: 9 * count]
        pixels, positions = preprocess_image(noise(*size), budget)
        assert pixels.dtype == np.float32
        assert positions.dtype == np.int32
        assert len(pixels) == count <= budget
        by_place = {tuple(place): patch for place, patch in zip(places, patches, strict=True)}
        for block, (x, y) in zip(pixels.reshape(-1, 48, 48, 3), positions, strict=True):
            for row in range(3):
                for column in range(3):
                    patch = by_place[3 * x + column, 3 * y + row]
                    cut = block[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
                    assert np.abs(255 * patch - cut).max() < 1e-3


def test_blocks_hold_every_pixel_once() -> None:
    rgb = noise(96, 144)
    pixels, positions = blocks(rgb, 48)
    assert positions.tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]
    assert (pixels[4].reshape(48, 48, 3) == rgb[48:, 48:96]).all()


def test_times_are_minutes_and_seconds() -> None:
    assert [timestamp(s) for s in (0, 9.99, 60, 3599.5, 36_000)] == [
        "00:00",
        "00:09",
        "01:00",
        "59:59",
        "600:00",
    ]
