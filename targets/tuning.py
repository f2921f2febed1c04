"""Sizes of kernels, chosen by measuring: what a search may change without changing a result.

The files are in targets/tunings, written by benchmarks/webgpu/tune.py; a target's limits name
its own, and several may share one. A field that the file leaves out keeps the default below. What
no file sets and no search tries is a constant of its class, and no field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gemma4_compile.targets.attention_tuning import DecodeAttentionTuning
from gemma4_compile.targets.byte_tile_tuning import ByteTileTuning, ShortChunkTuning
from gemma4_compile.targets.simdgroup_tuning import SimdgroupTuning
from gemma4_compile.targets.staged_tuning import StagedTuning
from gemma4_compile.targets.warpgroup_tuning import WarpgroupTuning

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

FOLDER = Path(__file__).parent / "tunings"


@dataclass(frozen=True)
class GemvTuning:
    """Matrix times one vector, float activations.

    Attributes
    ----------
    threads : of a block
    rows : of a group of lanes, at most
    units_per_lane : words of a row that a lane reads, where the matrix is large
    min_units_per_lane : the same where it is small and more lanes would be idle
    min_blocks : fewer leave much of a large GPU idle; smaller shares are taken below it
    """

    threads: int = 128
    rows: int = 4
    units_per_lane: int = 4
    min_units_per_lane: ClassVar[int] = 2
    min_blocks: int = 256


@dataclass(frozen=True)
class Int8GemvTuning:
    """Matrix times one vector of int8 groups.

    Attributes
    ----------
    threads : of a block
    wide_threads : of a block whose results are packed (it takes 64 rows at least), that merges an
        attention, that norms after two branches, or whose rows take many lanes
    rows : of a group of lanes, at most
    groups_per_lane : groups of 32 channels that a lane keeps in registers, at most
    min_blocks : aim: a block takes more rows only while so many blocks are left
    norm_threads : of all blocks of a matmul that begins with a norm, at most: as many as run at a
        time, for every block repeats the norm; of a float one only where it follows two
        branches
    expert_rows_ahead : rows of an expert's gate and up that a lane has under way, at most
    resident_threads, most_resident_threads : of a multiprocessor of CUDA, which registers are
        bounded for, by kernel (kernels/linear/int8_reading.py); 0: not said
    unrolled_rows : of a group of lanes that are in the text of a loop, at most
    """

    threads: int = 128
    wide_threads: int = 256
    rows: int = 4
    groups_per_lane: int = 4
    min_blocks: int = 384
    norm_threads: int = 65_536
    expert_rows_ahead: int = 1
    resident_threads: int = 0
    most_resident_threads: int = 0
    unrolled_rows: int = 1


@dataclass(frozen=True)
class FewRowTuning:
    """Matmuls and attention of a few rows.

    Attributes
    ----------
    threads : of a block, at most
    items_per_lane : units of 8 channels, or groups of 32 channels of int8, that a lane takes, where
        a block has enough lanes
    min_blocks : aim: a block has fewer threads, and a row more lanes, where there would be fewer
        blocks
    rows : of x that a matmul's block takes, at most: with more the matrix is read again. The sums
        of rows that there are not take registers, too
    queries : of an attention block, at most: query heads of rows; K and V are read once for them
    attention_blocks : aim: a block takes fewer queries where a step of four rows would have fewer
        blocks
    many_queries : of a block of a step of more than five rows, at most, as many as leave
        `attention_blocks` of nine; 0: as many as with four rows
    attention_resident : blocks of attention that a multiprocessor of CUDA holds, by their
        registers; 0: not said
    full_splits : splits of the keys of full attention, at most: those that there are no keys for
        have blocks, too, for all rows
    wide_threads : of a block that rounds the product of gate and up, at most
    norm_threads : of a block that norms a row and rounds it, at most: whole subgroups, of which 16
        are summed at once; 0: a power of two
    scores : of experts that a block makes of a row, which it reads for each block again
    """

    threads: int = 128
    items_per_lane: int = 4
    min_blocks: int = 256
    rows: int = 5
    queries: int = 4
    attention_blocks: int = 128
    many_queries: int = 0
    attention_resident: int = 0
    full_splits: ClassVar[int] = 64
    wide_threads: ClassVar[int] = 256
    norm_threads: int = 0
    scores: int = 1


@dataclass(frozen=True)
class GemmTuning:
    """Matrix times the rows of a chunk.

    Attributes
    ----------
    tile_m, tile_n, tile_k : rows of x, rows of W and channels of a block's step
    thread_m, thread_n : rows of x and of W that one thread sums; multiples of 4
    small_m, small_n : of the tile for matrices of at most `small_to` rows, 4 x 4 sums a thread
    medium_m, medium_n, medium_thread_m, medium_thread_n : of the tile for matrices of at most
        `medium_to` rows
    large_m, large_n : of the tile for matrices of at least `large_from` rows
    threads : of a block; those beyond the tile's share a step's channels
    unroll : channels (of int8: words) that are in the kernel's text, 1 or 4
    """

    tile_m: int = 64
    tile_n: int = 64
    tile_k: int = 32
    thread_m: int = 8
    thread_n: int = 8
    small_m: ClassVar[int] = 32
    small_n: ClassVar[int] = 32
    small_to: int = 512
    medium_m: ClassVar[int] = 64
    medium_n: ClassVar[int] = 96
    medium_thread_m: ClassVar[int] = 8
    medium_thread_n: ClassVar[int] = 12
    medium_to: int = 2048
    large_m: ClassVar[int] = 64
    large_n: ClassVar[int] = 128
    large_from: int = 10_000
    threads: int = 128
    unroll: int = 4


@dataclass(frozen=True)
class Int8GemmTuning(GemmTuning):
    """Matrix times the packed rows of a chunk; `GemmTuning` for this form."""

    tile_k: int = 128
    medium_m: ClassVar[int] = 32
    medium_n: ClassVar[int] = 64
    medium_thread_m: ClassVar[int] = 4
    medium_thread_n: ClassVar[int] = 8
    medium_to: int = 2560
    large_from: int = 2**31 - 1
    unroll: int = 1


@dataclass(frozen=True)
class PatchAttentionTuning:
    """Attention of a picture's patches.

    Attributes
    ----------
    keys : of a tile, 32 or 64, at most 32 for heads of no multiple of 32 channels; 0 is the
        prefill attention's kernel, by its own tuning
    unroll : channels, or keys, that are in the kernel's text, 1 or 4
    subgroup_rows : queries of a subgroup, 16 or 32, where there are subgroup matrices
    """

    keys: int = 0
    unroll: int = 4
    subgroup_rows: int = 16


@dataclass(frozen=True)
class TensorCoreTuning:
    """Matrix times many rows on tensor cores.

    Attributes
    ----------
    rows, columns, depth : rows of x, rows of W and channels of a block's step
    warp_rows, warp_columns : of them, one warp's; multiples of 16
    """

    rows: int = 128
    columns: int = 128
    depth: int = 32
    warp_rows: int = 64
    warp_columns: int = 64

    group: ClassVar[int] = 0  # no scales lie beside the tiles

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    @property
    def row_pieces(self) -> int:
        """Eights of channels from a row of a tile in shared memory to the next.

        One more than there are, so that no two of 8 neighbouring rows share banks.
        """
        return self.depth // 8 + 1


@dataclass(frozen=True)
class SubgroupMatrixTuning:
    """Matrix times many rows in subgroup matrices, by the rows of W.

    Attributes
    ----------
    narrow, medium, wide : tiles of a matrix
    narrow_to, medium_to : rows of W up to which a matrix is narrow, or medium
    integers_to : rows of W up to which the integers of a chunk's rows are multiplied as such: a
        chunk of 512 has too few of these tiles for a large GPU
    """

    narrow: TensorCoreTuning = field(default_factory=lambda: TensorCoreTuning(warp_columns=32))
    medium: TensorCoreTuning = field(
        default_factory=lambda: TensorCoreTuning(rows=96, warp_rows=48)
    )
    wide: TensorCoreTuning = field(default_factory=TensorCoreTuning)
    narrow_to: int = 1024
    medium_to: int = 2048
    integers_to: ClassVar[int] = 1536

    def tile(self, rows: int) -> TensorCoreTuning:
        """Tile of a matrix of so many rows."""
        if rows <= self.narrow_to:
            return self.narrow
        return self.medium if rows <= self.medium_to else self.wide


@dataclass(frozen=True)
class FewRowTensorCoreTuning:
    """Matrix times up to 8 packed rows on tensor cores; numbers of one GPU, which its file has.

    Attributes
    ----------
    multiprocessors : among which blocks are to be spread evenly
    warps : of a multiprocessor, aim: each has 4 KB of weights on their way, with the most tiles
    min_rows : of a matrix; one that has fewer has another kernel
    direct_rows : rows of x for which a matrix of medium size has the kernel without tensor cores,
        at most
    direct_bytes, direct_most_bytes : weights of such a matrix, at least and at most
    bytes_per_us : that a multiprocessor reads
    step_us, wave_us : of a warp alone; between blocks that follow each other
    more_warps : share of the time that each warp beyond the aim costs
    warp_reads : share of a tile's weights that reading x costs a warp
    alone : factor of a multiprocessor's only block, which waits while its sums are added up
    """

    multiprocessors: int = 1
    warps: int = 1
    min_rows: int = 1
    direct_rows: int = 0
    direct_bytes: int = 0
    direct_most_bytes: int = 0
    bytes_per_us: int = 1
    step_us: float = 0.0
    wave_us: float = 0.0
    more_warps: float = 0.0
    warp_reads: float = 0.0
    alone: float = 1.0


@dataclass(frozen=True)
class PrefillAttentionTuning:
    """Attention of a prefill chunk; powers of two.

    Attributes
    ----------
    threads : of a block
    rows : query heads times positions of a block, at most
    keys : of a tile, at most
    """

    threads: int = 256
    rows: int = 32
    keys: int = 64


@dataclass(frozen=True)
class FusionTuning:
    """Sizes up to which a matmul does the work before or after it in its own launch.

    Every block repeats what is fused: in a matrix of more weights the blocks pay more for it than
    a launch costs (docs/reports/performance.md, 31B). int8 blocks take several tiles each.

    Attributes
    ----------
    max_weights : of a matrix that begins with a norm
    max_int8_weights : the same where activations are int8
    max_combine_bytes : attention splits that every block reads, on a GPU
    max_combined_splits : splits, whose loads are all in the kernel's text, on a GPU
    few_row_product_width : channels of a few rows whose gate and up round their product
    max_paired_weights : of a matrix that goes into another one's launch; none larger is measured
    """

    max_weights: int = 40 << 20
    max_int8_weights: int = 256 << 20
    max_combine_bytes: int = 64 << 10
    max_combined_splits: int = 16
    few_row_product_width: int = 1536
    max_paired_weights: int = 256 << 10


@dataclass(frozen=True)
class Tuning:
    """All kernels' sizes under one set of limits."""

    gemv: GemvTuning = field(default_factory=GemvTuning)
    int8_gemv: Int8GemvTuning = field(default_factory=Int8GemvTuning)
    few_rows: FewRowTuning = field(default_factory=FewRowTuning)
    gemm: GemmTuning = field(default_factory=GemmTuning)
    int8_gemm: Int8GemmTuning = field(default_factory=Int8GemmTuning)
    bounded_gemm: GemmTuning = field(default_factory=GemmTuning)
    patch_attention: PatchAttentionTuning = field(default_factory=PatchAttentionTuning)
    tensor_cores: TensorCoreTuning = field(default_factory=TensorCoreTuning)
    byte_tiles: ByteTileTuning = field(default_factory=ByteTileTuning)
    warpgroups: WarpgroupTuning = field(default_factory=WarpgroupTuning)
    subgroup_matrices: SubgroupMatrixTuning = field(default_factory=SubgroupMatrixTuning)
    simdgroups: SimdgroupTuning = field(default_factory=SimdgroupTuning)
    few_row_tensor_cores: FewRowTensorCoreTuning = field(default_factory=FewRowTensorCoreTuning)
    staged: StagedTuning = field(default_factory=StagedTuning)
    short_chunks: ShortChunkTuning = field(default_factory=ShortChunkTuning)
    decode_attention: DecodeAttentionTuning = field(default_factory=DecodeAttentionTuning)
    prefill_attention: PrefillAttentionTuning = field(default_factory=PrefillAttentionTuning)
    fusion: FusionTuning = field(default_factory=FusionTuning)


@cache
def read_tuning(name: str) -> Tuning:
    """The tuning of targets/tunings/NAME.json; its unknown fields are errors."""
    return from_fields(Tuning, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def from_fields(kind: type[T], values: Mapping[str, object]) -> T:
    """A dataclass of dataclasses from nested dictionaries; ValueError names an unknown field."""
    return changed(kind(), values)


def changed(base: T, values: Mapping[str, object]) -> T:
    """A dataclass of dataclasses with some fields changed; ValueError names an unknown field."""
    if unknown := sorted(set(values) - {item.name for item in fields(base)}):
        raise ValueError(f"{type(base).__name__} has no field {', '.join(unknown)}")
    made: dict[str, Any] = {}
    for name, value in values.items():
        before = getattr(base, name)
        is_nested = is_dataclass(before) and not isinstance(before, type)
        if is_nested and isinstance(value, Mapping):
            made[name] = changed(before, value)
        else:
            made[name] = _as_tuples(value)
    return replace(base, **made)


def _as_tuples(value: object) -> object:
    """JSON's lists as tuples, which are hashed."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
