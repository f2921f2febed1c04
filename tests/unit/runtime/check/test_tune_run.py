"""One library, tried: what is wrong with it is its result, and what is right is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.check import tune_run
from gemma4_compile.runtime.check.kernel_check import CompilerMissingError, KernelResult
from gemma4_compile.runtime.check.tune_run import LOGITS_FILE, RESULT_FILE, Sizes, Timing, main
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.room import Placement


def tried(package: Path, folder: Path, name: str = "cpu", sizes: Sizes | None = None) -> Timing:
    sizes = sizes or Sizes()
    main([str(package), name, Check.ONCE.value, sizes.to_json(), "60", str(folder)])
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


@pytest.mark.parametrize(
    "sizes",
    [Sizes(), Sizes(64), Sizes(None, Placement("host")), Sizes(7, Placement("gpu", 0.25, 9))],
)
def test_sizes_reach_another_process(sizes: Sizes) -> None:
    assert Sizes.from_json(sizes.to_json()) == sizes


def test_a_library_is_loaded_as_it_will_be_used(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, object]] = []

    def note(package: object, **options: object) -> None:
        opened.append(options)
        raise ArtifactError("no more is needed", hint="none")

    monkeypatch.setattr(tune_run, "check_kernels", lambda *_: iter(()))
    monkeypatch.setattr(tune_run, "Engine", note)
    tried(tiny_package, tmp_path, sizes=Sizes(64, Placement("host", 0.25, 9)))
    places = {"ple": "host", "experts": 0.25, "expert_cache": 9}
    assert opened == [{"context_length": 64, "drafts": 0, **places}]


def test_a_place_that_cannot_be_is_a_result(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_run, "check_kernels", lambda *_: iter(()))
    found = tried(tiny_package, tmp_path, sizes=Sizes(None, Placement(experts=0.5)))
    assert "has none, so there is nothing to place" in found.problem


def test_a_name_that_is_not_there_is_a_result(tiny_package: Path, tmp_path: Path) -> None:
    assert "has no library `cuda`" in tried(tiny_package, tmp_path, "cuda").problem
