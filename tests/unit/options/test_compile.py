"""The arguments of `gemma4-compile` are known without the compiler, and are the compiler's."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from gemma4_compile.compile import request
from gemma4_compile.options import libraries as library_options
from gemma4_compile.options import package as options
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.quantization.schemes import NAMED
from gemma4_compile.targets import TARGETS
from gemma4_compile.targets.spec import ACTIVATIONS

BROWSERS = [
    one
    for one in library_options.LIBRARIES.values()
    if one["target"] == "webgpu" and "experiment" not in one
]


def test_the_names_are_those_of_the_compiler() -> None:
    assert list(TARGETS) == list(library_options.LIMITS)
    for name, target in TARGETS.items():
        assert list(target.limits) == list(library_options.LIMITS[name])
        assert {spec.name for spec in target.limits.values()} == {name}
    assert tuple(NAMED) == options.QUANTS
    assert (request.AUTO, *ACTIVATIONS) == options.ACTIVATIONS


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--version"], 0, "gemma4-compile 0."),
        (["--help"], 0, "usage: gemma4-compile"),
        (["--fast"], 2, "unrecognized arguments: --fast"),
        ([], 2, "required: -o/--output"),
        (["--target", "toaster", "-o", "x"], 2, "unknown target `toaster`"),
        (["--quant", "q2", "--plan"], 2, "unknown quantisation `q2`"),
        (["--target", "cpu", "--limits", "compat", "-o", "x"], 2, "no limits `compat`"),
        (["--activations", "int4", "-o", "x"], 2, "unknown activations `int4`"),
        (["--image-tokens", "300", "--plan"], 2, "expected one of 70, 140, 280, 560, 1120, found"),
        (["--image-tokens", "560", "-o", "x"], 2, "--image-tokens is for packages that take pic"),
        (["--image-shape", "square", "-o", "x"], 2, "--image-shape is for packages that take pic"),
        (["--image-shape", "round", "-o", "x"], 2, "unknown shape `round`"),
        (["--plan", "--report"], 2, "exclude each other"),
        (["-o", "x", "--json"], 2, "--json goes with"),
        (["--rebuild", "p", "--quant", "f16"], 2, "from the package, and --quant is given"),
        (["--rebuild", "p", "--json", "--only", "library"], 2, "--json, --only are given"),
        (["-o", "x", "--dump-ir", "x/ir"], 2, "--dump-ir `x/ir` lies in -o `x`"),
        (["-o", "x", "--recipe", "x/../x/r.json"], 2, "--recipe `x/../x/r.json` lies in -o `x`"),
    ],
)
def test_what_needs_no_compiler_loads_none(arguments: list[str], code: int, said: str) -> None:
    program = (
        "import sys; from gemma4_compile.cli import start\n"
        "sys.argv[0] = 'gemma4-compile'\n"
        "try: code = start.run_compile()\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = sorted({'tvm', 'numpy', 'tokenizers'} & set(sys.modules))\n"
        "print(code, heavy)\n"
    )
    begin = time.process_time()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    assert said in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{code} []"
    assert time.process_time() - begin < 0.5


def test_what_the_compiler_must_look_at_is_left_to_it() -> None:
    COMMAND.parse(["tiny", "-o", "x", "--context", "-5"])
    pictures = ["--modalities", "all", "--image-tokens", "560", "--image-shape", "square"]
    COMMAND.parse(["tiny", "-o", "x", *pictures])
    COMMAND.parse(["dir", "--rebuild", "p", "--drafter", "d", "-o", "x", "--force"])


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["tiny", "-o", "x"], len(BROWSERS)),
        (["tiny", "-o", "x", "--target", "webgpu,cpu"], len(BROWSERS) + 1),
        (["tiny", "-o", "x", "--libraries", "f16,int8", "--only", "library"], 2),
        (["tiny", "-o", "x", "--limits", "subgroups"], 1),
        (["tiny", "-o", "x", "--only", "weights"], 0),
        (["tiny", "-o", "x", "--dump-ir", "y"], 0),
        (["tiny", "--plan"], 0),
        (["tiny", "--report"], 0),
        (["--rebuild", "p"], 0),
    ],
)
def test_libraries_to_make_are_known_without_the_compiler(arguments: list[str], count: int) -> None:
    assert COMMAND.parse(arguments).libraries_to_make == count
