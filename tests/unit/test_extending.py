"""docs/extending.md, followed: each addition is made as the page says, and what it names exists."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import UsageError
from gemma4_compile.operators import base
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.pointwise import Pointwise
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.options.command import Command, CommandOptions, given, option
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.quantization.schemes import recipe_of
from gemma4_compile.targets import TARGETS, libraries, target_spec
from gemma4_compile.targets.kernels.common.pointwise import make_pointwise
from tests.models import DENSE_LIKE, write_checkpoint
from tests.numerics.dawn_kernels import cases_executable
from tests.numerics.kernel_cases import make_case
from tests.packages import compile_small

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text("utf-8")
WIDTH = 6
OURS = ROOT / "gemma4_compile"


def provenance_of(package: Path) -> dict[str, Any]:
    """What the package says of itself."""
    found: dict[str, Any] = json.loads((package / "provenance.json").read_text("utf-8"))
    return found


def test_what_the_page_names_exists() -> None:
    files = re.findall(r"`((?:\w+/)+[\w.]*)`", PAGE)
    assert len(files) > 20
    missing = [name for name in files if not (ROOT / name).exists()]
    root = (
        "operators/",
        "checkpoint/",
        "package/",
        "passes/",
        "verification/",
    )  # within gemma4_compile
    assert [name for name in missing if not name.startswith(root)] == ["targets/NAME.py"]
    assert not [n for n in missing if n.startswith(root) and not (OURS / n).exists()]
    here = Path(__file__).read_text("utf-8")
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) == 6
    assert not [name for name in named if f"def {name}(" not in here]


def test_a_recipe_is_a_line() -> None:
    line = {"activations": "float32", "weights": "q8f32_1", "head": "q0f32", "small": "q0f32"}
    recipe = recipe_of("mine", line)
    names = {role.name: scheme.name for role, scheme in recipe.schemes.items()}
    assert (names["LINEAR"], names["LM_HEAD"], names["VECTOR"]) == ("q8f32_1", "q0f32", "q0f32")


@pytest.mark.package
def test_a_kernel_is_found_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_KINDS", dict(base._KINDS))  # the class is this test's alone

    @dataclass(frozen=True)
    class Halved(Pointwise):
        kind: ClassVar[str] = "halved"

        @property
        def outputs(self) -> int:
            return WIDTH

        def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
            return [("x", ((rows, WIDTH), "float32"))]

        def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
            return args[0][i, j] * 0.5

    case = make_case(Halved(), seed=1)
    np.testing.assert_array_equal(case.expected[0], case.arrays[0] * np.float32(0.5))
    with pytest.raises(RuntimeError, match="no `webgpu` kernel for operator `halved`"):
        cases_executable([case], target_spec("webgpu"))
    page = import_module("gemma4_compile.targets.kernels.select")
    monkeypatch.setattr(page, "ONE_KERNEL", {**page.ONE_KERNEL, "halved": make_pointwise})
    executable = cases_executable([case], target_spec("webgpu"))
    assert "halved" in executable.stats() or "halved" in executable.as_text()


@pytest.mark.package
def test_a_target_is_a_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu = TARGETS["cpu"]
    linked = []

    def link(executable: Any, output: Path, spec: Any, progress: Any = None) -> None:
        linked.append(spec.name)
        cpu.link(executable, output, replace(spec, name="cpu"), progress)

    limits = {"default": replace(cpu.limits["default"], name="mine")}
    monkeypatch.setitem(TARGETS, "mine", replace(cpu, limits=limits, link=link))
    model = write_checkpoint(tmp_path / "model", DENSE_LIKE).path
    compile_small(CompileRequest(str(model), "mine", "f32", tmp_path / "out", only="library"))
    assert linked == ["mine"]
    assert provenance_of(tmp_path / "out")["build"]["target"] == "mine"


def test_a_library_form_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    form = libraries.LibraryForm("phones", "webgpu", "compat", "float", "words")
    monkeypatch.setitem(libraries.LIBRARIES, "phones", form)
    (found,) = libraries.fitting_forms(["phones"], has_float16=True, takes_int8=True)
    assert found == form
    assert libraries.form_name("webgpu", "compat", "float", "words") == "phones"


def test_an_option_is_a_field() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(CommandOptions):
        words: tuple[str, ...] = option((), "-w --words WORD", "some words", action="append")
        most: int = option(3, "--most N", "at most (default: %(default)s)")

        def __post_init__(self) -> None:
            if len(self.words) > self.most:
                raise UsageError(f"{given(self)[0]}: {len(self.words)} words")

    command = Command("mine", "Does nothing.", Mine)
    assert command.parse([]) == Mine()
    assert command.parse(["-w", "a", "--words", "b"]).words == ("a", "b")
    assert "at most (default: 3)" in command.make_parser().format_help()
    for wrong, said in ((["--most", "many"], "invalid int"), (["--most=0", "-w=a"], "-w: 1 words")):
        with pytest.raises(UsageError, match=said):
            command.parse(wrong)


def test_every_option_has_its_row() -> None:
    page = (ROOT / "docs/options.md").read_text("utf-8")
    told = set(re.findall(r"--[a-z][a-z0-9-]+", page))
    parser = COMMAND.make_parser()
    names = {name for action in parser._actions for name in action.option_strings}
    assert {name for name in names if name.startswith("--")} - told == {"--help", "--version"}
