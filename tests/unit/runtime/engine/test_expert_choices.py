"""Which experts were read, from what the matmuls of experts are given."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi

from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.expert_choices import MOST_IDS, ExpertChoices
from gemma4_compile.types import Array

EXPERTS = 6


def tensor(array: Array) -> tvm_ffi.Tensor:
    return tvm_ffi.from_dlpack(array)


class Machine:
    """Two layers, of which each has two stored tensors; calls of kernels that take them."""

    def __init__(self) -> None:
        draws = np.random.default_rng(1)
        self.weights = [tensor(draws.standard_normal(4).astype(np.float32)) for _ in range(4)]
        rows = {one.data_ptr(): number // 2 for number, one in enumerate(self.weights)}
        self.choices = ExpertChoices(Device.open("cpu"), rows, EXPERTS)

    def call(self, weight: int, *numbers: Array) -> None:
        x = tensor(np.zeros((2, 4), np.float32))
        given = [x, *(tensor(one) for one in numbers), self.weights[weight], 3]
        for before in (True, False):
            assert self.choices(None, "kernel", before, None, *given) == 0


@pytest.fixture
def machine() -> Machine:
    return Machine()


def ids(*rows: list[int]) -> Array:
    return np.array(rows, np.int32)


def test_an_expert_that_several_rows_chose_is_read_once(machine: Machine) -> None:
    for weight in (0, 1):  # both matmuls of a layer are given the same
        machine.call(weight, ids([1, 4], [4, 5]))
    machine.call(2, ids([0, 3]))
    assert machine.choices.copies == 3
    assert not machine.choices.has_chunk
    np.testing.assert_array_equal(machine.choices.read(), [[0, 1, 0, 0, 1, 1], [1, 0, 0, 1, 0, 0]])
    assert not machine.choices.read().any(), "forgotten"


def test_the_last_forward_counts(machine: Machine) -> None:
    machine.call(0, ids([1, 2]))
    machine.call(0, ids([3, 5]))
    np.testing.assert_array_equal(machine.choices.read()[0], [0, 0, 0, 1, 0, 1])


def test_an_expert_of_a_chunk_is_read_once_for_each_tile(machine: Machine) -> None:
    order = np.arange(40, dtype=np.int32)
    tiles = ids([2, 0, 32], [2, 32, 35], [5, 35, 40], [0, 0, 0], [-7, 3, 9], [99, 3, 9])
    machine.call(3, order, tiles)
    assert machine.choices.has_chunk
    np.testing.assert_array_equal(machine.choices.read(), [[0] * 6, [0, 0, 2, 0, 0, 1]])
    assert not machine.choices.has_chunk
    machine.call(3, order[:4], tiles[2:4])  # a shorter one, of whose row the rest is older
    np.testing.assert_array_equal(machine.choices.read()[1], [0, 0, 0, 0, 0, 1])


def test_other_calls_and_what_has_no_room_are_left_out(machine: Machine) -> None:
    other = tensor(ids([1, 2]))
    assert machine.choices(None, "kernel", False, None, other) == 0
    assert machine.choices.copies == 0
    many = np.zeros((MOST_IDS, 2), np.int32)
    many[MOST_IDS // 2 :] = 3
    machine.call(0, many)
    np.testing.assert_array_equal(machine.choices.read(), [[1, 0, 0, 0, 0, 0], [0] * 6])
