import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from gemma4_compile.errors import TargetError
from gemma4_compile.targets import cpu, link, target_spec
from tests.unit.targets.kv_library import DOUBLE, CacheOfLayer, RotaryKind, build

LAYERS = (CacheOfLayer(1, 4),)
ROTARY = (RotaryKind(4, 2, 1e4),)
SPEC = target_spec("cpu")


def test_library_computes(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    messages: list[str] = []
    link(build(SPEC, LAYERS, ROTARY), path, SPEC, messages.append)
    assert messages[-1] == "linking model.so"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.so"]
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    numbers = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(machine[DOUBLE](tvm.runtime.tensor(numbers)).numpy(), 2 * numbers)


@I.ir_module
class Parallel:
    @T.prim_func(private=True, s_tir=True)
    def kernel(
        source: T.Buffer((64, 64), "float32"), result: T.Buffer((64, 64), "float32")
    ) -> None:
        for i in T.parallel(64):
            for j in range(64):
                with T.sblock("triple"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    result[vi, vj] = source[vi, vj] * T.float32(3)

    @R.function
    def triple(numbers: R.Tensor((64, 64), "float32")) -> R.Tensor((64, 64), "float32"):
        cls = Parallel
        result = R.call_tir(cls.kernel, (numbers,), out_ty=R.Tensor((64, 64), "float32"))
        return result


def test_parallel_kernels_find_the_thread_pool(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    link(relax.build(Parallel, target=SPEC.tvm_target()), path, SPEC)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    numbers = np.random.default_rng(3).random((64, 64), dtype=np.float32)
    tripled = machine["triple"](tvm.runtime.tensor(numbers)).numpy()
    np.testing.assert_array_equal(tripled, 3 * numbers)


def test_library_is_the_same_bytes_twice_and_names_no_path(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "model.so"
        link(build(SPEC, LAYERS, ROTARY), path, SPEC)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert str(tmp_path).encode() not in contents[0]
    assert str(Path.home()).encode() + b"/" not in contents[0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF with nm")
def test_library_shows_only_what_tvm_looks_up(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    link(build(SPEC, LAYERS, ROTARY), path, SPEC)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True
    )
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    assert "__tvm_ffi_gemma4_kv_create" in names
    assert [name for name in names if not name.startswith(("__tvm_ffi_", "__TVM"))] == []


@pytest.mark.parametrize(
    ("system", "machine", "triple"),
    [
        ("linux", "x86_64", "x86_64-linux-gnu.2.28"),
        ("linux", "aarch64", "aarch64-linux-gnu.2.28"),
        ("darwin", "arm64", "aarch64-macos.13.0"),
        ("win32", "AMD64", "x86_64-windows-gnu"),
    ],
)
def test_platforms(system: str, machine: str, triple: str) -> None:
    assert cpu.native_platform(system, machine).triple == triple


@pytest.mark.parametrize(("system", "machine"), [("win32", "ARM64"), ("linux", "riscv64")])
def test_unsupported_platforms_are_named(system: str, machine: str) -> None:
    with pytest.raises(TargetError, match=f"{machine} on {system}"):
        cpu.native_platform(system, machine)


@pytest.mark.parametrize(("system", "expected"), [("win32", cpu.WINDOWS_TRIPLE), ("linux", "")])
def test_host_code_is_for_the_c_library_that_it_is_linked_with(system: str, expected: str) -> None:
    assert cpu.host_triple(system) == expected


def test_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot write"):
        link(build(SPEC, LAYERS, ROTARY), tmp_path / "missing" / "model.so", SPEC)


def test_spec_of_another_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="webgpu"):
        cpu.link(build(SPEC, LAYERS, ROTARY), tmp_path / "model.so", target_spec("webgpu"))
