from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary

CHAT_WITHOUT_COMPILER = """
import sys
from pathlib import Path
from gemma4_compile.runtime import Chat, Sampler, SamplingOptions

chat = Chat.open(Path(sys.argv[1]))
list(chat.stream("Hi", Sampler(SamplingOptions(temperature=0.0)), max_tokens=4))
loaded = Path("/proc/self/maps").read_text()
assert "libtvm_runtime" in loaded
assert "libtvm_compiler" not in loaded, "the compiler is loaded"
assert "tvm" not in sys.modules, "the compiler's Python package is imported"
layers = ("passes", "pipeline", "model_spec", "quantization", "targets")
found = [name for name in sys.modules if name.split(".")[:2][-1] in layers and "gemma4" in name]
assert not found, found
for name in ("starlette", "uvicorn", "llguidance"):
    assert name not in sys.modules, f"{name} is loaded, which only the server or schemas need"

import gemma4_compile.runtime.cli, gemma4_compile.runtime.serve
assert "libtvm_compiler" not in Path("/proc/self/maps").read_text(), "a command loads the compiler"
assert "tvm" not in sys.modules, "a command imports the compiler's Python package"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc: needs Linux")
def test_chatting_loads_no_compiler(tiny_package: Path) -> None:
    command = [sys.executable, "-c", CHAT_WITHOUT_COMPILER, str(tiny_package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_two_libraries_in_one_process_keep_apart(tiny_package: Path) -> None:
    first, second = Engine.open(tiny_package), Engine.open(tiny_package, context_length=40)
    expected = first.prefill([2, 5, 7])
    second.prefill([2, 9])
    assert (first.length, second.length) == (3, 2)
    first.clear()
    assert (first.length, second.length) == (0, 2)
    assert (first.prefill([2, 5, 7]) == expected).all()


def test_a_watched_library_tells_what_it_calls(tiny_package: Path) -> None:
    library = NativeLibrary(tiny_package / "model.so")
    told: list[tuple[str, bool]] = []

    def note(_function: object, name: str, before: bool, *_: object) -> int:
        told.append((name, before))
        return 0

    watched = library.watched(note)
    device = Device.open("cpu")  # its tensors are aligned as kernels need them
    logits = device.place(np.zeros((1, 1, 1024), np.float32))
    temperature = device.place(np.ones(1, np.float32))
    plain = library.compiled_function(abi.SOFTMAX)(logits, temperature)
    assert not told, "the other machine of the library has no instrument"
    seen = watched.compiled_function(abi.SOFTMAX)(logits, temperature)
    assert (np.from_dlpack(seen) == np.from_dlpack(plain)).all()
    for name in ("vm.builtin.alloc_storage", "vm.builtin.alloc_tensor"):
        assert told.count((name, True)) == told.count((name, False)) > 0


def test_a_missing_function_is_named(tiny_package: Path) -> None:
    library = NativeLibrary(tiny_package / "model.so")
    with pytest.raises(ArtifactError, match="no function `encode_image`"):
        library.compiled_function("encode_image")


def test_a_file_that_is_no_library_is_an_artifact_error(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"\x7fELF but no more")
    with pytest.raises(ArtifactError, match="cannot load the model library"):
        NativeLibrary(path)
