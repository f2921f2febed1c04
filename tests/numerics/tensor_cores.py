"""Operators whose kernels use tensor cores where the target has them: odd shapes of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeGuard

from gemma4_compile.operators.activations import INT8, PACKED
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.divided_attention import DividedAttention
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.operators.vision_attention import PatchAttention
from tests.matmuls import int8_linear
from tests.numerics.kernel_cases import KernelCase, make_case
from tests.numerics.linear import (
    test_few_row_linear,
    test_gemm_kernels,
    test_minima_kernels,
    test_six_bit_kernels,
    test_static_rounding,
)
from tests.numerics.linear.test_bounded_kernels import GATE, PAIRS, bounded
from tests.numerics.moe import test_few_row_experts
from tests.numerics.vision.test_vision_kernels import F16, F32, dense, eight_bits

GROUP = 32


def _is_packed_chunk(operator: Operator) -> TypeGuard[Linear | ExpertLinear]:
    if not isinstance(operator, Linear | ExpertLinear):
        return False
    return operator.rows == CHUNK and operator.is_int8


MATMULS = (
    bounded(eight_bits(768, 256), F16),
    bounded(dense(200, 208), F16, out_dtype=F16),  # half a step of channels is left over
    bounded(eight_bits(320, 288), F16, GATE, out_dtype=F16),
    bounded(dense(416, 144), F16, PAIRS, clipped=False, out_dtype=F16),
    bounded(eight_bits(384, 96), F16, PAIRS, clipped=False),
)
ATTENTIONS = (
    PatchAttention(3, 64, 3, F16, F16),
    PatchAttention(2, 72, 3, F16, F16),  # half of the last 16 channels is there
    PatchAttention(1, 8, 2, F16, F32),
    PatchAttention(1, 96, 1, F16, F16),
)
OPERATORS: tuple[Operator, ...] = (*MATMULS, *ATTENTIONS)


def chunk(
    heads: int, kv_heads: int, dim: int, window: int | None, ring: int | None, **fields: Any
) -> PrefillAttention:
    """Attention of a chunk with operands in float16."""
    return PrefillAttention(
        CHUNK, heads, kv_heads, dim, window, F16, ring, rounds_to_halves=True, **fields
    )


CHUNKS = {
    "E2B sliding": chunk(8, 1, 256, 512, 1056, out_dtype=F16),
    "E2B full": chunk(8, 1, 512, None, None, out_dtype=F16),
    "31B sliding": chunk(32, 16, 256, 1024, 1120),
    "12B full": chunk(16, 1, 512, None, None, out_dtype=F16),
    "groups of three": chunk(6, 2, 64, 9, 32),
    "groups of five, seven parts": chunk(5, 1, 448, None, None),
    "window of less than a tile": chunk(16, 8, 128, 7, 40, out_dtype=F16),
    "pieces that threads do not divide": chunk(18, 2, 320, 40, 83),
    "copies": chunk(8, 4, 192, 70, 140, has_copies=True),
}


def dividing(attention: PrefillAttention, blocks: int) -> DividedAttention:
    """The same where a chunk of fewer than half of so many blocks, of 32 rows, divides its keys."""
    places = blocks * 32 // attention.heads
    return DividedAttention(**vars(attention), blocks=blocks, places=places)


DIVIDED = {
    "E2B full": (dividing(CHUNKS["E2B full"], 12), 24),
    "groups of three": (dividing(chunk(6, 2, 64, None, None), 13), 32),
    "groups of five, seven parts": (dividing(CHUNKS["groups of five, seven parts"], 7), 19),
}
"""Chunks that divide their keys among blocks, and the most rows with which they do."""

PICTURES = {
    "12B, 26B": chunk(16, 8, 256, 1024, 1120, out_dtype=F16, sees_pictures=True),
    "groups of three": chunk(6, 2, 64, 9, 96, sees_pictures=True),
}
"""Chunks whose pictures see themselves."""


def chunk_cases(names: Iterable[str] = CHUNKS) -> Iterator[KernelCase]:
    """Chunks at the beginning of a sequence and later: rings have wrapped."""
    for name in names:
        seed, operator = list(CHUNKS).index(name), CHUNKS[name]
        for before in (0, 45, 1200) if operator.window is not None else (0, 77):
            rows = 11 if operator.head_dim >= 256 else 19 + 56 * (seed % 2)
            yield make_case(operator, seed, before, rows=rows)


def divided_cases(names: Iterable[str] = DIVIDED) -> Iterator[KernelCase]:
    """Both sides of the border; fewer keys than a tile a split, more, and some that no row sees."""
    for seed, name in enumerate(names):
        operator, most = DIVIDED[name]
        for before, rows in ((0, 1), (77, 11), (200, most), (200, most + 1)):
            yield make_case(operator, seed, before, rows=rows)


FEW_ROWS: tuple[Linear | ExpertLinear, ...] = (
    *(
        one
        for one in test_few_row_linear.OPERATORS
        if isinstance(one, Linear) and one.is_int8 and one.in_dtype == PACKED and one.cols < 10_000
    ),
    test_few_row_linear.int8(4, 8192, (6,)),
    # Groups that no step divides, in steps of several warps; two splits of float32 scales.
    test_few_row_linear.int8(4, 2112, (40,)),
    test_few_row_linear.int8(8, 1536, (256,), epilogue=Epilogue.GELU_GATE.value, ple_width=5 * 256),
    test_few_row_linear.int8(4, 2816, (64, 48), "float32", epilogue=Epilogue.GELU_PAIRS.value),
    # Rows in tiles; a result in tiles; matrices whose blocks have two to four tiles.
    test_few_row_linear.int8(4, 416, (64, 40), tiled=True),
    test_few_row_linear.int8(8, 512, (3000,), "float32", tiled=True),
    test_few_row_linear.int8(4, 1536, (5376,), tiled=True),
    test_few_row_linear.int8(
        4,
        256,
        (192,),
        epilogue=Epilogue.GELU_PAIRS.value,
        packed_out=True,
        tiled=True,
        tiled_out=True,
    ),
    test_few_row_linear.int8(4, 512, (12800,), tiled=True),
    *(one for one in test_few_row_experts.OPERATORS if one.is_int8),
    test_few_row_experts.int8(4, 704, (256 * 12,), 256, epilogue=Epilogue.NONE.value),
)
"""Matmuls of a few packed rows, of any number of them, in every layout and with every epilogue."""


def _of_minima(cols: int, rows: tuple[int, ...], **fields: Any) -> Linear:
    operator = test_few_row_linear.int8(4, cols, rows, **fields)
    return replace(operator, layout=test_minima_kernels.minima(cols, *rows))


FEW_ROWS_OF_MINIMA: tuple[Linear | ExpertLinear, ...] = (
    # E2B's and 12B's widths; a last block of one group, of five, and of all; rows in splits.
    _of_minima(1536, (136,), tiled=True),
    _of_minima(3840, (72,)),
    _of_minima(32, (40,)),
    _of_minima(416, (64, 64, 40), tiled=True),
    _of_minima(288, (130,), epilogue=Epilogue.GELU_PAIRS.value),
    _of_minima(2112, (40,), tiled=True),
    _of_minima(
        512,
        (192,),
        epilogue=Epilogue.GELU_PAIRS.value,
        packed_out=True,
        tiled=True,
        tiled_out=True,
    ),
    *(
        one
        for one in test_minima_kernels.operators()
        if isinstance(one, ExpertLinear) and one.is_int8 and isinstance(one.rows, Few)
    ),
)
"""The same of groups with minima."""


PACKINGS = 7
PACKED_CHUNKS: tuple[Linear | ExpertLinear, ...] = (
    # Groups that end within a step, rows that end within a tile, a tile in two splits.
    int8_linear(CHUNK, WeightLayout(4, F16, GROUP, 96, (64, 64, 40)), PACKED),
    int8_linear(CHUNK, WeightLayout(4, F32, GROUP, 128, (130,)), PACKED, Epilogue.GELU_PAIRS.value),
    int8_linear(CHUNK, WeightLayout(8, F16, GROUP, 160, (200,)), PACKED, suppressed=(3, 199)),
    int8_linear(
        CHUNK,
        WeightLayout(8, F32, GROUP, 64, (256,)),
        PACKED,
        Epilogue.GELU_GATE.value,
        ple_width=5 * 256,
    ),
    # Steps of four groups, in one or two stages of shared memory.
    int8_linear(CHUNK, WeightLayout(4, F16, GROUP, 384, (160,)), PACKED),
    int8_linear(CHUNK, WeightLayout(6, F16, GROUP, 256, (72,)), PACKED),
    int8_linear(CHUNK, test_minima_kernels.minima(384, 72), PACKED),
    *(one for one in test_six_bit_kernels.operators() if _is_packed_chunk(one)),
    *(one for one in test_minima_kernels.operators() if _is_packed_chunk(one)),
    *(one for one in test_static_rounding.ROUNDING if _is_packed_chunk(one)),
    *(one for one in test_gemm_kernels.INT8_OPERATORS if isinstance(one, ExpertLinear)),
    ExpertLinear(
        WeightLayout(8, F32, GROUP, 160, (72 * 4,)),
        72,
        4,
        2,
        PACKED,
        epilogue=Epilogue.NONE.value,
        activations=INT8,
        rows=CHUNK,
    ),
)
"""Matmuls of a chunk on packed rows: every packing, minima, scales of both widths, experts."""


def packed_chunk_cases(*, of_each_kind: bool = False) -> Iterator[KernelCase]:
    """Each with one row, or with rows that end within the first tile or a later one.

    `of_each_kind` is of the first PACKINGS, and of experts, which have a tile of their own.
    """
    for seed, operator in enumerate(PACKED_CHUNKS):
        if not of_each_kind or seed < PACKINGS or isinstance(operator, ExpertLinear):
            yield make_case(operator, seed, rows=(70, 1, 132)[seed % 3])


SHORT_CHUNKS: tuple[Linear | ExpertLinear, ...] = (
    # Groups that end within a step, or fill several; rows that end within a block.
    int8_linear(CHUNK, WeightLayout(4, F16, GROUP, 96, (64, 64, 40)), PACKED),
    int8_linear(
        CHUNK, WeightLayout(4, F32, GROUP, 2112, (130,)), PACKED, Epilogue.GELU_PAIRS.value
    ),
    int8_linear(CHUNK, WeightLayout(8, F16, GROUP, 160, (200,)), PACKED, suppressed=(3, 199)),
    int8_linear(
        CHUNK,
        WeightLayout(8, F32, GROUP, 512, (256,)),
        PACKED,
        Epilogue.GELU_GATE.value,
        ple_width=5 * 256,
    ),
    int8_linear(CHUNK, WeightLayout(4, F16, GROUP, 1024, (72,)), PACKED),
    *(one for one in PACKED_CHUNKS if isinstance(one, ExpertLinear)),
    # Minima: a last block of two groups, of one, and of all; rows in splits.
    int8_linear(CHUNK, test_minima_kernels.minima(2112, 64, 64, 40), PACKED),
    int8_linear(CHUNK, test_minima_kernels.minima(288, 130), PACKED, Epilogue.GELU_PAIRS.value),
    int8_linear(CHUNK, test_minima_kernels.minima(1024, 72), PACKED),
)
"""Matmuls that have a kernel for short chunks: packings, minima, scales and epilogues."""


def short_chunk_cases() -> Iterator[KernelCase]:
    """Each with rows of one block or several, of which the last has fewer; one has too many."""
    for seed, operator in enumerate(SHORT_CHUNKS):
        yield make_case(operator, seed, rows=(17, 40, 3, 41, 32)[seed % 5])
    yield make_case(SHORT_CHUNKS[4], len(SHORT_CHUNKS), rows=16)


def few_row_cases() -> Iterator[KernelCase]:
    """Each with two numbers of rows; all of one to nine, and those on either side of a product."""
    for seed, operator in enumerate(FEW_ROWS):
        for rows in (1 + seed % 9, 9 - seed % 3):
            yield make_case(operator, seed, rows=rows)


def few_rows_of_minima_cases() -> Iterator[KernelCase]:
    """Each with a number of rows within one product, the first with rows of a second one."""
    for seed, operator in enumerate(FEW_ROWS_OF_MINIMA):
        yield make_case(operator, seed, rows=(9, 8, 1, 4, 7)[seed % 5])


def two_kernel_cases() -> Iterator[KernelCase]:
    """Each matmul with two numbers of rows, on either side of the kernels' border."""
    for seed, operator in enumerate(FEW_ROWS):
        if isinstance(operator, Linear) and operator.is_int8 and not operator.tiled:
            for rows in (1 + seed % 2, 3 + seed % 7):
                yield make_case(operator, seed, rows=rows)
