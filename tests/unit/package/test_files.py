"""Files of a package: their bytes, hashes and modes, and what is kept of an earlier package."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.package.files import (
    check_kept,
    copy_file,
    copy_json,
    finish,
    hash_file,
    take_over,
    write_json,
    write_text,
)
from gemma4_compile.package.output_directory import LOCK_FILE, PROGRESS_FILE
from gemma4_compile.package.pieces import PIECE_BYTES, Listed
from gemma4_compile.system import regular_files


def test_a_file_of_any_size_is_hashed_whole(tmp_path: Path) -> None:
    for size in (0, 3, (1 << 20) + 1):
        content = os.urandom(size)
        (tmp_path / "x").write_bytes(content)
        found = hash_file(tmp_path / "x")
        assert found.md5 == hashlib.md5(content).hexdigest()
        assert found.sha256 == hashlib.sha256(content).hexdigest()


def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        hash_file(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="no regular file"):
        copy_file(tmp_path / "pipe", tmp_path)


def test_texts_are_utf_8_and_end_where_they_end(tmp_path: Path) -> None:
    write_text(tmp_path / "x.txt", "Grüße\n")
    assert (tmp_path / "x.txt").read_bytes() == "Grüße\n".encode()
    write_json(tmp_path / "x.json", {"b": 1, "a": "ü"})
    text = (tmp_path / "x.json").read_bytes().decode()
    assert json.loads(text) == {"b": 1, "a": "ü"}
    assert text.index("b") < text.index("a"), "in the order that is given"
    assert "ü" in text
    assert text.endswith("}\n")


def test_no_text_is_written_through_a_planted_link(victim: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "x.json").symlink_to(victim)
    with pytest.raises(ArtifactError, match="a link"):
        write_json(tmp_path / "new" / "x.json", {})


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot write .*x\.json") as caught:
        write_json(tmp_path / "missing" / "x.json", {})
    assert caught.value.hint


def test_a_copy_has_the_name_and_the_content(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    content = os.urandom((1 << 20) + 7)
    (tmp_path / "tokenizer.json").write_bytes(content)
    copy_file(tmp_path / "tokenizer.json", tmp_path / "new")
    assert (tmp_path / "new" / "tokenizer.json").read_bytes() == content


class _FillingDisk:
    """A file that takes a byte less of what it is given, as on a disk that fills up."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __enter__(self) -> _FillingDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, content: memoryview) -> int:
        return self._file.write(content[: max(1, len(content) - 1)])


@pytest.mark.parametrize("copy", [copy_file, copy_json])
def test_nothing_is_lost_where_less_is_written_at_once(
    copy: Callable[[Path, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "tokenizer.json").write_bytes(b'{"model":{"vocab":{"a":0,"b":1}}}')
    opened = regular_files.open_new
    monkeypatch.setattr(regular_files, "open_new", lambda path: _FillingDisk(opened(path)))
    copy(tmp_path / "tokenizer.json", tmp_path / "new")
    assert (tmp_path / "new" / "tokenizer.json").read_bytes() == (
        b'{"model":{"vocab":{"a":0,"b":1}}}'
    )


@pytest.mark.parametrize("indent", [2, "\t", None])
@pytest.mark.parametrize("breaks", ["\n", "\r\n"])
def test_json_is_copied_without_its_indentation(
    indent: int | str | None, breaks: str, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    vocabulary = {" \n ": 0, "\t": 1, "\u2028 \u0085": 2, "a\\": 3, '"\n': 4, "\r\n": 5}
    values = {"model": {"vocab": vocabulary, "merges": [["a", " \n"], [" ", "  "]] * 3}}
    text = json.dumps(values, indent=indent, ensure_ascii=False).replace("\n", breaks)
    source = tmp_path / "tokenizer.json"
    source.write_bytes(f"{text}{breaks}".encode())
    copy_json(source, tmp_path / "new")
    found = (tmp_path / "new" / "tokenizer.json").read_bytes()
    assert json.loads(found) == values
    assert b"\n" not in found
    assert len(found) <= len(json.dumps(values, ensure_ascii=False).encode())


def test_provenance_holds_the_hash_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"abc")
    (tmp_path / PROGRESS_FILE).write_text("{}")
    finish(tmp_path, "x.bin", {"recipe": "q4f16"})
    values = json.loads((tmp_path / abi.PROVENANCE_FILE).read_text())
    digest = hashlib.sha256(b"abc").hexdigest()
    assert values["files"] == {"x.bin": {"nbytes": 3, "sha256": digest}}
    assert not (tmp_path / PROGRESS_FILE).exists()


@pytest.mark.parametrize(("more", "count"), [(-1, 1), (0, 1), (1, 2), (PIECE_BYTES + 1, 3)])
def test_provenance_holds_the_hashes_of_a_long_files_pieces(
    more: int, count: int, tmp_path: Path
) -> None:
    content = bytes(range(251)) * (PIECE_BYTES // 100)
    content = content[: PIECE_BYTES + more]
    (tmp_path / "x.bin").write_bytes(content)
    made = finish(tmp_path, None, {})
    values = json.loads((tmp_path / abi.PROVENANCE_FILE).read_text())
    starts = range(0, len(content), PIECE_BYTES)
    digests = [hashlib.sha256(content[at : at + PIECE_BYTES]).hexdigest() for at in starts]
    assert len(digests) == count
    listed = {"nbytes": PIECE_BYTES, "sha256": digests}
    assert values["files"]["x.bin"].get("pieces") == (listed if count > 1 else None)
    assert Provenance.from_json(values) == made
    known = {"x.bin": made.listed("x.bin")}
    assert check_kept(tmp_path, {"x.bin": made.files["x.bin"][1]}) == known
    (tmp_path / "x.bin").write_bytes(b"never read again")
    assert finish(tmp_path, None, {}, known).pieces == made.pieces


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_files_of_a_package_are_kept(kind: str, victim: Path, tmp_path: Path) -> None:
    package, directory = tmp_path / "package", tmp_path / "new"
    package.mkdir()
    directory.mkdir()
    if kind == "link":
        (package / "shard").symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(package / "shard")
    else:
        (package / "shard").mkdir()
    with pytest.raises(ArtifactError, match="cannot keep `shard`"):
        take_over(package, ["shard"], directory)
    assert not list(directory.iterdir())


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_kept_takes_the_place_of_a_planted_link(
    linked: bool, victim: Path, tmp_path: Path
) -> None:
    package, directory = tmp_path / "package", tmp_path / "new"
    package.mkdir()
    directory.mkdir()
    (package / "content").write_text("good")
    if linked:  # inside of the package: allowed, and its content is what counts
        (package / "shard").symlink_to("content")
    else:
        (package / "content").rename(package / "shard")
    (directory / "shard").symlink_to(victim)
    take_over(package, ["shard"], directory)
    finish(directory, None, {})
    assert (directory / "shard").read_text() == "good"
    assert not (directory / "shard").is_symlink()


def test_a_link_is_never_packed(victim: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "shard").symlink_to(victim)
    with pytest.raises(ArtifactError, match="a link"):
        finish(tmp_path / "new", None, {})


def test_files_are_linked_and_copied_where_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, directory = tmp_path / "package", tmp_path / "new"
    package.mkdir()
    directory.mkdir()
    for name in "ab":
        (package / name).write_text(name)
    take_over(package, ["a"], directory)
    assert (directory / "a").samefile(package / "a")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    take_over(package, ["b"], directory)
    assert (directory / "b").read_text() == "b"
    assert not (directory / "b").samefile(package / "b")


def test_what_is_damaged_is_not_kept(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"whole")
    listed = {name: hash_file(tmp_path / name).sha256 for name in ("a.bin", "b.bin")}
    check_kept(tmp_path, listed)
    (tmp_path / "b.bin").write_bytes(b"whol!")
    with pytest.raises(ArtifactError, match=r"cannot keep `b\.bin` of .* is damaged") as caught:
        check_kept(tmp_path, listed)
    assert "--force" in str(caught.value.hint)
    (tmp_path / "a.bin").unlink()
    with pytest.raises(ArtifactError, match=r"cannot keep `a\.bin` of .*: No such file"):
        check_kept(tmp_path, listed)


def test_a_missing_file_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot keep `shard`.*No such file") as caught:
        take_over(tmp_path, ["shard"], tmp_path / "new")
    assert "--force" in str(caught.value.hint)


def test_a_finished_package_is_readable_and_lists_all_but_the_run_s_own(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin", LOCK_FILE):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "a.bin").chmod(0o600)
    known = {"b.bin": Listed("known")}
    made = finish(tmp_path, None, {"recipe": "f32"}, known)
    assert set(made.files) == {"a.bin", "b.bin"}
    assert made.files["b.bin"] == (5, "known"), "not read again"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}
    values = json.loads((tmp_path / abi.PROVENANCE_FILE).read_text())
    assert Provenance.from_json(values) == made
    assert finish(tmp_path, None, {"recipe": "f32"}, known) == made, "and again"


def test_numbers_that_json_has_not_are_null(tmp_path: Path) -> None:
    measures = {"cosine": math.nan, "errors": [math.inf, (-math.inf, 0.5)], "name": "NaN"}
    path = tmp_path / "numerics.json"
    write_json(path, measures)

    def refused(text: str) -> float:
        raise AssertionError(text)

    expected = {"cosine": None, "errors": [None, [None, 0.5]], "name": "NaN"}
    assert json.loads(path.read_text(), parse_constant=refused) == expected
