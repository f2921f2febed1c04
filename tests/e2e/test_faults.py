"""Conversion under faults: no package that looks whole and is not; resuming gives its bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError, CheckpointError
from gemma4_compile.package.output_directory import LOCK_FILE
from gemma4_compile.progress import ByteProgress
from tests import models
from tests.marks import slow_unless
from tests.packages import Silent

ROOT = Path(__file__).parents[2]
KILLS = 8
MORE_KILLS = 32
ENOUGH = 3  # rests with finished shards, and runs that went on from what there was
MOST_RUNS = 400
Run = Callable[..., dict[str, Any]]
Files = dict[str, bytes]


def files(directory: Path) -> Files:
    """Content by name, without the lock: a kill right behind the rename leaves it."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != LOCK_FILE}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Give the fault runner a job."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.fault_runner"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def give(arguments: list[str], **job: Any) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"arguments": arguments, **job}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, f"the fault runner ended; its job: {arguments}, {job}"
            answer: dict[str, Any] = json.loads(line)
            return answer

        yield give
        process.stdin.close()
        assert process.wait(timeout=300) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    return models.write_checkpoint(folder / "model", models.E2B_LIKE, dtype="bfloat16").path


def arguments(model: Path, output: Path, quant: str = "q4f16") -> list[str]:
    options = ["--target", "cpu", "--only", "weights", "--force"]
    return [str(model), *options, "--quant", quant, "-o", str(output)]


@pytest.fixture(scope="module")
def whole(run: Run, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Files]:
    """What undisturbed runs write: in the recipe that is disturbed, and in an older one."""
    folder = tmp_path_factory.mktemp("whole")
    for quant in ("q4f16", "q8f16"):
        assert run(arguments(model, folder / quant, quant))["statuses"] == [0]
    assert len(list((folder / "q4f16").glob("params_shard_*.bin"))) > 20
    return files(folder / "q4f16"), files(folder / "q8f16")


def put(package: Files, directory: Path) -> None:
    directory.mkdir()
    for name, data in package.items():
        (directory / name).write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [KILLS, pytest.param(MORE_KILLS, marks=pytest.mark.exhaustive)])
def test_random_kills(
    kills: int, run: Run, model: Path, whole: tuple[Files, Files], tmp_path: Path
) -> None:
    new, old = whole
    output = tmp_path / "out"
    chance = random.Random(8)
    longest = max(run(arguments(model, tmp_path / "timed"))["seconds"] for _ in range(3))
    shutil.rmtree(tmp_path / "timed")
    killed, resumed, partial = 0, 0, 0
    for _ in range(MOST_RUNS):
        if killed >= kills and min(resumed, partial) >= ENOUGH:
            break
        if not list(tmp_path.iterdir()) and chance.random() < 0.5:
            put(old, output)  # a package that is to be replaced
        how = chance.choice([signal.SIGKILL, signal.SIGINT])
        job = {"signal": int(how), "delay_s": chance.random() * longest}
        (status,) = run(arguments(model, output), **job)["statuses"]
        killed += status in (-signal.SIGKILL, -signal.SIGINT, 130)
        # What has the package's name is one of the two packages, whole, or there is nothing.
        assert not output.exists() or files(output) in (new, old)
        partial += (tmp_path / ".out.partial" / "progress.json").exists()
        if chance.random() < 0.3:
            done = run(arguments(model, output))
            assert done["statuses"] == [0]
            longest = (longest + done["seconds"]) / 2  # machines change their speed
            resumed += 1
            assert files(output) == new
            assert [path.name for path in tmp_path.iterdir()] == ["out"]
            shutil.rmtree(output)
    assert killed >= kills
    assert min(resumed, partial) >= ENOUGH, "kills must hit the conversion, too"


@pytest.mark.parametrize(
    "file_bytes", slow_unless(lambda file_bytes: file_bytes == 2000, [0, 2000, 9000])
)
def test_no_room_for_a_file(
    file_bytes: int, run: Run, model: Path, whole: tuple[Files, Files], tmp_path: Path
) -> None:
    _, old = whole
    put(old, tmp_path / "out")
    done = run(arguments(model, tmp_path / "out"), file_bytes=file_bytes)
    assert done["statuses"] == [1]
    assert files(tmp_path / "out") == old
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3])
def test_several_processes_for_one_output(
    times: int, run: Run, model: Path, whole: tuple[Files, Files], tmp_path: Path
) -> None:
    new, _ = whole
    for _ in range(times):
        statuses = run(arguments(model, tmp_path / "out"), count=4)["statuses"]
        assert set(statuses) <= {0, 1}
        assert 0 in statuses
        assert files(tmp_path / "out") == new
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        shutil.rmtree(tmp_path / "out")


@pytest.mark.slow
def test_output_where_nothing_can_be_written(model: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:  # permissions do not bind root, but nobody writes into /proc
        parent = Path("/proc")
    else:
        parent = tmp_path / "closed"
        parent.mkdir(mode=0o500)
    request = CompileRequest(str(model), "cpu", "q4f16", parent / "out", only="weights")
    with pytest.raises(ArtifactError, match="cannot write"):
        compile_model(request, Silent())


class _Changing(Silent):
    """Writes to the checkpoint when the first bytes are converted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def progress(self, text: str, total_bytes: int) -> Iterator[ByteProgress]:
        del text, total_bytes

        def advance(count: int) -> None:
            del count
            with self._path.open("r+b") as file:
                file.seek(-64, os.SEEK_END)
                file.write(bytes(64))

        yield advance


@pytest.mark.slow
def test_checkpoint_that_changes_while_it_is_read(tmp_path: Path) -> None:
    model = models.write_checkpoint(tmp_path / "model", models.E2B_LIKE).path
    request = CompileRequest(str(model), "cpu", "f32", tmp_path / "out", only="weights")
    with pytest.raises(CheckpointError, match=r"`model\.safetensors` changed while in use"):
        compile_model(request, _Changing(model / "model.safetensors"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
