"""Libraries made at once in processes are those made one after the other, and errors come back."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.sources import TINY
from gemma4_compile.compile import library_build, library_processes
from gemma4_compile.compile.library_build import in_turn
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import LoweringError, TargetError
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.libraries import LIBRARIES
from tests.packages import Silent, unoptimised

NAMES = ("default", "f16", "h200")


def _compile(output: Path, names: tuple[str, ...] = NAMES, **more: object) -> Provenance:
    forms = tuple(LIBRARIES[name] for name in names)
    asked = CompileRequest(
        *(TINY, "webgpu", "q4f16", output),
        context_length=64,
        libraries=forms,
        **more,  # type: ignore[arg-type]
    )
    with unoptimised():
        compile_model(asked, Silent())
    return Provenance.from_json(read_artifact(output / abi.PROVENANCE_FILE))


def test_read_only_views_can_be_sent() -> None:
    assert MappingProxyType in copyreg.dispatch_table
    assert pickle.loads(pickle.dumps(MappingProxyType({1: 2}))) == {1: 2}


@pytest.mark.slow
def test_a_set_has_the_shards_and_libraries_of_single_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_processes, "processes", lambda count: min(count, 2))
    monkeypatch.setattr(library_processes, "WORKER", "tests.unoptimised_worker")
    several = _compile(tmp_path / "several")
    assert [(one.name, one.file) for one in several.libraries] == [
        ("default", "model.wasm"),
        ("f16", "model-f16.wasm"),
        ("h200", "model-h200.wasm"),
    ]
    one = _compile(tmp_path / "one", ("h200",))
    shards = {name: file for name, file in one.files.items() if name.startswith("params_shard")}
    assert shards
    assert shards.items() <= several.files.items()
    assert one.files["model.wasm"] == several.files["model-h200.wasm"]


@pytest.mark.slow  # of one library, tests/unit/compile/test_pipeline.py builds a part
def test_others_stay_where_one_is_renewed(tmp_path: Path) -> None:
    package = tmp_path / "package"
    before = _compile(package, ("default",))
    both = _compile(package, ("h200",), only="library")
    assert [one.name for one in both.libraries] == ["default", "h200"]
    assert both.files["model.wasm"] == before.files["model.wasm"]
    assert both.build["limits"] == "default", "of the main one"
    again = _compile(package, ("default", "h200"), only="library")
    assert again.files["model-h200.wasm"] == both.files["model-h200.wasm"]
    weights = _compile(package, ("default",), only="weights")
    assert weights.libraries == again.libraries


class _Worker:
    """A process that gives these answers."""

    def __init__(self, *answers: Exception | None) -> None:
        self.stdin = io.BytesIO()
        self.stdout = io.BytesIO(b"".join(map(pickle.dumps, answers)))

    def wait(self) -> int:
        return 9

    def give(self, waiting: deque[int]) -> list[int]:
        library_build._give(self, waiting)  # type: ignore[arg-type]
        return list(self.stdin.getvalue())


def test_libraries_of_one_arithmetic_are_made_one_after_the_other() -> None:
    f16 = target_spec("webgpu", "default")
    int8, default = replace(f16, activations="int8"), replace(f16, float16="words")
    int8_words = replace(int8, float16="words")
    cpu = target_spec("cpu", "default")
    assert in_turn([default, f16, cpu, int8, int8_words, f16]) == [0, 2, 4, 3, 1, 5]
    assert in_turn([f16]) == [0]
    assert in_turn([]) == []


def test_a_process_makes_what_is_waiting_from_the_end() -> None:
    waiting = deque([3, 4, 5])
    assert _Worker(None, None, None, None).give(waiting) == [5, 4, 3]
    assert not waiting
    assert _Worker(None).give(waiting) == []


def test_what_a_process_raises_is_raised() -> None:
    waiting = deque([3, 4, 5])
    with pytest.raises(LoweringError, match="too large"):
        _Worker(None, None, LoweringError("too large")).give(waiting)
    assert list(waiting) == [3]
    with pytest.raises(TargetError, match="ended with exit code 9"):
        _Worker(None).give(waiting)


@pytest.mark.slow
def test_errors_of_a_process_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_processes, "processes", lambda count: min(count, 2))
    monkeypatch.setattr(library_processes, "WORKER", "gemma4_compile.no_such_module")
    with pytest.raises(TargetError, match="a process that compiles libraries ended with exit code"):
        _compile(tmp_path / "package", ("default", "f16"), only="library")
    assert list(tmp_path.iterdir()) == [], "nothing is left"
