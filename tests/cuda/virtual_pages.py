"""Pages of experts on the fake CUDA: which memory an address has, and what is freed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device.cuda_runtime import CudaError
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.device.virtual_memory import Driver, VirtualMemory
from tests.cuda.launches import CUDA

PAGE = 4096
ROWS = 3 * PAGE // 2 - 40
"""Of two bytes each: a little less than three pages."""


def refuse_pages_of_host(patch: pytest.MonkeyPatch) -> None:
    """Let the driver have such memory on the device alone."""
    create = Driver.create

    def on_device(self: Driver, place: Any, nbytes: int) -> int:
        if place.type == self.host.type:
            raise CudaError("cuMemCreate: CUDA_ERROR_NOT_SUPPORTED (801)")
        return create(self, place, nbytes)

    patch.setattr(Driver, "create", on_device)


def pages_move(package: Path) -> None:
    """The same bytes at the same address, wherever a page is; all is freed with the tensor."""
    del package
    device = Device.open("cuda")
    memory = VirtualMemory(device, 2 * PAGE + 100, [2 * ROWS])
    assert (memory.page_bytes, memory.frames) == (PAGE, 2)
    values = np.random.default_rng(1).standard_normal(ROWS).astype(np.float16)
    tensor, pages = memory.empty((ROWS,), "float16")
    assert list(pages) == [0, 1, 2]
    assert (tensor.__dlpack_device__()[0], str(tensor.dtype)) == (DeviceType.CUDA, "float16")
    assert (CUDA.handles(on_device=True), CUDA.handles(on_device=False)) == (2, 3)
    copy(tvm_ffi.from_dlpack(values), tensor)
    for page, frame in ((2, 1), (0, 0)):
        memory.fill(frame, page)
        memory.to_frame(page, frame)
        assert np.array_equal(device.read(tensor), values)
    # What is written lands in the frame, not in the host's copy: the page really moved.
    changed = values.copy()
    changed[:5] = 7
    copy(tvm_ffi.from_dlpack(changed), tensor)
    memory.to_host(0)
    assert np.array_equal(device.read(tensor), values)
    memory.to_frame(0, 0)
    assert np.array_equal(device.read(tensor), changed)
    CUDA.fail("cuMemUnmap")
    with pytest.raises(CudaError, match="cuMemUnmap"):
        memory.to_host(0)
    CUDA.fail("cuMemMap")
    with pytest.raises(ArtifactError, match="has lost its memory") as told:
        memory.to_host(2)
    assert told.value.hint is not None
    assert "--expert-cache" in told.value.hint
    CUDA.fail("")
    del memory, told
    gc.collect()
    first = view(tensor, (PAGE // 2,))
    assert np.array_equal(device.read(first), changed[: PAGE // 2]), "as long as its tensor"
    del tensor, first
    gc.collect()
    assert CUDA.virtual_bytes[0] == 0
    assert (CUDA.handles(on_device=True), CUDA.handles(on_device=False)) == (0, 0)
    for function in ("cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"):
        CUDA.fail(function)
        with pytest.raises(ArtifactError, match=r"bytes for pages of experts on the cuda") as told:
            VirtualMemory(device, PAGE, [PAGE])
        assert told.value.hint is not None
        assert "--expert-cache 0" in told.value.hint
        del told
        CUDA.fail("")
        gc.collect()
        assert (CUDA.virtual_bytes[0], CUDA.handles(on_device=True)) == (0, 0)
    with pytest.MonkeyPatch.context() as patch:
        refuse_pages_of_host(patch)
        with pytest.raises(ArtifactError, match="bytes for pages of experts on the host"):
            VirtualMemory(device, PAGE, [PAGE])
    gc.collect()
    assert (CUDA.virtual_bytes[0], CUDA.handles(on_device=True)) == (0, 0)
