"""Uploads: what arrives is what the file holds, and little of the host's memory is taken for it."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.upload import PIECE_BYTES, Uploads


class Elsewhere(Device):
    """The CPU, as if its memory were not the host's."""

    @property
    def is_cpu(self) -> bool:
        return False


@dataclass
class Stored:
    """Values in a file, which count how they are asked for."""

    values: np.ndarray
    reads: list[tuple[int, int]] = field(default_factory=list)
    fails_at: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> str:
        return self.values.dtype.name

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def mapped(self) -> np.ndarray:
        return self.values

    def read_into(self, memory: memoryview, begin: int) -> None:
        if begin == self.fails_at:
            raise ArtifactError("the file ended", hint="none")
        self.reads.append((begin, len(memory)))
        memory[:] = self.values.tobytes()[begin : begin + len(memory)]


@pytest.fixture(scope="module")
def elsewhere() -> Device:
    Device.open("cpu")
    return Elsewhere("cpu")


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(["float16", "float32", "uint32"]),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    words=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_values_arrive_whatever_the_size_of_a_piece(
    dtype: str, shape: list[int], words: int, seed: int
) -> None:
    Device.open("cpu")
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    source = Stored(raw.view(dtype).reshape(shape))
    uploads, device = Uploads(Elsewhere("cpu"), 4 * words), Elsewhere("cpu")
    for _ in range(2):  # the second tensor comes through the same memory
        found = device.read(uploads(source))
        assert found.dtype == source.values.dtype
        assert found.tobytes() == source.values.tobytes()
        np.testing.assert_equal(found.shape, source.shape)
    assert max(size for _, size in source.reads) <= 4 * words
    assert sum(size for _, size in source.reads) == 2 * count


def test_each_piece_is_on_the_device_before_the_next_one_is_read(elsewhere: Device) -> None:
    source = Stored(np.arange(12, dtype=np.float32))
    order: list[object] = []

    def read(memory: memoryview, begin: int) -> None:
        order.append(begin)
        memory[:] = source.values.tobytes()[begin : begin + len(memory)]

    with (
        mock.patch.object(source, "read_into", read),
        mock.patch.object(Device, "wait", side_effect=partial(order.append, "waited")),
    ):
        Uploads(elsewhere, 16)(source)
    assert order == [0, "waited", 16, "waited", 32, "waited"]


def test_the_host_gives_one_piece_for_all(elsewhere: Device) -> None:
    source = Stored(np.zeros(PIECE_BYTES // 2, np.float32))
    with mock.patch("mmap.mmap", wraps=mmap.mmap) as mapped:
        uploads = Uploads(elsewhere)
        for _ in range(3):
            uploads(source)
    assert [call.args for call in mapped.call_args_list] == [(-1, PIECE_BYTES)]
    assert source.reads == 3 * [(0, PIECE_BYTES), (PIECE_BYTES, PIECE_BYTES)]


def test_what_a_file_lacks_is_an_error(elsewhere: Device) -> None:
    source = Stored(np.zeros(12, np.float32), fails_at=16)
    with pytest.raises(ArtifactError, match="the file ended"):
        Uploads(elsewhere, 16)(source)


def test_on_the_cpu_the_file_is_mapped_and_not_read() -> None:
    device, source = Device.open("cpu"), Stored(np.arange(6, dtype=np.float32))
    found = Uploads(device)(source)
    assert device.read(found).tolist() == [0, 1, 2, 3, 4, 5]
    assert source.reads == []
