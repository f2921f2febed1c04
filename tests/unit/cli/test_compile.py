"""Arguments, exit codes and the form of messages; the pipeline itself is replaced here."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from gemma4_compile.checkpoint import hub
from gemma4_compile.cli import compile as cli
from gemma4_compile.compile.build import LibraryReport
from gemma4_compile.compile.pipeline import Summary
from gemma4_compile.compile.request import CompileRequest, UsualRecipe
from gemma4_compile.errors import CheckpointError, InterruptedRunError, UsageError
from gemma4_compile.model_spec.config.gemma4 import PRESETS_DIR
from gemma4_compile.progress import Reporter
from gemma4_compile.targets.libraries import EXPERIMENTS, LIBRARIES

CPU = (LIBRARIES["cpu"],)
MINIMUM = ["--target", "cpu", "--quant", "q4f16", "-o", "out"]


class Pipeline:
    """Stands for `compile_model`: keeps the request, then fails or returns a summary."""

    def __init__(self) -> None:
        self.request: CompileRequest | None = None
        self.error: BaseException | None = None

    def __call__(self, request: CompileRequest, reporter: Reporter) -> Summary:
        self.request = request
        reporter.stage("compiling")
        with reporter.progress("converting", 10) as advance:
            advance(10)
        if self.error:
            raise self.error
        report = LibraryReport(60, 90, 2**20)
        return Summary(request.output, 3 * 2**20, (("model.wasm", 2**20),), report, 1.25, 2**30)


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    replacement = Pipeline()
    monkeypatch.setattr(cli, "compile_model", replacement)
    return replacement


def test_an_encoder_is_run_by_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = LibraryReport(24, 53, 2**20, decodes=False)
    library = ("model.so", 2**20)
    made = Summary(Path("out"), 2**20, (library,), report, 1.0, 2**30, converses=False)
    monkeypatch.setattr(cli, "compile_model", lambda request, reporter: made)
    assert cli.main(MINIMUM) == 0
    said = capsys.readouterr().out
    assert "gemma4-serve out" in said
    assert "--raw" not in said
    assert "launches per call:  53" in said


def test_defaults(pipeline: Pipeline) -> None:
    assert cli.main(MINIMUM) == 0
    model = "google/gemma-4-E2B-it-qat-q4_0-unquantized"
    assert pipeline.request == CompileRequest(model, "cpu", "q4f16", Path("out"), libraries=CPU)


def test_summary_goes_to_stdout_and_log_to_stderr(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(MINIMUM)
    captured = capsys.readouterr()
    assert captured.err == "compiling\nconverting\n"
    rows = dict(line.split(":", 1) for line in captured.out.splitlines())
    assert {name: value.strip() for name, value in rows.items()} == {
        "package": "out",
        "size": "3.0 MiB",
        "library": "1.0 MiB",
        "kernels": "60",
        "launches per token": "90",
        "largest binding": "1.0 MiB",
        "time": "1.2 s",
        "peak memory": "1024.0 MiB",
        "run it": "gemma4-chat out",
    }


@pytest.mark.parametrize(
    ("target", "output", "whole", "shown"),
    [
        ("webgpu", "out", True, ["gemma4-serve out"]),
        ("cuda", "my package", True, ["gemma4-chat 'my package'"]),
        ("cpu", "out", False, []),
    ],
)
def test_a_whole_package_shows_how_it_is_run(
    target: str,
    output: str,
    whole: bool,
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = Summary(Path(output), 1, (), None, 1.0, 1, whole=whole)
    monkeypatch.setattr(cli, "compile_model", lambda *_: made)
    assert cli.main(["tiny", "--target", target, "--quant", "f32", "-o", output]) == 0
    rows = [line.split(":", 1) for line in capsys.readouterr().out.splitlines()]
    assert [value.strip() for name, value in rows if name == "run it"] == shown


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (UsageError("no\nsuch"), 2, ["error: no such", "hint: see gemma4-compile --help"]),
        (CheckpointError("bad", hint="look"), 1, ["error: bad", "hint: look"]),
        (KeyboardInterrupt(), 130, ["error: interrupted", "hint: nothing is left of this run;"]),
        (InterruptedRunError("rm -r x"), 130, ["error: interrupted", "hint: rm -r x"]),
        (ZeroDivisionError("x"), 1, ["error: internal error: ZeroDivisionError: x"]),
    ],
)
def test_errors_are_one_line_and_a_hint(
    error: BaseException,
    code: int,
    lines: list[str],
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipeline.error = error
    assert cli.main(MINIMUM) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    shown = captured.err.splitlines()[2 : 2 + len(lines)]
    assert all(line.startswith(start) for line, start in zip(shown, lines, strict=True))
    assert "Traceback" not in captured.err


def test_traceback_with_debug_only(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.error = ZeroDivisionError("x")
    assert cli.main([*MINIMUM, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: -o/--output"),
        (["tiny", *MINIMUM, "--unknown"], "unrecognized arguments: --unknown"),
        (["tiny", *MINIMUM, "--context", "many"], "invalid int value"),
        (["tiny", *MINIMUM, "--only", "half"], "invalid choice"),
        (["tiny", *MINIMUM, "--json"], "--json goes with --plan"),
        (["tiny", *MINIMUM, "--node-modules", "x"], "--node-modules goes with --verify"),
        (["tiny", "--plan", "--report"], "--plan and --report exclude each other"),
        (["tiny", "--target", "cpu", "--quant", "f32"], "required: -o/--output"),
        (["tiny", "--plan", "--quant", "q2"], "unknown quantisation `q2`"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    message: str,
    pipeline: Pipeline,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert pipeline.request is None


def test_a_plan_without_a_model_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub, "fetch_config", lambda *_: pytest.fail("asked the hub"))
    assert cli.main(["--plan", "--json"]) == 0
    source = json.loads(capsys.readouterr().out)["source"]
    assert source == {"kind": "preset", "model": "gemma-4-E2B-it"}


def test_target_and_quantisation_have_defaults(pipeline: Pipeline) -> None:
    assert cli.main(["tiny", "-o", "out"]) == 0
    browsers = tuple(
        one for name, one in LIBRARIES.items() if one.target == "webgpu" and name not in EXPERIMENTS
    )
    asked = CompileRequest(
        "tiny", "webgpu", "q4f16", Path("out"), libraries=browsers, usual=UsualRecipe()
    )
    assert pipeline.request == asked


@pytest.mark.parametrize(
    ("arguments", "target", "names"),
    [
        (["--libraries", "h200,default"], "webgpu", ["default", "h200"]),
        (["--libraries", "default", "--target", "cuda,webgpu"], "cuda", ["cuda", "default"]),
        (["--libraries", "all", "--quant", "f32"], "webgpu", ["default", "subgroups"]),
        (["--target", "metal,cpu"], "metal", ["metal", "cpu"]),
        (["--limits", "default"], "webgpu", []),
        (["--activations", "int8"], "webgpu", []),
    ],
)
def test_libraries_are_named(
    arguments: list[str], target: str, names: list[str], pipeline: Pipeline
) -> None:
    assert cli.main(["tiny", "-o", "out", *arguments]) == 0
    assert pipeline.request is not None
    assert pipeline.request.target == target
    assert [form.name for form in pipeline.request.libraries][:2] == names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--libraries", "h100"], "unknown library `h100`"),
        (["--libraries", "cuda"], "`cuda` is a library for cuda, and --target is webgpu"),
        (["--libraries", "default", "--limits", "h200"], "--limits makes one library"),
        (["--target", "cpu,webgpu", "--activations", "float"], "2 targets are named"),
        (["--target", "cpu,cpu"], "`cpu` is given twice"),
        (["--target", "cpu,"], "unknown target ``"),
    ],
)
def test_libraries_that_do_not_fit_are_refused(
    arguments: list[str], said: str, pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tiny", "-o", "out", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert pipeline.request is None


def test_plan_needs_nothing_but_a_model(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gemma-4-E2B-it", "--plan"]) == 0
    captured = capsys.readouterr()
    first = "gemma-4-E2B-it in q4kf16 for webgpu (limits default), f32 activations"
    assert captured.out.startswith(first)
    assert captured.err == ""
    assert pipeline.request is None


def test_plan_splits_tensors_for_the_size_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["gemma-4-E2B-it", "--plan", "--json", "--libraries", "default", "--shard-size"]
    for most, parts in (("60MiB", 3), ("25MiB", 5)):
        assert cli.main([*given, most]) == 0
        recipe = json.loads(capsys.readouterr().out)["recipes"]["q4f16"]
        assert recipe["largest_binding_bytes"] <= int(most[:2]) << 20
        assert recipe["most_parts"] >= parts


def test_plan_of_one_library_names_what_it_needs_of_the_language(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["gemma-4-E2B-it", "--plan", "--libraries", "int8"]
    assert cli.main(given) == 0
    assert "shader-f16, packed_4x8_integer_dot_product" in capsys.readouterr().out
    assert cli.main([*given, "--json"]) == 0
    required = json.loads(capsys.readouterr().out)["requirements"]
    assert required["language_features"] == ["packed_4x8_integer_dot_product"]


def test_libraries_that_a_recipe_does_not_have_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["tiny", "--plan", "--quant"]
    assert cli.main([*given, "f32", "--libraries", "default,f16,int8"]) == 0
    said = capsys.readouterr().err
    assert "--quant f32 stores nothing that these libraries would read otherwise: f16, int8" in said
    assert "instead of them there is default" in said
    for libraries in ("all", "subgroups"):
        assert cli.main([*given, "f32", "--libraries", libraries]) == 0
        assert capsys.readouterr().err == ""


def test_an_old_name_of_activations_is_taken_with_a_warning(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["gemma-4-E2B-it", "--plan", "--limits", "h200", "--activations"]
    assert cli.main([*given, "exact"]) == 0
    old = capsys.readouterr()
    assert "warning: --activations exact is now --activations float\n" in old.err
    assert cli.main([*given, "float"]) == 0
    assert capsys.readouterr() == (old.out, "")


WRITING = "-o somewhere --force --only weights --dump-ir ir --verify --node-modules x"
LENGTHS = "--limits compat --activations float --context 64 --prefill-chunk 8"


@pytest.mark.parametrize(
    ("question", "given", "ignored"),
    [
        ("--plan", WRITING, "-o, --force, --only, --dump-ir, --verify, --node-modules do"),
        ("--plan", LENGTHS, None),
        ("--plan", "--allow-nonfinite", "--allow-nonfinite does"),
        ("--report", "--allow-nonfinite", None),
        (
            "--report",
            f"{LENGTHS} -o somewhere",
            "-o, --limits, --activations, --context, --prefill-chunk do",
        ),
    ],
)
def test_what_a_question_does_not_need_is_named(
    question: str,
    given: str,
    ignored: str | None,
    pipeline: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "report_model", lambda *_: ([], None))
    monkeypatch.setattr(cli, "report_text", lambda *_: "answer")
    assert cli.main(["gemma-4-E2B-it", question, *given.split()]) == 0
    captured = capsys.readouterr()
    assert captured.out
    assert captured.err.splitlines() == (
        []
        if ignored is None
        else [
            f"warning: {question} writes nothing, and {ignored} nothing next to it",
            f"hint: leave out {question} to compile",
        ]
    )
    assert pipeline.request is None
    assert not list(tmp_path.iterdir())


def test_plan_takes_the_options_of_a_compilation(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--target cpu --quant q8f16 --context 1000 --prefill-chunk 100 --plan --json"
    assert cli.main(["gemma-4-31B-it", *options.split()]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["target"], values["quant"]) == ("cpu", "q8f16")
    assert (values["context_length"], values["prefill_chunk"]) == (1000, 100)
    assert values["source"] == {"kind": "preset", "model": "gemma-4-31B-it"}


def test_a_chunk_without_room_for_drafts_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for lengths in ("--prefill-chunk 1", "--context 1"):
        options = f"--drafter tiny --target cpu --plan {lengths}"
        assert cli.main(["tiny", *options.split()]) == 2
        assert "error: --drafter: a prefill chunk of 1 leaves no room" in capsys.readouterr().err


def test_plan_that_cannot_be_built_is_shown_and_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = "--context 100000 --prefill-chunk 2000"
    assert cli.main(["gemma-4-31B-it", "--plan", *sizes.split()]) == 2
    captured = capsys.readouterr()
    assert "100,000" in captured.out
    assert "\nhint: --prefill-chunk 1560 fits" in captured.err


def test_plan_of_a_hub_model_downloads_its_config_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile(PRESETS_DIR / "gemma-4-12B-it.json", tmp_path / "config.json")
    asked: list[tuple[str, str | None]] = []

    def fetch_config(model: str, revision: str | None) -> Path:
        asked.append((model, revision))
        return tmp_path

    for name in ("fetch", "fetch_generation_config"):
        monkeypatch.setattr(hub, name, lambda *_: pytest.fail("downloaded more"))
    monkeypatch.setattr(hub, "fetch_config", fetch_config)
    assert cli.main(["google/gemma-4-12B-it", "--plan", "--revision", "main"]) == 0
    assert asked == [("google/gemma-4-12B-it", "main")]
    assert "11,907,350,320" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_that_tvm_disguises(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def disguise(*_: object) -> Summary:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as error:
            raise RuntimeError from error
        raise AssertionError("not interrupted")

    before = signal.getsignal(number)
    monkeypatch.setattr(cli, "compile_model", disguise)
    assert cli.main(MINIMUM) == 128 + number
    assert capsys.readouterr().err.startswith("error: interrupted")
    assert signal.getsignal(number) is before
