"""Matrix times the rows of a prefill chunk: tiles in shared memory, as floats or as packed int8.

Definition: `Linear` in operators/linear.py.
The product of a tile: tiles/products.py, tiles/int8_products.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import WORD
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.packings import SIXES
from gemma4_compile.operators.tir import (
    bind,
    function,
    i32,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import launch, resident
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.few_row_matmul import FewRowMatmul
from gemma4_compile.targets.kernels.linear.short_chunk import (
    multiply_short_chunk,
    short_chunks,
)
from gemma4_compile.targets.kernels.tiles.byte_tile_shape import ByteTileShape
from gemma4_compile.targets.kernels.tiles.byte_tiles import (
    ByteTileProduct,
    SteppedByteTileProduct,
    WarpTileProduct,
)
from gemma4_compile.targets.kernels.tiles.int8_products import GROUP_WORDS, Int8TileProduct
from gemma4_compile.targets.kernels.tiles.loaders import VECTOR, Change, RowOf
from gemma4_compile.targets.kernels.tiles.products import (
    FloatTileProduct,
    TileProduct,
    TileShape,
    fit_shape,
)
from gemma4_compile.targets.kernels.tiles.simdgroup_matrices import (
    SimdgroupShape,
    SimdgroupTileProduct,
    has_simdgroup_matrices,
)
from gemma4_compile.targets.kernels.tiles.stepped_products import (
    SteppedTileProduct,
    scaled_levels,
)
from gemma4_compile.targets.kernels.tiles.subgroup_chunk_products import SubgroupTileProduct
from gemma4_compile.targets.kernels.tiles.tensor_operations import (
    TensorShape,
    TensorTileProduct,
)
from gemma4_compile.targets.kernels.tiles.warpgroup_tiles import (
    WarpgroupShape,
    WarpgroupTileProduct,
)
from gemma4_compile.targets.kernels.tiles.warpgroups import has_warpgroups
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import GemmTuning, TensorCoreTuning

Shape = TileShape | SimdgroupShape | TensorShape | ByteTileShape | WarpgroupShape | TensorCoreTuning
"""Division of a block's work, of each product of tiles."""
Product = (
    TileProduct
    | SimdgroupTileProduct
    | TensorTileProduct
    | WarpTileProduct
    | WarpgroupTileProduct
    | SubgroupTileProduct
)


def make_gemm(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """``y[i, r] = epilogue(sum_k x[i, k] W[r, k])``.

    Grid: W's rows / tile x chunk rows / tile. Shared: both tiles. Reference: `Linear.definition`.
    """
    has_minima = isinstance(operator.layout, MinimaLayout)
    rows, is_int8 = operator.layout.rows, operator.is_int8
    shape = gemm_shape(spec, rows, is_int8, operator.steps_in, has_minima)
    make = SteppedTileProduct if operator.steps_in else tile_product
    return _make(operator, shape, make)


def fits_simdgroups(operator: Linear, spec: TargetSpec) -> bool:
    """Return whether a chunk's matmul has `make_simdgroup_gemm`."""
    is_float = not (operator.is_int8 or operator.steps_in)
    return is_float and has_simdgroup_matrices(spec, SimdgroupShape.of(spec.tuning.simdgroups))


def make_simdgroup_gemm(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_gemm` with matrices of 8 x 8 that a simdgroup multiplies."""
    return _make(operator, SimdgroupShape.of(spec.tuning.simdgroups), SimdgroupTileProduct)


def make_tensor_gemm(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_gemm` by Metal 4's tensor operations."""
    shape = TensorShape.for_rows(spec.tuning.simdgroups, operator.in_dtype)
    return _make(operator, shape, TensorTileProduct)


def fits_byte_tensor_cores(operator: Linear, spec: TargetSpec) -> bool:
    """Return whether a chunk's matmul has `make_byte_tensor_core_gemm`."""
    return spec.tensor_cores and operator.is_int8 and _byte_shape(operator, spec).fits(spec)


def make_byte_tensor_core_gemm(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_gemm` of bytes that warps multiply.

    Grid: chunk rows / tile x W's rows / tile, so that blocks that follow each other read the same
    rows of W.
    """
    with function(scheduled=True) as build:
        _multiply_bytes(FewRowMatmul.declared(build, operator), spec)
    return build.result


def make_warpgroup_gemm(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_gemm` of halves that warpgroups multiply, of enough rows on a GPU that has them.

    Of others the host launches `make_byte_tensor_core_gemm`'s kernels. Grids as theirs.
    """
    with function(scheduled=True) as build:
        matmul = FewRowMatmul.declared(build, operator)
        is_large = matmul.n >= _least_of_warpgroups(operator, spec)
        if spec.has_older_images:
            is_large = tirx.all(is_large, has_warpgroups())
        with T.If(is_large):
            with T.Then():
                _multiply_by_warpgroups(matmul, spec)
            with T.Else():
                _multiply_bytes(matmul, spec)
    return build.result


def _least_of_warpgroups(operator: Linear, spec: TargetSpec) -> int:
    """Rows of x from which on they have a matmul: more than any short chunk."""
    size, layout = spec.tuning.warpgroups, operator.layout
    is_slow = isinstance(layout, MinimaLayout) or layout.packing == SIXES
    least = size.few_rows if is_slow else size.min_rows
    return max(least, *(kernel.most + 1 for kernel in short_chunks(operator, spec)), 1)


def _multiply_by_warpgroups(matmul: FewRowMatmul, spec: TargetSpec) -> None:
    """The host launches the kernel of the tile by the rows of x."""
    size = spec.tuning.warpgroups
    columns = -(-matmul.operator.layout.rows // WarpgroupShape.columns)
    scope = "shared.dyn" if spec.asked_shared_memory_bytes else "shared"
    small, most = size.small_tile(columns)
    with ExitStack() as others:
        if most:
            others.enter_context(T.If(matmul.n <= most))
            with T.Then():
                _multiply(matmul, WarpgroupShape(small, scope), WarpgroupTileProduct)
            others.enter_context(T.Else())
        _multiply(matmul, WarpgroupShape(size.tile(columns), scope), WarpgroupTileProduct)


def _multiply_bytes(matmul: FewRowMatmul, spec: TargetSpec) -> None:
    """The host launches one of several kernels."""
    operator = matmul.operator
    make = SteppedByteTileProduct if operator.steps_in else ByteTileProduct
    with ExitStack() as others:
        for kernel in short_chunks(operator, spec):
            others.enter_context(T.If(matmul.n <= kernel.most))
            with T.Then():
                multiply_short_chunk(matmul, kernel, spec)
            others.enter_context(T.Else())
        _multiply(matmul, _byte_shape(operator, spec), make)


def make_subgroup_matrix_chunk(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_gemm` with matrices of float16 that a subgroup multiplies."""
    size = spec.tuning.subgroup_matrices.tile(operator.layout.rows)
    return _make(operator, size, SubgroupTileProduct)


def _byte_shape(operator: Linear, spec: TargetSpec) -> ByteTileShape:
    layout = operator.layout
    size = spec.tuning.byte_tiles.tile(layout.rows)
    limit, minima = spec.max_shared_memory_bytes, isinstance(layout, MinimaLayout)
    return ByteTileShape.of(size, operator.cols, limit, minima, not operator.steps_in)


def _make(operator: Linear, shape: Shape, make: Callable[..., Product]) -> tirx.PrimFunc:
    with function(scheduled=True) as build:
        _multiply(FewRowMatmul.declared(build, operator), shape, make)
    return build.result


def _multiply(matmul: FewRowMatmul, shape: Shape, make: Callable[..., Product]) -> None:
    """Launch the kernel."""
    operator, n, x, weights = matmul.operator, matmul.n, matmul.x, matmul.weights
    rows, cols, is_int8 = operator.layout.rows, operator.cols, operator.is_int8
    grid = -(-rows // shape.columns), tirx.floordiv(n + (shape.rows - 1), shape.rows)
    on_warps = isinstance(shape, ByteTileShape | WarpgroupShape)
    with (
        launch(shape.threads, *(grid[::-1] if on_warps else grid)) as (*blocks, thread),
        resident(shape.blocks if isinstance(shape, ByteTileShape) else 0),
    ):
        block_n, block_m = (blocks[1], bind(i32(blocks[0]))) if on_warps else blocks
        last = bind(i32(n) - 1)
        first_m, first_n = bind(block_m * shape.rows), bind(block_n * shape.columns)
        row_of_w = clamped(first_n, rows - 1) if rows % shape.columns else first_n.__add__
        row_of_x = clamped(first_m, last)
        product = make(shape, x, weights, thread, row_of_x, row_of_w)
        product.run(i32(step_count(shape, cols, operator.steps_in and is_int8)))

        def finish(i: Expr, r: Expr, sums: Sequence[Expr]) -> None:
            row = bind(first_m + i)
            with when(row <= last):
                if operator.steps_in:
                    first = bind(row_of_w(r))
                    sums = scaled_levels(weights, sums, first, rows - 1, matmul.after.input_step)
                matmul.store(row, bind(first_n + r), sums)

        product.finish(finish)


def tile_product(
    shape: TileShape,
    x: Sequence[Buffer],
    weights: WeightReader,
    thread: Expr,
    row_of_x: RowOf,
    row_of_w: RowOf,
    change: Change | None = None,
) -> TileProduct:
    """The product for what `left_args` declared; `change` is of values, which packed rows lack."""
    if len(x) == 1:
        return FloatTileProduct(shape, x[0], weights, thread, row_of_x, row_of_w, change)
    assert change is None, "packed rows"
    return Int8TileProduct(shape, x[0], x[1], weights, thread, row_of_x, row_of_w)


def step_count(shape: Shape, cols: int, in_words: bool = False) -> int:
    """Steps for so many channels, which are in words where a shape has groups."""
    return -(-cols // (shape.depth * (WORD if shape.group or in_words else 1)))


def gemm_shape(
    spec: TargetSpec,
    rows: int,
    is_int8: bool = False,
    steps_in: bool = False,
    has_minima: bool = False,
) -> TileShape:
    """The tile for a matrix of so many rows: large where that leaves enough tiles of a chunk."""
    size = spec.tuning.int8_gemm if is_int8 else spec.tuning.gemm
    return shape_of(size, spec, rows, is_int8, steps_in, has_minima)


def shape_of(
    size: GemmTuning,
    spec: TargetSpec,
    rows: int,
    is_int8: bool,
    steps_in: bool = False,
    has_minima: bool = False,
) -> TileShape:
    """The tile by some sizes; with `steps_in` without scales of groups, or with minima beside."""
    tile, sums = (size.tile_m, size.tile_n), (size.thread_m, size.thread_n)
    if rows <= size.small_to:
        tile, sums = (size.small_m, size.small_n), (VECTOR, VECTOR)
    elif rows <= size.medium_to:
        tile = size.medium_m, size.medium_n
        sums = size.medium_thread_m, size.medium_thread_n
    elif rows >= size.large_from:
        tile = size.large_m, size.large_n
    depth, group = (size.tile_k // WORD, GROUP_WORDS) if is_int8 else (size.tile_k, 0)
    if steps_in:
        group = 0
    minima = is_int8 and has_minima
    shape = TileShape(*tile, depth, *sums, size.threads, size.unroll, group, minima)
    return fit_shape(shape, spec)


def clamped(first: Expr, last: Index) -> RowOf:
    """Rows beyond the last repeat it; they are never stored."""
    return lambda i: tirx.min(first + i, last)
