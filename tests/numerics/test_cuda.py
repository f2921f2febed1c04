"""Kernels of the `cuda` target: each compiles everywhere; with a GPU each is held to its form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import not_
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.picture_attention import LastVisibleRows
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.targets import cuda, link, target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.tiles import warpgroups
from gemma4_compile.targets.linker import ptx
from tests.numerics import cuda_cases, tensor_cores
from tests.numerics.attention import test_few_row_attention
from tests.numerics.attention.test_attention_kernels import CHUNK, DECODE, PADDED_DECODE
from tests.numerics.attention.test_picture_attention_kernels import SHAPES
from tests.numerics.dawn_kernels import cases_executable
from tests.numerics.kernel_cases import Array, KernelCase, uncomputed_case
from tests.numerics.linear import (
    test_few_row_linear,
    test_gemm_kernels,
    test_int8_kernels,
    test_minima_kernels,
    test_six_bit_kernels,
    test_static_rounding,
)
from tests.numerics.moe import test_few_row_experts, test_few_row_norms

FORM = re.compile(r"\w+Layout|bits=\d+|\w+='\w+'|\w+=(?:True|False|None)")


@pytest.fixture(scope="module")
def gpu() -> Device:
    try:
        return Device.open("cuda")
    except ArtifactError as error:
        pytest.skip(f"no CUDA device: {error}")


@pytest.fixture
def compiler() -> None:
    if ptx.find_nvrtc() is None and ptx.find_nvcc() is None:
        pytest.skip("no CUDA compiler: neither nvidia-cuda-nvrtc nor nvcc is installed")


def run_on_cuda(
    cases: Sequence[KernelCase], library: NativeLibrary, gpu: Device
) -> list[tuple[Array, ...]]:
    """For each case the arrays that its kernel changed."""
    results = []
    for index, case in enumerate(cases):
        arrays = {i: arg for i, arg in enumerate(case.args) if not isinstance(arg, int)}
        tensors = {i: gpu.place(np.ascontiguousarray(array)) for i, array in arrays.items()}
        library.compiled_function(f"case_{index}")(*tensors.values())
        results.append(tuple(gpu.read(tensors[i]) for i in case.changed))
    return results


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", cuda_cases.GROUPS)
def test_kernels_compute_what_their_definitions_say(name: str, gpu: Device, tmp_path: Path) -> None:
    group = cuda_cases.GROUPS[name]()
    link(cases_executable(group.cases, group.spec), tmp_path / "model.so", group.spec)
    library = NativeLibrary(tmp_path / "model.so", gpu)

    results = run_on_cuda(group.cases, library, gpu)

    assert not (wrong := group.differences(group.cases, results)), "\n".join(wrong)


def odd_shapes() -> tuple[list[Operator], list[Operator]]:
    """Ragged rows and lanes, every epilogue, padded keys; and what has other sizes alone."""
    shapes = [
        *test_int8_kernels.odd_shapes()[::2],
        *test_gemm_kernels.OPERATORS,
        *test_gemm_kernels.INT8_OPERATORS,
        *(DECODE[name] for name in ("groups of five", "three vectors a half")),
        *PADDED_DECODE,
        *(CHUNK[name] for name in ("groups of three", "heads of two vectors")),
        *(LastVisibleRows(), SHAPES["groups of three"]),
        *test_few_row_linear.OPERATORS,
        *test_minima_kernels.operators()[:12:2],
        *test_six_bit_kernels.operators()[:12:2],
        *test_static_rounding.ROUNDING,
        *test_few_row_experts.OPERATORS,
        *test_few_row_norms.OPERATORS,
        *test_few_row_attention.SHAPES.values(),
        *test_few_row_attention.combinations(),
    ]
    shapes += [*cuda_cases.picture_operators(), *tensor_cores.CHUNKS.values()]
    shapes += tensor_cores.PICTURES.values()
    shapes += (operator for operator, _ in tensor_cores.DIVIDED.values())
    others = forms(one for n, one in enumerate(shapes) if n % 3)
    firsts = {one.variant: n for n, one in reversed([*enumerate(shapes)])}
    stay = [
        bool(n % 3) or firsts[one.variant] == n or not forms([one]) <= others
        for n, one in enumerate(shapes)
    ]
    return [*compress(shapes, stay)], [*compress(shapes, map(not_, stay))]


def forms(operators: Iterable[Operator]) -> set[tuple[str, str]]:
    """What is said of operators besides sizes: dtypes, layouts, bits, epilogue, results."""
    return {(one.variant, found) for one in operators for found in FORM.findall(repr(one))}


def test_what_compiles_in_test_all_has_every_form() -> None:
    most, rest = odd_shapes()
    assert len(rest) > len(most) / 10
    assert forms(rest) <= forms(most)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    "is_more",
    [
        pytest.param(False, id="most", marks=pytest.mark.slow),
        pytest.param(True, id="rest", marks=pytest.mark.exhaustive),
    ],
)
def test_kernels_of_odd_shapes_compile(
    is_more: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the words of CUDA but wgmma.

    Without that the text that Hopper's image is made of is that of Ampere's, and the oldest GPUs'
    is the same but for tensor cores: `tests/e2e/test_cuda.py` compiles all three of a package.
    """
    monkeypatch.setattr(cuda, "IMAGES", (cuda.AMPERE,))
    most, rest = odd_shapes()
    shapes = rest if is_more else most
    cases = [uncomputed_case(operator) for operator in shapes]
    spec = target_spec("cuda")
    link(cases_executable(cases, spec), tmp_path / "model.so", spec)
    texts = [str(make_kernel(operator, spec).script()) for operator in shapes]
    kernels = [text.count('T.launch_thread("blockIdx.x"') for text in texts]
    assert set(kernels) == {1, 2, 3} or is_more, (
        "matmuls of chunks have one for many rows, short ones or few"
    )
    assert not any(warpgroups.MULTIPLY in text for text in texts)
    compiled = (tmp_path / "model.so").read_bytes().count(b".visible .entry")
    assert compiled == sum(kernels)
