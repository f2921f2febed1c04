"""The KV state as the decoder sees it: slots, bytes, and the order of reads and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.layers.kv_cache import (
    KvTensors,
    create_kv_state,
    frequencies,
    shifts,
)
from tests.models import E2B_LIKE
from tests.unit.model_spec.exported import STATE, exported, layout_of


@pytest.mark.parametrize(("dtype", "item"), [("float16", 2), ("float32", 4)])
def test_bytes_of_keys_and_values(dtype: str, item: int) -> None:
    layout = layout_of(E2B_LIKE, dtype)
    rings = 2 * (2 * 32 * 1 * 32)
    for context in (64, 100):
        assert layout.nbytes(context) == item * (rings + 2 * context * 1 * 64)


def test_the_state_gets_four_numbers_a_slot() -> None:
    assert layout_of(E2B_LIKE).flat() == [*(1, 32, 32, 8), *(1, 32, 32, 8), *(1, 64, 0, 0)]


def test_turns_of_padding_are_those_of_the_frequencies() -> None:
    layout = layout_of(E2B_LIKE)
    found, turns = frequencies(layout), shifts(layout).astype(np.float64) @ (1, 1j)
    sliding, full = 1e4 ** -(np.arange(16) / 16), 1e6 ** -(np.arange(8) / 32)
    np.testing.assert_allclose(found, [*sliding, *full], rtol=2e-7)
    np.testing.assert_allclose(turns[0], np.exp(1j * found.astype(np.float64)), atol=1e-7)
    np.testing.assert_allclose(turns[1:], turns[:-1] ** 2, atol=1e-6)
    assert turns.shape == (18, layout.rotary_pairs)  # 262,144 positions


def packed_calls(module: tvm.IRModule) -> list[tuple[str, list[Any]]]:
    """Functions of the state that `forward` calls, with their arguments."""
    found = []
    for block in module["forward"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and value.op == tvm.ir.Op.get(
                "relax.call_pure_packed"
            ):
                found.append((str(value.args[0].global_symbol), list(value.args[1:])))
    return found


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 16), ("float32", 32)])
def test_the_constructor_gets_the_client_s_arguments_and_the_layout(dtype: str, bits: int) -> None:
    layout = layout_of(E2B_LIKE, dtype)

    def body(first: tirx.Var, second: tirx.Var, third: tirx.Var, fourth: tirx.Var) -> nn.Object:
        return create_kv_state(layout, (first, second, third, fourth), 15, "name")

    ((name, args),) = packed_calls(exported([], body, first=int, second=int, third=int, fourth=int))
    assert name == abi.KV_CREATE
    assert [shape.values[0].name for shape in args[:4]] == ["first", "second", "third", "fourth"]
    assert [int(value) for value in args[4].values] == layout.flat()
    assert [int(value) for value in args[5].values] == list(layout.rotary)
    assert [int(arg.value) for arg in args[6:8]] == [bits, 15]
    assert args[8].value == "name"


def test_tensors_of_a_slot_are_asked_for_once_and_have_their_shapes() -> None:
    layout = layout_of(E2B_LIKE)
    seen: list[Any] = []

    def body(kv: nn.Object) -> nn.Tensor:
        tensors = KvTensors(layout, kv)
        seen.extend([tensors.get(0), tensors.get(0), tensors.get(2), tensors.positions])
        seen.append(tensors.rotary)
        return tensors.get(0)[0]

    calls = packed_calls(exported([], body, kv=STATE))
    assert [(name, [int(arg.value) for arg in args[1:]]) for name, args in calls] == [
        (abi.KV_POSITIONS, []),
        (abi.KV_ROTARY, []),
        (abi.KV_KEY, [0]),
        (abi.KV_VALUE, [0]),
        (abi.KV_KEY, [2]),
        (abi.KV_VALUE, [2]),
    ]
    ring, again, full, positions, rotary = seen
    assert ring is again
    for held in ring:
        assert (list(map(int, held.shape)), held.dtype) == ([32, 1, 32], "float16")
    for held in full:
        assert isinstance(held.shape[0], tirx.Var)
        assert list(map(int, held.shape[1:])) == [1, 64]
    assert full[0].shape[0].same_as(full[1].shape[0]), "one capacity"
    assert (list(map(int, positions.shape)), positions.dtype) == ([4], "int32")
    assert (list(map(int, rotary.shape[1:])), rotary.dtype) == ([24, 2], "float32")


def test_a_reader_after_a_write_reads_what_was_written() -> None:
    layout = layout_of(E2B_LIKE)

    def body(kv: nn.Object) -> nn.Tensor:
        tensors = KvTensors(layout, kv)
        key, value = tensors.get(0)
        written = nn.op.add(key, key), nn.op.add(value, value)
        tensors.put(0, *written)
        assert tensors.get(0) == written
        assert tensors.get(1) is not written
        return tensors.get(0)[0]

    exported([], body, kv=STATE)
