"""What a config's layers need of the KV state: slots, rings, both kinds of RoPE."""

from __future__ import annotations

import struct

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.kv_cache import KvLayout, KvLimits, KvSlot
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.text.kv_layout import RING_ALIGNMENT, kv_layout
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from tests.models import DENSE_LIKE, E2B_LIKE
from tests.unit.model_spec.exported import layout_of


def test_only_layers_that_own_keys_have_a_slot() -> None:
    sliding, full = KvSlot(1, 32, 32, 8), KvSlot(1, 64, None, None)
    assert layout_of(E2B_LIKE).slots == (sliding, sliding, full)
    assert [slot.kv_heads for slot in layout_of(DENSE_LIKE).slots] == [4, 4, 2, 4, 4, 2]


@pytest.mark.parametrize(("chunk", "rows"), [(1, 32), (25, 32), (26, 64), (512, 544)])
def test_a_ring_holds_its_window_and_a_chunk(chunk: int, rows: int) -> None:
    found = layout_of(E2B_LIKE, chunk=chunk).slots[0].rows
    assert found == rows
    assert rows % RING_ALIGNMENT == 0
    assert rows >= 8 + chunk - 1


def test_the_rotary_table_has_both_kinds() -> None:
    layout = layout_of(E2B_LIKE)
    bits = [struct.unpack("<q", struct.pack("<d", theta))[0] for theta in (1e4, 1e6)]
    assert layout.rotary == (32, 16, bits[0], 64, 8, bits[1])
    assert layout.rotary_pairs == 24


@pytest.mark.parametrize("context", [1 << 17, 1 << 18, (1 << 18) + 1])
def test_a_context_that_padding_is_not_counted_in_is_refused(context: int) -> None:
    limits = KvLimits(context, 1 << 27)

    def layout(config: Gemma4Config, *, pads: bool) -> KvLayout:
        plans = layer_plans(config)
        return kv_layout(config, plans, "float16", 16, pads_pictures=pads, limits=limits)

    with_pictures = {Modality.TEXT, Modality.IMAGE}
    sees = Gemma4Config.from_preset("gemma-4-31B-it", with_pictures)
    assert layout(sees, pads=False).padding_slot is None
    assert layout(Gemma4Config.from_preset("gemma-4-31B-it"), pads=True).padding_slot is None
    if context <= 1 << 18:
        assert layout(sees, pads=True).padding_slot is not None
        return
    with pytest.raises(UsageError, match=r"at most 262,144 tokens of context, found 262,145"):
        layout(sees, pads=True)
