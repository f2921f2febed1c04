"""The shipped model as a `cuda` package: it compiles everywhere, and answers where a GPU is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime import Chat, Engine, Sampler, SamplingOptions
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.targets.linker import ptx
from tests.packages import compile_small
from tests.tiny_answers import CONVERSATIONS

pytestmark = pytest.mark.slow  # `tests/cuda` runs a package on a driver that is not one

GREEDY = Sampler(SamplingOptions(temperature=0.0))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if ptx.find_nvrtc() is None and ptx.find_nvcc() is None:
        pytest.skip("no CUDA compiler: neither nvidia-cuda-nvrtc nor nvcc is installed")
    output = tmp_path_factory.mktemp("cuda") / "package"
    compile_small(CompileRequest("tiny", "cuda", "q4f16", output, context_length=256))
    return output


def test_every_kernel_is_ptx(package: Path) -> None:
    library = (package / "model.so").read_bytes()
    assert library.count(b".visible .entry") >= 50
    assert b"dp4a" in library, "int8 vectors are the default"
    build = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"]
    assert (build["target"], build["activations"]) == ("cuda", "int8")


def test_without_a_gpu_the_package_is_refused_clearly(package: Path) -> None:
    try:
        Device.open("cuda")
    except ArtifactError:
        with pytest.raises(ArtifactError, match=r"NVIDIA GPU|no device"):
            Engine.open(package)
    else:
        pytest.skip("there is a GPU")


def test_with_a_gpu_it_answers_word_for_word(package: Path) -> None:
    try:
        Device.open("cuda")
    except ArtifactError as error:
        pytest.skip(f"no CUDA device: {error}")
    wrong = []
    for conversation in CONVERSATIONS:
        chat = Chat.open(package, system=conversation.system)
        for question, answer in conversation.turns:
            found = "".join(chat.stream(question, GREEDY, max_tokens=50))
            if found != answer:
                wrong.append(f"{conversation.name}: {question} -> {found}")
    assert not wrong, "\n".join(wrong)
