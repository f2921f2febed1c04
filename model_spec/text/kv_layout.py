"""The slots and the rotary table that a config's layers need of the KV state."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.kv_cache import ITEM_BYTES, KvLayout, KvLimits, KvSlot
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.text.layer_plan import rotary_plans
from gemma4_compile.operators.padded_rows import DIGITS, MOST_POSITIONS

RING_ALIGNMENT = 32


def largest_chunk(slot: KvSlot, rows: int) -> int:
    """The longest prefill chunk whose ring has at most so many rows; 0 if none has."""
    if slot.window is None:
        return 0
    return max(0, rows // RING_ALIGNMENT * RING_ALIGNMENT - slot.window + 1)


def kv_layout(
    config: Gemma4Config,
    plans: Sequence[LayerPlan],
    dtype: str,
    prefill_chunk: int,
    *,
    pads_pictures: bool = False,
    limits: KvLimits | None = None,
) -> KvLayout:
    """The layout for one prefill chunk length: rings hold window + chunk - 1 rows, rounded up.

    `pads_pictures` : the client does, where the model takes any
    `limits` : by which full layers are in parts; None for none that are

    UsageError for a context in which there may be more padding than is counted.
    """
    item = ITEM_BYTES[dtype]
    counts_padding = pads_pictures and config.vision is not None
    if counts_padding and limits is not None and limits.context_length > MOST_POSITIONS:
        raise UsageError(
            f"--context: pictures are padded in at most {MOST_POSITIONS:,} tokens of context, "
            f"found {limits.context_length:,}",
            hint="give a shorter one, or --modalities text",
        )
    slots = []
    for plan in plans:
        if plan.owns_kv:
            rows, parts = None, 1
            if plan.window is None and limits is not None:
                parts = limits.parts(item * plan.num_key_value_heads * plan.head_dim)
            elif plan.window is not None:
                rows = -(-(plan.window + prefill_chunk - 1) // RING_ALIGNMENT) * RING_ALIGNMENT
            slots.append(KvSlot(plan.num_key_value_heads, plan.head_dim, rows, plan.window, parts))
    rotary: list[int] = []
    kinds = rotary_plans(config).values()
    for kind in kinds:
        (bits,) = struct.unpack("<q", struct.pack("<d", kind.theta))
        rotary += [kind.head_dim, kind.pairs, bits]
    padding_slot = len(slots) if counts_padding else None
    if counts_padding:
        slots.append(KvSlot(1, DIGITS, None, None))
    pairs = sum(kind.pairs for kind in kinds)
    return KvLayout(tuple(slots), dtype, tuple(rotary), pairs, padding_slot)
