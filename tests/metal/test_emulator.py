"""What the emulated device promises: threads that meet, halves that round, memory with ends."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
import tvm

from tests.metal import emulator

Array = npt.NDArray[np.float32]
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
SIGNATURE = """(device float* x [[ buffer(0) ]], device float* y [[ buffer(1) ]],
  constant Numbers& numbers [[ buffer(2) ]],
  uint2 block [[threadgroup_position_in_grid]], uint2 thread_ [[thread_position_in_threadgroup]])"""
NUMBERS = "struct Numbers { int n[2]; };\n"
BODIES = {
    "reverse": """
  threadgroup float shared_[64];
  shared_[thread_.x] = x[block.x * 64 + thread_.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[block.x * 64 + thread_.x] = shared_[63 - thread_.x] + (float)numbers.n[0];
""",
    "half_sum": """
  half total = 0.0h;
  for (int i = 0; i < 64; ++i) total = total + (half)x[i] * (half)0.1;
  y[thread_.x] = (float)total;
""",
    "half_vector": """
  half4 pair = half4(float4(x[0], x[1], x[2], x[3]));
  y[thread_.x] = ((float4)(pair * half4(3.0h, 3.0h, 3.0h, 3.0h)))[thread_.x % 4];
""",
    "bits": """
  y[thread_.x] = as_type<float>(as_type<uint>(x[thread_.x]) ^ 0x80000000u);
""",
    "lane_sum": """
  float v = x[thread_.x];
  v = v + simd_shuffle_down(v, 16);
  v = v + simd_shuffle_down(v, 8);
  v = v + simd_shuffle_down(v, 4);
  v = v + simd_shuffle_down(v, 2);
  v = v + simd_shuffle_down(v, 1);
  y[thread_.x] = simd_shuffle(v, 0);
""",
    "exchange": """
  y[thread_.x] = simd_shuffle_xor(x[thread_.x], 5) - simd_shuffle_up(x[thread_.x], 0);
""",
    "reductions": """
  float v = x[thread_.x];
  float all[4] = {simd_sum(v), simd_max(v), simd_min(v), (float)simd_sum((half)v)};
  y[thread_.x] = all[thread_.x % 4];
""",
    "first_lane": """
  y[thread_.x] = simd_shuffle(x[thread_.x], 0);
""",
    "diverging_barrier": """
  if (thread_.x < 40) { threadgroup_barrier(mem_flags::mem_threadgroup); }
  y[thread_.x] = 0.0f;
""",
    "diverging_lanes": """
  if (thread_.x % 2 == 0) { y[thread_.x] = simd_shuffle(x[thread_.x], 0); }
""",
    "array_end": """
  threadgroup float shared_[64];
  shared_[thread_.x + (uint)numbers.n[0]] = 1.0f;
""",
    "misaligned": """
  threadgroup float shared_[64];
  *(threadgroup float4*)(shared_ + thread_.x % 4) = float4(1.0f, 1.0f, 1.0f, 1.0f);
""",
    "too_much_memory": """
  threadgroup float shared_[8193];
  shared_[thread_.x] = 1.0f;
""",
    "unwritten": """
  threadgroup float shared_[64];
  y[thread_.x] = shared_[thread_.x];
""",
}


class Launch(ctypes.Structure):
    _fields_ = (
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("numbers", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("descending", ctypes.c_bool),
    )


def compile_bodies(bodies: Mapping[str, str]) -> ctypes.CDLL:
    """A library of kernels with these bodies, by name, for `launch`."""
    sources = {
        name: f"{HEAD}{NUMBERS}kernel void {name}{SIGNATURE} {{{body}}}\n"
        for name, body in bodies.items()
    }
    return ctypes.CDLL(str(emulator.compile_kernels(sources)))


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    return compile_bodies(BODIES)


def launch(
    kernels: ctypes.CDLL,
    name: str,
    x: Array,
    *,
    number: int = 0,
    blocks: int = 1,
    reverse: bool = False,
) -> Array:
    """The kernel's `y`; RuntimeError with what the harness says of it."""
    y = np.full(x.size, np.nan, np.float32)
    pointers = (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data)
    numbers = (ctypes.c_int * 2)(number, 0)
    threads = x.size // blocks
    job = Launch(pointers, ctypes.addressof(numbers), (blocks, 1, 1), (threads, 1, 1), reverse)
    run = getattr(kernels, f"emulate_{name}")
    run.restype = ctypes.c_char_p
    problem = run(ctypes.byref(job))
    if problem is not None:
        raise RuntimeError(problem.decode())
    return y


X = np.random.default_rng(5).normal(0, 1, 64).astype(np.float32)


@pytest.mark.parametrize("reverse", [False, True])
def test_threads_meet_at_a_barrier(kernels: ctypes.CDLL, reverse: bool) -> None:
    x = np.concatenate([X, 2 * X])
    y = launch(kernels, "reverse", x, number=7, blocks=2, reverse=reverse)
    np.testing.assert_array_equal(y, np.concatenate([X[::-1], 2 * X[::-1]]) + 7)


def test_a_half_is_rounded_after_every_operation(kernels: ctypes.CDLL) -> None:
    total = np.float16(0)
    for value in X:
        total = np.float16(total + np.float16(np.float16(value) * np.float16(0.1)))
    wide = np.float16(np.sum(X.astype(np.float64) * 0.1))
    assert total != wide, "else the test would show nothing"
    assert launch(kernels, "half_sum", X)[0] == np.float32(total)


def test_a_vector_is_converted_lane_by_lane(kernels: ctypes.CDLL) -> None:
    expected = (X[:4].astype(np.float16) * np.float16(3)).astype(np.float32)
    np.testing.assert_array_equal(launch(kernels, "half_vector", X)[:4], expected)


def test_bits_are_kept_where_a_type_is_only_another_view(kernels: ctypes.CDLL) -> None:
    np.testing.assert_array_equal(launch(kernels, "bits", X), -X)


def test_a_simdgroup_has_32_neighbours(kernels: ctypes.CDLL) -> None:
    y = launch(kernels, "lane_sum", X)
    halves = X.astype(np.float64).reshape(2, 32).sum(axis=1)
    np.testing.assert_allclose(y.reshape(2, 32), np.repeat(halves[:, None], 32, 1), rtol=1e-5)
    lanes = np.arange(64)
    np.testing.assert_array_equal(launch(kernels, "exchange", X), X[lanes ^ 5] - X)


def test_a_simdgroup_reduces_in_no_promised_order(kernels: ctypes.CDLL) -> None:
    results = [launch(kernels, "reductions", X, reverse=reverse) for reverse in (False, True)]
    halves = X.reshape(2, 32)
    for sums, largest, smallest, in_half in (y.reshape(16, 4).T for y in results):
        for found, expected, allowed in (
            (sums, halves.astype(np.float64).sum(axis=1), 32 * 2.0**-24),
            (in_half, halves.astype(np.float64).sum(axis=1), 32 * 2.0**-11),
        ):
            bound = allowed * np.abs(halves).sum(axis=1)
            assert (np.abs(found.reshape(2, 8) - expected[:, None]) <= bound[:, None]).all()
        np.testing.assert_array_equal(largest, np.repeat(halves.max(axis=1), 8))
        np.testing.assert_array_equal(smallest, np.repeat(halves.min(axis=1), 8))
    assert (results[0] != results[1]).any(), "two orders of sums"


def test_a_smaller_launch_before_it_disturbs_no_simdgroup(kernels: ctypes.CDLL) -> None:
    np.testing.assert_array_equal(launch(kernels, "first_lane", -X[:16]), np.repeat(-X[0], 16))
    expected = np.repeat(X[::32], 32)
    np.testing.assert_array_equal(launch(kernels, "first_lane", X), expected)


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("diverging_barrier", 0, "threads diverge: thread 0 waits at the barrier of line"),
        ("diverging_lanes", 0, "threads diverge: thread 0 waits in the simdgroup function of"),
        ("array_end", 1, "an index outside of its array"),
        ("misaligned", 0, "a misaligned access"),
        ("too_much_memory", 0, "32772 bytes of threadgroup memory"),
    ],
)
def test_what_metal_leaves_undefined_is_an_error(
    name: str, number: int, message: str, kernels: ctypes.CDLL
) -> None:
    with pytest.raises(RuntimeError, match=message):
        launch(kernels, name, X, number=number)
    assert np.array_equal(launch(kernels, "bits", X), -X), "the next launch is not disturbed"


def test_threadgroup_memory_begins_as_nan(kernels: ctypes.CDLL) -> None:
    assert np.isnan(launch(kernels, "unwritten", X)).all()


def test_a_kernel_that_is_no_cpp_is_refused_with_its_line() -> None:
    source = f"{HEAD}kernel void wrong(device float* x, uint b, uint t) {{ x[0] = min(1, 2.0f); }}"
    with pytest.raises(emulator.KernelError, match="ambiguous"):
        emulator.compile_kernels({"wrong": source})


def test_tensors_are_copied_and_begin_as_nan(metal_device: tvm.runtime.Device) -> None:
    tensor = tvm.runtime.tensor(X, metal_device)
    np.testing.assert_array_equal(tensor.numpy(), X)
    copy = tvm.runtime.empty((64,), "float32", metal_device)
    assert np.isnan(copy.numpy()).all(), "what nobody has written"
    tensor.copyto(copy)
    np.testing.assert_array_equal(copy.numpy(), X)
