"""The float32 weights that a recipe makes of a checkpoint's, read by the checkpoint's names.

They are stored and loaded as a conversion does it, in memory, so that a recipe can be tried without
a package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import numpy.typing as npt

from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.quantization.convert import BLOCK_BYTES, RowReader, named_by_checkpoint
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.recipe import Recipe
from gemma4_compile.quantization.scheme import Scheme
from gemma4_compile.system.parallel import in_order

Float32Array = npt.NDArray[np.float32]

EXACT = DenseScheme("float32").name
"""The scheme that changes nothing."""


class RecipeWeights:
    """Reads rows of a checkpoint as a recipe stores them; holds nothing."""

    def __init__(self, read: RowReader, parameters: Sequence[Parameter], recipe: Recipe) -> None:
        """Choose the schemes."""
        self._read = read
        self._sources: dict[str, tuple[Parameter, Scheme]] = {
            source.name: (parameter, recipe.scheme(parameter))
            for parameter in parameters
            for source in parameter.sources
        }

    def version(self, name: str) -> str:
        """The scheme of a tensor: recipes with the same one make the same of it."""
        return self._sources[name][1].name

    def read(self, name: str, begin: int, end: int) -> Float32Array:
        """Rows [begin, end) of a checkpoint tensor (elements, of a vector).

        Raises
        ------
        QuantizationError
            If a weight is not finite, or too large for its scheme.
        """
        parameter, scheme = self._sources[name]
        if scheme.name == EXACT:
            return self._read(name, begin, end)
        factor = np.float32(parameter.scale)

        def stored(rows: tuple[int, int]) -> Float32Array:
            values = self._read(name, *rows) * factor
            with named_by_checkpoint(parameter, self._read):
                arrays = scheme.store(values, name=name, first_row=rows[0])
            return scheme.load(arrays) / factor

        cols = parameter.shape[-1]
        blocks = list(_blocks(begin, end, max(1, BLOCK_BYTES // (4 * cols))))
        if len(blocks) == 1:
            return stored(blocks[0])
        found = np.empty((end - begin, cols), np.float32)
        with closing(in_order(stored, blocks)) as parts:
            for (first, last), part in zip(blocks, parts, strict=True):
                found[first - begin : last - begin] = part
        return found


def _blocks(begin: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(begin, end, size):
        yield first, min(first + size, end)
