"""The self-test of kernels that are not right; test_diagnose.py has a whole library that is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gemma4_compile.device_check.definitions import run
from gemma4_compile.device_kinds import NATIVE_KINDS
from gemma4_compile.errors import ArtifactError
from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.base import Operator, description_of
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.rows import CHUNK as OF_CHUNK
from gemma4_compile.operators.rows import Few
from gemma4_compile.runtime import Package
from gemma4_compile.runtime.check import kernel_check
from gemma4_compile.runtime.check.kernel_check import (
    CHUNK_ROWS,
    EXPERT_ROWS,
    CompilerMissingError,
    check_kernels,
    kernels_of,
)
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.tiles.tensor_cores import M
from tests.matmuls import int8_linear
from tests.numerics.tensor_cores import PACKED_CHUNKS

CHUNK = 12  # of the package
Kernel = Callable[..., None]


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.open("cpu")


@pytest.fixture(scope="module")
def library(tiny_package: Path, device: Device) -> NativeLibrary:
    return NativeLibrary(Package.open(tiny_package).library_path, device)


@pytest.fixture(scope="module")
def kernels(library: NativeLibrary) -> Mapping[str, str]:
    return kernels_of(library.metadata())


@pytest.fixture(scope="module")
def definitions() -> Iterator[Any]:
    """A process that computes right answers; each has to load the compiler."""
    with kernel_check._expected_outputs() as process:
        yield process


@pytest.fixture
def one_process(definitions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks share it, which ask it for other answers only."""
    monkeypatch.setattr(kernel_check, "_expected_outputs", lambda: nullcontext(definitions))


def add_to(array: Any, value: float) -> None:
    np.from_dlpack(array).reshape(-1)[-1] += value


def right(kernel: Kernel, args: tuple[Any, ...]) -> None:
    kernel(*args)


def off(kernel: Kernel, args: tuple[Any, ...]) -> None:
    kernel(*args)
    add_to(args[-1], 0.01)


def no_number(kernel: Kernel, args: tuple[Any, ...]) -> None:
    kernel(*args)
    add_to(args[-1], float("nan"))


def idle(kernel: Kernel, args: tuple[Any, ...]) -> None:
    del kernel, args


def stray(kernel: Kernel, args: tuple[Any, ...]) -> None:
    kernel(*args)
    add_to(args[0], 1.0)


def lost(kernel: Kernel, args: tuple[Any, ...]) -> None:
    del kernel, args
    raise RuntimeError("the device is lost")


MISSING = "of_tomorrow"

# What some kernels of a library do instead, and what is said about them.
CHANGES: dict[str, tuple[Callable[[Kernel, tuple[Any, ...]], None], str]] = {
    "rms_norm": (right, ""),
    "rms_norm1": (off, "values are off by up to 0.01"),
    "residual_norm": (no_number, "found nan"),
    "residual_norm1": (idle, "values are off by up to"),
    "take_last_row": (stray, "argument 0: it must be left alone"),
    "softmax_partials": (lost, "it failed: the device is lost"),
    MISSING: (idle, "the model library has no function `of_tomorrow`"),
}


class ChangedLibrary:
    """A library whose kernels do something else."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library

    def linked_function(self, name: str) -> Kernel:
        kernel = self._library.linked_function(name)
        change, _ = CHANGES[name]
        return lambda *args: change(kernel, args)


def test_every_kind_of_fault_is_found(
    library: NativeLibrary, device: Device, kernels: Mapping[str, str]
) -> None:
    changed: Any = ChangedLibrary(library)
    chosen = {name: kernels.get(name, kernels["rms_norm"]) for name in CHANGES}
    results = list(check_kernels(changed, device, chosen, CHUNK))
    assert [result.name for result in results] == sorted(CHANGES)
    for result in results:
        change, problem = CHANGES[result.name]
        assert problem in result.problem, result
        assert bool(result.problem) == (change is not right), result
        if change in (off, no_number, idle):
            assert result.error_share > 1


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("wrong_rows", [None, 2, 9])
def test_a_matmul_of_a_few_rows_is_tried_with_two_as_well(
    device: Device, wrong_rows: int | None
) -> None:
    """One and two rows may have a kernel of their own (few_row_gemv.py)."""
    layout = WeightLayout(4, "float16", 32, 64, (8,))
    operator = int8_linear(Few(9), layout, PACKED)

    class Library:
        def linked_function(self, name: str) -> Kernel:
            del name

            def matmul(*args: Any) -> None:
                arrays = [np.from_dlpack(arg) for arg in args]
                run(operator, *arrays)
                if len(arrays[0]) == wrong_rows:
                    add_to(args[-1], 1.0)

            return matmul

    library, described = Library(), str(description_of(operator.prim_func()))
    (result,) = check_kernels(cast(NativeLibrary, library), device, {"matmul": described}, CHUNK)
    assert bool(result.problem) == (wrong_rows is not None)


class OnCuda:
    """A device that is said to be CUDA's."""

    kind = NATIVE_KINDS["cuda"]

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def rows_tried(operator: Operator, device: Any, chunk: int) -> list[int]:
    """Rows of x of the calls of a kernel that is right."""
    found: list[int] = []

    class Library:
        def linked_function(self, name: str) -> Kernel:
            del name

            def matmul(*args: Any) -> None:
                arrays = [np.from_dlpack(arg) if hasattr(arg, "shape") else arg for arg in args]
                found.append(len(arrays[0]))
                run(operator, *arrays)

            return matmul

    library, described = cast(NativeLibrary, Library()), str(description_of(operator.prim_func()))
    (result,) = check_kernels(library, device, {"matmul": described}, chunk)
    assert not result.problem
    return found


@pytest.mark.usefixtures("one_process")
def test_a_chunks_matmul_is_tried_with_the_rows_of_each_kernel_of_cuda(device: Device) -> None:
    """The host chooses by their number: 19 alone would reach one of five kernels."""
    tuning = target_spec("cuda").tuning
    few, short, tiles, others, most = CHUNK_ROWS
    sizes, large = tuning.short_chunks, tuning.warpgroups
    assert few <= M < short <= min(sizes.rows, sizes.most_rows, sizes.narrow_most_rows)
    assert sizes.most_rows < tiles < large.min_rows
    # Of narrow matrices tiles or, on Hopper, as of others, the smaller blocks of warpgroups.
    assert max(sizes.narrow_most_rows, large.min_rows - 1) < others <= large.small_tile(128)[1]
    assert large.small_tile(128)[1] < most
    matmul = int8_linear(OF_CHUNK, WeightLayout(4, "float16", 32, 64, (8,)), PACKED)
    assert rows_tried(matmul, OnCuda(device), 512) == [*CHUNK_ROWS]
    assert rows_tried(matmul, OnCuda(device), 64) == [few, short, tiles, 64]
    assert rows_tried(matmul, device, 512) == [19]


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("is_gate_up", [True, False])
def test_experts_are_tried_with_the_rows_of_each_kernel_of_cuda(
    is_gate_up: bool, device: Device
) -> None:
    assert target_spec("cuda").tuning.short_chunks.expert_rows < EXPERT_ROWS
    experts = next(
        one
        for one in PACKED_CHUNKS
        if isinstance(one, ExpertLinear) and one.is_gate_up == is_gate_up
    )
    pairs = EXPERT_ROWS * experts.experts
    expected = -(-pairs // experts.top_k) if is_gate_up else pairs
    assert rows_tried(experts, OnCuda(device), 512) == [19, expected]


def test_a_compiler_that_does_not_start_is_named(
    library: NativeLibrary,
    device: Device,
    kernels: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tvm.py").write_text("raise ImportError('no compiler here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CompilerMissingError, match=r"status 1: ImportError: no compiler here"):
        list(check_kernels(library, device, kernels, CHUNK))


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    "change",
    [{"kind": "of_yesterday"}, {"size": 3}],
    ids=["its kind", "its fields"],
)
def test_an_operator_of_another_version_is_named(
    library: NativeLibrary, device: Device, kernels: Mapping[str, str], change: dict[str, object]
) -> None:
    operator = json.dumps({**json.loads(kernels["rms_norm"]), **change})
    with pytest.raises(ArtifactError, match="of kernel `rms_norm` is unknown to this gemma4-"):
        list(check_kernels(library, device, {"rms_norm": operator}, CHUNK))


def test_a_library_without_a_list_of_kernels_is_refused() -> None:
    for metadata in ("{}", '{"kernels": []}'):
        with pytest.raises(ArtifactError, match="does not list its kernels"):
            kernels_of(metadata)
