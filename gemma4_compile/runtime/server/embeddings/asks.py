"""Fields of other servers' embeddings that ask for other vectors, with the way to them."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.runtime.server.asks import Ask

_TASK = Ask("what is put in front of the texts is said by `task`, or put in front by the client")
_SIZE = Ask("the size of a vector is said by `dimensions`")
_NUMBERS = ("float", "float32", "fp32")

ASKS: Mapping[str, Ask] = {
    **dict.fromkeys(("input_type", "prompt_name", "task_type", "instruction"), _TASK),
    **dict.fromkeys(("output_dimension", "output_dimensionality"), _SIZE),
    **dict.fromkeys(("normalize", "normalized"), Ask("vectors are of length 1", (True,))),
    "embd_normalize": Ask("vectors are of length 1", (2,)),
    **dict.fromkeys(
        ("embed_dtype", "embedding_type", "output_dtype"), Ask("numbers are float32", _NUMBERS)
    ),
    "embedding_types": Ask("numbers are float32", (["float"],)),
    "late_chunking": Ask("each text is read for itself", (False,)),
    "messages": Ask("give texts as `input`"),
    "truncate_prompt_tokens": Ask("a text that is too long is refused, and no other is cut"),
}
"""What is in none of these cannot change a vector: it is counted in the answer's `note`."""
