"""How many slots fit; tests/e2e/test_sequence_engine.py asks it of a package."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from gemma4_compile.package.artifacts import Shard, TensorCache, TensorRecord
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime.device.cuda_graph import SWITCH
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine import slot_room
from gemma4_compile.runtime.engine.slot_room import default_slots, loaded_bytes, slots_that_fit
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.package.room import MemoryNeed, Placement, Wish

MB = 10**6
RECORD = LibraryRecord(
    "model.so",
    *("cuda", "cuda", "cuda", "default", "float"),
    None,
    {"weights_bytes": 3000 * MB, "kv_sliding_bytes": 100 * MB, "kv_full_bytes": 400 * MB},
)
NEED = MemoryNeed(3100 * MB, 400 * MB, 8192)  # 100 of which are the rings of one slot


@pytest.mark.parametrize(
    ("free", "context", "slots"),
    [
        (3500, 8192, 1),  # what one takes
        (4499, 8192, 1),  # half of what is left is short of another's 500 by a little
        (4500, 8192, 2),
        (5500, 8192, 3),
        (80_000, 8192, 4),
        (1000, 8192, 1),  # the load says that it does not fit
        (3850, 2048, 2),  # a shorter context: 100 and 100 each
    ],
)
def test_half_of_what_one_leaves_is_for_others(free: int, context: int, slots: int) -> None:
    assert slots_that_fit(RECORD, NEED, free * MB, context) == slots


def test_slots_without_keys_of_their_own_are_as_many_as_may_be() -> None:
    record = replace(RECORD, requirements={})
    assert slots_that_fit(record, MemoryNeed(1, 0, 8192), 100, 8192) == 4


def table_and_experts(device: str, vocab_size: int = 0) -> Package:
    """Of 3,000 MB of weights 400 are the table and 1,200 experts; a slot takes 500."""
    words = {"embed_tokens_per_layer.weight": 100 * MB, "layers.0.experts.up.weight": 300 * MB}
    records = tuple(TensorRecord(name, (n,), "float32", 0) for name, n in words.items())
    package = SimpleNamespace(
        device=device,
        library=RECORD,
        drafter_cache=None,
        embeds=False,
        chat_config=SimpleNamespace(context_window_size=8192, vocab_size=vocab_size),
        tensor_cache=TensorCache((Shard("params_shard_0.bin", 1600 * MB, "", records),), 2),
    )
    return cast(Package, package)


@pytest.mark.parametrize(
    ("free", "placement", "slots"),
    [
        (4100, Placement(), 1),  # one takes 3,500 with all there, and half of 600 is too little
        (4600, Placement(), 2),
        (4100, Placement(ple="host"), 2),
        (4100, Placement(experts=0.0), 2),
        (2900, Placement(ple="host", experts=0.0), 2),
    ],
)
def test_further_slots_drive_nothing_off_the_device(
    free: int, placement: Placement, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_room, "free_memory", lambda device: free * MB)
    monkeypatch.setattr(Device, "open", lambda name: Device(name))
    assert default_slots(table_and_experts("cuda"), None, False, placement) == slots


@pytest.mark.parametrize(
    ("device", "found", "context", "nbytes"),
    [
        ("cuda", Placement("gpu", 1.0), None, 4000),  # 3,000 of weights and two slots
        ("cuda", Placement("host", 1.0), None, 3600),
        ("cuda", Placement("gpu", 0.25), None, 3100),
        ("cuda", Placement("host", 0.0), 4096, 2000),  # 200 less of each slot
        ("cpu", Placement("gpu", 1.0), None, 3600),  # the table is a mapped file
    ],
)
def test_what_came_to_lie_on_the_device_counts(
    device: str, found: Placement, context: int | None, nbytes: int
) -> None:
    wish = Wish(None, context, False, Placement(), sequences=2)
    taken = loaded_bytes(table_and_experts(device), Device(device), wish, found)
    assert taken == nbytes * MB


def test_results_of_cuda_graphs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MB is a row of logits: of a step a slot, of two calls of 2 to 8 rows, and 3 * 8 shared."""
    most = Placement("gpu", 1.0)

    def taken(device: str, sequences: int) -> int:
        package = table_and_experts(device, MB // 4)
        wish = Wish(None, None, False, Placement(), sequences=sequences)
        return loaded_bytes(package, Device(device), wish, most)

    assert taken("cuda", 1) == (3500 + 1 + 3) * MB
    assert taken("cuda", 3) == (4500 + 3 + 2 * 35 + 3 * 8) * MB
    assert taken("cpu", 3) == (4500 - 400) * MB
    monkeypatch.setenv(SWITCH, "0")
    assert taken("cuda", 3) == 4500 * MB
