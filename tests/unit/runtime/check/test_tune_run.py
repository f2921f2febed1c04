"""One library, tried: what is wrong with it is its result, and what is right is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.runtime.check import tune_run
from gemma4_compile.runtime.check.kernel_check import CompilerMissingError, KernelResult
from gemma4_compile.runtime.check.tune_run import LOGITS_FILE, RESULT_FILE, Timing, main
from gemma4_compile.runtime.package.integrity import Check


def tried(package: Path, folder: Path, name: str = "cpu") -> Timing:
    main([str(package), name, Check.ONCE.value, "0", "60", str(folder)])
    return Timing(**json.loads((folder / RESULT_FILE).read_text()))


def test_a_wrong_kernel_ends_the_trial(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> Iterator[KernelResult]:
        yield KernelResult("first", "linear", "", 0.1, 0.0)
        yield KernelResult("second", "rms_norm", "3 values are off", 9.0, 0.0)
        pytest.fail("went on")

    monkeypatch.setattr(tune_run, "check_kernels", check)
    found = tried(tiny_package, tmp_path)
    assert found == Timing("kernel `second` (rms_norm): 3 values are off", 1)
    assert not (tmp_path / LOGITS_FILE).exists()


def test_without_the_compiler_speeds_and_answers_are_there(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> Iterator[KernelResult]:
        yield KernelResult("first", "linear", "", 0.1, 0.0)
        raise CompilerMissingError("it is gone")

    monkeypatch.setattr(tune_run, "check_kernels", check)
    found = tried(tiny_package, tmp_path)
    assert (found.problem, found.kernels) == ("", 1)
    assert found.prefill_tokens_per_s > 0
    assert found.decode_tokens_per_s > 0
    logits = np.load(tmp_path / LOGITS_FILE)
    assert logits.ndim == 2
    assert np.isfinite(logits).all()


def test_a_name_that_is_not_there_is_a_result(tiny_package: Path, tmp_path: Path) -> None:
    assert "has no library `cuda`" in tried(tiny_package, tmp_path, "cuda").problem
