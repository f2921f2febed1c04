"""Tensors beside a model's weights that no reply depends on: buffers, and heads for other tasks.

Buffers are computed from the config wherever a model is loaded; some programs save them all the
same. Heads that rate or classify a text stand beside the head that writes one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.errors import printable
from gemma4_compile.options.process import warn

_BUFFER = re.compile(
    r"(?:.+\.)?(?:rotary_\w+\.\w*inv_freq|inv_timescales|position_ids|masked_bias|embed_scale)"
)
_OTHER_HEAD = re.compile(
    r"(?:(?:model|base_model|module)\.)*"
    r"(?:v_head|value_head|score|classifier|reward_head|rm_head|mtp)\..+"
)


def without_leftovers(
    tensors: Mapping[str, TensorInfo], option: str = ""
) -> Mapping[str, TensorInfo]:
    """A checkpoint's tensors without buffers and, with a warning, heads for other tasks.

    Parameters
    ----------
    option : what the warning begins with
    """
    heads = sorted(name for name in tensors if _OTHER_HEAD.fullmatch(name))
    if heads:
        shown = printable(heads[0])
        warn(
            f"{option}`{shown}` ({len(heads)} in all) is of a head that rates, classifies or "
            "drafts texts, and left out, as in transformers' models that write them",
            "if the model was trained for that head alone, its replies may be poor: compile the "
            "one that it was trained from",
        )
    left = {*heads, *(name for name in tensors if _BUFFER.fullmatch(name))}
    return {name: tensor for name, tensor in tensors.items() if name not in left}
