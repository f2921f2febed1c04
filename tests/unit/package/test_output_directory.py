"""The output appears whole or not at all, and nothing of others is replaced."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import (
    ArtifactError,
    CheckpointError,
    InterruptedRunError,
    UsageError,
)
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.output_directory import (
    LOCK_FILE,
    PROGRESS_FILE,
    check_output,
    check_place,
    check_writable,
    is_package,
    output_directory,
    write_errors,
)


def make_package(path: Path, content: str = "old") -> None:
    path.mkdir()
    (path / "file").write_text(content)
    provenance = Provenance(None, {}, {"file": (len(content), "0" * 64)})
    (path / abi.PROVENANCE_FILE).write_text(json.dumps(provenance.to_json()))


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def stop(output: Path, error: BaseException, *files: str) -> None:
    """A run that writes some files and ends with an error."""
    with output_directory(output, force=False) as partial:
        for name in files:
            (partial / name).write_text(name)
        raise error


@pytest.mark.parametrize(
    ("output", "held"),
    [
        (".", "the directory that you are in"),
        ("..", "the directory that you are in"),
        ("", "the directory that you are in"),
        ("../own", "your home directory"),
        ("../model", "the checkpoint `../model`"),
        ("../link", "the checkpoint `../model`"),
        ("../own/deep/..", "your home directory"),
        ("../drafter", "the checkpoint `../drafter`"),
    ],
)
def test_what_must_stay_is_not_replaced(
    output: str, held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("here", "own", "model", "drafter"):
        (tmp_path / folder).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "own"))
    with pytest.raises(UsageError, match=f"would replace {held}"):
        check_place(Path(output), [Path("../model"), Path("../drafter")])
    for good in ("out", "../out", "../own/out", "../model/out", "../model2"):
        check_place(Path(good), [Path("../model")])
    check_place(Path("../model"))


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for output in (loop, loop / "package"):
        with pytest.raises(UsageError, match="symbolic links"):
            check_place(output)


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        check_place(Path("out\udcff"))


def test_what_cannot_be_replaced_is_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_package(tmp_path / "out")
    check_writable(tmp_path / "out")
    asked: list[Path] = []

    def refuse(path: Path, _: int) -> bool:
        asked.append(path)
        return False

    monkeypatch.chdir(tmp_path / "out")
    monkeypatch.setattr(os, "access", refuse)
    with pytest.raises(ArtifactError, match="cannot be replaced"):
        check_writable(Path())
    assert asked == [tmp_path]


def test_directory_appears_at_the_end(tmp_path: Path) -> None:
    output = tmp_path / "a" / "b" / "out"
    with output_directory(output, force=False) as partial:
        (partial / "file").write_text("new")
        assert not output.exists()
    assert names(output) == ["file"]
    assert names(output.parent) == ["out"]


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        stop(tmp_path / "a" / "out", CheckpointError("damaged"), "file", PROGRESS_FILE)
    assert names(tmp_path) == []


def test_package_is_replaced_whole(tmp_path: Path) -> None:
    output = tmp_path / "out"
    make_package(output)
    with output_directory(output, force=False) as partial:
        (partial / "other").write_text("new")
        assert (output / "file").read_text() == "old"
    assert names(output) == ["other"]
    assert names(tmp_path) == ["out"]


def test_error_keeps_the_old_package(tmp_path: Path) -> None:
    output = tmp_path / "out"
    make_package(output)
    with pytest.raises(CheckpointError), output_directory(output, force=False):
        raise CheckpointError("damaged")
    assert (output / "file").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_interruption_keeps_finished_shards_only(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt), output_directory(output, force=False):
        raise KeyboardInterrupt
    assert names(tmp_path) == []
    with pytest.raises(KeyboardInterrupt):
        stop(output, KeyboardInterrupt(), PROGRESS_FILE, "params_shard_0.bin", "model.so")
    with output_directory(output, force=False) as partial:
        assert names(partial) == [LOCK_FILE, "params_shard_0.bin", PROGRESS_FILE]


def test_an_interruption_names_what_it_leaves(tmp_path: Path) -> None:
    output = tmp_path / "a b" / "out"
    with pytest.raises(InterruptedRunError) as caught:
        stop(output, KeyboardInterrupt(), PROGRESS_FILE, "params_shard_0.bin")
    left = tmp_path / "a b" / ".out.partial"
    assert f"are in {left}" in caught.value.hint
    assert caught.value.hint.endswith(f"rm -r '{left}'")
    with pytest.raises(KeyboardInterrupt) as nothing:
        stop(tmp_path / "other", KeyboardInterrupt())
    assert not isinstance(nothing.value, InterruptedRunError)


@pytest.mark.parametrize("content", ["file", "link", "foreign", "damaged"])
def test_what_is_not_ours_is_not_replaced(content: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    if content == "file":
        output.write_text("x")
    elif content == "link":
        output.symlink_to(tmp_path / "nowhere")
    else:
        output.mkdir()
        (output / "thesis.txt").write_text("x")
    if content == "damaged":
        (output / abi.PROVENANCE_FILE).write_text('{"schema": "other"}')
    before = names(tmp_path)
    with pytest.raises(UsageError, match="exists and is no"), output_directory(output, force=False):
        pytest.fail("must not begin")
    assert names(tmp_path) == before


def test_force_replaces_a_foreign_directory(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "foreign").write_text("x")
    with output_directory(output, force=True) as partial:
        (partial / "file").write_text("new")
    assert names(output) == ["file"]


def test_empty_directory_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with output_directory(tmp_path / "out", force=False) as partial:
        (partial / "file").write_text("new")
    assert names(tmp_path / "out") == ["file"]


def test_two_runs_for_one_output(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with (
        output_directory(output, force=False),
        pytest.raises(ArtifactError, match="another run is writing"),
        output_directory(output, force=False),
    ):
        pytest.fail("must not begin")
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("then", ["nothing", "a third run"])
def test_lock_that_was_taken_away_meanwhile_is_none(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / ".out.partial" / LOCK_FILE

    def flock(*_: object) -> None:  # the run that had it ended between opening and locking
        lock.unlink()
        if then == "a third run":
            lock.write_text("")

    monkeypatch.setattr("fcntl.flock", flock)
    with (
        pytest.raises(ArtifactError, match="another run is writing"),
        output_directory(tmp_path / "out", force=False),
    ):
        pytest.fail("must not begin")


def test_lock_of_a_killed_run_does_not_count(tmp_path: Path) -> None:
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / LOCK_FILE).write_text("")
    (partial / "rest").write_text("x")
    with output_directory(tmp_path / "out", force=False) as directory:
        assert names(directory) == [LOCK_FILE]


def plant(place: Path, kind: str, victim: Path) -> None:
    """Put something at a place that a run uses; with its target, for a link."""
    victim.mkdir(exist_ok=True)
    (victim / "thesis.txt").write_text("precious")
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "dangling link":
        place.symlink_to(victim / "nothing")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "file":
        place.write_text("precious")
    elif kind == "foreign directory":
        shutil.copytree(victim, place)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "file", "foreign directory"])
@pytest.mark.parametrize("place", [".out.partial", ".out.replaced"])
def test_what_was_planted_next_to_it_is_left_alone(
    place: str, kind: str, force: bool, tmp_path: Path
) -> None:
    make_package(tmp_path / "out")
    plant(tmp_path / place, kind, tmp_path / "victim")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with (
        pytest.raises(ArtifactError, match=f"{place}` is needed"),
        output_directory(tmp_path / "out", force=force),
    ):
        pytest.fail("must not begin")
    with pytest.raises(ArtifactError, match=f"{place}` is needed"):
        check_output(tmp_path / "out", force=force)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "victim" / "thesis.txt").read_text() == "precious"


def test_directory_of_another_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "x").write_text("precious")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with (
        pytest.raises(ArtifactError, match="another user"),
        output_directory(tmp_path / "out", force=False),
    ):
        pytest.fail("must not begin")
    assert names(tmp_path / ".out.partial") == ["x"]


@pytest.mark.parametrize("name", [LOCK_FILE, PROGRESS_FILE, "params_shard_0.bin", "model.so"])
@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_links_inside_a_rest_touch_nothing(name: str, kind: str, tmp_path: Path) -> None:
    victim = tmp_path / "thesis.txt"
    victim.write_text("precious")
    victim.chmod(0o600)
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / LOCK_FILE).touch()
    (partial / name).unlink(missing_ok=True)
    if kind == "hard":
        os.link(victim, partial / name)
    else:
        (partial / name).symlink_to(victim)
    if (name, kind) == (LOCK_FILE, "symbolic"):
        with (
            pytest.raises(ArtifactError, match="a link"),
            output_directory(tmp_path / "out", force=False),
        ):
            pytest.fail("must not begin")
    else:
        with output_directory(tmp_path / "out", force=False) as directory:
            assert names(directory) == [LOCK_FILE]
    assert victim.read_text() == "precious"
    assert victim.stat().st_mode & 0o777 == 0o600


def test_shards_of_an_interrupted_run_are_no_part_of_one_without_weights(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        stop(output, KeyboardInterrupt(), PROGRESS_FILE, "params_shard_0.bin")
    with output_directory(output, force=False, weights=False) as partial:
        assert names(partial) == [LOCK_FILE]


def test_a_package_that_was_replaced_is_known_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, replaced = tmp_path / "out", tmp_path / ".out.replaced"
    make_package(output)
    (output / "folder").mkdir()
    removed: list[Path] = []
    real = shutil.rmtree

    def kill(path: Path, ignore_errors: bool = False) -> None:
        if path == replaced:
            raise KeyboardInterrupt
        removed.append(path)
        real(path, ignore_errors=ignore_errors)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", kill)
        with pytest.raises(KeyboardInterrupt), output_directory(output, force=False) as partial:
            (partial / "file").write_text("new")
    assert removed[0] == replaced / "folder"
    assert names(replaced) == [abi.PROVENANCE_FILE]
    make_package(tmp_path / "other")
    shutil.copy(tmp_path / "other" / abi.PROVENANCE_FILE, output)
    with output_directory(output, force=False):
        assert names(tmp_path) == [".out.partial", "other", "out"]


def test_run_killed_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    make_package(tmp_path / ".out.replaced")
    with pytest.raises(CheckpointError), output_directory(tmp_path / "out", force=False):
        raise CheckpointError("damaged")
    assert (tmp_path / "out" / "file").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(ArtifactError, match="cannot write"),
        output_directory(tmp_path / "file" / "out", force=False),
    ):
        pytest.fail("must not begin")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EROFS, "Read-only"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_errors_of_the_file_system_are_clear(code: int, message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as caught, write_errors(Path("x")):
        raise OSError(code, os.strerror(code))
    assert caught.value.hint


def test_is_package(tmp_path: Path) -> None:
    assert not is_package(tmp_path)
    make_package(tmp_path / "p")
    assert is_package(tmp_path / "p")
