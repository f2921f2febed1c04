"""A package of the shipped model, on the emulated Metal device, in the runtime that users have.

Kernels are compiled with fast math, as on a Mac.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.package.artifacts import read_artifact
from gemma4_compile.runtime import Chat, Engine, Sampler, SamplingOptions
from gemma4_compile.runtime.check.kernel_check import check_kernels, kernels_of
from gemma4_compile.runtime.device import device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.package.package import Package
from tests import packages
from tests.marks import slow_unless
from tests.metal import emulator
from tests.tiny_answers import CONVERSATIONS

GREEDY = Sampler(SamplingOptions(temperature=0.0))
PROMPT = [2, *range(105, 140)]  # three chunks
# A token takes a tenth of a second here, so it is few questions, and of a conversation its begin.
ASKED = {"sum": 1, "brief": 1, "memory": 2}


@pytest.fixture(scope="module")
def package(metal_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "package"
    return packages.compile_package("tiny", "q4f16", folder, context_length=256, target="metal")


def test_it_is_a_package_for_metal(package: Path) -> None:
    provenance = read_artifact(package / abi.PROVENANCE_FILE)
    assert provenance["build"]["target"] == "metal"
    assert provenance["library"] == "model.dylib"


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "memory", ASKED))
def test_it_answers_as_the_cpu_build_does(name: str, package: Path) -> None:
    # tests/e2e/test_tiny_answers.py asks the CPU builds for the same words.
    (conversation,) = (asked for asked in CONVERSATIONS if asked.name == name)
    chat = Chat.open(package, system=conversation.system)
    for question, answer in conversation.turns[: ASKED[name]]:
        assert "".join(chat.stream(question, GREEDY, max_tokens=50)) == answer


def test_the_order_of_threads_changes_no_bit(package: Path) -> None:
    def logits() -> list[np.ndarray]:
        engine = Engine.open(package)
        return [engine.prefill(PROMPT), engine.decode(5), engine.decode(6)]

    expected = logits()
    with emulator.threads_in_descending_order():
        found = logits()
    for before, after in zip(expected, found, strict=True):
        assert np.isfinite(before).all()
        np.testing.assert_array_equal(before, after)


@pytest.mark.slow
def test_the_self_test_of_its_kernels_finds_no_fault(package: Path) -> None:
    opened = Package.open(package)
    where = device.Device.open(opened.target)
    library = NativeLibrary(opened.library_path, where)
    kernels = kernels_of(str(library.compiled_function(abi.METADATA)()))
    one_of_a_kind = {json.loads(operator)["kind"]: name for name, operator in kernels.items()}
    chosen = {name: kernels[name] for name in one_of_a_kind.values()}
    chunk = opened.chat_config.prefill_chunk_size
    results = list(check_kernels(library, where, chosen, chunk))
    assert {result.kind for result in results} == set(one_of_a_kind)
    assert not [result for result in results if result.problem]
    # They are other kernels than the definitions: not every bit is the same.
    assert any(result.error_share > 0 for result in results)
