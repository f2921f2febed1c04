"""Scenes of coloured shapes: what a picture shows, where, and as which numbers it is drawn.

Nothing here needs torch: worker processes make scenes, `picture_drawing` draws them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from tools.training.tiny.question import held_out

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
Colour = tuple[float, float, float]

SHAPES = ("circle", "square", "triangle", "star")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "black", "white")
BLOCK = 48  # pixels of a row's side
MOST_SHAPES = 3
STOCK_GRID = (20, 14)  # 960 x 672: what an unmodified client stretches every picture to
BUDGETS = (70, 140, 280)
# Columns are clearly apart or clearly the same, so that the reading order is never in doubt.
APART, SAME_COLUMN = 0.12, 0.04
_LEAST_CONTRAST = 0.45
_LEAST_RADIUS = 15.0  # pixels
_RANGES: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    # hue in degrees, saturation, value
    "red": ((-10, 7), (0.75, 1.0), (0.65, 1.0)),
    "orange": ((24, 39), (0.8, 1.0), (0.85, 1.0)),
    "yellow": ((51, 62), (0.7, 1.0), (0.85, 1.0)),
    "green": ((95, 150), (0.6, 1.0), (0.4, 1.0)),
    "blue": ((205, 243), (0.7, 1.0), (0.5, 1.0)),
    "purple": ((268, 302), (0.55, 1.0), (0.4, 0.9)),
    "black": ((0, 360), (0.0, 0.3), (0.0, 0.12)),
    "white": ((0, 360), (0.0, 0.03), (0.95, 1.0)),
}
_OUTLINED = 0.1  # share of the pictures whose shapes have an outline
# Columns of a drawn shape's numbers.
DRAWN = ("kind", "x", "y", "radius_x", "radius_y", "angle", "inner", "red", "green", "blue")


@dataclass(frozen=True)
class Shape:
    """A shape in pixels of the scaled picture; `angle` turns it before it is stretched."""

    kind: str
    colour: str
    x: float
    y: float
    radius_x: float
    radius_y: float
    angle: float
    rgb: Colour

    @property
    def name(self) -> str:
        """Colour and kind."""
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Scene:
    """A picture that was scaled to `across` x `down` blocks.

    Attributes
    ----------
    shapes : in reading order: from left to right, in one column from top to bottom
    area : left, top, right, bottom of the picture in pixels; bars lie beyond it
    background : two colours, shaded into each other along `shading` (radians); often the same
    """

    across: int
    down: int
    shapes: tuple[Shape, ...]
    area: tuple[float, float, float, float]
    background: tuple[Colour, Colour]
    shading: float
    outline: float

    @property
    def key(self) -> str:
        """What decides whether the scene is held out: its shapes in reading order."""
        return "picture " + ", ".join(shape.name for shape in self.shapes)

    @property
    def rows(self) -> int:
        """Rows that the picture becomes."""
        return self.across * self.down


def grid_of(width: float, height: float, budget: int) -> tuple[int, int]:
    """Blocks across and down, as the preprocessing of Gemma 4 chooses them."""
    factor = math.sqrt(budget / (width * height))
    across, down = int(factor * width), int(factor * height)
    if across == 0:
        return 1, min(int(height / width), budget)
    if down == 0:
        return min(int(width / height), budget), 1
    return across, down


def _containers() -> list[tuple[int, int]]:
    """Grids of a whole budget, which a page draws pictures into, bars beside them."""
    pairs = [(across, most // across) for most in BUDGETS for across in range(2, most // 2)]
    return [(a, b) for a, b in pairs if a * b in BUDGETS and max(a, b) <= 6 * min(a, b)]


_CONTAINERS = _containers()


def grid_is_held_out(grid: tuple[int, int]) -> bool:
    """Return whether pictures of this grid are for the evaluation alone."""
    return grid[0] * grid[1] not in BUDGETS and held_out(f"grid {grid[0]} {grid[1]}")


def draw_grid(rng: Random, *, test: bool) -> tuple[int, int]:
    """A grid as pictures of all shapes get; `test` allows those that are held out."""
    while True:
        way = rng.random()
        if way < 0.14:
            return STOCK_GRID
        if way < 0.32:
            return rng.choice(_CONTAINERS)
        most = 4.2 if way < 0.97 else 30.0
        ratio = math.exp(rng.uniform(-math.log(most), math.log(most)))
        grid = grid_of(ratio, 1.0, rng.choices(BUDGETS, (0.45, 0.30, 0.25))[0])
        if test or not grid_is_held_out(grid):
            return grid


def _rgb(hue: float, saturation: float, value: float) -> Colour:
    def channel(n: int) -> float:
        k = (n + hue / 60) % 6
        return value - value * saturation * max(0.0, min(k, 4 - k, 1.0))

    return channel(5), channel(3), channel(1)


def colour_value(rng: Random, colour: str) -> Colour:
    """A red, green and blue value (0 to 1) that is called so."""
    hue, saturation, value = (rng.uniform(*bounds) for bounds in _RANGES[colour])
    return _rgb(hue, saturation, value)


def _paper(rng: Random) -> Colour:
    way = rng.random()
    if way < 0.35:
        return (1.0, 1.0, 1.0)
    if way < 0.45:
        return (0.0, 0.0, 0.0)
    if way < 0.65:
        grey = rng.uniform(0.1, 0.95)
        return (grey, grey, grey)
    if way < 0.9:
        return _rgb(rng.uniform(0, 360), rng.uniform(0.0, 0.3), rng.uniform(0.8, 1.0))
    return _rgb(rng.uniform(0, 360), rng.uniform(0.2, 0.7), rng.uniform(0.1, 0.5))


def _background(rng: Random) -> tuple[Colour, Colour]:
    first = _paper(rng)
    if rng.random() < 0.7:
        return first, first
    red, green, blue = (min(1.0, max(0.0, c + rng.uniform(-0.25, 0.25))) for c in first)
    return first, (red, green, blue)


def _contrast(one: Colour, other: Colour) -> float:
    return math.dist(one, other)


def _stretch(rng: Random, grid: tuple[int, int]) -> float:
    """How much wider the picture became than it was: a client may stretch it."""
    most = 1.2 if grid == STOCK_GRID and rng.random() < 0.6 else 0.1
    return math.exp(rng.uniform(-most, most))


def _area(rng: Random, width: int, height: int) -> tuple[float, float, float, float]:
    if width * height // BLOCK**2 not in BUDGETS or rng.random() < 0.6:
        return 0.0, 0.0, float(width), float(height)
    bar = rng.uniform(0.02, 0.2)
    if rng.random() < 0.5:
        return bar * width, 0.0, (1 - bar) * width, float(height)
    return 0.0, bar * height, float(width), (1 - bar) * height


def _fits(shape: Shape, others: list[Shape], width: float) -> bool:
    for other in others:
        dx, dy = abs(shape.x - other.x), abs(shape.y - other.y)
        overlaps = (
            dx < 1.05 * (shape.radius_x + other.radius_x) + 4
            and dy < 1.05 * (shape.radius_y + other.radius_y) + 4
        )
        if overlaps or SAME_COLUMN * width < dx < APART * width:
            return False
    return True


def _shape(
    rng: Random, area: tuple[float, float, float, float], stretch: float, most: float
) -> tuple[float, float, float, float]:
    """Centre and radii of a shape within the area."""
    left, top, right, bottom = area
    side = min((right - left) / math.sqrt(stretch), (bottom - top) * math.sqrt(stretch))
    largest = max(_LEAST_RADIUS, most * side)
    least = min(largest, max(_LEAST_RADIUS, 0.05 * side))
    radius = math.exp(rng.uniform(math.log(least), math.log(largest)))
    radius_x = max(12.0, radius * math.sqrt(stretch))
    radius_y = max(12.0, radius / math.sqrt(stretch))
    x = rng.uniform(left + radius_x, max(left + radius_x, right - radius_x))
    y = rng.uniform(top + radius_y, max(top + radius_y, bottom - radius_y))
    return x, y, radius_x, radius_y


def _angle(rng: Random, kind: str) -> float:
    most = {"circle": 0.0, "square": 0.25, "triangle": 0.25, "star": 0.6}[kind]
    return rng.uniform(-most, most) if rng.random() < 0.6 else 0.0


def _place(
    rng: Random, grid: tuple[int, int], names: list[tuple[str, str]], background: tuple[Colour, ...]
) -> tuple[list[Shape], tuple[float, float, float, float]] | None:
    area = _area(rng, grid[0] * BLOCK, grid[1] * BLOCK)
    stretch, width = _stretch(rng, grid), area[2] - area[0]
    most = {0: 0.45, 1: 0.46, 2: 0.36, 3: 0.3}[len(names)]
    shapes: list[Shape] = []
    for kind, colour in names:
        for _ in range(12):
            x, y, radius_x, radius_y = _shape(rng, area, stretch, most)
            rgb = colour_value(rng, colour)
            if min(_contrast(rgb, paper) for paper in background) < _LEAST_CONTRAST:
                continue
            shape = Shape(kind, colour, x, y, radius_x, radius_y, _angle(rng, kind), rgb)
            if _fits(shape, shapes, width):
                shapes.append(shape)
                break
        else:
            return None
    return shapes, area


def in_reading_order(shapes: list[Shape], width: float) -> tuple[Shape, ...]:
    """From left to right, in one column from top to bottom."""
    by_column = sorted(shapes, key=lambda shape: shape.x)
    columns: list[list[Shape]] = []
    for shape in by_column:
        if columns and shape.x - columns[-1][0].x <= SAME_COLUMN * width:
            columns[-1].append(shape)
        else:
            columns.append([shape])
    return tuple(shape for column in columns for shape in sorted(column, key=lambda one: one.y))


def draw_scene(rng: Random, grid: tuple[int, int], *, test: bool) -> Scene:
    """A scene of the wanted side of the split."""
    while True:
        count = rng.choices((0, 1, 2, 3), (0.03, 0.25, 0.37, 0.35))[0]
        pairs = [(kind, colour) for kind in SHAPES for colour in COLOURS]
        background = _background(rng)
        placed = _place(rng, grid, rng.sample(pairs, count), background)
        if placed is None:
            continue
        shapes, area = placed
        outline = rng.uniform(1.5, 5.0) if rng.random() < _OUTLINED else 0.0
        scene = Scene(
            *grid,
            in_reading_order(shapes, area[2] - area[0]),
            area,
            background,
            rng.uniform(0, 2 * math.pi),
            outline,
        )
        if not shapes or held_out(scene.key) == test:
            return scene


def drawn_shapes(scene: Scene) -> Float32Array:
    """The numbers of `DRAWN`, (3, 10), for `picture_drawing`; kind -1 where there is no shape."""
    found = np.zeros((MOST_SHAPES, len(DRAWN)), np.float32)
    found[:, 0] = -1
    for index, shape in enumerate(scene.shapes):
        inner = 0.38 + 0.1 * (math.sin(1000 * shape.x) + 1) / 2  # of a star; as good as random
        found[index] = (
            SHAPES.index(shape.kind), shape.x, shape.y, shape.radius_x, shape.radius_y,
            shape.angle, inner, *shape.rgb,
        )  # fmt: skip
    return found


def class_of(shape: Shape) -> int:
    """Number of a shape's kind and colour, from 1; 0 is for none."""
    return 1 + SHAPES.index(shape.kind) * len(COLOURS) + COLOURS.index(shape.colour)


CLASSES = 1 + len(SHAPES) * len(COLOURS)
IGNORED = -100  # a label that does not count


def block_classes(scene: Scene) -> Int64Array:
    """Which shape each row of the picture shows, `IGNORED` at the shapes' edges."""
    y, x = np.mgrid[: scene.down, : scene.across].astype(np.float64)
    x, y = (x + 0.5) * BLOCK, (y + 0.5) * BLOCK
    found = np.zeros((scene.down, scene.across), np.int64)
    for shape in scene.shapes:
        dx, dy = np.abs(x - shape.x), np.abs(y - shape.y)
        near = (dx < shape.radius_x + BLOCK / 2) & (dy < shape.radius_y + BLOCK / 2)
        inside = np.hypot(dx / shape.radius_x, dy / shape.radius_y) < 0.6
        centre = (dx <= BLOCK / 2) & (dy <= BLOCK / 2)
        found[near & (found == 0)] = IGNORED
        found[inside | centre] = class_of(shape)
    return found.reshape(-1)


def place_of(scene: Scene, shape: Shape) -> int | None:
    """Which ninth of the picture the shape's middle lies in, row by row; None where in doubt."""

    def third(value: float, begin: float, end: float, whole: float) -> int | None:
        found = set()
        for share in ((value - begin) / (end - begin), value / whole):
            if share < 0.34:
                found.add(0)
            elif 0.41 < share < 0.59:
                found.add(1)
            elif share > 0.66:
                found.add(2)
            else:
                return None
        return found.pop() if len(found) == 1 else None

    left, top, right, bottom = scene.area
    column = third(shape.x, left, right, scene.across * BLOCK)
    row = third(shape.y, top, bottom, scene.down * BLOCK)
    return None if row is None or column is None else 3 * row + column
