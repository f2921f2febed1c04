"""The browser's side of known answers: inputs equal Python's, and wrong kernels are found."""

from __future__ import annotations

import base64
import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.device_check.known_inputs import PERIOD, KnownInput, sample_positions
from gemma4_compile.operators.spreads import (
    BYTES_BELOW_255,
    WEIGHT_SCALES,
    WORDS,
    Spread,
    around_zero,
    from_to_twice,
    near,
)
from gemma4_compile.targets.spec import NATIVE
from gemma4_compile.targets.spec import WORDS as WORDS_OF_HALVES
from tests.child import run_within
from tests.web.compiled import DRAFTED, SEEING_LITTLE, TINY, Compiler
from tests.web.dawn import HERE, TIMEOUT_S, VulkanDriver, library_of, run_driver

ROOT = HERE.parents[1]
MODULES = ("selftest/known_answers", "selftest/known_inputs", "gpu/subgroup_size")
BUNDLER = ROOT / "examples" / "web" / "node_modules" / ".bin" / "rolldown"
SMALL_SUBGROUP = 4

INPUTS = (
    KnownInput("float32", (3, 5), (around_zero(2.0),), seed=1),
    KnownInput("float16", (1001,), (around_zero(2.0**-4),), seed=2),
    KnownInput("float16", (64, 2), (around_zero(8.0), from_to_twice(1.0)), seed=3),
    KnownInput("float32", (3 * PERIOD + 17,), (from_to_twice(2.0**-8),), seed=4000),
    KnownInput("uint32", (PERIOD + 1,), (WORDS,), seed=5),
    KnownInput("float32", (PERIOD + 6, 2), (around_zero(8.0), from_to_twice(1.0)), seed=9),
    KnownInput("uint32", (999,), (BYTES_BELOW_255,), seed=6),
    KnownInput("int32", (999,), (Spread(20, -7, 1),), seed=7),
    KnownInput("float32", (999,), (Spread(11, 0, 2.0**-28),), seed=8),
    KnownInput("float32", (999,), (near(3e38),), seed=10),
    KnownInput("float16", (PERIOD + 6,), WEIGHT_SCALES, seed=11),
    KnownInput("float32", (7, 2), (Spread(0, 1, 0.0625), Spread(0, 0, 1)), seed=12),
    KnownInput("int32", (4,), data=(1200, 19, 1219, 0)),
    KnownInput("float32", (1,), data=(0.75,)),
    KnownInput("float16", (7,)),
)


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """web/src as JavaScript that Node runs."""
    if not BUNDLER.is_file():
        pytest.skip("npm packages are not installed: run `npm ci` in examples/web")
    folder = tmp_path_factory.mktemp("modules")
    sources = [str(ROOT / "web" / "src" / f"{name}.ts") for name in MODULES]
    command = [str(BUNDLER), *sources, "--format", "esm", "--dir", str(folder)]
    done = run_within(TIMEOUT_S, command)
    assert done.returncode == 0, done.stderr
    return folder


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(modules: Path, folder: Path, lavapipe: VulkanDriver) -> Run:
    """Runs a package's known answers on lavapipe; keywords are the driver's (known_answers.mjs)."""

    def start(package: Path, **changes: Any) -> dict[str, Any]:
        job = {
            "package": str(package.resolve()),
            "library": library_of(package),
            "modules": str(modules),
            "output": str(folder),
            **changes,
        }
        environment = lavapipe.environment(folder, SMALL_SUBGROUP)
        return run_driver("known_answers.mjs", job, folder, environment)

    return start


def metadata_of(package: Path) -> dict[str, Any]:
    """What the library says of itself, read from the constants in its file."""
    data = (package / library_of(package)).read_bytes()
    begin = data.index(b'{"artifact": {')
    metadata, _ = json.JSONDecoder().raw_decode(data[begin:].decode("utf-8", "replace"))
    return dict(metadata)


def test_both_sides_make_the_same_inputs(modules: Path, folder: Path) -> None:
    samples = [(0, 1), (5, 64), (100, 65), (9, 4097), (0, 524_288)]
    job = {
        "modules": str(modules),
        "output": str(folder),
        "inputs": [known.to_json() for known in INPUTS],
        "samples": samples,
    }
    told = run_driver("known_inputs.mjs", job, folder, os.environ)
    for known, found in zip(INPUTS, told["buffers"], strict=True):
        assert base64.b64decode(found) == known.array().tobytes(), known
    assert told["positions"] == [sample_positions(*run) for run in samples]


CASES = (
    pytest.param("q4f32", "float", "default", NATIVE, marks=pytest.mark.slow),
    ("q4f16", "float", "default", NATIVE),
    pytest.param("q4f16", "float", "default", WORDS_OF_HALVES, marks=pytest.mark.slow),
    # Its native form: where subgroups are pinned, below.
    pytest.param("q4f16", "int8", "subgroups-4", WORDS_OF_HALVES, marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("quant", "activations", "limits", "float16"), CASES)
def test_a_right_device_passes(
    quant: str, activations: str, limits: str, float16: str, compiled: Compiler, run: Run
) -> None:
    told = run(compiled(TINY, "webgpu", quant, activations, limits, float16))
    assert told["problems"] == []
    assert told["passed"]
    assert told["cases"] >= 11


@pytest.mark.slow
def test_smaller_subgroups_than_the_package_needs_are_named(compiled: Compiler, run: Run) -> None:
    told = run(compiled(TINY, "webgpu", "q4f16", "float", "subgroups"))
    assert not told["passed"]
    message = told["problems"][0]["message"]
    assert "llvmpipe" in message
    assert "computes wrong results" in message
    assert "has to be" in message
    assert "compiled for subgroups of 32 threads" in message
    assert "here they may have 4" in message
    assert "here they may have 4: use another library of the package" in message


@pytest.fixture(scope="module")
def package(compiled: Compiler) -> Path:
    return compiled(TINY, "webgpu", "q4f32")


def only(metadata: dict[str, Any], *kernels: str, most: int = 1) -> dict[str, Any]:
    """The metadata with few kernels' cases, so that a test compiles no other."""
    answers = copy.deepcopy(metadata["known_answers"])
    answers["cases"] = [
        case for case in answers["cases"] if case["launches"][-1]["kernel"].startswith(kernels)
    ][:most]
    assert answers["cases"], kernels
    return {"known_answers": answers}


def test_a_kernel_that_computes_something_else_is_found(package: Path, run: Run) -> None:
    """Two matmuls bind the same buffers and differ in their shapes."""
    metadata = metadata_of(package)
    chosen = only(metadata, "gemm_q4")
    kernel = chosen["known_answers"]["cases"][0]["launches"][0]["kernel"]
    other = next(
        f"{name}_kernel"
        for name in metadata["kernels"]
        if name.startswith("gemm_q4_none") and f"{name}_kernel" != kernel
    )
    told = run(package, metadata=json.dumps(chosen), swap={kernel: other})
    (problem,) = told["problems"]
    assert problem["kernel"] == kernel
    assert "Update the graphics driver and the browser" in problem["message"]
    assert not told["passed"]
    assert run(package, metadata=json.dumps(chosen))["passed"], "it is right without the swap"


@pytest.mark.parametrize("kernel", ["rms_norm", "sample_top_p", "combined_gemv"])
def test_an_answer_that_is_off_by_little_is_found(kernel: str, package: Path, run: Run) -> None:
    chosen = only(metadata_of(package), kernel)
    case = chosen["known_answers"]["cases"][0]
    result = case["results"][-1]
    dtype = np.dtype(case["buffers"][result["buffer"]]["dtype"])
    expected = np.frombuffer(base64.b64decode(result["expected"]), dtype).copy()
    if dtype == np.int32:
        expected[-1] += 1
    else:
        expected[-1] += 1.5 * (result["absolute"] + result["relative"] * abs(expected[-1]))
    result["expected"] = base64.b64encode(expected.tobytes()).decode()
    told = run(package, metadata=json.dumps(chosen))
    (problem,) = told["problems"]
    samples = expected.size
    assert f"1 of {samples} samples of `{result['name']}` are off" in problem["message"]


@pytest.mark.slow
def test_packed_values_that_are_two_units_off_are_found(compiled: Compiler, run: Run) -> None:
    """One unit is the rounding of a sum; a few of those may be."""
    package = compiled(TINY, "webgpu", "q4f16", "int8", "subgroups-4")
    for unit, count, passes in ((1, 1, True), (2, 1, False), (1, 40, False)):
        chosen = only(metadata_of(package), "quantize_rows")
        result = chosen["known_answers"]["cases"][0]["results"][0]
        values = np.frombuffer(base64.b64decode(result["expected"]), np.int8).copy()
        inside = np.flatnonzero(np.abs(values.astype(int)) < 100)[:count]
        values[inside] += unit
        result["expected"] = base64.b64encode(values.tobytes()).decode()
        told = run(package, metadata=json.dumps(chosen))
        assert told["passed"] == passes, (unit, count)
        assert len(told["problems"]) == (not passes)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["quantize", ""])
def test_a_pinned_subgroup_size_is_accepted_and_right(
    kernels: str, compiled: Compiler, run: Run
) -> None:
    """Of kernels whose names begin so."""
    package = compiled(TINY, "webgpu", "q4f16", "int8", "subgroups-4")
    chosen = only(metadata_of(package), kernels, most=3 if kernels else 1000)
    told = run(package, metadata=json.dumps(chosen), pin=True)
    assert "subgroup-size-control" in told["device"]["features"]
    assert told["pinned"] > 0
    assert told["passed"]


OF_GUESSES = ("few_row", "normed_few_row", "combine_few", "quantized_few_row", "sample_top_p")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quant", "activations", "limits"),
    [
        ("q4f16", "float", "default"),
        ("q4f16", "int8", "subgroups-4"),
    ],
)
def test_kernels_of_guesses_are_right(
    quant: str, activations: str, limits: str, compiled: Compiler, run: Run
) -> None:
    package = compiled(DRAFTED, "webgpu", quant, activations, limits)
    chosen = only(metadata_of(package), *OF_GUESSES, most=100)
    titles = {case["title"] for case in chosen["known_answers"]["cases"]}
    expected = {"matmul", "attention", "attention's combination"} | (
        {"norms"} if activations == "int8" else set()
    )
    assert {f"{name} of guesses" for name in expected} | {"draws of guesses"} < titles
    told = run(package, metadata=json.dumps(chosen))
    assert told["problems"] == []
    assert told["passed"]


PADDED_ROWS = ("kept_rows", "shifted_rotary")


@pytest.fixture(scope="module")
def padded(compiled: Compiler) -> tuple[Path, dict[str, Any]]:
    """A package that leaves out padding, and its metadata with the kernels of that alone."""
    package = compiled(SEEING_LITTLE, "webgpu", "q4f16")
    return package, only(metadata_of(package), *PADDED_ROWS, most=4)


@pytest.mark.slow
def test_kernels_that_leave_out_padding_are_right(
    padded: tuple[Path, dict[str, Any]], run: Run
) -> None:
    package, chosen = padded
    cases = chosen["known_answers"]["cases"]
    titles = [case["title"] for case in cases]
    assert titles == 2 * ["rows without padding"] + 2 * ["angles without padding"]
    told = run(package, metadata=json.dumps(chosen))
    assert told["problems"] == []
    assert told["passed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["padding", "source", "kept_positions", "copies", "out"])
def test_padding_that_is_left_out_wrongly_is_found(
    name: str, padded: tuple[Path, dict[str, Any]], run: Run
) -> None:
    """A number of rows is off by one, also where float16 holds it; or an angle is another."""
    package, metadata = padded
    chosen = copy.deepcopy(metadata)
    case, result = next(
        (case, result)
        for case in chosen["known_answers"]["cases"]
        for result in case["results"]
        if result["name"] == name
    )
    chosen["known_answers"]["cases"] = [case]
    dtype = np.dtype(case["buffers"][result["buffer"]]["dtype"])
    expected = np.frombuffer(base64.b64decode(result["expected"]), dtype).copy()
    expected[-1] += 2 * result["absolute"] or 1
    result["expected"] = base64.b64encode(expected.tobytes()).decode()
    (problem,) = run(package, metadata=json.dumps(chosen))["problems"]
    assert f"samples of `{name}` are off" in problem["message"]
