"""Draws by exact masses, on an emulated device, against sums over the whole vocabulary."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import relax

from gemma4_compile import abi
from gemma4_compile.model_spec.text.sampler import SamplerModule, SamplerOptions
from gemma4_compile.operators.draws import SEGMENT, DrawPartials, DrawTopP, TopPBin
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.passes.lowering import generate, lower
from tests.metal import emulator
from tests.metal.emulated_kernels import ORDERS, check_cuda_cases, link_cases
from tests.metal.test_mistakes import BARRIER, other, without
from tests.numerics.kernel_cases import make_case
from tests.unit.model_spec.exported import tensor

VOCAB = 5 * SEGMENT + 1056  # its last segment is a short one
ROWS = 3
BLOCKS = 7
Logits = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def library(metal_device: tvm.runtime.Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    del metal_device
    spec = {
        "logits": tensor(1, "n", VOCAB),
        "temperature": tensor(1),
        "uniform": tensor("n"),
        "top_p": tensor(1),
        "$": {"param_mode": "none", "effect_mode": "none"},
    }
    sampler = SamplerModule(VOCAB, SamplerOptions(BLOCKS, by_masses=True))
    module, _ = sampler.export_tvm({abi.DRAW_ROWS: spec})
    path = tmp_path_factory.mktemp("draws") / "draws.so"
    target = emulator.TENSOR_CORES
    emulator.link(generate(lower(module, target), target), path, target)
    return path


def probabilities(logits: Logits, temperature: float) -> npt.NDArray[np.float32]:
    scaled = (logits.astype(np.float64) - logits.max()) / temperature
    weights = np.where(scaled > -80, np.exp(scaled), 0)
    return np.asarray(weights / weights.sum(), np.float32)


def shares(probs: npt.NDArray[np.float32], top_p: float) -> Float64Array:
    """Of each token of the top-p set its share, by ascending ids, by sorting in float64."""
    order = np.argsort(-probs, kind="stable")
    ordered = probs[order].astype(np.float64)
    before = ordered.cumsum() - ordered
    kept = order[: max(1, int(np.count_nonzero(before < top_p)))]
    inside = np.zeros(len(probs))
    inside[kept] = probs[kept]
    return inside / inside.sum()


def flat() -> Logits:
    return np.zeros(VOCAB, np.float32)


def one_of_many() -> Logits:
    logits = np.full(VOCAB, -60.0, np.float32)
    logits[SEGMENT - 1] = 0.0
    return logits


def normal(deviation: float, seed: int = 0) -> Logits:
    return np.random.default_rng(seed).normal(0, deviation, VOCAB).astype(np.float32)


def ties() -> Logits:
    """Few values, each of many tokens: the threshold is one of them."""
    return np.round(normal(1.0, 3) * 2).astype(np.float32)


def only_the_last() -> Logits:
    logits = np.full(VOCAB, -200.0, np.float32)  # whose weights are 0
    logits[-2:] = 1.0
    return logits


CASES = {
    "flat": flat(),
    "one of many": one_of_many(),
    "sharp": normal(14.0),
    "wide": normal(2.0),
    "narrow": normal(0.02),
    "ties": ties(),
    "only the last": only_the_last(),
}
UNIFORMS = (0.0, 0.37, 1 - 2.0**-24)
TOP_PS = (1e-6, 0.5, 0.95, 1.0)


def draw(
    library: Path,
    device: tvm.runtime.Device,
    logits: Logits,
    options: tuple[float, float],
    uniforms: tuple[float, ...],
) -> npt.NDArray[np.int32]:
    """Tokens drawn from rows of logits (rows, VOCAB); `options` : temperature and top_p."""
    with emulator.memory_of_cuda():
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)
    temperature, top_p = ([value] for value in options)
    args = [logits[None], temperature, uniforms, top_p]
    tensors = [tvm.runtime.tensor(np.array(arg, np.float32), device) for arg in args]
    return np.asarray(machine[abi.DRAW_ROWS](*tensors).numpy())


def check(
    logits: Logits, drawn: npt.NDArray[np.int32], top_p: float, temperature: float
) -> list[str]:
    """What is wrong with the tokens drawn with UNIFORMS from one row's logits.

    Probabilities of float32 are right to some 2**-20 of themselves (exponents of up to 80, rounded
    at 2**-24), by which the set's end and each share may be off.
    """
    probs = probabilities(logits, temperature)
    wrong = []
    for uniform, token in zip(UNIFORMS, drawn, strict=True):
        slack = 2.0**-18
        near = [shares(probs, top_p + off) for off in (-slack, slack)]
        is_near = False
        for inside in near:
            end = inside.cumsum()
            begins = end[token] - inside[token] - slack <= uniform
            is_near |= bool(inside[token] > 0 and begins and uniform <= end[token] + slack)
        if not is_near:
            wrong.append(f"token {token} for {uniform} of the top {top_p}")
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_the_token_is_that_of_a_sorted_vocabulary(
    name: str, library: Path, metal_device: tvm.runtime.Device
) -> None:
    logits = CASES[name]
    rows = np.stack([logits] * len(UNIFORMS))
    wrong = []
    for order in ORDERS if name == "wide" else ORDERS[:1]:
        reverse = order == "descending"
        with emulator.threads_in_descending_order() if reverse else nullcontext():
            for top_p in TOP_PS:
                drawn = draw(library, metal_device, rows, (0.8, top_p), UNIFORMS)
                wrong += check(logits, drawn, top_p, 0.8)
    assert not wrong, "\n".join(wrong)


def test_every_kernel_computes_its_definition(
    metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    operators = DrawPartials(VOCAB, BLOCKS, CHUNK), TopPBin(VOCAB), DrawTopP(VOCAB)
    cases = [make_case(operator, seed, rows=ROWS) for seed, operator in enumerate(operators)]
    path = link_cases(cases, emulator.TENSOR_CORES, tmp_path)
    check_cuda_cases(cases, path, metal_device)


# Each with the kernel that is changed.
MISTAKES: dict[str, tuple[str, Callable[[str], str]]] = {
    "no barrier before the bin is read": ("top_p_bin", without(BARRIER, 2)),
    "no barrier before digits are counted": ("draw_top_p", without(BARRIER, 0)),
    "no barrier before counts are read": ("draw_top_p", without(BARRIER, 1)),
    "a running sum of too few": ("top_p_bin", other(r"(simd_shuffle_up\(.*), 4\)", r"\1, 3)")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(
    name: str, library: Path, metal_device: tvm.runtime.Device, tmp_path: Path
) -> None:
    kernel, change = MISTAKES[name]
    # What is loaded already keeps its kernels.
    own = Path(shutil.copy(library, tmp_path / "draws.so"))
    rows, top_p = np.stack([CASES["narrow"]] * len(UNIFORMS)), 0.5
    wrong: list[str] = []

    def changed(source: str) -> str:
        return change(source) if f"kernel void {kernel}_kernel" in source else source

    for order in ORDERS:
        reverse = order == "descending"
        with (
            emulator.threads_in_descending_order() if reverse else nullcontext(),
            emulator.mistake(changed),
        ):
            drawn = draw(own, metal_device, rows, (0.8, top_p), UNIFORMS)
        in_range = np.clip(drawn, 0, VOCAB - 1)
        wrong += check(rows[0], in_range, top_p, 0.8)
    assert wrong
