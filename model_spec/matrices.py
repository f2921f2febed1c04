"""A weight matrix as the model uses it.

`quantization` provides it, so that the spec knows no storage scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tvm.relax.frontend import nn

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.rows import Rows


class Matrix(Protocol):
    """A weight matrix (n_rows, cols), however it is stored."""

    def matmul(
        self,
        x: nn.Tensor,
        rows: Rows,
        epilogue: Epilogue = Epilogue.NONE,
        *,
        cap: float = 0.0,
        ple: nn.Tensor | None = None,
        layer: int = 0,
        suppressed: Sequence[int] = (),
    ) -> nn.Tensor:
        """``epilogue(x W^T)``: (rows, cols) -> (rows, outputs) float32.

        Columns in `suppressed` are MASKED instead, so low that no sampler chooses them.
        """

    def bounded(
        self,
        x: nn.Tensor,
        bounds: nn.Tensor | None,
        epilogue: Epilogue = Epilogue.NONE,
        *,
        partner: nn.Tensor | None = None,
        out_dtype: str = "float32",
    ) -> nn.Tensor:
        """``epilogue(clip(clip(x) W^T))`` of any number of rows, in `out_dtype`.

        Parameters
        ----------
        bounds : (4,) float32, lowest and highest of input and output, or None
        partner : what GELU_GATE multiplies by
        """

    def take(
        self, ids: nn.Tensor, rows: Rows, scale: float, places: nn.Tensor | None = None
    ) -> nn.Tensor:
        """Rows by token id, times `scale`: (rows,) int32 -> (rows, cols) float32.

        Parameters
        ----------
        places : (rows,) int32, where a caller that passes a window of the table's rows has put
            those of the ids; None for the order of `ids`
        """

    def matmul_of(self, x: nn.Tensor, ids: nn.Tensor) -> nn.Tensor:
        """Products with some rows: (rows, cols) and ids -> (rows, count) float32.

        Ids are int32, (count,) of one row, (rows, count) of others.
        """

    def add_positions(self, x: nn.Tensor, positions: nn.Tensor, pooling: int) -> nn.Tensor:
        """``x`` and its patches' rows of this table: (patches, cols) float32."""

    def position_norms(
        self, x: nn.Tensor, positions: nn.Tensor, vectors: nn.Tensor, eps: float, out_dtype: str
    ) -> nn.Tensor:
        """`PositionNorms` of x with this table: (blocks, cols) in `out_dtype`."""


class Experts(Protocol):
    """The weight matrices of all experts, however they are stored."""

    def gate_up(self, routed: nn.Tensor, ids: nn.Tensor, top_k: int) -> nn.Tensor:
        """Gate and up of one position's experts: (top_k, width) float32.

        Parameters
        ----------
        routed : result of `RouterScores`, which holds their input
        ids : (1, top_k) int32
        """

    def down(self, x: nn.Tensor, ids: nn.Tensor, weights: nn.Tensor, top_k: int) -> nn.Tensor:
        """Weighted down of one position's experts: (top_k, width) -> (1, hidden_size) f32."""

    def grouped(
        self, x: nn.Tensor, order: nn.Tensor, tiles: nn.Tensor, top_k: int, epilogue: Epilogue
    ) -> nn.Tensor:
        """Matmul of a chunk's pairs in the order of `PermuteByExpert`: (pairs, outputs) f32."""


class Matrices(Protocol):
    """Makes matrices by parameter name."""

    def matrix(self, name: str) -> Matrix:
        """The matrix of parameter `name`."""

    def experts(self, name: str) -> Experts:
        """The matrices of all experts, parameter `name`."""

    def dense(self, name: str) -> nn.Parameter:
        """The one tensor of parameter `name`, which is stored densely."""
