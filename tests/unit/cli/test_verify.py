"""`gemma4-verify` and `gemma4-compile --verify`: exit status, table, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4_compile.abi import NUMERICS_FILES
from gemma4_compile.cli import compile as compile_cli
from gemma4_compile.cli import verify as cli
from gemma4_compile.verification.measures import LayerMeasures, LogitMeasures
from gemma4_compile.verification.numerics_report import Comparison, NumericsReport
from gemma4_compile.verification.subject import VerifyRequest
from gemma4_compile.verification.thresholds import thresholds
from tests import models

pytestmark = [pytest.mark.parity, pytest.mark.package]


@pytest.mark.slow
def test_below_the_thresholds_the_command_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Random weights carry nothing over 4 bits: the recipe is far below its thresholds here.
    model = str(models.write_checkpoint(tmp_path / "model", models.E2B_LIKE).path)
    package = tmp_path / "out"
    options = ["--target", "cpu", "--quant", "q4f32", "-o", str(package), "--context", "64"]
    assert compile_cli.main([model, *options, "--verify"]) == 1
    captured = capsys.readouterr()
    assert "numerics: FAILED" in captured.out
    assert "failed: against the checkpoint: mean KL" in captured.out
    assert "error: against the checkpoint: mean KL divergence" in captured.err
    assert captured.err.splitlines()[-1].startswith("hint: ")
    assert not json.loads((package / "numerics.json").read_text())["passed"]


@pytest.mark.parametrize(("failures", "status"), [((), 0), (("arithmetic: wrong",), 1)])
def test_status_and_output(
    failures: tuple[str, ...],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measures = LogitMeasures(1, 0.0, 0.0, 1.0, 1.0, 0.0, 2.0, 2.0)
    bounds = thresholds("f32", int8=False, whole=False)
    comparison = Comparison(measures, (LayerMeasures(1.0, 1.0, 0.0, 0.0),), bounds)
    made = NumericsReport({}, comparison, comparison, {}, failures, NUMERICS_FILES)
    asked = []

    def verify(request: VerifyRequest, _: object) -> NumericsReport:
        asked.append(request)
        return made

    monkeypatch.setattr(cli, "verify", verify)
    assert cli.main(["out", "--reference", "tiny", "--steps", "3", "--json"]) == status
    captured = capsys.readouterr()
    assert json.loads(captured.out) == json.loads(json.dumps(made.to_json()))
    assert ("error: arithmetic: wrong" in captured.err) == bool(failures)
    assert asked == [VerifyRequest(Path("out"), "tiny", steps=3)]


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([str(tmp_path / "none"), "--reference", "tiny"]) == 1
    assert "there is no directory" in capsys.readouterr().err
    options = ["--target", "cpu", "--quant", "f32", "-o", str(tmp_path / "out")]
    assert compile_cli.main(["tiny", *options, "--verify", "--only", "weights"]) == 2
    assert "--verify needs a whole package" in capsys.readouterr().err
    web = ["--target", "webgpu", "--quant", "q4f32", "-o", str(tmp_path / "out"), "--verify"]
    assert compile_cli.main(["tiny", *web, "--node-modules", str(tmp_path)]) == 2
    assert "is verified on WebGPU in Node" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
