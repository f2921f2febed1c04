"""Kernels of the released sizes in Naga, Firefox's compiler of shaders, with lavapipe as device.

Each form that Firefox takes is tried in one size. All of all, which takes more than ten minutes:

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
from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.media.sizes import DEFAULT_BUDGET, client_blocks
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.audio import AudioConfig
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import VisionConfig
from gemma4_compile.model_spec.modality import TEXT_ONLY
from gemma4_compile.passes.kernel_sources import kernel_sources
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.libraries import EXPERIMENTS, LIBRARIES
from gemma4_compile.targets.spec import WORDS, TargetSpec
from tests.child import run_within
from tests.presets import GEMMA4
from tests.web.dawn import TIMEOUT_S, VulkanDriver
from tests.web.test_next_round import BUNDLER, WEB

pytestmark = [pytest.mark.dawn, pytest.mark.package]

ROOT = Path(__file__).parents[2]
RECIPE, CHUNK = "q4f16", 512
IS_WHOLE = bool(os.environ.get("EVERY_WGSL"))
FORMS = [
    name for name, form in LIBRARIES.items() if form.target == "webgpu" and name not in EXPERIMENTS
]
SIZES = GEMMA4
EVERY = [(size, form) for form in FORMS for size in SIZES]
# Firefox takes these three: towers of every kind, and experts. Every form of a library is tried
# in Dawn by tests/web/test_nine_libraries.py.
SOME = [
    ("gemma-4-E2B-it", "default"),
    ("gemma-4-26B-A4B-it", "f16"),
    ("gemma-4-12B-it", "int8"),
]


@dataclass(frozen=True)
class Found:
    """What Naga says of a folder: how many kernels there are, and what is wrong by file."""

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
    """The kernels of a size with all that it takes, and with its drafter.

    Without its towers where Firefox takes none of the kernels, unless every form is tried: they are
    most of the work.
    """
    spec = spec_of(form)
    modalities = TEXT_ONLY if spec.simd_width and not IS_WHOLE else None
    config = Gemma4Config.from_preset(size, modalities)
    assert (config.vision is None) == (modalities is TEXT_ONLY)
    if not IS_WHOLE:
        config = shortened(config)
    write_kernels(replace(config, drafter=read_drafter(drafter_values(size))), spec, folder)


def shortened(config: Gemma4Config) -> Gemma4Config:
    """A period of each kind of layers, and two of a tower's: the same kernels, launched less often.

    That layers share them is tests/passes/test_full_size.py's.
    """
    period = config.layer_types.index(AttentionKind.FULL) + 1
    shared = min(period, config.num_kv_shared_layers)
    layers = period + shared
    towers: dict[str, Any] = {
        name: replace(tower, num_hidden_layers=2)
        for name, tower in (("vision", config.vision), ("audio", config.audio))
        if isinstance(tower, (VisionConfig, AudioConfig))
    }
    return replace(
        config,
        **towers,
        num_hidden_layers=layers,
        num_kv_shared_layers=shared,
        layer_types=config.layer_types[:layers],
        num_key_value_heads=config.num_key_value_heads[:layers],
        head_dim=config.head_dim[:layers],
    )


def gemma3n_of_six_layers() -> Gemma4Config:
    """E2B's layers 9 to 14: of both kinds, the first cuts gates off, the last three share keys."""
    config = Gemma4Config.from_preset("gemma-3n-E2B-it")
    assert config.gemma3n is not None
    middle = slice(9, 15)
    return replace(
        config,
        num_hidden_layers=6,
        num_kv_shared_layers=3,
        layer_types=config.layer_types[middle],
        num_key_value_heads=config.num_key_value_heads[middle],
        head_dim=config.head_dim[middle],
        gemma3n=replace(
            config.gemma3n,
            intermediate_sizes=config.gemma3n.intermediate_sizes[middle],
            sparsities=config.gemma3n.sparsities[middle],
        ),
    )


def write_kernels(config: Gemma4Config, spec: TargetSpec, folder: Path) -> None:
    """The text of every kernel of a library, a file each."""
    recipe = RECIPES[RECIPE]
    if spec.float16 == WORDS:
        recipe = recipe.computed_in("float32")
    options = replace(
        decoder_options(recipe, spec, CHUNK),
        image_rows=DEFAULT_BUDGET,
        client_blocks=client_blocks(DEFAULT_BUDGET),
    )
    module = build_module(config, recipe, spec, options)
    for name, text in kernel_sources(generate(lower(module, spec), spec), spec).items():
        (folder / name).write_text(text)


def test_every_form_of_firefox_is_among_some() -> None:
    taken = {form for form in FORMS if not spec_of(form).simd_width}
    assert {form for _, form in SOME} == taken
    assert len({size for size, _ in SOME}) == len(SOME)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "form"), EVERY if IS_WHOLE else SOME)
def test_every_kernel_becomes_a_pipeline(
    size: str, form: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    write_texts(size, form, tmp_path)
    found = naga(tmp_path, lavapipe)
    assert found.tried > 50
    assert found.wrong == {}
    # Firefox has no subgroups: such a library is for other browsers.
    assert bool(found.refused) == (spec_of(form).simd_width > 0)


@pytest.mark.slow
def test_every_kernel_of_gemma3n_becomes_a_pipeline(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    config = gemma3n_of_six_layers()
    write_kernels(config, spec_of("default"), tmp_path)
    names = " ".join(path.name for path in tmp_path.iterdir())
    for kernel in ("altup_predict", "sparse_gate", "beside"):
        assert kernel in names
    found = naga(tmp_path, lavapipe)
    assert found.tried > 50
    assert (found.wrong, found.refused) == ({}, [])


def test_the_browser_module_s_own_kernels_become_pipelines(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    if not BUNDLER.is_file():
        pytest.skip("npm packages are not installed: run `npm ci` in web (make setup does)")
    source, made = WEB / "src" / "speculative" / "next_round.ts", tmp_path / "next_round.mjs"
    done = run_within(TIMEOUT_S, [BUNDLER, source, "--format=esm", f"--outfile={made}"])
    assert done.returncode == 0, done.stderr
    script = f"import('{made.as_uri()}').then((it) => process.stdout.write(it.ROUND_KERNELS))"
    (tmp_path / "own.wgsl").write_text(run_within(TIMEOUT_S, ["node", "-e", script]).stdout)
    assert naga(tmp_path, lavapipe) == Found(tried=2, wrong={}, refused=[])


def test_no_other_source_of_the_browser_has_kernels() -> None:
    """Else they are to be tried above."""
    folders = (WEB / "src", ROOT / "examples" / "web" / "src")
    sources = [path for folder in folders for path in folder.rglob("*.ts")]
    having = {path.name for path in sources if "@workgroup_size(" in path.read_text("utf-8")}
    assert having == {"next_round.ts"}


def test_what_is_no_wgsl_is_found(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    right = "@compute @workgroup_size(1) fn main() {}"
    (tmp_path / "right.wgsl").write_text(right)
    (tmp_path / "wrong.wgsl").write_text(right.replace("{}", "{ let x : f32 = 1u; }"))
    found = naga(tmp_path, lavapipe)
    assert list(found.wrong) == ["wrong.wgsl"]
    assert found.tried == 2
