"""`targets/native/check_tensors.cc`, by itself: what a library refuses before a kernel reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.targets import link, target_spec
from tests.unit.targets import kv_library

ITSELF, ANY = -1, -1
INT32, FLOAT32 = 0 * 256 + 32, 2 * 256 + 32
Check = Callable[..., None]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    spec, path = target_spec("cpu"), tmp_path_factory.mktemp("check") / "model.so"
    link(kv_library.build(spec, [kv_library.CacheOfLayer(1, 4)], []), path, spec)
    library = tvm.runtime.load_module(str(path))
    function = library.get_function(abi.CHECK_TENSORS, query_imports=True)

    def call(value: Any, *layout: int, device: DeviceType = DeviceType.CPU) -> None:
        function("f: x", int(device), value, tvm_ffi.Shape(layout))

    return call


def tensor(*shape: int, dtype: str = "float32") -> Any:
    return tvm_ffi.from_dlpack(np.zeros(shape, dtype))


@pytest.mark.parametrize("layout", [(2, 3), (ANY, 3), (2, ANY), (ANY, ANY)])
def test_what_fits_is_taken(check: Check, layout: tuple[int, int]) -> None:
    check(tensor(2, 3), ITSELF, FLOAT32, 2, *layout)


def test_nothing_in_it_needs_no_memory(check: Check) -> None:
    check(tensor(0, 3), ITSELF, FLOAT32, 2, ANY, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (tensor(3, 2), r"expected float32 \[2, any\] on cpu, found float32 \[3, 2\] on cpu"),
        (tensor(2), r"found float32 \[2\] on cpu"),
        (tensor(2, 3, 1), r"found float32 \[2, 3, 1\] on cpu"),
        (tensor(2, 3, dtype="float64"), r"found float64 \[2, 3\] on cpu"),
        (tensor(2, 3, dtype="uint32"), r"found uint32 \[2, 3\] on cpu"),
        (tvm.runtime.empty((2, 3), "float32x2"), r"found float32 \[2, 3\] on cpu, 2 to an element"),
        (tvm_ffi.from_dlpack(np.zeros((2, 6), "float32")[:, ::2]), "without gaps"),
        (tvm_ffi.from_dlpack(np.zeros((3, 2), "float32").T), "without gaps"),
        (7, "found no tensor"),
        (None, "found no tensor"),
        (tvm_ffi.Array([tensor(2, 3)]), "found no tensor"),
    ],
)
def test_what_does_not_fit_is_described(check: Check, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^f: x: .*{message}"):
        check(value, ITSELF, FLOAT32, 2, 2, ANY)


def test_a_tensor_of_another_device_is_refused(check: Check) -> None:
    with pytest.raises(ValueError, match=r"expected float32 \[2\] on webgpu, found .* on cpu"):
        check(tensor(2), ITSELF, FLOAT32, 1, 2, device=DeviceType.WEBGPU)


def test_a_part_of_another_tensor_is_refused(check: Check) -> None:
    whole = tvm.runtime.tensor(np.zeros(8, "float32"))
    check(whole._create_view((2,)), ITSELF, FLOAT32, 1, 2)
    with pytest.raises(ValueError, match="not from the begin of its memory"):
        check(whole._create_view((2,), relative_byte_offset=8), ITSELF, FLOAT32, 1, 2)


def test_tensors_of_a_list_are_named_by_their_place(check: Check) -> None:
    values = tvm_ffi.Array([tensor(2), "anything", tensor(3, dtype="int32")])
    check(values, *(0, FLOAT32, 1, 2), *(2, INT32, 1, 3))
    with pytest.raises(ValueError, match=r"^f: x\[2\]: expected int32 \[4\]"):
        check(values, *(0, FLOAT32, 1, 2), *(2, INT32, 1, 4))
    with pytest.raises(TypeError, match=r"^f: x\[1\]: expected float32 \[2\].*found no tensor"):
        check(values, 1, FLOAT32, 1, 2)
    with pytest.raises(ValueError, match="expected more than 3 tensors, found 3"):
        check(values, 3, FLOAT32, 1, 2)
    with pytest.raises(TypeError, match="expected a list of tensors"):
        check(tensor(2), 0, FLOAT32, 1, 2)
