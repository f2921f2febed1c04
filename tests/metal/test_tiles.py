"""A whole step of a few rows whose matmuls read rows in tiles, on the emulator."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.check.kernel_check import kernels_of
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.targets import TARGETS, Target, cpu, target_spec
from gemma4_compile.types import JsonObject
from tests import models, tolerances
from tests.drafted import drafted_package, let_guess
from tests.marks import exhaustive_if
from tests.metal import emulator

# `tests/e2e/test_drafts.py` has all numbers of rows, test_tensor_cores.py the kernels of each.
ROUNDS = (1, 9, 4, 2)
LIMITS = "tiles"
# The last is left to the exhaustive run: its matmuls are those of e2b, float32 scales in tiles are
# in test_tensor_cores.py, its replies with guesses in `tests/parity/test_drafted_replies.py`.
CASES = [("e2b", "q4f16"), ("moe", "q8f16"), ("dense", "q4f32")]


def target() -> Target:
    """The emulator with tensor cores, and the threads that CUDA's norms of few rows have."""
    cuda = target_spec("cuda").tuning.few_row_tensor_cores
    tensor_cores = replace(cuda, min_rows=1, direct_bytes=1 << 40, direct_most_bytes=1 << 41)
    tuning = replace(
        emulator.TENSOR_CORES.tuning,
        few_row_tensor_cores=tensor_cores,
        few_rows=target_spec("cuda").tuning.few_rows,
    )
    spec = replace(
        emulator.TENSOR_CORES,
        activation_forms=("float", "int8"),
        simd_width=32,
        max_shared_memory_bytes=emulator.SPEC.max_shared_memory_bytes,
        tuning=tuning,
    )
    return replace(
        TARGETS["metal"],
        limits={"default": spec, LIMITS: spec},
        link=emulator.link,
        platform=cpu.this_machine,
    )


def tiled_kinds(package: Package) -> set[str]:
    """Kinds of the operators that read or write tiles."""
    library = NativeLibrary(package.library_path, Device.open(package.target))
    kernels = kernels_of(library.metadata())
    described = [json.loads(operator) for operator in kernels.values()]
    return {one["kind"] for one in described if one.get("tiled") or _is_tiled(one)}


def _is_tiled(matmul: JsonObject) -> bool:
    parts = (matmul.get(part, {}) for part in ("activations", "output"))
    return any(part.get("tiled") for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "recipe"), exhaustive_if(lambda kind, _: kind == "dense", CASES))
@pytest.mark.usefixtures("metal_packages")
def test_rows_have_the_logits_of_single_tokens(
    kind: str,
    recipe: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TARGETS, "metal", target())
    made = drafted_package(
        tmp_path_factory, kind, recipe, activations="int8", target="metal", limits=LIMITS
    )
    package = Package.open(made.package)
    kinds = tiled_kinds(package)
    assert "linear" in kinds
    assert kinds & {"quantized_norm", "combine_splits", "quantize_rows"}
    plain, engine = Engine(package, drafts=0), Engine(package)
    rounds = engine.rounds
    assert rounds is not None
    text = models.prompt(30 + sum(ROUNDS), seed=13).tolist()
    for one in (plain, engine):
        one.prefill(text[:29])
    rounds.advance(text[29], 0)
    rounds.accept(0)
    expected = [plain.decode(token) for token in text[29:]]

    def guess(_token: int, position: int, count: int) -> list[int]:
        return text[position + 1 : position + 1 + count]

    let_guess(monkeypatch, engine, guess)
    begin = 30
    for count in ROUNDS:
        _, rows = rounds.advance(text[begin], count - 1)
        for row in range(count):
            error = np.abs(rows.read(row) - expected[begin + row - 29]).max()
            assert error < tolerances.LOGITS_INT8_BOTH, (count, row)
        rounds.accept(count - 1)
        begin += count
