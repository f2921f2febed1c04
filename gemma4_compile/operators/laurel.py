"""The low-rank residual beside attention (LAUREL).

References
----------
transformers 5.24.0, models/gemma3n/modeling_gemma3n.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.altup import (
    ATTENTION_NORM,
    FEEDFORWARD_NORM,
    INPUT_NORM,
    LAUREL_NORM,
    Routed,
    inverse_rms_of,
)
from gemma4_compile.operators.base import te_prim_func
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.types import Expr

HALF_SUM = 1.0 / math.sqrt(2.0)


@dataclass(frozen=True)
class LaurelResidual(Routed):
    """Attention and the low-rank residual on the active stream, and the norm of their sum.

    ``n = norm(h_active; w_input)``,
    ``r = (h_active + norm(attended) + n + norm(laurel)) / sqrt(2)``, ``hidden = norm(r)``.

    Arguments: attended, laurel (rows, width) f32, h (rows, streams * width) f32, vectors. Results:
    r (rows, width) f32, hidden (rows, width) in `next_dtype`.
    """

    kind: ClassVar[str] = "laurel_residual"
    next_dtype: str

    def definition(self) -> tirx.PrimFunc:
        rows, width, eps = self.rows.extent(), self.width, self.eps
        attended, laurel = self.one_stream(rows, "attended"), self.one_stream(rows, "laurel")
        h, vectors, begin = self.all_streams(rows, "h"), self.layer_vectors(), self.active * width
        of_attended = inverse_rms_of(lambda i, k: attended[i, k], rows, width, eps, "attended")
        of_laurel = inverse_rms_of(lambda i, k: laurel[i, k], rows, width, eps, "laurel")
        of_active = inverse_rms_of(lambda i, k: h[i, begin + k], rows, width, eps, "active")

        def total(i: Expr, j: Expr) -> Expr:
            active = h[i, begin + j]
            gated = active + attended[i, j] * of_attended[i] * vectors[ATTENTION_NORM, j]
            augmented = active * of_active[i] * vectors[INPUT_NORM, j]
            augmented = augmented + laurel[i, j] * of_laurel[i] * vectors[LAUREL_NORM, j]
            return (gated + augmented) * f32(HALF_SUM)

        r = te.compute((rows, width), total, name="r")
        inverse = inverse_rms_of(lambda i, k: r[i, k], rows, width, eps, "r")
        hidden = te.compute(
            (rows, width),
            lambda i, j: (r[i, j] * inverse[i] * vectors[FEEDFORWARD_NORM, j]).astype(
                self.next_dtype
            ),
            name="hidden",
        )
        return te_prim_func([attended, laurel, h, vectors, r, hidden])
