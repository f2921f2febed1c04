"""The library for NVIDIA GPUs, as far as it can be seen without one."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import TargetError
from gemma4_compile.targets import cuda, link, target_spec
from gemma4_compile.targets.linker import ptx
from tests.unit.targets.kv_library import CacheOfLayer, RotaryKind, build

SPEC = target_spec("cuda")
LAYERS, ROTARY = (CacheOfLayer(1, 4),), (RotaryKind(4, 2, 1e4),)


def need_compiler() -> None:
    if ptx.find_nvrtc() is None and ptx.find_nvcc() is None:
        pytest.skip("no CUDA compiler: neither nvidia-cuda-nvrtc nor nvcc is installed")


def symbols(library: Path, *options: str) -> set[str]:
    command = ["nm", "-D", *options, str(library)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in listed.splitlines()}


def test_the_device_is_named_by_its_number() -> None:
    assert SPEC.device_type is DeviceType.CUDA
    assert SPEC.device_type.value == 2
    target = SPEC.tvm_target()
    assert str(target.kind) == "cuda"
    assert target.attrs["arch"] == "sm_75"


def test_library_holds_ptx_and_asks_only_for_what_the_wheels_export(tmp_path: Path) -> None:
    need_compiler()
    path = tmp_path / "model.so"
    messages: list[str] = []
    link(build(SPEC, LAYERS, ROTARY), path, SPEC, messages.append)
    assert "compiling the kernels for sm_75 and newer" in messages
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.so"]
    data = path.read_bytes()
    assert [data.count(b".target %s" % name) for name in (b"sm_75", b"sm_80", b"sm_90a")] == [
        1,
        1,
        1,
    ]
    assert b"__global__" not in data, "the source is left out"
    defined = symbols(path, "--defined-only")
    assert {"__tvm_ffi__library_bin", "__tvm_ffi_gemma4_kv_create"} <= defined
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    wheel = Path(spec.submodule_search_locations[0], "lib", "libtvm_ffi.so")
    asked = {name for name in symbols(path, "--undefined-only") if name.startswith("TVM")}
    assert asked
    assert asked <= symbols(wheel, "--defined-only")
    listed = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True)
    needed = set(re.findall(r"NEEDED.*\[(.*?)\.so", listed.stdout))
    assert needed <= {"libc", "libm", "libpthread", "libdl", "ld-linux-x86-64"}, "no CUDA, no TVM"


def test_libraries_are_the_same_bytes_twice(tmp_path: Path) -> None:
    need_compiler()
    paths = [tmp_path / "first.so", tmp_path / "second.so"]
    for path in paths:
        link(build(SPEC, LAYERS, ROTARY), path, SPEC)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_another_architecture_is_another_text(tmp_path: Path) -> None:
    need_compiler()
    source = '#include <cuda_fp16.h>\nextern "C" __global__ void f(half* x) { x[0] = half(1.f); }'
    assert b".target sm_90" in ptx.compile_ptx(source, "sm_90")


def test_a_missing_compiler_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_found() -> None:
        raise TargetError("no CUDA compiler was found")

    monkeypatch.setattr(ptx, "find_compiler", none_found)
    with pytest.raises(TargetError, match="no CUDA compiler"):
        link(build(SPEC, LAYERS, ROTARY), tmp_path / "model.so", SPEC)
    assert not list(tmp_path.iterdir())


def test_a_library_for_another_target_is_refused(tmp_path: Path) -> None:
    other = target_spec("cpu")
    with pytest.raises(TargetError, match="`cpu` cannot be linked with CUDA"):
        cuda.link(build(other, LAYERS, ROTARY), tmp_path / "model.so", other)
