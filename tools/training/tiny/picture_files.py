"""Pictures as files that somebody else might have made: drawn by Pillow, not as in the training.

Shapes are polygons and ellipses in the colours that people name in programs, drawn several times as
large and averaged, on paper of any size; saved as PNG or JPEG. Nothing is shared with
`picture_drawing` but what a scene is.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw

from tools.training.tiny.picture_questions import question
from tools.training.tiny.pictures import (
    APART,
    BLOCK,
    BUDGETS,
    COLOURS,
    SAME_COLUMN,
    SHAPES,
    Scene,
    Shape,
    grid_of,
    in_reading_order,
)
from tools.training.tiny.question import Asked, held_out

_ROWS = 280  # of the grid that scenes are given in
_SUPERSAMPLING = 4
_WEB_COLOURS = {
    "red": ("#ff0000", "#e6194b", "#cc0000", "#dd2222", "#ee1c25"),
    "orange": ("#ff8000", "#ffa500", "#f58231", "#ff8c00", "#fb8c00"),
    "yellow": ("#ffff00", "#ffe119", "#ffeb3b", "#f7e017"),
    "green": ("#008000", "#00ff00", "#3cb44b", "#228b22", "#4caf50"),
    "blue": ("#0000ff", "#4363d8", "#1e6fff", "#000080", "#2255cc"),
    "purple": ("#800080", "#911eb4", "#9400d3", "#8a2be2", "#7b1fa2"),
    "black": ("#000000", "#111111", "#1a1a1a"),
    "white": ("#ffffff", "#fafafa", "#f8f8f8"),
}
_PAPERS = (
    *("#ffffff",) * 6,
    *("#000000", "#eeeeee", "#cccccc", "#808080", "#333333", "#fff8e7", "#e0f7fa", "#fce4ec"),
    *("#f1f8e9", "#d7ccc8", "#263238", "#b0bec5"),
)
_LEAST_CONTRAST = 0.45
_SIDES = (160, 224, 256, 320, 400, 480, 512, 640, 800, 1024, 1280)
_MOST_RATIO = 3.5
_LEAST_SHARE, _MOST_SHARE = 0.16, 0.4  # diameter of a shape, of the shorter side


@dataclass(frozen=True)
class PictureFile:
    """A picture as PNG or JPEG, and a question about it with the right answer.

    Attributes
    ----------
    budget : rows that it may take in the prompt
    """

    content: bytes
    scene: Scene
    budget: int
    asked: Asked


def _rgb(text: str) -> tuple[float, float, float]:
    red, green, blue = (int(text[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _size(rng: Random) -> tuple[int, int]:
    long = rng.choice(_SIDES)
    ratio = rng.choice((1.0, 4 / 3, 3 / 2, 16 / 9, math.exp(rng.uniform(0, math.log(_MOST_RATIO)))))
    short = max(96, round(long / ratio))
    return (long, short) if rng.random() < 0.6 else (short, long)


def _place(rng: Random, size: tuple[int, int], count: int) -> list[tuple[float, float, float]]:
    """Middles and radii in pixels, apart from each other, columns clear; empty if it failed."""
    width, height = size
    found: list[tuple[float, float, float]] = []
    for _ in range(60):
        if len(found) == count:
            return found
        radius = min(size) * rng.uniform(_LEAST_SHARE, _MOST_SHARE / (1 + 0.25 * count)) / 2
        x = rng.uniform(1.05 * radius, width - 1.05 * radius)
        y = rng.uniform(1.05 * radius, height - 1.05 * radius)
        if all(
            max(abs(x - a), abs(y - b)) > 1.1 * (radius + c)
            and not SAME_COLUMN * width < abs(x - a) < APART * width
            for a, b, c in found
        ):
            found.append((x, y, radius))
    return []


def _corners(kind: str, radius: float, angle: float) -> list[tuple[float, float]]:
    """Corners around the middle."""
    if kind == "square":
        polar = [(radius, math.pi / 4 + quarter * math.pi / 2) for quarter in range(4)]
    elif kind == "triangle":
        polar = [(radius, -math.pi / 2 + third * 2 * math.pi / 3) for third in range(3)]
    else:
        polar = [
            (radius if tenth % 2 == 0 else 0.4 * radius, -math.pi / 2 + tenth * math.pi / 5)
            for tenth in range(10)
        ]
    return [(r * math.cos(a + angle), r * math.sin(a + angle)) for r, a in polar]


def draw_scene(rng: Random) -> tuple[Scene, tuple[int, int]]:
    """A held-out scene, and width and height of its picture in pixels.

    Shapes are given in pixels of the picture after scaling, as in all scenes.
    """
    while True:
        number = rng.choice((1, 2, 2, 3, 3))
        size = _size(rng)
        places = _place(rng, size, number)
        paper = rng.choice(_PAPERS)
        grid = grid_of(*size, _ROWS)
        across, down = (cells * BLOCK / pixels for cells, pixels in zip(grid, size, strict=True))
        shapes = []
        for x, y, radius in places:
            kind, colour = rng.choice(SHAPES), rng.choice(COLOURS)
            rgb = _rgb(rng.choice(_WEB_COLOURS[colour]))
            angle = rng.uniform(-0.2, 0.2) if rng.random() < 0.3 else 0.0
            shapes.append(
                Shape(
                    kind, colour, x * across, y * down, radius * across, radius * down, angle, rgb
                )
            )
        if len(shapes) < number or len({one.name for one in shapes}) < number:
            continue
        if any(math.dist(one.rgb, _rgb(paper)) < _LEAST_CONTRAST for one in shapes):
            continue
        width, height = grid[0] * BLOCK, grid[1] * BLOCK
        papers = (_rgb(paper), _rgb(paper))
        ordered = in_reading_order(shapes, width)
        scene = Scene(*grid, ordered, (0.0, 0.0, width, height), papers, 0.0, 0.0)
        if held_out(scene.key):
            return scene, size


def draw(scene: Scene, size: tuple[int, int]) -> Image.Image:
    """Draw a scene as a picture of that width and height."""

    def colour(rgb: tuple[float, float, float]) -> tuple[int, int, int]:
        red, green, blue = (round(255 * value) for value in rgb)
        return red, green, blue

    wide = (size[0] * _SUPERSAMPLING, size[1] * _SUPERSAMPLING)
    image = Image.new("RGB", wide, colour(scene.background[0]))
    pen = ImageDraw.Draw(image)
    scale_x = wide[0] / (scene.across * BLOCK)
    scale_y = wide[1] / (scene.down * BLOCK)
    for shape in scene.shapes:
        x, y, radius = shape.x * scale_x, shape.y * scale_y, shape.radius_x * scale_x
        if shape.kind == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour(shape.rgb))
        else:
            corners = [(x + dx, y + dy) for dx, dy in _corners(shape.kind, radius, shape.angle)]
            pen.polygon(corners, fill=colour(shape.rgb))
    return image.resize(size, Image.Resampling.BOX)


def picture_file(rng: Random) -> PictureFile:
    """A held-out picture as a file, with a question about it."""
    scene, size = draw_scene(rng)
    file = io.BytesIO()
    if rng.random() < 0.6:
        draw(scene, size).save(file, "PNG")
    else:
        draw(scene, size).save(file, "JPEG", quality=rng.choice((75, 85, 92)))
    return PictureFile(file.getvalue(), scene, rng.choice(BUDGETS), question(rng, scene))


def picture_files(count: int, seed: int = 1) -> list[PictureFile]:
    """Many of them."""
    rng = Random(f"picture files {seed}")
    return [picture_file(rng) for _ in range(count)]
