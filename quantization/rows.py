"""Integers on the steps of a checkpoint: one scale a row, or a block of a row; the form, once.

A weight is a level from ``-2 ** (bits - 1)`` to ``2 ** (bits - 1) - 1`` times the step of its row
or block. It is stored as in `groups`, ``(q - zero_point) * scale``, with ``q = zero_point - level``
and the step's negative as scale, which takes all codes of a word: words by `packing`, scales
float32.

Nothing is rounded. The step of a row is found in its weights, to the last bit, as the one whose
multiples they are; a row that has none is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import QuantizationError
from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.packing import Packing
from gemma4_compile.operators.packings import packing_of
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.quality import EXACT, Thresholds
from gemma4_compile.quantization.scheme import (
    EVEN_ERROR,
    HALF_STEP,
    Float32Array,
    Scheme,
    StoredTensor,
    refuse_rows,
    stored_matrix,
)
from gemma4_compile.types import Array

BlockArray = npt.NDArray[np.bool_]

WHOLE_ROW = 0
_DTYPE = "float32"
_UNIT = 8
"""Channels that kernels read at a time, at least; of 2 bits they read a word of 16."""
_NEAR = 2.0**-10
"""Of a step: so near to a level is every weight that is one, rounded to float32."""
_NEIGHBOURS = (0, 1, -1, 2, -2)
"""Floats beside a quotient, among which the step is that was multiplied."""


@dataclass(frozen=True)
class RowScheme(Scheme):
    """Integers of `bits` bits, a step for `block` columns, or for a row if that is WHOLE_ROW.

    With `any_inputs` the checkpoint does not round what the matrix is multiplied by.
    """

    bits: int
    block: int = WHOLE_ROW
    any_inputs: bool = False

    @property
    def name(self) -> str:
        """As groups are called, with what has a step in the place of MLC's number."""
        return f"q{self.bits}f32_{self.block or 'row'}{'_any' if self.any_inputs else ''}"

    @property
    def takes_int8(self) -> bool:
        """See `Scheme`: where the checkpoint's step makes vectors of int8 of the inputs."""
        return self.block == WHOLE_ROW and not self.any_inputs

    @property
    def dtypes(self) -> tuple[str, ...]:
        """See `Scheme`."""
        return "uint32", _DTYPE

    @property
    def packing(self) -> Packing:
        """How its integers lie in words."""
        return packing_of(self.bits)

    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """See `Scheme`: of a matrix whose columns words and blocks divide."""
        if len(shape) != 2 or not self.holds(shape[1]):
            raise QuantizationError(
                f"`{stem}` of shape {shape} cannot be stored as {self.name}: its columns must be "
                f"more than {GROUP} and a multiple of {max(self._unit, self.block)}",
                hint="use --quant f16 or f32",
            )
        rows, cols = shape
        return stored_matrix(stem, suffix, rows, self.layout(cols, (rows,)))

    def holds(self, cols: int) -> bool:
        """Return whether words and blocks divide so many columns, and kernels read them."""
        return cols > GROUP and not (cols % self._unit or cols % (self.block or 1))

    @property
    def _unit(self) -> int:
        return max(_UNIT, self.packing.run)

    def layout(self, cols: int, split_rows: tuple[int, ...]) -> WeightLayout:
        """See `Scheme`."""
        return WeightLayout(self.bits, _DTYPE, self.block or cols, cols, split_rows)

    def store(self, rows: Float32Array, *, name: str, first_row: int) -> tuple[Array, ...]:
        """See `Scheme`."""
        refuse_rows(~np.isfinite(rows), name, first_row, "holds a weight that is not finite")
        count, cols = rows.shape
        blocks = rows.reshape(-1, self.block or cols)
        steps, found = find_steps(blocks, self.bits)
        if not found.all():
            row = first_row + int(np.argmin(found)) * blocks.shape[1] // cols
            raise QuantizationError(
                f"`{name}`: row {row} is no whole multiples of one step, from "
                f"-{1 << (self.bits - 1)} to {(1 << (self.bits - 1)) - 1}, which {self.name} holds",
                hint="it is for the checkpoints for phones that were stored so: try another "
                "--quant, or leave its name out of --recipe",
            )
        divisor = np.where(steps == 0, np.float32(1), steps)[:, None]
        codes = self.packing.zero_point - np.rint(blocks / divisor)
        words = self.packing.pack(codes.astype(np.uint8).reshape(count, cols))
        return words, -steps.reshape(count, -1)

    def is_exact(self, rows: Float32Array) -> bool:
        """Return whether `store` takes these rows."""
        blocks = rows.reshape(-1, self.block or rows.shape[1])
        return bool(np.isfinite(rows).all() and find_steps(blocks, self.bits)[1].all())

    def load(self, arrays: Sequence[Array]) -> Float32Array:
        """See `Scheme`."""
        words, scales = arrays
        values = self.packing.unpack(words).astype(np.float32) - np.float32(self.packing.zero_point)
        blocks = values.reshape(*scales.shape, -1)
        result: Float32Array = (blocks * scales[..., None]).reshape(values.shape)
        return result

    @property
    def dense(self) -> Scheme:
        """See `Scheme`."""
        return DenseScheme(_DTYPE)

    @property
    def mean_error(self) -> float:
        """See `Scheme`: nothing is rounded."""
        return 2 * EVEN_ERROR * HALF_STEP[_DTYPE]

    @property
    def row_bound(self) -> tuple[float, float]:
        """See `Scheme`."""
        return 2 * HALF_STEP[_DTYPE], 0.0

    @property
    def thresholds(self) -> Thresholds:
        """See `Scheme`."""
        return EXACT


def find_steps(blocks: Float32Array, bits: int) -> tuple[Float32Array, BlockArray]:
    """The step of each block (blocks, columns), 0 of zeros, and whether there is one.

    Its largest weight is a multiple of the step by one of few numbers: each is tried, the ones
    first that most blocks have.
    """
    span = 1 << (bits - 1)
    where = np.abs(blocks).argmax(axis=1)
    largest = np.take_along_axis(blocks, where[:, None], axis=1)[:, 0]
    steps = np.zeros(len(blocks), np.float32)
    found = largest == 0
    for level in (span - 1, span, *range(span - 2, 0, -1)):
        rest = np.flatnonzero(~found)
        if not len(rest):
            break
        # The lowest level has no partner above 0, so that its sign is known.
        quotients = largest[rest] / np.float32(-level if level == span else level)
        near = _is_near(blocks[rest], quotients, span)
        rest, quotients = rest[near], quotients[near]
        for offset in _NEIGHBOURS:
            tried = _neighbours(quotients, offset)
            values = np.rint(blocks[rest] / tried[:, None]) * tried[:, None]
            exact = (values == blocks[rest]).all(axis=1)
            steps[rest[exact]], found[rest[exact]] = tried[exact], True
            rest, quotients = rest[~exact], quotients[~exact]
    return steps, found


def _is_near(blocks: Float32Array, steps: Float32Array, span: int) -> BlockArray:
    """Return whether all weights of a block are near levels of a step."""
    with np.errstate(all="ignore"):  # a step of 0, and what is divided by one that is nearly 0
        ratio = blocks / steps[:, None]
        levels = np.rint(ratio)
        inside = (levels >= -span) & (levels < span)
        near: BlockArray = (inside & (np.abs(ratio - levels) < _NEAR)).all(axis=1) & (steps != 0)
    return near


def _neighbours(values: Float32Array, offset: int) -> Float32Array:
    """The float32 so many places after each value, or before it."""
    for _ in range(abs(offset)):
        values = np.nextafter(values, np.float32(np.inf if offset > 0 else -np.inf))
    return values
