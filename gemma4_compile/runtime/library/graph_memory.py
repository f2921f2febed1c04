"""What CUDA graphs of an engine's calls keep, at most: results of each, and what they share."""

from __future__ import annotations

from gemma4_compile.runtime.library.joint_steps import MOST_ROWS
from gemma4_compile.runtime.library.round_steps import ROWS

_LOGIT_BYTES = 4
_SHARED = 3  # tensors as large as logits, before and after the penalties, and probabilities


def graph_bytes(vocab_size: int, sequences: int, *, drafter: bool) -> int:
    """Bytes of logits, next to which all else that graphs keep is small.

    Each graph keeps its results: a step of a slot, a round of each number of rows in a slot, and
    two calls for each number of rows of several sequences. One memory of powers of two is for what
    all of them only read themselves.
    """
    most = ROWS if drafter else MOST_ROWS if sequences > 1 else 1
    rows = _slot_rows(drafter=drafter) * sequences
    if sequences > 1:
        rows += 2 * sum(range(2, MOST_ROWS + 1))
    rows += _SHARED * (1 << (most - 1).bit_length())
    return _LOGIT_BYTES * vocab_size * rows


def _slot_rows(*, drafter: bool) -> int:
    """Rows of logits that are a slot's alone."""
    return 1 + (sum(range(1, ROWS + 1)) if drafter else 0)
