"""Devices: tensors on the one that every machine has, and clear words where another is missing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm

from gemma4_compile.device_kinds import METAL
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device import device as module
from gemma4_compile.runtime.device.device import ALIGNMENT_BYTES, Device, Feed, view


@pytest.fixture
def cpu() -> Device:
    return Device.open("cpu")


def aligned(count: int, offset: int = 0) -> np.ndarray:
    """float32 numbers at an address of so many bytes behind a multiple of 64."""
    memory = np.empty(4 * count + 128, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT_BYTES + offset
    array = memory[begin : begin + 4 * count].view(np.float32)
    array[...] = np.arange(count)
    return array


def address(tensor: tvm.runtime.Tensor) -> int:
    return int(np.from_dlpack(tensor).ctypes.data)


def test_an_array_on_the_cpu_is_not_copied(cpu: Device) -> None:
    array = aligned(6)
    tensor = cpu.place(array)
    array[0] = 9
    assert cpu.read(tensor).tolist() == [9, 1, 2, 3, 4, 5]


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        *(aligned(6, offset) for offset in (1, 2, 4, 16, 32)),
        aligned(12)[::2],
        aligned(6)[::-1],
        aligned(6).reshape(2, 3).T,
        np.broadcast_to(np.float32(3), (2, 3)),
        read_only(aligned(6)),
        np.arange(6).astype(">f4"),
        np.float32(7).reshape(()),
        np.zeros((0, 3), np.float32),
    ],
    ids=repr,
)
def test_memory_that_kernels_cannot_take_is_copied(array: np.ndarray, cpu: Device) -> None:
    tensor = cpu.place(array)
    assert address(tensor) % ALIGNMENT_BYTES == 0 or array.size == 0
    found = cpu.read(tensor)
    assert found.shape == array.shape
    assert np.array_equal(found, array)


def test_a_feed_takes_memory_that_may_not_be_written(cpu: Device) -> None:
    values = read_only(np.arange(4, dtype=np.int32))
    assert cpu.read(Feed(cpu, 4, "int32").write(values)).tolist() == [0, 1, 2, 3]


def test_other_memory_gets_a_copy(monkeypatch: pytest.MonkeyPatch, cpu: Device) -> None:
    monkeypatch.setattr(Device, "is_cpu", False)  # its memory stands for a GPU's
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    tensor = cpu.place(array)
    array[...] = 0
    assert tuple(tensor.shape) == (2, 3)
    assert cpu.read(tensor).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_view_is_the_same_memory(cpu: Device) -> None:
    tensor = cpu.place(np.arange(6, dtype=np.int32))
    seen = view(tensor, (2, 3))
    cpu_array = cpu.read(seen)
    assert cpu_array.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="view"):
        view(tensor, (7,))


def test_a_feed_takes_any_shape_that_fits(cpu: Device) -> None:
    feed = Feed(cpu, 4, "int32")
    assert cpu.read(feed.write([[7]])).tolist() == [[7]]
    assert cpu.read(feed.write([1, 2, 3, 4])).tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="view"):
        feed.write([0] * 5)


def test_a_feed_of_one_number_copies_what_is_new_alone(
    monkeypatch: pytest.MonkeyPatch, cpu: Device
) -> None:
    copies = []

    def counted(source: object, target: object, copy: Callable[..., None] = module.copy) -> None:
        copies.append(target)
        copy(source, target)

    feed = Feed(cpu, 4, "float32")
    monkeypatch.setattr(module, "copy", counted)
    first = feed.write([0.5])
    assert feed.write([0.5]) is first
    assert len(copies) == 1
    assert cpu.read(feed.write([[0.25]])).tolist() == [[0.25]]
    assert cpu.read(feed.write([0.25])).tolist() == [0.25]
    feed.write([1, 2, 3])
    assert cpu.read(feed.write([0.25])).tolist() == [0.25], "other numbers were written there"
    other = cpu.place(np.full(1, 7, np.float32))
    assert cpu.read(feed.write_from(other, (1, 1))).tolist() == [[7]]
    assert cpu.read(feed.write([0.25])).tolist() == [0.25], "the device's own number was there"


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ArtifactError, match="packages for `webgpu` do not run here"):
        Device.open("webgpu")


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: object, mode: int = 0) -> None:
        raise OSError(f"{path}: cannot open shared object file")

    module._load_cuda.cache_clear()
    monkeypatch.setattr(module, "_load", load)
    with pytest.raises(ArtifactError, match=r"needs an NVIDIA GPU.*libcuda\.so\.1") as caught:
        Device.open("cuda")
    assert "580" in str(caught.value.hint)


def test_a_missing_cuda_runtime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: object, mode: int = 0) -> None:
        if path != "libcuda.so.1":
            raise OSError

    module._load_cuda.cache_clear()
    monkeypatch.setattr(module, "_load", load)
    with pytest.raises(ArtifactError, match=r"libcudart\.so\.13") as caught:
        Device.open("cuda")
    assert "gemma4-compile[cuda]" in str(caught.value.hint)
    module._load_cuda.cache_clear()


def test_a_runtime_that_the_wheel_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_load_cuda", lambda: None)
    monkeypatch.setattr(module, "NATIVE_KINDS", {"vulkan": METAL})
    with pytest.raises(ArtifactError, match=r"no `.*tvm_runtime_vulkan"):
        Device.open("vulkan")


def test_metal_elsewhere_is_called_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module._load_tvm.cache_clear()
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(ArtifactError, match="run on Macs with Apple silicon, and this is none"):
        module._load_tvm("tvm_runtime_metal", ctypes.RTLD_LOCAL)


def test_no_room_is_said_with_its_size(cpu: Device) -> None:
    if ctypes.sizeof(ctypes.c_void_p) < 8:
        pytest.skip("needs addresses of 64 bits")
    with pytest.raises(ArtifactError, match=f"no room for {2**52} bytes on the cpu device"):
        cpu.empty((2**50,), "float32")


def test_the_other_libraries_of_tvms_wheel_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import tvm`, which is not done here, would say where they are."""
    asked: list[Path] = []
    monkeypatch.setattr(module, "find_libraries_in", asked.append)
    module._load_tvm.cache_clear()
    module._load_tvm("tvm_runtime", ctypes.RTLD_GLOBAL)
    (folder,) = asked
    assert folder.name == "apache_tvm.libs"
    assert (folder.parent / "tvm" / "lib").is_dir()
