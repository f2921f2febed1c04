"""`python -m gemma4_compile.kernels`: what it prints, for every target, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gemma4_compile import abi, kernels
from gemma4_compile.compile.build import library_report
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import UsageError
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.passes.kernel_sources import kernel_source, kernel_sources
from gemma4_compile.passes.lowering import generate
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.select import select
from tests import drafters, models

pytestmark = pytest.mark.package

ROOT = Path(__file__).parents[2]
TINY = ["--model", "tiny"]
FIELD = re.compile(r"^([a-z ]+): +(.+)$", re.MULTILINE)


@pytest.fixture(autouse=True, scope="module")
def _lowered_once() -> Iterator[None]:
    """Several tests look at one library, which none changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "lower_library", cache(kernels.lower_library))
        yield


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert kernels.main(arguments) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert kernels.main(arguments) == 2
    output = capsys.readouterr()
    assert not output.out
    return output.err


def test_the_list_counts_what_a_library_reports(capsys: pytest.CaptureFixture[str]) -> None:
    request = CompileRequest("gemma-4-E2B-it", "webgpu", "q4f16", Path())
    library = kernels.lower_library(request)
    report = library_report(library.module)
    *rows, total = kernels.listing(library).splitlines()[1:]
    assert len(rows) == report.kernels
    assert total.split() == [str(report.kernels), "kernels", *total.split()[2:]]
    assert int(total.split()[2]) == report.launches_per_token
    assert sum(int(row.split()[2].replace("-", "0")) for row in rows) == report.launches_per_token
    kinds = {row.split()[0]: row.split()[1] for row in rows}
    assert kinds["gemm_q4_none"] == kinds["gemv_q4_none"] == "linear"
    assert kinds["prefill_attention1"] == "prefill_attention"
    assert "-" in kinds.values(), "TVM makes kernels, too"
    (sampling,) = (row for row in rows if row.startswith("sample_top_p "))
    assert sampling.split()[2:] == ["-", "-", "sample_with_top_p", "(1)"]
    assert printed(capsys, "list").splitlines() == kernels.listing(library).splitlines()


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("webgpu", "@compute"),
        pytest.param("metal", "kernel void", marks=pytest.mark.slow),
        pytest.param("cuda", "__global__", marks=pytest.mark.slow),
        ("cpu", "@T.prim"),
    ],
)
def test_a_kernel_in_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: str, source: str
) -> None:
    monkeypatch.chdir(ROOT)
    options = [*TINY, "--target", target, "--activations", "float"]
    text = printed(capsys, "show", "gemm_q4_gelu_pairs", *options)
    fields = dict(FIELD.findall(text))
    assert fields["kernel"] == "gemm_q4_gelu_pairs"
    assert fields["operator"] == "linear (Linear)"
    assert "'bits': 4" in text
    assert "    epilogue = 'gelu_pairs'\n" in text
    file, line = fields["definition"].split(":")
    assert file == "gemma4_compile/operators/linear.py"
    assert "class Linear(" in "".join((ROOT / file).read_text().splitlines()[int(line) - 1 :][:2])
    assert "tests/numerics/linear/test_gemm_kernels.py" in fields["tests"]
    assert all((ROOT / file).exists() for file in fields["tests"].split(", "))
    assert "in prefill_tokens" in fields["launches"]
    assert source in text
    if target == "cpu":
        assert "factory" not in fields
        return
    file, line = fields["factory"].removesuffix(" (make_gemm)").split(":")
    assert file == "targets/kernels/linear/gemm.py"
    assert (ROOT / file).read_text().splitlines()[int(line) - 1].startswith("def make_gemm(")
    assert fields["entry point"] == "gemm_q4_gelu_pairs_kernel"
    assert re.fullmatch(r"\d+ x \(n \+ \d+\) // \d+ x 1", fields["grid"])
    assert re.fullmatch(r"\d+ x 1 x 1", fields["workgroup"])
    assert fields["scalars"] == "n"


def test_one_position_has_a_kernel_of_its_own() -> None:
    operator = Linear(ONE, WeightLayout(4, "float32", 32, 64, (32,)), "float32")
    assert select(operator, target_spec("webgpu")).__name__ == "make_gemv"
    several = Linear(CHUNK, WeightLayout(4, "float32", 32, 64, (32,)), "float32")
    assert select(several, target_spec("webgpu")).__name__ == "make_gemm"


@pytest.mark.slow
def test_a_library_of_a_package_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """What `model.wasm` holds, and what the same limits without a name do."""
    kernel = ["show", "gemm_q4_gelu_pairs", *TINY]
    named = printed(capsys, *kernel, "--library", "default")
    assert "gemma4_halves(" in named
    assert "f16;" not in named
    assert "enable f16;" in printed(capsys, *kernel)
    assert "unknown library `fast`" in refused(capsys, *kernel, "--library", "fast")


def test_the_context_is_that_of_the_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("0", "-1", "100000000"):
        assert "--context" in refused(capsys, "list", *TINY, "--context", wrong)
    asked: list[int | None] = []

    def lower_library(request: CompileRequest) -> kernels.Library:
        asked.append(request.context_length)
        raise UsageError("no more is needed", hint="none")

    monkeypatch.setattr(kernels, "lower_library", lower_library)
    refused(capsys, "list", *TINY)
    refused(capsys, "list", *TINY, "--context", "96")
    assert asked == [None, 96]


def test_a_kernel_of_tvm_has_no_operator(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", "fused_equal_where", "--model", "gemma-4-E2B-it")
    fields = dict(FIELD.findall(text))
    assert fields["operator"].startswith("none")
    assert not {"definition", "factory", "tests"} & fields.keys()
    assert "fn fused_equal_where_kernel(" in text


@pytest.mark.slow
def test_kernels_of_towers_are_listed_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    request = CompileRequest("gemma-4-E2B-it", "webgpu", "q4f16", Path(), modalities=None)
    library = kernels.lower_library(request)
    listed = [row.split() for row in kernels.listing(library).splitlines()]
    for kind, function in (
        ("patch_attention", abi.EMBED_IMAGE),
        ("relative_attention", abi.EMBED_AUDIO),
    ):
        (row,) = (row for row in listed if row[0] == kind)
        assert row[1:4] == [kind, "-", "-"]
        assert function in row
        text = kernels.described(library, kernels.known_name(library, kind))
        fields = dict(FIELD.findall(text))
        assert fields["operator"].startswith(kind)
        assert all((ROOT / file).is_file() for file in fields["tests"].split(", "))
        assert "@compute" in text


@pytest.mark.slow
def test_kernels_of_a_drafter_are_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = models.write_checkpoint(tmp_path / "m", models.KINDS["e2b"]).path
    drafter = drafters.write_drafter(tmp_path / "d", "e2b").path
    listed = printed(capsys, "list", "--model", str(model), "--drafter", str(drafter))
    assert "cluster_tokens" in listed
    assert f"{abi.DRAFT} (1)" in listed


@pytest.mark.slow
def test_the_source_is_that_of_the_library() -> None:
    built = kernels.lower_library(CompileRequest("tiny", "webgpu", "q4f16", Path()))
    module, spec = built.module, built.spec
    library = kernel_sources(generate(module, spec), spec)
    for name in ("prefill_attention", "gemm_q4_none", "sample_top_p"):
        assert kernel_source(module[name], name, spec) == library[f"{name}_kernel.wgsl"]


def test_the_name_in_the_shader_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", "gemm_q8_none_kernel", *TINY)
    assert text == printed(capsys, "show", "gemm_q8_none", *TINY)


def test_without_a_checkout_the_family_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Linear(ONE, WeightLayout(4, "float32", 32, 64, (32,)), "float32")
    monkeypatch.setattr(kernels, "TESTS", "tests/elsewhere")
    assert kernels.tests_of(operator, target_spec("webgpu"))[0] == "tests/elsewhere/linear/"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["show", "gemm_q4_nnoe", *TINY], ["no kernel `gemm_q4_nnoe`", "gemm_q4_none"]),
        (["show", "prefill", *TINY], ["no kernel `prefill`", "similar: prefill_attention"]),
        (["show", "linear", *TINY], ["gemv_q4_none", "gemm_q4_none"]),
        (["show", "xyz", *TINY], ["no kernel `xyz`", "python -m gemma4_compile.kernels list"]),
        (["show", *TINY], ["NAME"]),
        (["list", "--model", "gemma-4-E2B"], ["no model `gemma-4-E2B`", "gemma-4-E2B-it"]),
        (["list", *TINY, "--target", "vulkan"], ["unknown target `vulkan`", "webgpu"]),
        (["list", *TINY, "--quant", "q3"], ["unknown quantisation `q3`", "q4f16"]),
        (["list", *TINY, "--limits", "h100"], ["no limits `h100`", "h200"]),
        (["list", *TINY, "--activations", "fp8"], ["unknown activations `fp8`", "int8"]),
        (["list", *TINY, "--prefill-chunk", "0"], ["--prefill-chunk", "found 0"]),
        (["print"], ["print", "list"]),
        ([], ["COMMAND"]),
    ],
)
def test_what_does_not_exist(
    capsys: pytest.CaptureFixture[str], arguments: list[str], found: list[str]
) -> None:
    message = refused(capsys, *arguments)
    assert message.startswith("error: ")
    assert "\nhint: " in message
    assert all(text in message for text in found)
