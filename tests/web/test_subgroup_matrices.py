"""Kernels with subgroup matrices: a software device has none, so WGSL is all that is checked."""

from pathlib import Path

import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.passes.kernel_sources import kernel_source
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from tests.numerics.linear.test_subgroup_matrix_chunk import OPERATORS as OF_CHUNKS
from tests.numerics.tensor_cores import CHUNKS, OPERATORS, PICTURES
from tests.web.dawn import HERE, VulkanDriver, run_node

pytestmark = pytest.mark.dawn
TRIAL = HERE.parents[1] / "benchmarks" / "webgpu" / "subgroup_matrix.mjs"


def errors(lavapipe: VulkanDriver, folder: Path, *texts: str) -> list[str]:
    """What Dawn's null device finds wrong in each text."""
    for index, text in enumerate(texts):
        (folder / f"{index}.wgsl").write_text(text)
    files = [str(folder / f"{index}.wgsl") for index in range(len(texts))]
    done = run_node(HERE / "null_device.mjs", *files, env=lavapipe.environment(folder))
    lines = done.stdout.splitlines()
    return [line.removeprefix("found: ") for line in lines if line.startswith("found: ")]


def source(operator: Operator) -> str:
    spec = target_spec("webgpu", "h200-matrices")
    return kernel_source(make_kernel(operator, spec), "main", spec)


def test_every_kernel_is_valid_wgsl(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    every = [*OPERATORS, OF_CHUNKS[0], CHUNKS["groups of three"]]
    texts = [source(operator) for operator in every]
    attention = [text for op, text in zip(every, texts, strict=True)
                 if isinstance(op, PatchAttention)]  # fmt: skip
    assert all("subgroupMatrixMultiplyAccumulate" in text for text in texts)
    # A barrier in a branch is valid only because the whole block takes it.
    misplaced = attention[0].replace("workgroupUniformLoad(&", "(")

    *found, wrong = errors(lavapipe, tmp_path, *texts, misplaced)

    assert found == [""] * len(texts)
    assert "uniform control flow" in wrong


@pytest.mark.slow
def test_every_attention_of_a_chunk_is_valid_wgsl(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    names = "E2B sliding", "E2B full", "31B sliding", "copies"
    texts = [source(one) for one in (*(CHUNKS[name] for name in names), PICTURES["12B, 26B"])]
    assert all("subgroupMatrixMultiplyAccumulate" in text for text in texts)
    # A barrier in a branch is valid only because the whole block takes it.
    misplaced = texts[0].replace("workgroupUniformLoad(&", "(")

    *found, wrong = errors(lavapipe, tmp_path, *texts, misplaced)

    assert found == [""] * len(texts)
    assert "uniform control flow" in wrong


@pytest.mark.slow
def test_every_form_of_weights_is_valid_wgsl(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    texts = [source(operator) for operator in OF_CHUNKS[1:]]
    assert all("subgroupMatrixMultiplyAccumulate" in text for text in texts)
    found = errors(lavapipe, tmp_path, *texts)
    assert found == [""] * len(texts)


def test_every_shape_of_the_trial_is_valid_wgsl(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    *shapes, wrong = errors(lavapipe, tmp_path)
    assert shapes == [""] * 6
    assert wrong.startswith("error: ")


def test_a_device_without_the_feature_is_refused(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text("")

    done = run_node(TRIAL, str(cases), env=lavapipe.environment(tmp_path))

    assert done.returncode == 1
    assert "offers no chromium-experimental-subgroup-matrix" in done.stderr
