"""Which of a library's kernels are tested on the user's device."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import UnionType

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.prologues import Combine, Prologue, Routed
from gemma4_compile.operators.rows import CHUNK, ONE, Few, Rows
from gemma4_compile.operators.split_attention import NormedQuery

TIMED_BYTES = 12 << 20  # of a case by which libraries are timed: several are uploaded for a choice


@dataclass(frozen=True)
class Role:
    """A kernel to test: the smallest of these kinds, for every variant that the library has.

    Attributes
    ----------
    timed_bytes : where it is more than 0 the largest of these kinds with buffers of at most so many
        bytes is taken instead, if there is one: by its time libraries are compared, and a small
        one's is that of a launch
    """

    title: str
    kinds: tuple[str, ...]
    accepts: Callable[[Operator], bool] = lambda operator: True
    variant: Callable[[Operator], Hashable] = lambda operator: None
    timed_bytes: int = 0

    def cost(self, nbytes: int) -> tuple[bool, int]:
        """Of two kernels of a variant, by the bytes of their buffers, that of the lower cost."""
        is_timed = nbytes <= self.timed_bytes
        return not is_timed, -nbytes if is_timed else nbytes


def rows_of(operator: Operator) -> Rows:
    """Rows of an operator that has them."""
    rows: Rows = vars(operator)["rows"]
    return rows


def _has(operator: Operator, prologue: type[Prologue] | UnionType) -> bool:
    return isinstance(operator, Linear) and isinstance(operator.prologue, prologue)


def _is_of_few(operator: Operator) -> bool:
    return isinstance(rows_of(operator), Few)


def _sees_pictures(operator: Operator) -> bool:
    return bool(vars(operator)["sees_pictures"])


def _norms_query(operator: Operator) -> bool:
    return isinstance(vars(operator)["query"], NormedQuery)


def _weights(operator: Operator) -> Hashable:
    layout = vars(operator)["layout"]
    return layout.form, layout.bits, layout.dtype


ROLES = (
    Role("norm", ("rms_norm",), accepts=lambda operator: rows_of(operator) == CHUNK),
    Role("int8 rounding", ("quantize_rows",)),
    Role("writing keys and values", ("qk_norm_rope_cache",)),
    Role(
        "attention of a prompt",
        ("prefill_attention",),
        accepts=lambda operator: not _sees_pictures(operator),
    ),
    Role("attention of a picture", ("prefill_attention",), accepts=_sees_pictures),
    Role(
        "attention of one token",
        ("split_attention",),
        accepts=lambda operator: rows_of(operator) == ONE and _norms_query(operator),
        variant=lambda operator: vars(operator)["window"] is None,
    ),
    Role(
        "attention's combination",
        ("combine_splits", "linear"),
        accepts=lambda operator: (
            rows_of(operator) == ONE
            and (not isinstance(operator, Linear) or _has(operator, Combine))
        ),
    ),
    Role(
        "matmul of one token",
        ("linear",),
        accepts=lambda operator: rows_of(operator) == ONE and not _has(operator, Combine | Routed),
        variant=_weights,
        timed_bytes=TIMED_BYTES,
    ),
    Role(
        "matmul of a prompt",
        ("linear",),
        accepts=lambda operator: rows_of(operator) == CHUNK,
        variant=_weights,
    ),
    Role(
        "matmul of guesses",
        ("linear",),
        accepts=_is_of_few,
        variant=_weights,
    ),
    Role(
        "norms of guesses",
        ("residual_norm",),
        accepts=lambda operator: (
            _is_of_few(operator) and operator.packs and not vars(operator)["top_k"]
        ),
    ),
    Role(
        "attention of guesses",
        ("split_attention",),
        accepts=_is_of_few,
        variant=lambda operator: (_norms_query(operator), vars(operator)["window"] is None),
    ),
    Role(
        "attention's combination of guesses",
        ("combine_splits",),
        accepts=_is_of_few,
    ),
    Role("softmax", ("softmax_partials",), variant=rows_of),
    Role("rows without padding", ("kept_rows",), variant=rows_of),
    Role("angles without padding", ("shifted_rotary",), variant=rows_of),
)
"""Kernels that are tested, besides the draw of a token. Kernels of experts are left out: their
operands are all experts' weights, which take longer to make than a page may take to load."""

MATRIX_ROLES = (
    Role("matmul of a tower", ("bounded_linear",), variant=_weights),
    Role("attention of patches", ("patch_attention",)),
)
"""Kernels that are tested, too, where a device's subgroup matrices are an experiment."""
