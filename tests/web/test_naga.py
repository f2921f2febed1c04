"""Kernels of the released sizes in Naga, Firefox's compiler of shaders, with lavapipe as device.

Each form of a library is tried in one size, and each size in one or two forms. All of all, which
takes some ten minutes:

    EVERY_WGSL=1 .venv/bin/python -m pytest tests/web/test_naga.py
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drafter_config import drafter_values
from gemma4_compile.build import build_module, decoder_options
from gemma4_compile.model_spec.drafter.config import read_drafter
from gemma4_compile.model_spec.text.config import Gemma4Config, preset_names
from gemma4_compile.passes.kernel_sources import kernel_sources
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.libraries import LIBRARIES
from gemma4_compile.targets.spec import WORDS, TargetSpec
from tests.child import run_within
from tests.web.dawn import TIMEOUT_S, VulkanDriver

pytestmark = [pytest.mark.dawn, pytest.mark.package]

ROOT = Path(__file__).parents[2]
RECIPE, CHUNK = "q4f16", 512
FORMS = [name for name, form in LIBRARIES.items() if form.target == "webgpu"]
SIZES = preset_names()
EVERY = [(size, form) for form in FORMS for size in SIZES]
# Kernels for larger subgroups differ from those for four threads by numbers alone.
ALIKE = {"subgroups", "subgroups-16", "subgroups-8"}
DIFFERENT = [form for form in FORMS if form not in ALIKE]
SOME = [(SIZES[index % len(SIZES)], form) for index, form in enumerate(DIFFERENT)]


@dataclass(frozen=True)
class Found:
    """What Naga says of a folder of texts."""

    tried: int
    wrong: dict[str, str]
    refused: list[str]


def naga(folder: Path, driver: VulkanDriver) -> Found:
    done = run_within(
        TIMEOUT_S,
        [sys.executable, "-m", "tests.web.naga", str(folder)],
        env=driver.environment(folder),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "llvmpipe" in told.pop("device")
    return Found(**told)


def spec_of(form: str) -> TargetSpec:
    wanted = LIBRARIES[form]
    spec = target_spec(wanted.target, wanted.limits)
    return replace(spec, activations=wanted.activations, float16=wanted.float16)


def write_texts(size: str, form: str, folder: Path) -> None:
    """The kernels of a size with all that it takes, and with its drafter."""
    spec, recipe = spec_of(form), RECIPES[RECIPE]
    if spec.float16 == WORDS:
        recipe = recipe.computed_in("float32")
    config = Gemma4Config.from_preset(size)
    config = replace(config, drafter=read_drafter(drafter_values(size)))
    module = build_module(config, recipe, spec, decoder_options(recipe, spec, CHUNK))
    for name, text in kernel_sources(generate(lower(module, spec), spec), spec).items():
        (folder / name).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "form"), EVERY if os.environ.get("EVERY_WGSL") else SOME)
def test_every_kernel_becomes_a_pipeline(
    size: str, form: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    write_texts(size, form, tmp_path)
    found = naga(tmp_path, lavapipe)
    assert found.tried > 50
    assert found.wrong == {}
    # Firefox has no subgroups: such a library is for other browsers.
    assert bool(found.refused) == (spec_of(form).simd_width > 0)


def test_what_is_no_wgsl_is_found(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    right = "@compute @workgroup_size(1) fn main() {}"
    (tmp_path / "right.wgsl").write_text(right)
    (tmp_path / "wrong.wgsl").write_text(right.replace("{}", "{ let x : f32 = 1u; }"))
    found = naga(tmp_path, lavapipe)
    assert list(found.wrong) == ["wrong.wgsl"]
    assert found.tried == 2
