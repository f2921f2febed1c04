"""CUDA source becomes PTX with either compiler, and what goes wrong is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.linker import ptx
from gemma4_compile.targets.linker.ptx import Nvcc, Nvrtc, compile_ptx

# The lines of TVM's header that NVRTC cannot take without the standard headers of libcu++.
SOURCE = """
#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
using cuda::std::uint32_t;
#include <cuda/std/type_traits>
namespace std { using cuda::std::is_same_v; using cuda::std::is_unsigned;
using cuda::std::is_integral; using cuda::std::enable_if; using cuda::std::conditional; }
#else
#include <cstdint>
#include <type_traits>
#endif
#include <cuda_fp16.h>
static_assert(std::is_same_v<uint32_t, unsigned>, "");
static_assert(std::is_unsigned<uint32_t>::value && !std::is_unsigned<int>::value, "");
static_assert(std::is_integral<int>::value && !std::is_integral<float>::value, "");
static_assert(std::is_same_v<std::enable_if<true, int>::type, int>, "");
static_assert(std::is_same_v<std::conditional<false, int, half>::type, half>, "");
extern "C" __global__ void kernel(float* y, const half* x, const unsigned* w) {
  y[threadIdx.x] = float(x[threadIdx.x]) / __dp4a((int)w[0], (int)w[1], 3);
}
"""


@pytest.fixture(params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest) -> Nvrtc | Nvcc:
    found = ptx.find_nvrtc() if request.param == "nvrtc" else ptx.find_nvcc()
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    return found


def test_kernels_become_ptx_for_the_oldest_gpu(compiler: Nvrtc | Nvcc) -> None:
    text = compile_ptx(SOURCE, "sm_75", compiler).decode()
    assert ".target sm_75" in text
    assert ".entry kernel(" in text
    assert "dp4a" in text
    assert "div.full.ftz.f32" in text, "division as on other targets"
    assert compile_ptx(SOURCE, "sm_75", compiler).decode() == text


def test_a_refused_source_is_reported_with_its_error(compiler: Nvrtc | Nvcc) -> None:
    with pytest.raises(TargetError, match=r"(?s)kernels\.cu.*error.*missing_name"):
        compile_ptx("__global__ void kernel() { missing_name(); }", "sm_75", compiler)


def test_a_missing_compiler_has_a_hint_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "find_nvrtc", lambda: None)
    monkeypatch.setattr(ptx, "find_nvcc", lambda: None)
    with pytest.raises(TargetError, match="no CUDA compiler") as caught:
        compile_ptx(SOURCE, "sm_75")
    assert "pip install 'gemma4-compile[cuda]'" in str(caught.value.hint)


def test_nvrtc_needs_both_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "wheel_folders", lambda: iter([tmp_path]))
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libnvrtc.so.13"
    library.write_bytes(b"no library")
    assert ptx.find_nvrtc() is None
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").write_text("")
    found = ptx.find_nvrtc()
    assert found == Nvrtc(library, tmp_path / "include")
    assert found is not None
    with pytest.raises(TargetError, match="cannot load"):
        compile_ptx(SOURCE, "sm_75", found)
