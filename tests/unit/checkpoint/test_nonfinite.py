"""`--allow-nonfinite`: the package of the same checkpoint with zeros, which says what it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.match import Checkpoint
from gemma4_compile.checkpoint.nonfinite import count_nonfinite, finite_reader, nonfinite_lines
from gemma4_compile.cli import compile as cli
from gemma4_compile.compile import pipeline
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import QuantizationError, UsageError
from gemma4_compile.package.artifacts import read_artifact
from gemma4_compile.progress import ByteProgress
from gemma4_compile.quantization import convert
from tests import models
from tests.packages import Silent, compile_small

pytestmark = pytest.mark.package

# Checkpoint tensors of every kind, the places that are spoilt in each, and with what.
SPOILT: dict[str, list[tuple[tuple[int, ...], float]]] = {
    "embed_tokens.weight": [((0, 0), np.nan)],
    "layers.0.mlp.gate_proj.weight": [((3, 5), np.inf), ((3, 6), -np.inf), ((90, 0), np.nan)],
    "layers.1.experts.down_proj": [((7, 1, 2), np.nan), ((0, 0, 0), np.inf)],
    "norm.weight": [((9,), -np.inf)],
}
COUNTS = {name: len(places) for name, places in SPOILT.items()}


def write(folder: Path, *, zeros: bool) -> Path:
    weights = models.random_weights(models.MOE_LIKE)
    for name, places in SPOILT.items():
        weights[name] = weights[name].copy()
        for place, value in places:
            weights[name][place] = 0 if zeros else value
    return models.write_checkpoint(folder, models.MOE_LIKE, weights=weights).path


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("spoilt") / "model", zeros=False)


@pytest.fixture(scope="module")
def zeroed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("zeroed") / "model", zeros=True)


@pytest.fixture
def request_for(spoilt: Path, tmp_path: Path) -> CompileRequest:
    output = tmp_path / "out"
    return CompileRequest(str(spoilt), "cpu", "q4f16", output, only="weights", allow_nonfinite=True)


def package(directory: Path) -> dict[str, bytes]:
    """Every file but the provenance."""
    names = {path.name for path in directory.iterdir()} - {abi.PROVENANCE_FILE}
    return {name: (directory / name).read_bytes() for name in names}


def noted(directory: Path) -> object:
    return read_artifact(directory / abi.PROVENANCE_FILE)["build"]["nonfinite_weights"]


def test_zeros_are_where_a_number_is_missing_and_nowhere_else() -> None:
    values = np.array([[1, np.nan, -2], [np.inf, 3e38, -np.inf]], np.float32)
    before = values.copy()
    read = finite_reader(lambda _, begin, end: values[begin:end])
    assert np.array_equal(read("x", 0, 2), np.array([[1, 0, -2], [0, 3e38, 0]], np.float32))
    assert read("x", 0, 2).dtype == np.float32
    assert np.array_equal(values, before, equal_nan=True)


@pytest.mark.parametrize("block_bytes", [1, 1000, 1 << 30])
def test_counts_do_not_depend_on_blocks(
    block_bytes: int, spoilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "BLOCK_BYTES", block_bytes)
    tensors = Checkpoint.open(spoilt).tensors
    names = ("layers.0.input_layernorm.weight", *reversed(SPOILT))
    few = {name: tensors[f"model.language_model.{name}"] for name in names}
    counts = count_nonfinite(few, Silent())
    assert counts == COUNTS
    assert list(counts) == sorted(counts)


def test_the_package_is_that_of_zeros(
    request_for: CompileRequest, zeroed: Path, tmp_path: Path
) -> None:
    compile_small(request_for)
    other = replace(
        request_for, model=str(zeroed), output=tmp_path / "zeroed", allow_nonfinite=False
    )
    compile_small(other)
    assert package(request_for.output) == package(other.output)
    assert noted(request_for.output) == COUNTS
    assert noted(other.output) is None
    compile_small(replace(other, allow_nonfinite=True, force=True))
    assert noted(other.output) == {}


def test_the_command_names_every_tensor(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--target", "cpu", "--quant", "f32", "--only", "weights", "-o", str(tmp_path / "o")]
    assert cli.main([str(spoilt), *options]) == 1
    told = capsys.readouterr().err
    assert "weight that is not finite" in told
    assert "--allow-nonfinite" in told.splitlines()[-1]
    assert cli.main([str(spoilt), *options, "--allow-nonfinite"]) == 0
    output = capsys.readouterr()
    lines = output.err.splitlines()
    for name, count in COUNTS.items():
        assert f"`{name}`: {count} not finite, stored as 0" in lines
    assert "not finite:         7 weights of 4 tensors, stored as 0" in output.out.splitlines()


def test_where_nothing_is_wrong_that_is_said() -> None:
    assert nonfinite_lines({}) == ["every weight is finite: --allow-nonfinite changes nothing"]


class Interrupting(Silent):
    """Ctrl-C when most of the weights are written."""

    @contextmanager
    def progress(self, text: str, total_bytes: int) -> Iterator[ByteProgress]:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if text.startswith("converting") and done > 0.8 * total_bytes:
                raise KeyboardInterrupt

        yield advance


class Noting(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)


def test_a_rest_is_taken_up_with_the_same_option_only(
    request_for: CompileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SHARD_BYTES", 1 << 13)
    compile_small(replace(request_for, output=tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        compile_small(request_for, Interrupting())
    rest = tmp_path / ".out.partial"
    finished = json.loads((rest / "progress.json").read_text())["finished"]
    assert len(finished) > 3
    shutil.copytree(rest, tmp_path / "copy")

    # The first tensor is spoilt and its shard is finished: without the option it is read again.
    assert "params_shard_0.bin" in finished
    with pytest.raises(QuantizationError, match=r"embed_tokens\.weight.* not finite"):
        compile_small(replace(request_for, allow_nonfinite=False))
    assert not rest.exists()

    (tmp_path / "copy").rename(rest)
    before = (rest / "params_shard_0.bin").stat().st_ino
    reporter = Noting()
    compile_small(request_for, reporter)
    assert "checking the weights that an earlier run finished" in reporter.stages
    assert (request_for.output / "params_shard_0.bin").stat().st_ino == before  # kept
    assert package(request_for.output) == package(tmp_path / "whole")
    assert noted(request_for.output) == COUNTS


def test_partial_builds_with_and_without_are_not_mixed(request_for: CompileRequest) -> None:
    compile_small(request_for)
    library = replace(request_for, only="library")
    with pytest.raises(UsageError, match="made with --allow-nonfinite"):
        compile_small(replace(library, allow_nonfinite=False))
    compile_small(library)
    assert noted(request_for.output) == COUNTS  # of the weights that were kept
    with pytest.raises(UsageError, match="made with --allow-nonfinite"):
        compile_small(replace(request_for, allow_nonfinite=False))
