"""The launcher alone, step by step, and mistakes in it that the fake of Metal must find."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from gemma4_compile.runtime import Engine
from gemma4_compile.targets.metal_tensors import HEADERS
from tests.marks import slow_unless
from tests.metal import emulator, fake

STEPS = ("depend", "upload", "overlap", "beside", "overwrite", "odd")
KERNEL = """kernel void {name}({parameters},
  uint blockIdx [[threadgroup_position_in_grid]],
  uint threadIdx [[thread_position_in_threadgroup]]
) {{
  {body}
}}
"""
BODIES = {
    "add_one": (2, "b_ptr[((int)threadIdx)] = (a_ptr[((int)threadIdx)] + 1.000000e+00f);"),
    "add": (
        3,
        "c_ptr[((int)threadIdx)] = a_ptr[((int)threadIdx)] + *(device float*)(b_ptr + threadIdx);",
    ),
    "leave": (2, "b_ptr[(((int)threadIdx) + 4096)] = a_ptr[((int)threadIdx)];"),
}

# What stands for a text of the launcher, and the steps that find it, with what the fake says; ""
# where it is a wrong value or an object that is left.
MISTAKES: Mapping[str, tuple[str, str, str]] = {
    "a read waits for nothing": (
        "if (buffer->written > done_) WaitFor(buffer->written);",
        "if (planted != {n} && buffer->written > done_) WaitFor(buffer->written);",
        "",
    ),
    "a wait is for the command buffer before": (
        "committed_[count].number <= number)",
        "committed_[count].number + (planted == {n} ? 1 : 0) <= number)",
        "",
    ),
    "no barrier": ("  if (waits) {{", "  if (waits && planted != {n}) {{", "runs beside one"),
    "no barrier before what was read is written": (
        "(writes && Holds(read_, buffers[i]))",
        "(planted != {n} && writes && Holds(read_, buffers[i]))",
        "runs beside one",
    ),
    "a kernel is thought to write nothing": (
        "kernel->written = WrittenBuffers(kernel->source, kernel->buffers);",
        "kernel->written = planted == {n} ? 0 : WrittenBuffers(kernel->source, kernel->buffers);",
        "",
    ),
    "a stage is filled again before it is read": (
        "stage->used = number_;",
        "if (planted != {n}) stage->used = number_;",
        "the host writes memory that a command buffer has yet to read",
    ),
    "an upload overtakes launches": (
        "  if (buffer->used <= done_) {{",
        "  if (planted == {n} || buffer->used <= done_) {{",
        "the host (writes|touches) memory",
    ),
    "an upload is not noted": (
        "  Use(buffer, true);",
        "  Use(buffer, planted != {n});",
        "the host touches memory that a command buffer has yet to write",
    ),
    "bytes that are no words are a blit": (
        "  if (!IsBlit(source_offset | offset | bytes)) {{",
        "  if (planted != {n} && !IsBlit(source_offset | offset | bytes)) {{",
        "offsets and sizes are multiples of 4",
    ),
    "a copy is not noted": (
        "  Use(target, true);",
        "  Use(target, planted != {n});",
        "the host touches memory that a command buffer has yet to write",
    ),
    "a command buffer is kept": (
        "Send<void>(done.commands, objc.release);",
        "if (planted != {n}) Send<void>(done.commands, objc.release);",
        "",
    ),
    "an encoder is released twice": (
        "Send<void>(encoder_, objc.release);",
        "for (int i = planted == {n} ? 0 : 1; i < 2; ++i) Send<void>(encoder_, objc.release);",
        "`release` is sent to an object that is gone",
    ),
    "an encoder is left open": (
        "  EndEncoding();\n  Send<void>(commands_, objc.commit);",
        "  if (planted != {n}) EndEncoding();\n  Send<void>(commands_, objc.commit);",
        "while an encoder is open",
    ),
    "a command buffer is used after its commit": (
        "  commands_ = nullptr;\n  ++number_;",
        "  if (planted != {n}) commands_ = nullptr;\n  ++number_;",
        "is sent to an object that is gone",
    ),
    "a pipeline is kept": (
        "Send<void>(kernel->pipeline, objc.release);",
        "if (planted != {n}) Send<void>(kernel->pipeline, objc.release);",
        "",
    ),
    "what is owned is kept": (
        "~Owned() {{ Reset(); }}",
        "~Owned() {{ if (planted != {n}) Reset(); }}",
        "",
    ),
    "there is no pool": (
        "pool_(objc.push_pool())",
        "pool_(planted == {n} ? nullptr : objc.push_pool())",
        "without a pool|a pool ends within another",
    ),
}


# The others are left to `make test-all`: each is a process.
QUICK_MISTAKES = (
    "a read waits for nothing",
    "no barrier",
    "an upload overtakes launches",
    "a stage is filled again before it is read",
    "a command buffer is kept",
    "an encoder is released twice",
)
QUICK_CASES = ((False, 64), (True, 1))


@pytest.fixture(scope="module")
def library(metal_device: object) -> Path:
    """The launcher with all mistakes, none of which is made unless it is asked for."""
    del metal_device  # not there on systems that cannot emulate
    changes = [
        (text.replace("{{", "{").replace("}}", "}"), other.format(n=number))
        for number, (text, other, _) in enumerate(MISTAKES.values(), 1)
    ]
    return fake.build_launcher(changes)


def kernel_texts() -> dict[str, str]:
    texts = {}
    for name, (count, body) in BODIES.items():
        places = ("abc"[i] + f"_ptr [[ buffer({i}) ]]" for i in range(count))
        parameters = ", ".join(f"device float* {place}" for place in places)
        texts[f"{name}_kernel"] = KERNEL.format(
            name=f"{name}_kernel", parameters=parameters, body=body
        )
    text = texts["add_one_kernel"].replace("add_one_kernel", "tensor_kernel")
    texts["tensor_kernel"] = f"{HEADERS}{text}"
    return texts


def steps(library: Path, *names: str, **asked: object) -> fake.Ended:
    texts = kernel_texts()
    path = str(emulator.compile_kernels(texts))
    emulator.kernel_libraries.update(dict.fromkeys(texts.values(), path))
    return fake.run(
        "tests.metal.launcher_steps",
        {"launcher": str(library), "names": texts, "steps": names, **asked},
        {},
    )


@pytest.mark.parametrize(
    ("at_once", "launches"),
    slow_unless(lambda *case: case in QUICK_CASES, product([False, True], [1, 64])),
)
def test_steps_give_their_values_and_leave_nothing(
    library: Path, at_once: bool, launches: int
) -> None:
    answer = steps(library, *STEPS, **{"at once": at_once, "launches": launches}).answer()
    assert answer == {"alive": []}


@pytest.mark.parametrize("name", slow_unless(lambda name: name in QUICK_MISTAKES, MISTAKES))
def test_a_mistake_is_found(name: str, library: Path) -> None:
    number = [*MISTAKES].index(name) + 1
    found = steps(library, *STEPS, mistake=number)
    *_, message = MISTAKES[name]
    if message:
        assert found.code == fake.FAULT, (found.output, found.errors)
        assert re.search(message, found.errors), found.errors
    else:
        assert found.code != 0 or found.answer()["alive"], found.errors


def test_errors_name_what_failed_and_leave_the_launcher_usable(library: Path) -> None:
    answer = steps(library, fail=True).answer()
    assert answer["alive"] == []
    errors = answer["errors"]
    assert isinstance(errors, dict)
    assert "kernels: `add_one_kernel`, `leave_kernel`" in errors["gpu"]
    assert "outside of a buffer" in errors["gpu"]
    assert "2048 threads" in errors["threads"]
    assert "buffer 1 is missing" in errors["buffer"]
    assert "`unknown_kernel` does not compile" in errors["source"]
    assert "no room for 32 bytes" in errors["room"]
    assert "`tensor_kernel` multiplies by Metal 4's tensor operations" in errors["tensors"]
    assert "this is macOS 15 on fake Metal device" in errors["tensors"]


@pytest.mark.parametrize(("m5", "macos"), [(False, 26), (True, 26), (True, 16)])
def test_tensor_operations_are_for_gpus_that_have_them(m5: bool, macos: int, library: Path) -> None:
    answer = steps(library, "depend", fail=True, macos=macos, m5=m5).answer()
    assert answer["alive"] == []
    errors = answer["errors"]
    assert isinstance(errors, dict)
    assert ("tensors" in errors) != m5


READS = (
    "v = a_ptr[(((int)blockIdx) * 4)];",
    "v = *(device float4*)(a_ptr + (((int)blockIdx) * 4));",
    "v = (*(device half4*)(a_ptr + 8));",
    "if (a_ptr[0] == 3 && a_ptr[1] <= 2) { v = v - a_ptr[2]; }",
    "v = b_ptr[a_ptr[3]].x * *(device float*)(a_ptr + 1) + a_ptr[(b_ptr[0] & 3)];",
    "v = (x_ptr ? a_ptr[0] : -a_ptr[1]);",
    "v = w & a_ptr[0]; v = w & (a_ptr[1]); v = f(a_ptr[2]);",
)
WRITES = (
    "a_ptr[(((int)blockIdx) * 4)] = v;",
    "a_ptr[0].x = v;",
    "a_ptr[0] += v;",
    "a_ptr[0]++;",
    "++a_ptr[0];",
    "a_ptr[0] <<= 1;",
    "*(device float4*)(a_ptr + (((int)blockIdx) * 4)) = v;",
    "(*(device float4*)(a_ptr + 4)).y = v;",
    "((device float4*)(a_ptr + 4))[0] = v;",
    "simdgroup_store(v, a_ptr + 4, 8);",
    "atomic_fetch_add_explicit((device atomic_uint*)(a_ptr + 4), 1, memory_order_relaxed);",
    "atomic_store(&a_ptr[0], 1);",
    "store((&(a_ptr[0])), 1);",
    "store((device uint*)&a_ptr[0], 1);",
    "device float* q = a_ptr;",
    "v = (device float4*)(a_ptr);",
)


def written(library: Path, source: str, count: int) -> set[int]:
    calls = ctypes.CDLL(str(library))
    calls.written_buffers.restype = ctypes.c_uint32
    bits = calls.written_buffers(source.encode(), ctypes.c_size_t(count))
    return {index for index in range(count) if bits >> index & 1}


@pytest.mark.parametrize(
    ("body", "writes"), [*((one, False) for one in READS), *((one, True) for one in WRITES)]
)
def test_what_a_kernel_may_write_is_read_from_its_text(
    body: str, writes: bool, library: Path
) -> None:
    parameters = "  device float* a_ptr [[ buffer(0) ]],\n  device int* b_ptr [[ buffer(1) ]]"
    source = KERNEL.format(name="some_kernel", parameters=parameters, body=body)
    assert (0 in written(library, source, 2)) == writes
    assert 1 not in written(library, source, 2)
    # Of what is no kernel of TVM's generator, all may be written.
    assert written(library, source.replace(") {", "){"), 2) == {0, 1}


def test_of_emitted_kernels_what_stands_before_an_assignment_is_written(
    library: Path, metal_packages: None, tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What other tests of this process loaded is CUDA's, too, whose copies are calls.
    monkeypatch.setattr(emulator, "kernel_libraries", {})
    Engine.open(tiny_package)
    sources = [text for text in emulator.kernel_libraries if "#include <metal_stdlib>" in text]
    assert len(sources) > 50
    for source in sources:
        names = re.findall(r"device \w+\* (\w+) \[\[ buffer\(\d+\) \]\]", source)
        body = source[source.index(") {") :]
        assigned = " ".join(re.findall(r"^ *(.*?) = ", body, re.MULTILINE))
        expected = {i for i, name in enumerate(names) if re.search(rf"\b{name}\b", assigned)}
        assert written(library, source, len(names)) == expected, source


def test_pipelines_are_kept_in_a_file(library: Path, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")

    def found(archive: str, save: str) -> object:
        answer = steps(library, "depend", archive=archive, save=save).answer()
        assert answer["alive"] == []
        return answer["archive"]

    new = {"kept pipelines": 0, "new pipelines": 2, "saved": True}
    assert found("", first) == new
    assert found(first, second) == {"kept pipelines": 2, "new pipelines": 0, "saved": False}
    assert not Path(second).exists()
    # Of another GPU or macOS, or none at all: it is made anew.
    Path(first).write_text("pipelines of another Metal\n")
    assert found(first, second) == new
    assert found(str(tmp_path / "none"), str(tmp_path / "no folder" / "file")) == {
        **new,
        "saved": False,
    }
