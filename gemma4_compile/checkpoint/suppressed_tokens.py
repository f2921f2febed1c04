"""Tokens that a checkpoint forbids its model to emit: `suppress_tokens` of generation_config.json.

No client of a package reads that list, so the library itself keeps them out (12B: the tokens that
close an image or a sound, which its text answers would contain now and then).
"""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.errors import CheckpointError

KEY = "suppress_tokens"
MAX_SUPPRESSED = 64  # each one costs every row of the head a comparison


def suppressed_tokens(generation_config: Mapping[str, object], vocab_size: int) -> tuple[int, ...]:
    """The forbidden token ids, ascending; none if the checkpoint names none.

    Raises
    ------
    CheckpointError
        If the list is damaged, or longer than MAX_SUPPRESSED.
    """
    declared = generation_config.get(KEY)
    if declared is None:
        return ()
    if not isinstance(declared, list) or any(type(token) is not int for token in declared):
        raise CheckpointError(
            f"generation_config.json: `{KEY}` must be a list of token ids",
            hint=f"correct `{KEY}` there, or delete it: the model may then emit every token",
        )
    # No token beyond the vocabulary is ever emitted.
    ids = tuple(sorted({token for token in declared if 0 <= token < vocab_size}))
    if len(ids) > MAX_SUPPRESSED:
        raise CheckpointError(
            f"generation_config.json: `{KEY}` holds {len(ids)} tokens; at most {MAX_SUPPRESSED} "
            "are supported",
            hint="leave out tokens that the model would not emit anyway",
        )
    return ids
