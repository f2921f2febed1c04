"""Matmul between clips: of the linear layers of the vision and audio towers."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.base import te_prim_func
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.examples import OPERANDS_F16, Sizes
from gemma4_compile.operators.linear import Linear, Product
from gemma4_compile.operators.math import as_f32, f32, gelu_tanh
from gemma4_compile.operators.types import Expr
from gemma4_compile.types import Array

LARGEST_F16 = 65_504.0
CLIPS = 4
"""Bounds of a layer: of its input, lowest and highest, and of its output."""
EXAMPLE_BOUNDS = (-1.25, 0.75, -0.5, 1.5)


@dataclass(frozen=True)
class BoundedLinear(Linear):
    """``y = epilogue(clip(clip(x) W^T))``, sums in float32.

    Arguments: with `clipped` first the bounds (4,) f32: input's lowest and highest, output's lowest
    and highest; x (rows, cols) in_dtype; the tensors of all row splits; with GELU_GATE what the
    gate multiplies, (rows, outputs) f32. Result: (rows, outputs) out_dtype; a float16 one is held
    within its range.

    References
    ----------
    transformers 5.24.0, `Gemma4ClippableLinear`.
    """

    kind: ClassVar[str] = "bounded_linear"
    clipped: bool = False
    out_dtype: str = "float32"

    @property
    def name(self) -> str:
        return f"bounded_{self.layout.label}_{self.epilogue}"

    @property
    def is_gate(self) -> bool:
        """Return whether the result is multiplied by an argument."""
        return self.epilogue == Epilogue.GELU_GATE.value

    def clip(self, value: Expr, bounds: te.Tensor, first: int) -> Expr:
        """`value` within two of the bounds."""
        if not self.clipped:
            return value
        return tirx.max(tirx.min(value, bounds[first + 1]), bounds[first])

    def converted(self, value: Expr) -> Expr:
        """`value` in the result's type."""
        if self.out_dtype == "float16":
            value = tirx.max(tirx.min(value, f32(LARGEST_F16)), f32(-LARGEST_F16))
        return value.astype(self.out_dtype)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "bounds":
            return np.array(EXAMPLE_BOUNDS)
        return super().example_input(name, shape, rng, sizes)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return np.array(EXAMPLE_BOUNDS) if name == "bounds" else None

    def tolerance(self, result: str) -> float:
        """Weights of a float16 layout may be rounded to it before they are multiplied.

        What is cut may have been larger: sums of the example's operands have a deviation of
        0.3 sqrt(cols), and are held within 1.5.
        """
        if not self.in_dtype == self.layout.dtype == "float16":
            return super().tolerance(result)
        return OPERANDS_F16 * (max(1.0, sqrt(self.cols) / 4) if self.clipped else 1.0)

    def with_product(self, product: Product) -> tirx.PrimFunc:
        """See `Linear`."""
        rows, layout = self.rows.extent(), self.layout
        bounds = te.placeholder((CLIPS,), "float32", name="bounds")
        x = te.placeholder((rows, self.cols), self.in_dtype, name="x")
        weights = layout.placeholders()
        left = x
        if self.clipped:
            held = lambda i, k: self.clip(as_f32(x[i, k]), bounds, 0)  # noqa: E731
            left = te.compute(x.shape, held, name="held")
        sums = product(left, layout, weights)
        if self.clipped:
            sums = te.compute(sums.shape, lambda i, j: self.clip(sums[i, j], bounds, 2), name="cut")
        shape = (rows, self.outputs)
        partner = te.placeholder(shape, "float32", name="partner")

        def finished(i: Expr, j: Expr) -> Expr:
            if self.epilogue == Epilogue.GELU_PAIRS.value:
                return self.converted(gelu_tanh(sums[i, 2 * j]) * sums[i, 2 * j + 1])
            if self.is_gate:
                return self.converted(gelu_tanh(sums[i, j]) * partner[i, j])
            assert self.epilogue == Epilogue.NONE.value, "epilogue of a tower"
            return self.converted(sums[i, j])

        y = te.compute(shape, finished, name="y")
        args = [bounds] if self.clipped else []
        return te_prim_func([*args, x, *weights, *([partner] if self.is_gate else []), y])
