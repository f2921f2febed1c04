from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from gemma4_compile.options.chat import DIAGNOSIS_FILE
from gemma4_compile.runtime.check.diagnose import VARIABLES
from gemma4_compile.runtime.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.slow
@pytest.mark.package
def test_a_diagnosis_holds_what_a_report_needs(
    tiny_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.txt"
    status, out, err = run(capsys, tiny_package, "--diagnose", path)
    assert (status, out) == (0, f"{path}\n")
    assert "no faults" in err
    text = path.read_text("utf-8")
    for section in ("system", "package", "device", "kernels", "model", "launchers"):
        assert f"\n== {section}\n" in text
    for fact in ("apache-tvm: 0.", "target: cpu", '"recipe": "f32"', "file model.so: ", "python: "):
        assert fact in text
    lines = text.splitlines()
    checked = [line for line in lines if line.startswith("ok ")]
    assert lines[-1] == f"{len(checked)} kernels checked, 0 faults"
    assert len(checked) > 40
    for kind in ("prefill_attention", "split_attention", "linear", "rms_norm", "sample_top_p"):
        assert any(f"({kind})" in line for line in checked), kind
    assert "greedy tokens after" in text
    assert "decode tok/s" in text


def test_a_damaged_package_is_diagnosed_all_the_same(
    tiny_package: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEMMA4_JOINT_ROUNDS", "1")
    folder, path = tmp_path / "package", tmp_path / "report.txt"
    shutil.copytree(tiny_package, folder)
    (folder / "model.so").write_bytes(b"not a library")
    status, out, err = run(capsys, folder, "--diagnose", path)
    assert (status, out) == (1, f"{path}\n")
    assert "hint: send that file with your report" in err
    text = path.read_text("utf-8")
    assert "file model.so: " in text
    assert "FAULT: found 13" in text
    assert text.count("\nFAULT: ") >= 2
    assert "apache-tvm: 0." in text
    assert "GEMMA4_JOINT_ROUNDS: 1" in text, "what else a report's reader asks for"


def test_a_file_that_cannot_be_written_is_a_usage_error(
    tiny_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, tiny_package, "--diagnose", tmp_path / "none" / "report.txt")
    assert (status, out) == (2, "")
    assert "cannot write" in err


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_planted_file_is_not_written_through(
    kind: str,
    tiny_package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.txt").write_text("precious")
    if kind == "link":
        (tmp_path / DIAGNOSIS_FILE).symlink_to("thesis.txt")
    else:
        os.mkfifo(DIAGNOSIS_FILE)
    status, out, err = run(capsys, tiny_package, "--diagnose")
    assert (status, out) == (2, "")
    assert f"but a {kind}" in err
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_bench_prints_a_table_and_nothing_else(
    tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, tiny_package, "--bench", "--quiet")
    assert (status, err) == (0, "")
    head, row, shares, memory = out.splitlines()
    assert head.startswith("prompt tokens")
    assert row.split()[0] == "128"
    assert shares == "no shares: the tables have GPUs, and this is a processor"
    assert memory.startswith("peak memory of the process: ")


def test_a_report_says_every_variable_by_which_packages_run_otherwise() -> None:
    text = (Path(__file__).parents[4] / "docs/options.md").read_text("utf-8")
    _, _, section = text.partition("## Environment variables of what runs packages")
    named = re.findall(r"^\| `(GEMMA4_\w+)` \|", section.partition("\n## ")[0], re.MULTILINE)
    assert len(named) > 5
    # A secret, what is told, and what is refused: none of them changes what a package answers.
    others = {"GEMMA4_SERVE_API_KEY", "GEMMA4_LOG", "GEMMA4_MEMORY_CHECK"}
    assert others < set(named)
    assert set(named) - others <= set(VARIABLES)
    assert others.isdisjoint(VARIABLES)
