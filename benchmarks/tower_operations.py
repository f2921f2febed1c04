"""Operations of a tower, counted from the shapes of its weights.

Two for each product of a matmul, a convolution or an attention; norms and other work of a few
operations a value are left out. `webgpu/tower_operations.mjs` is the same for Node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from benchmarks.random_weights import GROUP, Weight

FRAME_HOP, SAMPLES_PER_ROW, BANDS = 160, 640, 128  # of a sound and its spectrum
BLOCK_PATCHES = 9  # of a picture's row
QUANTISED = re.compile(r"^(.*)\.q_scale(\.part\d+)?$")
TABLE = re.compile(r"pos(ition)?_embedding(_table)?$")
VECTORS = re.compile(r"\.(standardize|\w*_vectors)$")  # rows of vectors, not matmuls
CONVOLUTION = re.compile(r"(subsample_conv_projection\.layer\d+\.conv|depthwise_conv1d)$")
DISTANCES = "relative_k_proj"  # multiplies the same few rows whatever the sound is


def _matrices(weights: Sequence[Weight]) -> dict[str, tuple[int, int]]:
    """Rows and columns of every stored matrix by its parameter."""
    found: dict[str, tuple[int, int]] = {}
    for weight in weights:
        if ".q_weight" in weight.name or len(weight.shape) != 2:
            continue
        quantised = QUANTISED.match(weight.name)
        stem = quantised[1] if quantised else re.sub(r"\.weight(\.part\d+)?$", "", weight.name)
        rows, cols = weight.shape[0], weight.shape[1] * (GROUP if quantised else 1)
        found[stem] = found.get(stem, (0, 0))[0] + rows, cols
    return found


def _products(weights: Sequence[Weight], belongs: Callable[[str], bool]) -> int:
    """Products of the matrices whose names `belongs` accepts, for one row of input."""
    return sum(rows * cols for name, (rows, cols) in _matrices(weights).items() if belongs(name))


def _is_matmul(name: str) -> bool:
    return not TABLE.search(name) and not VECTORS.search(name)


def picture_operations(weights: Sequence[Weight], rows: int) -> int:
    """Of `embed_image` for a picture of so many rows."""
    patches = rows * BLOCK_PATCHES
    tower = _products(weights, lambda n: n.startswith("vision_tower.") and _is_matmul(n))
    blocks = _products(
        weights, lambda n: n.startswith(("vision_embedder.", "embed_vision.")) and _is_matmul(n)
    )
    attended = sum(
        size[0]
        for name, size in _matrices(weights).items()
        if name.startswith("vision_tower.") and name.endswith(".q_proj.linear")
    )
    scores = 2 * patches * patches * attended  # q.k and the mean of v
    return 2 * (patches * tower + rows * blocks + scores)


def sound_operations(weights: Sequence[Weight], samples: int) -> int:
    """Of `embed_audio` for a sound of so many samples."""
    rows, frames = -(-samples // SAMPLES_PER_ROW), -(-samples // FRAME_HOP)
    linear = _products(
        weights,
        lambda n: (
            n.startswith(("audio_tower.", "audio_projection"))
            and not n.endswith(DISTANCES)
            and not CONVOLUTION.search(n)
        ),
    )
    total = rows * linear
    for layer in (0, 1):
        kernel = _products(
            weights,
            lambda n, end=f"layer{layer}.conv": n.endswith(end),  # type: ignore[misc]
        )
        scale = 2 ** (layer + 1)  # of time and of frequency
        total += kernel * (frames // scale) * (BANDS // scale)
    return 2 * total
