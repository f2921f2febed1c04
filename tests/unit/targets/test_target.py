"""Targets that are defined here: other names for the CPU, and for one of the code generators.

They show what a target needs: a module with its `TARGET`, and an entry in `targets.json`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi, kernels
from gemma4_compile.cli import compile as cli
from gemma4_compile.model_spec.text.reference import forward
from gemma4_compile.options import libraries as library_options
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.package.interface import device_of
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.targets import TARGETS, cpu, metal
from gemma4_compile.targets.target import Target
from gemma4_compile.verification.runners import run_here, runner_for
from tests.models import E2B_LIKE, Checkpoint, write_checkpoint
from tests.packages import config_of, dequantised_weights, unoptimised

CPU, GPU = "old-cpu", "other-gpu"
FEW = "few-buffers"
SPECS = {
    CPU: replace(cpu.DEFAULT, name=CPU, processor="", library_suffix=".so"),
    GPU: replace(metal.DEFAULT, name=GPU, source_suffix=".msl"),
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries that their registration would be."""
    few = replace(SPECS[GPU], limits=FEW, max_storage_buffers=12)
    defined = {
        CPU: Target({"default": SPECS[CPU]}, cpu.link, cpu.this_machine, run_by="old-chat"),
        GPU: Target({"default": SPECS[GPU], FEW: few}, metal.link, lambda: metal.MACOS),
    }
    for name, target in defined.items():
        monkeypatch.setitem(TARGETS, name, target)
        monkeypatch.setitem(library_options.LIMITS, name, dict.fromkeys(target.limits, ""))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return write_checkpoint(tmp_path / "checkpoint", E2B_LIKE, dtype="float32")


@pytest.mark.slow
@pytest.mark.package
def test_a_package_for_it_runs(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package"
    request = [str(checkpoint.path), "--target", CPU, "--quant", "q8f16", "--context", "64"]
    with unoptimised():
        assert cli.main([*request, "-o", str(package)]) == 0
    said = capsys.readouterr()
    assert f"old-chat {package}" in said.out
    assert f"compiling the model library for {CPU}" in said.err
    opened = Package.open(package)
    assert (opened.target, opened.device) == (CPU, "cpu")
    engine, ids = Engine.open(package), [2, 5, 77, 130, 9]
    weights = dequantised_weights(package, checkpoint, "q8f16")
    expected = forward(config_of(checkpoint), weights, np.array(ids)).logits[-1]
    assert np.abs(engine.prefill(ids) - expected).max() < 2e-2 * np.abs(expected).max()
    build = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"]
    assert runner_for(device_of(build), None)[0] is run_here
    again = [*request, "-o", str(package), "--only", "library"]
    assert cli.main(again) == 0, "it fits to its own weights"
    with unoptimised():
        assert cli.main([*again, "--target", "cpu"]) == 0, "another one beside it"
    provenance = json.loads((package / abi.PROVENANCE_FILE).read_text())
    found = {one["name"]: one["file"] for one in provenance["libraries"]}
    assert found == {CPU: opened.library_path.name, "cpu": f"model-cpu{opened.library_path.suffix}"}
    assert provenance["build"]["target"] == CPU, "the main one stays"


def test_options_plan_and_errors_know_it(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = COMMAND.make_parser().format_help()
    assert f"{CPU}, {GPU}" in shown
    assert f"{GPU} also has {FEW}" in " ".join(shown.split())
    model = str(checkpoint.path)
    assert cli.main([model, "--target", GPU, "--limits", FEW, "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["target"], plan["limits"]) == (GPU, FEW)
    assert plan["requirements"]["max_storage_buffers"] == 12
    assert cli.main([model, "--target", CPU, "--limits", FEW, "--plan"]) == 2
    assert f"limits of `{CPU}`: default" in capsys.readouterr().err
    assert cli.main([model, "--target", "abacus", "--plan"]) == 2
    assert f"known targets: webgpu, metal, cuda, cpu, {CPU}, {GPU}" in capsys.readouterr().err
    assert cli.main([model, "--target", GPU, "--activations", "int8", "--plan"]) == 2
    assert f"target `{GPU}` has no such kernels" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.package
def test_kernels_for_it_are_compiled_and_shown(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = [str(checkpoint.path), "--target", GPU, "--context", "64"]
    ir = tmp_path / "ir"
    output = ["-o", str(tmp_path / "p"), "--only", "library", "--dump-ir", str(ir)]
    assert cli.main([*request, *output]) == 0
    assert (tmp_path / "p" / "model.dylib").is_file()
    sources = list(ir.rglob("*.msl"))
    assert len(sources) > 40
    assert all("kernel void" in source.read_text() for source in sources)
    capsys.readouterr()
    asked = ["--model", str(checkpoint.path), "--target", GPU]
    assert kernels.main(["list", *asked]) == 0
    assert "prefill_attention" in capsys.readouterr().out
    assert kernels.main(["show", "embedding", *asked]) == 0
    assert "kernel void" in capsys.readouterr().out
