"""What the search for sizes of kernels tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from gemma4_compile import abi


@dataclass(frozen=True)
class Family:
    """Operators that a part of the tuning belongs to.

    Attributes
    ----------
    kinds : of the operators, a matmul's with its prologue in front
    is_prefill : whether their chunk form is meant, or that of one position
    candidates : values to try
    few : rows of those of a step that checks guesses; 0 for the other steps
    blocks : rows that a picture becomes, of those of a vision tower; 0 for the others
    """

    kinds: tuple[str, ...]
    is_prefill: bool
    candidates: Sequence[dict[str, Any]]
    few: int = 0
    blocks: int = 0

    @property
    def function(self) -> str:
        """The exported function whose operators are meant."""
        if self.blocks:
            return abi.EMBED_IMAGE
        return abi.VERIFY if self.few else abi.PREFILL if self.is_prefill else abi.DECODE


def every(**fields: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of some fields' values."""
    return [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]


GEMVS = ("linear", "combined_linear", "normed_linear", "routed_normed_linear")
ATTENTION = (
    "decode_attention",
    "combined_int8_linear",
    "combine_splits",
    "combined_linear",
    "quantized_combine",
    "stepped_combine",
)
PICTURE = 280  # rows of the largest picture by default
ONE_FOR_ALL = {"small_to": 0, "medium_to": 0, "large_from": 1 << 30}  # matrices
CANDIDATES: dict[str, Family] = {
    "gemv": Family(
        GEMVS, False, every(rows=(2, 4, 8), units_per_lane=(2, 4, 8), min_blocks=(256, 512))
    ),
    "int8_gemv": Family(
        (
            "int8_linear",
            "combined_int8_linear",
            "normed_int8_linear",
            "routed_normed_int8_linear",
        ),
        False,
        [
            *every(rows=(2, 4, 8), groups_per_lane=(3, 4)),
            *every(min_blocks=(192, 768)),
            *every(threads=(256,)),
            *every(wide_threads=(128,)),
        ],
    ),
    "few_rows": Family(
        ("few_row_linear", "few_row_int8_linear", "few_row_attention", "combine_few_rows"),
        False,
        [
            *every(threads=(64, 128, 256), items_per_lane=(2, 4, 8)),
            *every(min_blocks=(128, 512)),
            *every(rows=(4, 9)),
            *every(queries=(2, 8)),
            *every(attention_blocks=(64, 256)),
        ],
        few=4,
    ),
    "gemm": Family(
        ("linear", "expert_gemm"),
        True,
        [
            {
                **{"tile_m": m, "tile_n": n, "tile_k": k, "thread_m": i, "thread_n": j},
                **{"threads": max(128, m * n // (i * j)), **ONE_FOR_ALL},
            }
            for m, n, i, j in (
                *((32, 32, 4, 4), (32, 64, 4, 8), (64, 64, 8, 8), (64, 96, 8, 12)),
                *((128, 64, 8, 8), (64, 128, 8, 16), (128, 64, 16, 8), (128, 128, 8, 16)),
            )
            for k in (16, 32)
        ],
    ),
    "int8_gemm": Family(
        ("int8_linear", "int8_expert_gemm"),
        True,
        [
            {
                **{"tile_m": m, "tile_n": n, "tile_k": k, "thread_m": i, "thread_n": j},
                **{"threads": max(128, m * n // (i * j)), "unroll": unroll, **ONE_FOR_ALL},
            }
            for m, n, i, j in (
                *((32, 32, 4, 4), (32, 64, 4, 8), (64, 64, 8, 4), (64, 64, 8, 8)),
                *((128, 64, 8, 8), (64, 128, 8, 8), (128, 128, 8, 8), (128, 128, 16, 8)),
            )
            for k, unroll in ((32, 4), (64, 1), (64, 4), (128, 1))
        ],
    ),
    "decode_attention": Family(
        ATTENTION,
        False,
        [
            {},
            {"threads": 128},
            {"loads": 8},
            {"heads": 8},
            {"heads": 2},
            {"heads": 1},
            {"heads": 1, "sliding_splits": 4},
            {"heads": 2, "threads": 128},
            {"heads": 2, "loads": 8},
            {"heads": 8, "full_splits": 64},
            {"full_splits": 64},
            {"full_splits": 256, "max_blocks": 512},
            {"heads": 2, "full_splits": 64},
            {"min_blocks": 32},
            {"min_blocks": 16},
            {"sliding_splits": 4, "min_blocks": 32},
            {"sliding_splits": 16, "split_channels": 8192, "min_blocks": 128},
            {"sliding_splits": 16},
            {"sliding_splits": 4},
        ],
    ),
    "prefill_attention": Family(
        ("prefill_attention",), True, every(threads=(128, 256), rows=(16, 32, 64), keys=(32, 64))
    ),
    "bounded_gemm": Family(
        ("bounded_linear",),
        True,
        [
            {
                **{"tile_m": m, "tile_n": n, "tile_k": k, "thread_m": i, "thread_n": j},
                **{"threads": threads, **ONE_FOR_ALL},
            }
            for m, n, i, j, k, threads in (
                *((64, 64, 8, 8, 32, 128), (64, 96, 8, 12, 32, 128), (64, 128, 8, 16, 32, 128)),
                *((64, 64, 8, 8, 32, 64), (64, 64, 8, 8, 16, 64), (128, 64, 8, 8, 32, 128)),
                *((128, 64, 8, 8, 16, 128), (96, 64, 12, 8, 32, 64), (96, 96, 12, 12, 32, 64)),
                *((128, 64, 16, 8, 32, 64), (128, 96, 8, 12, 32, 128), (128, 128, 8, 8, 16, 256)),
                *((128, 128, 8, 16, 32, 128), (128, 128, 16, 8, 16, 128)),
            )
        ],
        blocks=PICTURE,
    ),
    "patch_attention": Family(
        ("patch_attention",),
        True,
        [
            *every(keys=(0,)),
            *every(keys=(32, 64), unroll=(1, 4)),
            *every(subgroup_rows=(16, 32)),  # with limits `h200-matrices`
        ],
        blocks=PICTURE,
    ),
    "subgroup_matrices": Family(  # with limits `h200-matrices`
        ("bounded_linear",),
        True,
        [
            {
                **{"narrow_to": 0, "medium_to": 0},
                "wide": {
                    **{"rows": m, "columns": n, "depth": k},
                    **{"warp_rows": i, "warp_columns": j},
                },
            }
            for m, n, k, i, j in (
                *((128, 128, 32, 64, 64), (128, 128, 32, 64, 32), (128, 128, 32, 32, 64)),
                *((64, 128, 32, 32, 64), (64, 128, 64, 32, 32), (64, 128, 32, 32, 32)),
                *((64, 64, 32, 32, 32), (64, 64, 64, 32, 32), (128, 64, 32, 64, 32)),
                *((64, 128, 64, 32, 64), (128, 64, 64, 32, 32), (64, 96, 64, 32, 48)),
                *((128, 256, 32, 64, 64), (96, 128, 32, 48, 64)),
            )
        ],
        blocks=PICTURE,
    ),
}
