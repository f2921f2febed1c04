"""`--rebuild`: what is restored, what is compared, and what says that it cannot be the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.input_files import INPUTS
from gemma4_compile.cli import compile as cli
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import (
    ArtifactError,
    CheckpointError,
    InterruptedRunError,
    UsageError,
    VerificationError,
)
from gemma4_compile.model_spec.modality import ALL_MODALITIES
from gemma4_compile.package.files import write_json
from gemma4_compile.package.libraries import LIBRARY_ALONE
from gemma4_compile.package.partial_build import CALIBRATION
from gemma4_compile.targets.spec import WORDS
from gemma4_compile.verification import rebuild as module_under_test
from gemma4_compile.verification.rebuild import RebuildRequest, rebuild
from tests import models
from tests.packages import Silent, compile_small

pytestmark = pytest.mark.package

MADE_BY = CompileRequest(
    model="tiny",
    target="webgpu",
    quant="q8f16",
    output=Path(),
    limits="compat",
    context_length=100,
    prefill_chunk=16,
    only="weights",
    activations="float",
    float16=WORDS,
    modalities=ALL_MODALITIES,
    image_tokens=70,
    image_shape="square",
    overrides=(("embed_tokens", "q4f16_1"), ("layers.*.mlp.down_proj", "q4f16_1")),
    drafter="tiny",
    allow_nonfinite=True,
    shard_bytes=1 << 20,
    fitted={"budget_bytes": 1 << 30, "margin_bytes": 0, "needs_bytes": 1, "choices": {}},
)
"""With no option as it is by default."""
NO_BYTES = {"output", "force", "dump_ir", "lock", "probe", "fit", "fit_keeps", "usual"}
"""Fields that change nothing in a package, or are of no package of users."""
OTHER_FILES = {"tokenizer", "adapters", "libraries"}
"""Fields that name other files than this model's; they have tests of their own."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("made") / "package"
    compile_small(replace(MADE_BY, output=package))
    return package


@pytest.fixture
def package(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "package"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, made: Path) -> list[CompileRequest]:
    """Requests, in place of their compilations."""
    requests: list[CompileRequest] = []

    def compile_none(request: CompileRequest, reporter: object) -> None:
        requests.append(request)
        shutil.copytree(made, request.output, dirs_exist_ok=True)

    monkeypatch.setattr(module_under_test, "compile_model", compile_none)
    return requests


def change(package: Path, **fields: Any) -> Path:
    """Set fields of the build in provenance; None removes one."""
    values = json.loads((package / abi.PROVENANCE_FILE).read_text())
    build = values["build"] | fields
    values["build"] = {name: value for name, value in build.items() if value is not None}
    write_json(package / abi.PROVENANCE_FILE, values)
    return package


def test_every_option_is_restored(made: Path, asked: list[CompileRequest]) -> None:
    assert not rebuild(RebuildRequest(made), Silent()).differences
    (found,) = asked
    for field in dataclasses.fields(CompileRequest):
        if field.name in NO_BYTES | OTHER_FILES | {"revision"}:
            continue
        given = getattr(MADE_BY, field.name)
        assert given != field.default, f"{field.name}: give MADE_BY another value, or NO_BYTES it"
        assert getattr(found, field.name) == given, f"{field.name}: `request_of` restores it"


def test_of_a_checkpoint_on_the_hub_the_revision_is(
    package: Path, asked: list[CompileRequest]
) -> None:
    source = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"]["source"]
    on_hub = source | {"kind": "hub", "model": "a/b", "revision": "0" * 40}
    change(package, source=on_hub, drafter=on_hub | {"model": "c/d"})
    rebuild(RebuildRequest(package), Silent())
    (found,) = asked
    assert (found.model, found.revision) == ("a/b", "0" * 40)
    assert found.drafter == f"c/d@{'0' * 40}"
    assert found.lock is not None
    assert found.lock.origins["model"] == {"kind": "hub", "model": "a/b", "revision": "0" * 40}


@pytest.mark.parametrize(
    "source", [{"kind": "hub", "model": "/etc", "revision": "x"}, {"kind": "hub", "model": "a/b"}]
)
def test_what_is_no_name_on_the_hub_is_not_opened(
    source: dict[str, str], package: Path, asked: list[CompileRequest]
) -> None:
    change(package, source=source | {"config": "sha256:0"})
    with pytest.raises(UsageError, match="packages do not say which"):
        rebuild(RebuildRequest(package), Silent())
    assert not asked


def test_a_library_of_a_preset_is_made_from_it(package: Path, asked: list[CompileRequest]) -> None:
    change(package, source={"kind": "preset", "model": "gemma-4-E2B-it", "config": "sha256:0"})
    rebuild(RebuildRequest(package), Silent())
    assert asked[0].model == "gemma-4-E2B-it"


def test_names_of_a_strange_package_cannot_steer_a_terminal() -> None:
    found = module_under_test.Rebuilt(Path("p"), 2, ("\x1b[2J: another",), ("made by \x07 1",))
    assert all(line.isprintable() for line in found.lines())


def test_a_tokenizer_of_the_hub_is_restored_and_another_asked_for(
    package: Path, asked: list[CompileRequest]
) -> None:
    source = {"kind": "gguf", "file": "f", "config": "sha256:0"}
    change(package, source=source | {"tokenizer": f"a/b@{'0' * 40}"})
    rebuild(RebuildRequest(package, "model.gguf"), Silent())
    assert (asked[0].model, asked[0].tokenizer) == ("model.gguf", f"a/b@{'0' * 40}")
    change(package, source=source | {"tokenizer": "directory"})
    with pytest.raises(UsageError, match=r"the tokenizer of .* is from a directory"):
        rebuild(RebuildRequest(package, "model.gguf"), Silent())
    rebuild(RebuildRequest(package, "model.gguf", tokenizer="d"), Silent())
    assert asked[1].tokenizer == "d"


def test_a_library_that_was_made_alone_is_made_after_the_weights(
    package: Path, asked: list[CompileRequest]
) -> None:
    values = json.loads((package / abi.PROVENANCE_FILE).read_text())
    values["library"] = "params_shard_0.bin"  # some file: none is compiled here
    write_json(package / abi.PROVENANCE_FILE, values)
    rebuild(RebuildRequest(package), Silent())
    change(package, **{LIBRARY_ALONE: True})
    rebuild(RebuildRequest(package), Silent())
    assert [one.only for one in asked] == [None, "weights", "library"]


def test_the_same_bytes_come_again(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "again"
    before = sorted(path.name for path in made.parent.iterdir())
    assert cli.main(["--rebuild", str(made), "-o", str(output)]) == 0
    assert "the same bytes again" in capsys.readouterr().out
    for path in made.iterdir():
        assert path.read_bytes() == (output / path.name).read_bytes(), path.name
    assert sorted(path.name for path in made.parent.iterdir()) == before


@pytest.mark.parametrize("is_missing", [False, True])
def test_damage_since_it_was_made_is_named(
    is_missing: bool,
    package: Path,
    asked: list[CompileRequest],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard = package / "params_shard_0.bin"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.unlink()
    if not is_missing:
        shard.write_bytes(content)
    assert cli.main(["--rebuild", str(package)]) == 1
    told = capsys.readouterr()
    assert told.out.startswith(f"{package}: {shard.name}: missing or changed since it was made")
    assert len(told.out.splitlines()) == len(asked) == 1
    assert "is damaged\nhint: give -o DIR" in told.err


def test_what_differs_is_named_with_its_versions(
    package: Path, asked: list[CompileRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    values = json.loads((package / abi.PROVENANCE_FILE).read_text())
    values["files"][abi.TENSOR_CACHE_FILE]["sha256"] = "0" * 64
    values["files"]["own.txt"] = {"nbytes": 1, "sha256": "1"}
    values["files"][abi.NUMERICS_FILE] = {"nbytes": 1, "sha256": "1"}  # of gemma4-verify
    values["build"]["versions"]["numpy"] = "1.0"
    values["build"]["recipe"] = "q4f16"
    write_json(package / abi.PROVENANCE_FILE, values)
    assert cli.main(["--rebuild", str(package)]) == 1
    told = capsys.readouterr()
    lines = [line.removeprefix(f"{package}: ") for line in told.out.splitlines()]
    assert [line.split(", here is")[0] for line in lines[:1]] == ["made by numpy 1.0"]
    assert [line.split(":")[0] for line in lines[1:]] == [
        "own.txt",
        abi.TENSOR_CACHE_FILE,
        abi.PROVENANCE_FILE,
    ]
    assert "expected sha256 000" in lines[2]
    assert "3 of its parts are others" in told.err
    assert asked, "made, and gone"
    assert [path.name for path in package.parent.iterdir()] == ["package"]


def test_other_versions_that_make_the_same_are_no_difference(
    package: Path, asked: list[CompileRequest]
) -> None:
    versions = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"]["versions"]
    change(package, versions=versions | {"python": "3.9.0"})
    found = rebuild(RebuildRequest(package), Silent())
    found.check()
    assert "made by python 3.9.0" in found.lines()[0]
    assert found.lines()[-1].endswith("the same bytes again")
    assert asked


@pytest.fixture(scope="module")
def from_directory(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and its weights."""
    folder = tmp_path_factory.mktemp("directory")
    model = models.write_checkpoint(folder / "model", models.DENSE_LIKE, dtype="bfloat16").path
    package = folder / "package"
    asked = CompileRequest(str(model), "cpu", "q8f16", package, context_length=64, only="weights")
    compile_small(asked)
    return model, package


def test_a_directory_is_asked_for_and_may_be_another(
    from_directory: tuple[Path, Path], tmp_path: Path
) -> None:
    model, package = from_directory
    with pytest.raises(UsageError, match="was made from files of a directory") as caught:
        rebuild(RebuildRequest(package), Silent())
    assert caught.value.hint == f"give it: gemma4-compile DIR --rebuild {package}"
    copy = shutil.copytree(model, tmp_path / "elsewhere")
    (copy / "processor_config.json").write_text("{}")  # which earlier versions did not read
    assert rebuild(RebuildRequest(package, str(copy)), Silent()).differences == ()


def cut(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("model.safetensors", cut, r"`model\.safetensors` of the model: expected sha256 .* found"),
        ("tokenizer_config.json", Path.unlink, "`tokenizer_config.json` of the model is missing"),
        (
            "chat_template.json",
            lambda path: path.write_text("{}"),
            "`chat_template.json` of the model was not there",
        ),
    ],
)
def test_other_files_are_named_before_anything_is_made(
    name: str,
    spoil: Callable[[Path], object],
    said: str,
    from_directory: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    model, package = from_directory
    copy = shutil.copytree(model, tmp_path / "copy")
    spoil(copy / name)
    with pytest.raises(CheckpointError, match=said):
        rebuild(RebuildRequest(package, str(copy), output=tmp_path / "out"), Silent())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_packages_of_earlier_versions_cannot_be_held_against_their_files(package: Path) -> None:
    change(package, **{INPUTS: None})
    with pytest.raises(ArtifactError, match="an earlier version of gemma4-compile made it"):
        rebuild(RebuildRequest(package), Silent())
    change(package, **{INPUTS: {"model": {"config.json": 3}}})
    with pytest.raises(ArtifactError, match="field `inputs` is damaged"):
        rebuild(RebuildRequest(package), Silent())


def test_a_drafter_of_a_directory_is_asked_for(package: Path) -> None:
    drafter = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"]["drafter"]
    change(package, drafter=drafter | {"kind": "directory"})
    with pytest.raises(UsageError, match=r"the drafter of .* is from a directory"):
        rebuild(RebuildRequest(package), Silent())


def test_of_an_interruption_nothing_is_left(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(request: CompileRequest, reporter: object) -> None:
        raise InterruptedRunError("the same command goes on")

    monkeypatch.setattr(module_under_test, "compile_model", interrupted)
    assert cli.main(["--rebuild", str(package)]) == 130
    assert "nothing is left of this run" in capsys.readouterr().err
    assert [path.name for path in package.parent.iterdir()] == ["package"]


def test_the_package_itself_is_no_place_for_it(package: Path) -> None:
    with pytest.raises(UsageError, match="is the package that is made again"):
        rebuild(RebuildRequest(package, output=package / ".." / "package"), Silent())


def test_a_difference_is_a_failure() -> None:
    found = module_under_test.Rebuilt(Path("p"), 2, ("model.so: another",), ())
    with pytest.raises(VerificationError, match="1 of its parts is another") as caught:
        found.check()
    assert caught.value.hint


def test_a_calibrated_package_is_refused(package: Path, tmp_path: Path) -> None:
    values = json.loads((package / abi.PROVENANCE_FILE).read_text())
    values["build"][CALIBRATION] = {"method": "gptq-2"}
    write_json(package / abi.PROVENANCE_FILE, values)
    with pytest.raises(UsageError, match="was made with --calibrate"):
        rebuild(RebuildRequest(package, output=tmp_path / "again"), Silent())
