"""A matmul of a few rows as its kernels share it: arguments, and what happens to sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemma4_compile.operators.activations import PACKED, PackedOutput
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.tir import FunctionBuilder
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import Block
from gemma4_compile.targets.kernels.common.epilogues import EpilogueArguments, apply_epilogue
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.prologues.packed_products import pack_products
from gemma4_compile.targets.kernels.prologues.packed_rows import left_args, matmul_results


@dataclass(frozen=True)
class FewRowMatmul:
    """Arguments of ``y[i, r] = epilogue(sum_k x[i, k] W[r, k])``.

    Attributes
    ----------
    n : rows of x
    x : (n, cols), or words and scales of packed rows, or halves and powers
    after : what the epilogue reads
    results : y, or words and scales where it is packed
    """

    operator: Linear
    n: Index
    x: Sequence[Buffer]
    weights: WeightReader
    after: EpilogueArguments
    results: Sequence[Buffer]

    @classmethod
    def declared(cls, build: FunctionBuilder, operator: Linear) -> FewRowMatmul:
        """Declare the function's arguments."""
        n = operator.rows.extent()
        output = operator.output
        tiled_out = isinstance(output, PackedOutput) and output.tiled
        is_packed, size = operator.in_dtype == PACKED, (n, operator.cols)
        forms = operator.tiled, operator.steps_in, operator.takes_halved_rows
        x = left_args(build, size, operator.in_dtype, is_packed, *forms)
        weights = WeightReader(build, operator.layout)
        after = EpilogueArguments.declare(build, operator, n)
        packs = isinstance(output, PackedOutput)
        results = matmul_results(build, "y", (n, operator.outputs), packs, tiled_out)
        return cls(operator, n, x, weights, after, results)

    @property
    def packs(self) -> bool:
        """The result is words and scales."""
        return len(self.results) > 1

    @property
    def sums_a_result(self) -> int:
        """Neighbouring rows of W whose sums make one element of y."""
        return 2 if self.operator.epilogue == Epilogue.GELU_PAIRS.value else 1

    def store(self, i: Expr, first: Expr, sums: Sequence[Expr]) -> None:
        """Store the sums of W's rows from `first` on, as row i of y."""
        apply_epilogue(self.operator, self.results[0], i, first, sums, self.after)

    def pack(
        self,
        block: Block,
        values: Buffer,
        group: Expr,
        row_of: Callable[[Expr], Expr],
        count: Expr | None = None,
    ) -> None:
        """Round a group of products in shared memory, as `pack_products` does."""
        output = self.operator.output
        assert isinstance(output, PackedOutput), "only such products are packed"
        order = output.interleaved
        pack_products(block, values, self.results, group, order, row_of, count)
